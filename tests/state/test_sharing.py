"""Forks and batches: nobody's cells reach another's bytes."""

from __future__ import annotations

import numpy as np
import pytest

import kvcore
from kvcore.backend import Backend
from kvcore.errors import OutOfPages, ShapeError
from tests.state.world import (
    DIM,
    FORMATS,
    HEADS,
    attended,
    cells,
    contents,
    cut,
    fed,
    make_spec,
    queries,
    same,
)


def _plus(n: int, value: float) -> tuple[np.ndarray, np.ndarray]:
    x = np.full((n, HEADS, DIM), value, np.float32)
    return x, x.copy()


@pytest.mark.parametrize("overlay", [{}, {"window": 8, "sinks": 2}], ids=["bare", "overlay"])
@pytest.mark.parametrize("how", ["fork", "snapshot"])
@pytest.mark.parametrize("name", FORMATS)
def test_kb07_two_continuations_of_a_prefix_that_ends_mid_page_and_mid_group(
    backend: Backend, name: str, how: str, overlay: dict[str, int]
) -> None:
    spec = make_spec(name, **overlay)
    prefix = cells(1, 37)
    one = fed(backend, spec, prefix)
    before = contents(one)
    two = one.fork() if how == "fork" else backend.load(one.snapshot())
    one.append(*_plus(10, 1.0))
    two.append(*_plus(10, -1.0))
    assert same(one, fed(backend, spec, prefix, _plus(10, 1.0))) == []
    assert same(two, fed(backend, spec, prefix, _plus(10, -1.0))) == []
    one.truncate(37)
    two.truncate(37)
    if not overlay:
        return
    assert contents(one)["marks"] == contents(two)["marks"]
    assert len(before) == len(contents(one))


def test_kb07_full_units_are_shared_and_only_the_written_one_is_copied(backend: Backend) -> None:
    spec = make_spec("f16")
    cache = fed(backend, spec, cells(1, 37))
    fork = cache.fork()
    fork.append(*_plus(1, 1.0))
    assert (cache.table[:9] == fork.table[:9]).all()
    assert cache.table[9] != fork.table[9]
    q = queries(1, 1)
    np.testing.assert_array_equal(attended(cache, q), attended(fed(backend, spec, cells(1, 37)), q))


@pytest.mark.parametrize("name", ["f16", "q4_0", "q2k", "q2"])
def test_fork_then_truncate_below_the_shared_part_and_append(backend: Backend, name: str) -> None:
    spec = make_spec(name, window=8, sinks=2)
    prefix = cells(1, 70)
    one = fed(backend, spec, prefix)
    two = one.fork()
    three = two.fork()
    untouched = contents(one)
    two.truncate(20)
    two.append(*_plus(60, 2.0))
    assert contents(one) == untouched == contents(three)
    three.truncate(65)
    three.append(*_plus(9, -3.0))
    assert contents(one) == untouched
    assert same(three, fed(backend, spec, cut(prefix, 0, 65), _plus(9, -3.0))) == []


def test_growth_while_forks_exist(backend: Backend) -> None:
    """Each fork takes pages of its own: the pool is replaced by a larger one under all of them."""
    spec = make_spec("q2k", window=8, sinks=2)
    prefix = cells(1, 70)
    family = [fed(backend, spec, prefix, capacity=96)]
    for i in range(5):
        family.append(family[i].fork())
        family[i + 1].append(*_plus(i + 1, float(i)))
    for i, member in enumerate(family):
        extra = [_plus(j + 1, float(j)) for j in range(i)]
        assert same(member, fed(backend, spec, prefix, *extra)) == []


def test_freed_units_are_used_again_and_a_double_free_is_refused(backend: Backend) -> None:
    spec = make_spec("f16")
    cache = fed(backend, spec, cells(1, 37), capacity=64)
    pages = cache.pool.n_pages
    for _ in range(20):
        fork = cache.fork()
        fork.append(*_plus(5, 1.0))
        fork.free()
    assert cache.pool.n_pages <= 2 * pages
    for _ in range(20):
        fork = cache.fork()
        fork.append(*_plus(5, 1.0))
        del fork
    assert cache.pool.n_pages <= 2 * pages
    fork = cache.fork()
    units = fork._units
    fork.free()
    fork.free()
    with pytest.raises(kvcore.RangeError, match="full"):
        fork.append(*_plus(1, 1.0))
    unused = np.array([int(cache._pages.users.argmin())])
    for twice in (unused, np.concatenate([units[:1], units[:1]])):
        with pytest.raises(ShapeError, match="free"):
            cache._pages.drop(twice)


@pytest.mark.parametrize("action", ["fork", "snapshot"])
def test_open_drafts_are_refused(backend: Backend, action: str) -> None:
    cache = fed(backend, make_spec("q2k"), cells(1, 37))
    cache.append(*cells(2, 3), draft=True)
    with pytest.raises(ShapeError, match="3 drafts"):
        getattr(cache, action)()


@pytest.mark.parametrize("name", ["f16", "q2k"])
def test_defragmentation_moves_pages_and_changes_nothing(backend: Backend, name: str) -> None:
    spec = make_spec(name, window=8, sinks=2)
    first = fed(backend, spec, cells(1, 37), capacity=96)
    forks = [first.fork() for _ in range(4)]
    for i, fork in enumerate(forks):
        fork.append(*_plus(40 + i, float(i)))
    forks[0].free()
    del forks[2]
    before = [contents(c) for c in (first, *forks[1:])]
    moved = first.defragment(shrink=True)
    assert moved > 0
    assert [contents(c) for c in (first, *forks[1:])] == before
    first.append(*_plus(3, 9.0))
    assert [contents(c) for c in forks[1:]] == before[1:]


# -- batches ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FORMATS)
def test_kb05_a_loud_neighbour_changes_no_byte(backend: Backend, name: str) -> None:
    spec = make_spec(name)
    quiet, loud = cells(1, 40), cells(2, 40, size=1000.0)
    alone = fed(backend, spec, quiet)
    batch = backend.sequences(spec, 64)
    a, b = batch.add(), batch.add()
    for i in range(0, 40, 20):
        rows = [
            np.concatenate([x[i : i + 20], y[i : i + 20]]) for x, y in zip(quiet, loud, strict=True)
        ]
        batch.append([a, b], *rows)
    assert same(batch[a], alone) == []
    assert same(batch[b], fed(backend, spec, loud)) == []


def test_kb05_padding_rows_change_no_byte(backend: Backend) -> None:
    """Five left-padding rows of 1e4 marked invalid, through the op."""
    spec = make_spec("q2k")
    k, v = cells(1, 20)
    noise = np.full((5, HEADS, DIM), 1e4, np.float32)
    pool = backend.pool(spec.layout, 16)
    state = backend.state(spec.state_layout, 1)
    table = np.arange(16, dtype=np.int32)
    positions = np.concatenate([np.full(5, -1), np.arange(20)]).astype(np.int32)
    rows = [backend.rotate(np.concatenate([noise, x])) for x in (k, v)]
    backend.append(pool, table, positions, *rows, state=state)
    alone = fed(backend, spec, (k, v), capacity=64)
    for name, plane in pool.planes.items():
        want = backend.to_host(alone.pool.planes[name])
        np.testing.assert_array_equal(backend.to_host(plane), want)
    for name in ("k", "v", "marks"):
        got = backend.to_host(getattr(state, name))
        np.testing.assert_array_equal(got, backend.to_host(getattr(alone.state, name)))


def test_kb14_zero_length_sequences_in_a_batch(backend: Backend) -> None:
    spec = make_spec("q4_0", window=8, sinks=2)
    batch = backend.sequences(spec, 64)
    seqs = [batch.add() for _ in range(4)]
    k, v = cells(1, 6)
    batch.append(seqs, k, v, counts=[0, 5, 0, 1])
    q = queries(2, 4)
    out, lse = (backend.to_host(x) for x in batch.attend(seqs, q, return_lse=True))
    assert (out[[0, 2]] == 0).all()
    assert (lse[[0, 2]] == -np.inf).all()
    for row, part in ((1, (k[:5], v[:5])), (3, (k[5:], v[5:]))):
        one = attended(fed(backend, spec, part), q[row : row + 1])
        np.testing.assert_array_equal(out[row : row + 1], one)
    batch.append(seqs, k[:0], v[:0])
    assert batch.lengths(seqs).tolist() == [0, 5, 0, 1]


@pytest.mark.parametrize("name", ["f16", "q2k"])
def test_mixed_prefill_and_decode_equal_single_caches(backend: Backend, name: str) -> None:
    spec = make_spec(name, window=8, sinks=2, page_size=32)
    rng = np.random.default_rng(2)
    batch = backend.sequences(spec, 64)
    seqs = [batch.add() for _ in range(10)]
    singles = [backend.cache(spec, 512) for _ in seqs]
    for turn in range(6):
        counts = [int(rng.choice([0, 1, 1, 5, 40])) for _ in seqs]
        k, v = cells(turn, sum(counts))
        batch.append(seqs, k, v, counts)
        q = queries(turn, sum(counts))
        out = backend.to_host(batch.attend(seqs, q, counts, k=k, v=v))
        at = 0
        for cache, n in zip(singles, counts, strict=True):
            part = slice(at, at + n)
            if n:
                cache.append(k[part], v[part])
                one = attended(cache, q[part], k=k[part], v=v[part])
                np.testing.assert_array_equal(out[part], one)
            at += n
    assert all(same(batch[s], c) == [] for s, c in zip(seqs, singles, strict=True))


def test_drafts_commit_and_truncate_per_sequence(backend: Backend) -> None:
    spec = make_spec("q2k", window=8, sinks=2)
    batch = backend.sequences(spec, 64)
    a, b = batch.add(), batch.add()
    k, v = cells(1, 60)
    batch.append([a, b], k, v, counts=[33, 27])
    more = cells(2, 8)
    batch.append([a, b], *more, counts=[4, 4], draft=[True, False])
    assert [batch[a].committed, batch[b].committed] == [33, 31]
    batch.commit([a], [35])
    batch[a].truncate(35)
    assert batch.lengths([a, b]).tolist() == [35, 31]
    assert same(batch[b], fed(backend, spec, (k[33:], v[33:]), cut(more, 4, 8))) == []
    one = fed(backend, spec, (k[:33], v[:33]))
    one.append(*cut(more, 0, 4), draft=True)
    one.commit(35)
    one.truncate(35)
    assert same(batch[a], one) == []


def test_out_of_pages_changes_nothing(backend: Backend) -> None:
    spec = make_spec("q2k", window=8, sinks=2)
    batch = backend.sequences(spec, 5 * 8)
    a, b = batch.add(), batch.add()
    batch.append([a, b], *cells(1, 100), counts=[60, 40])
    before = contents(batch[a]), contents(batch[b]), batch.free_pages
    with pytest.raises(OutOfPages, match="free"):
        batch.append([a, b], *cells(2, 60), counts=[30, 30])
    with pytest.raises(OutOfPages):
        batch[b].append(*cells(2, 60))
    assert (contents(batch[a]), contents(batch[b]), batch.free_pages) == before
    batch.grow(8)
    batch.append([a, b], *cells(2, 60), counts=[30, 30])
    assert batch.lengths([a, b]).tolist() == [90, 70]


def test_truncate_gives_pages_back_to_the_pool(backend: Backend) -> None:
    spec = make_spec("f16")
    batch = backend.sequences(spec, 16)
    a, b = batch.add(), batch.add()
    batch.append([a], *cells(1, 60))
    c = batch.fork(a)
    assert batch.free_pages == 1
    batch[a].truncate(10)
    assert batch.free_pages == 1  # the fork still holds them
    batch[c].truncate(0)
    assert batch.free_pages == 16 - 3
    batch.append([b], *cells(2, 52))
    assert same(batch[b], fed(backend, spec, cells(2, 52))) == []
    assert same(batch[a], fed(backend, spec, cut(cells(1, 60), 0, 10))) == []


def test_two_forks_of_one_unit_need_one_copy(backend: Backend) -> None:
    """The last owner keeps the unit: a pool with one free unit serves both."""
    spec = make_spec("f16")
    batch = backend.sequences(spec, 2)
    a = batch.add()
    batch.append([a], *cells(1, 2))
    b = batch.fork(a)
    batch.append([a, b], *cells(2, 2))
    assert batch.free_pages == 0
    for seq, row in ((a, 0), (b, 1)):
        alone = fed(backend, spec, cells(1, 2), cut(cells(2, 2), row, row + 1))
        assert same(batch[seq], alone) == []


@pytest.mark.parametrize(
    ("seqs", "counts"), [([0, 0], [3, 3]), ([0, 9], [3, 3]), ([0, 1], [3, 2]), ([0, 1], [-1, 7])]
)
def test_wrong_batches_are_refused_before_writing(
    backend: Backend, seqs: list[int], counts: list[int]
) -> None:
    batch = backend.sequences(make_spec("f16"), 16)
    batch.add()
    batch.add()
    with pytest.raises(ShapeError):
        batch.append(seqs, *cells(1, 6), counts=counts)
    assert batch.lengths([0, 1]).tolist() == [0, 0]
    assert batch.free_pages == 16


def test_a_freed_sequence_is_refused(backend: Backend) -> None:
    """Its row may be another's by now: nothing through the old object may touch it."""
    spec = make_spec("q4_0")
    batch = backend.sequences(spec, 32)
    seq = batch.add()
    old = batch[seq]
    batch.append([seq], *cells(1, 9))
    empty = backend.cache(spec, 32).snapshot()
    batch.free(seq)
    other = batch.add()
    batch.append([other], *cells(2, 7))
    before = contents(batch[other])
    with pytest.raises(kvcore.RangeError):
        batch.append([seq], *cells(1, 1))
    with pytest.raises(kvcore.RangeError):
        old.append(*cells(1, 1))
    with pytest.raises(kvcore.RangeError, match="freed"):
        old.free()
    with pytest.raises(ValueError, match="cells"):
        old.load(empty)
    with pytest.raises(kvcore.RangeError, match="freed"):
        old.fork()
    assert contents(batch[other]) == before


def test_wrong_commits_and_flags_of_a_batch(backend: Backend) -> None:
    batch = backend.sequences(make_spec("f16"), 32)
    seqs = [batch.add(), batch.add()]
    with pytest.raises(ShapeError, match="draft"):
        batch.append(seqs, *cells(1, 2), draft=[True])
    batch.append(seqs, *cells(1, 2), draft=True)
    for lengths in ([1], [2, 1], [-1, 1], [0.5, 1]):
        with pytest.raises(ShapeError, match="commit"):
            batch.commit(seqs, lengths)
    assert [batch[s].committed for s in seqs] == [0, 0]
    batch.commit(seqs, [0, 1])
    assert [batch[s].committed for s in seqs] == [0, 1]
