"""truncate: every coupled store goes back together, and what cannot be brought back is told."""

from __future__ import annotations

import numpy as np
import pytest

import kvcore
from kvcore.backend import Backend
from kvcore.errors import RangeError
from tests.state.model import Model
from tests.state.world import (
    FORMATS,
    bulk,
    cells,
    contents,
    cut,
    fed,
    joined,
    make_spec,
    queries,
    same,
)


@pytest.mark.parametrize("overlay", [{}, {"window": 8, "sinks": 2}], ids=["bare", "overlay"])
@pytest.mark.parametrize("name", list(kvcore.formats()))
def test_kb06_rollback_across_a_group_then_other_cells(
    backend: Backend, name: str, overlay: dict[str, int]
) -> None:
    spec = make_spec(name, **overlay)
    first, other = cells(1, 70), cells(2, 20, size=3.0)
    cache = fed(backend, spec, first)
    before = bulk(cache, 0, 32)
    lost = cache.truncate(44)
    cache.append(*other)
    np.testing.assert_array_equal(bulk(cache, 0, 32), before)

    accepted = joined(cut(first, 0, 44), other)
    reference = fed(backend, spec, cut(first, 0, 44), other)
    if not spec.format.per_channel:
        got, want = contents(cache), contents(reference)
        for plane in cache.pool.planes:
            assert got[plane] == want[plane]
    model = Model(spec)
    model.append(*first, draft=False)
    model.truncate(44)
    assert lost == model.lost()
    model.append(*other, draft=False)
    for store, rows in zip(("k", "v"), cache.read(), strict=True):
        stored = model.to_stored(store, rows)
        wrong = [c for c in range(64) if model.misread(store, c, stored[c])]
        assert wrong == [], f"{store} of {name}"
    assert len(accepted[0]) == len(cache)


@pytest.mark.parametrize("name", FORMATS)
def test_kb06_rollback_within_the_ring_is_pure(backend: Backend, name: str) -> None:
    """All cells of the cut group are still exact: the bytes are those of a fresh cache."""
    spec = make_spec(name, window=40, sinks=2)
    first, other = cells(1, 70), cells(2, 20)
    cache = fed(backend, spec, first)
    assert cache.truncate(60) == 0
    cache.append(*other)
    assert same(cache, fed(backend, spec, cut(first, 0, 60), other)) == []


def test_kb06_rollback_to_nothing_to_itself_and_beyond(backend: Backend) -> None:
    spec = make_spec("q2k", window=8, sinks=2)
    cache = fed(backend, spec, cells(1, 70))
    before = contents(cache)
    assert cache.truncate(70) == 0
    assert contents(cache) == before
    for n in (71, -1, 3.0, True, None):
        with pytest.raises(RangeError, match="truncate"):
            cache.truncate(n)
    assert contents(cache) == before
    assert cache.truncate(0) == 0
    assert len(cache) == cache.committed == 0
    cache.append(*cells(2, 50))
    assert same(cache, fed(backend, spec, cells(2, 50))) == []


@pytest.mark.parametrize("drafts", [6, 15, 16, 17])
@pytest.mark.parametrize("name", ["int8", "q4_0", "q2k"])
def test_kb21_rejected_window_leaves_the_overlay_whole(
    backend: Backend, name: str, drafts: int
) -> None:
    spec = make_spec(name, window=8, sinks=2)
    first = cells(1, 30)
    cache, plain = fed(backend, spec, first), fed(backend, spec, first)
    cache.append(*cells(9, drafts, size=100.0), draft=True)
    lost = cache.truncate(30)
    members = [0, 1, *range(22, 30)]
    if lost == 0:
        for got, want in zip(cache.read(members), plain.read(members), strict=True):
            np.testing.assert_array_equal(got, want)
    assert lost == max(0, drafts - 16) * int(not spec.format.per_channel)


def test_kb21_windows_beyond_the_limit_are_refused_before_writing(backend: Backend) -> None:
    spec = make_spec("q4_0", window=8, sinks=2)
    cache = fed(backend, spec, cells(1, 30))
    before = contents(cache)
    with pytest.raises(RangeError, match="17"):
        cache.append(*cells(9, 18), draft=True)
    cache.append(*cells(9, 10), draft=True)
    with pytest.raises(RangeError, match="17"):
        cache.append(*cells(9, 8), draft=True)
    with pytest.raises(kvcore.ShapeError, match="draft"):
        cache.append(*cells(9, 1))
    cache.truncate(30)
    after = contents(cache)
    assert {k: after[k] for k in cache.pool.planes} == {k: before[k] for k in cache.pool.planes}


def test_kb21_deeper_rewind_reports_what_it_reads_from_the_bulk(backend: Backend) -> None:
    """A rewind of 40 cells: 16 are slack, so 8 of the window's cells are gone; none is wrong."""
    spec = make_spec("int8", window=8, sinks=2)
    chunk = cells(1, 100)
    cache, model = fed(backend, spec, chunk), Model(spec)
    model.append(*chunk, draft=False)
    lost = cache.truncate(60)
    model.truncate(60)
    assert lost == model.lost() == 8
    for store, rows in zip(("k", "v"), cache.read(), strict=True):
        stored = model.to_stored(store, rows)
        assert not any(model.misread(store, c, stored[c]) for c in range(60))
    bare = fed(backend, make_spec("int8"), cut(chunk, 0, 60))
    for got, want in zip(cache.read(range(52, 60)), bare.read(range(52, 60)), strict=True):
        np.testing.assert_array_equal(got, want)


def test_kb21_a_float_bulk_refills_what_the_ring_lost(backend: Backend) -> None:
    """A deep rewind over a float16 bulk loses nothing, and says so."""
    spec = make_spec("f16", window=8, sinks=2)
    chunk = cells(1, 100)
    cache = fed(backend, spec, chunk)
    assert cache.truncate(40) == 0
    for got, want in zip(cache.read(), chunk, strict=True):
        np.testing.assert_array_equal(got, want[:40].astype(np.float16).astype(np.float32))


def test_kb14_rollback_of_an_empty_cache(backend: Backend) -> None:
    cache = backend.cache(make_spec("q2k", window=8, sinks=2), 64)
    assert cache.truncate(0) == 0
    with pytest.raises(RangeError):
        cache.truncate(1)
    cache.commit(0)
    out, lse = cache.attend(queries(1, 2), return_lse=True)
    assert (backend.to_host(out) == 0).all()
    assert (backend.to_host(lse) == -np.inf).all()
    k, v = cache.read([])
    assert k.shape == v.shape == (0, 2, 64)
    cache.append(*cells(1, 0))
    assert len(cache) == 0


@pytest.mark.parametrize("n", [0, 40, 63, 64, 100])
def test_unfixing_an_automatic_centre(backend: Backend, n: int) -> None:
    """While all cells are exact a rollback below F forgets the centre; else it stays."""
    spec = make_spec("q4_0", window=128, sinks=2, k_center="auto", center_cells=64)
    first, other = cells(1, 120), cells(2, 80)
    cache = fed(backend, spec, first)
    assert cache.truncate(n) == 0
    cache.append(*other)
    assert same(cache, fed(backend, spec, cut(first, 0, n), other)) == []
