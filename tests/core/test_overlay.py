"""Sinks and window: who is a member, who owns which slot, and what restore brings back."""

from __future__ import annotations

import numpy as np
import pytest
from caches import D, H, assert_same, fill, make, spec_of, tokens

import kvcore
from kvcore import marks as rules
from kvcore.addressing import exact_slot, read_bulk
from kvcore.errors import FormatError, RangeError, ShapeError
from kvcore.layout import LENGTH, StateLayout
from kvcore.numerics import to_f16
from kvcore.reference import Reference
from kvcore.spec import MAX_DRAFT, SLACK

BE = Reference()
WINDOWS = (0, 1, 7, 32, 100, 128, 1024)
SINKS = (0, 1, 8, 200)
LENGTHS = (0, 1, 5, 8, 100, 130, 1500)


def state_layout(name: str, window: int, sinks: int) -> StateLayout:
    layout = spec_of(name, recipe=None).layout
    return StateLayout(layout=layout, sinks=sinks, window=window)


@pytest.mark.parametrize("name", ["q4_0", "q2k", "q2"])
@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("sinks", SINKS)
def test_kb_20_members_equal_the_formula_and_own_distinct_slots(name, window, sinks):
    sl = state_layout(name, window, sinks)
    for step in (1, 3, 1500):
        row = rules.fresh(sl)
        seen = 0
        for n in LENGTHS:
            while seen < n:
                more = min(step, n - seen)
                row = rules.append(row, sl, more, seen + more)
                seen += more
            for store in ("k", "v"):
                open_from = row[rules.FRONTIER[store]]
                wanted = [
                    c for c in range(n) if c < sinks or c >= n - window or c >= open_from
                ] if sl.ring(store) else []  # fmt: skip
                got = [c for c in range(n) if rules.reads_exact(row, sl, store, c, n)]
                assert got == wanted
                ring = sl.ring(store)
                slots = [c if c < sinks else sinks + c % ring for c in got]
                assert len(set(slots)) == len(slots)
                assert all(0 <= s < sl.slots(store) for s in slots)


@pytest.mark.parametrize("name", ["q4_0", "q2k", "int8"])
@pytest.mark.parametrize(("window", "sinks", "n"), [(8, 2, 130), (1024, 8, 1500), (1, 0, 40)])
@pytest.mark.parametrize("calls", [1, 3, 100, 5000])
def test_kb_20_members_read_the_float16_input_and_others_the_bulk(name, window, sinks, n, calls):
    step = calls if n < 1000 else max(calls, 7)  # single steps over 1500 cells add only time
    spec = spec_of(name, window=window, sinks=sinks, k_center="none")
    cache = make(spec, n)
    rng = np.random.default_rng(0)
    x = rng.normal(size=(n, H, D)).astype(np.float32)
    start = 0
    while start < n:
        more = min(step, n - start)
        cache.append(x[start : start + more], x[start : start + more])
        start += more
    pool, state, row = cache.pool, cache.state, cache.state.marks[0].tolist()
    stored = BE.rotate(x) if spec.format.rotate_k else x
    for store in ("k", "v"):
        exact = [c for c in range(n) if rules.reads_exact(row, state.layout, store, c, n)]
        slots = exact_slot(state, store, np.array(exact, np.int64))
        np.testing.assert_array_equal(getattr(state, store)[0, slots], to_f16(stored[exact]))
    bulk = BE.pool(spec.layout, pool.n_pages)
    plain = BE.state(StateLayout(layout=spec.layout, sinks=sinks), 1)
    BE.append(bulk, cache.table, np.arange(n), stored, stored, state=plain)
    others = np.array([c for c in range(n) if c not in set(exact)], np.int64)
    np.testing.assert_array_equal(
        read_bulk(pool, "v", cache.table, others), read_bulk(bulk, "v", cache.table, others)
    )


def test_kb_19_a_chunk_longer_than_the_ring_leaves_what_single_appends_leave():
    spec = spec_of("q4_0", window=8, sinks=2, k_center="none")
    k, v = tokens(60)
    one, many = fill(make(spec), k, v, [60]), fill(make(spec), k, v, [1] * 60)
    assert_same(one, many)
    np.testing.assert_array_equal(one.state.k, many.state.k)
    np.testing.assert_array_equal(one.state.v, many.state.v)


@pytest.mark.parametrize("window", [1, 8, 128])
def test_a_verify_window_of_17_loses_no_cell_that_its_first_query_needs(window):
    spec = spec_of("q4_0", window=window, sinks=2, k_center="none")
    cache = fill(make(spec, 400), *tokens(200), [200])
    cache.append(*tokens(MAX_DRAFT, 1), draft=True)
    row, sl = cache.state.marks[0].tolist(), cache.state.layout
    first = 200 + 1
    for store in ("k", "v"):
        assert all(
            rules.reads_exact(row, sl, store, c, first) for c in range(first - window, first)
        )
    assert sl.ring("k") == window + SLACK


@pytest.mark.parametrize("name", ["f16", "int8", "q4_0", "q2k", "k4v2c"])
def test_restore_fills_live_slots_from_the_bulk_and_leaves_the_tail(name):
    spec = spec_of(name, window=20, sinks=3, k_center="none")
    cache = fill(make(spec), *tokens(150), [150])
    state, pool = cache.state, cache.pool
    before = {s: getattr(state, s).copy() for s in ("k", "v")}
    row = state.marks[0].tolist()
    BE.restore(state, pool, cache.table, 150)
    for store in ("k", "v"):
        frontier = row[rules.FRONTIER[store]]
        live = [*range(3), *range(130, 150)]
        bulk = np.array([c for c in live if c < frontier])
        tail = np.array([c for c in live if c >= frontier], np.int64)
        slots = exact_slot(state, store, bulk)
        expected = to_f16(read_bulk(pool, store, cache.table, bulk))
        np.testing.assert_array_equal(getattr(state, store)[0, slots], expected)
        kept = exact_slot(state, store, tail)
        np.testing.assert_array_equal(getattr(state, store)[0, kept], before[store][0, kept])
    again = {s: getattr(state, s).copy() for s in ("k", "v")}
    BE.restore(state, pool, cache.table, 150)
    for store in ("k", "v"):
        np.testing.assert_array_equal(getattr(state, store), again[store])


def test_restore_adds_the_centre():
    spec = spec_of("q4_0", window=20, sinks=3)
    cache = fill(make(spec), *tokens(200), [200])
    BE.restore(cache.state, cache.pool, cache.table, [200])
    cell = np.array([195])
    got = cache.state.k[0, exact_slot(cache.state, "k", cell)]
    centre = cache.state.centre[0].astype(np.float32)
    expected = to_f16(read_bulk(cache.pool, "k", cache.table, cell) + centre)
    np.testing.assert_array_equal(got, expected)


def test_restore_refuses_what_it_cannot_do_and_writes_nothing():
    spec = spec_of("q4_0", window=20, sinks=3, k_center="none")
    cache = fill(make(spec), *tokens(150), [150])
    other = fill(make(spec_of("int8")), *tokens(10), [10])
    before = cache.state.k.copy()
    for n in (151, -1):
        with pytest.raises(RangeError, match=r"\[restore\] n_cells is out of range"):
            BE.restore(cache.state, cache.pool, cache.table, n)
    with pytest.raises(ShapeError, match=r"\[restore\] the overlay was made for another layout"):
        BE.restore(cache.state, other.pool, cache.table, 10)
    with pytest.raises(ShapeError, match=r"\[restore\] n_cells has the wrong shape"):
        BE.restore(cache.state, cache.pool, cache.table, [1, 2])
    gone = cache.table.copy()
    gone[140 // 4] = -1
    with pytest.raises(RangeError, match=r"\[restore\] a live cell of sequence 0 is not resident"):
        BE.restore(cache.state, cache.pool, gone, 150)
    np.testing.assert_array_equal(cache.state.k, before)
    assert cache.state.marks[0, LENGTH] == 150


@pytest.mark.parametrize(("window", "sinks"), [(-1, 0), (0, -1), (1.5, 0), (8, "2"), (True, 0)])
def test_kb_20_sizes_that_cannot_be_are_refused(window, sinks):
    with pytest.raises(FormatError, match=r"\[spec\] (window|sinks) is not usable"):
        kvcore.CacheSpec(format="q4_0", n_kv_heads=1, head_dim=64, window=window, sinks=sinks)
