"""The overlay: which cells are read exactly, at every window, sink count and length."""

from __future__ import annotations

import numpy as np
import pytest

import kvcore
from kvcore.backend import Backend
from kvcore.errors import FormatError
from tests.state.world import attended, cells, cut, fed, make_spec, misses, queries, same

WINDOWS, SINKS, LENGTHS = (
    (0, 1, 7, 32, 100, 128, 1024),
    (0, 1, 8, 200),
    (0, 1, 5, 8, 100, 130, 1500),
)
SMALL = {"n_kv_heads": 1, "head_dim": 64}


def _members(window: int, sinks: int, n: int) -> list[int]:
    return sorted({*range(min(sinks, n)), *range(max(0, n - window), n)})


def _grow(cache: kvcore.KVCache, chunk: tuple[np.ndarray, np.ndarray], to: int, step: int) -> None:
    while len(cache) < to:
        n = len(cache)
        cache.append(*cut(chunk, n, min(n + step, to)))


@pytest.mark.parametrize("step", [1, 3], ids=["singly", "in threes"])
@pytest.mark.parametrize("sinks", SINKS)
@pytest.mark.parametrize("window", WINDOWS)
def test_kb20_every_window_sink_and_length(
    backend: Backend, window: int, sinks: int, step: int
) -> None:
    """Members read the float16 input bit for bit, others the bulk bit for bit.

    int8, as it is not rotated.
    """
    spec = make_spec("int8", window=window, sinks=sinks, page_size=32, **SMALL)
    chunk = cells(1, 1500, spec)
    cache = backend.cache(spec, 1536)
    bare = fed(backend, make_spec("int8", page_size=32, **SMALL), chunk, capacity=1536)
    halves = [x.astype(np.float16).astype(np.float32) for x in chunk]
    in_bulk = bare.read()
    for n in LENGTHS:
        _grow(cache, chunk, min(n, 130), step)
        _grow(cache, chunk, n, 700 * step)
        members = _members(window, sinks, n)
        others = sorted(set(range(n)) - set(members))
        read = cache.read()
        for got, exact, quantized in zip(read, halves, in_bulk, strict=True):
            np.testing.assert_array_equal(got[members], exact[:n][members])
            np.testing.assert_array_equal(got[others], quantized[:n][others])
        if not n:
            continue
        q = queries(n, 1, heads=1)
        out = attended(cache, q)
        assert not misses(cache, q[0], *(r.astype(float) for r in read), out[0])


@pytest.mark.parametrize("bad", [-1, 1.5, "8", True])
@pytest.mark.parametrize("field", ["window", "sinks"])
def test_kb20_impossible_sizes_are_refused(field: str, bad: object) -> None:
    with pytest.raises(FormatError, match=field):
        make_spec("q4_0", **{field: bad})


@pytest.mark.parametrize("name", ["q4_0", "q2k", "k4v2c"])
def test_kb20_window_1024_reads_every_live_cell_exactly(backend: Backend, name: str) -> None:
    """The published collapse at 1024: prefill, decode, a rejected window, none loses a cell."""
    spec = make_spec(name, window=1024, sinks=8, page_size=32, **SMALL)
    chunk = cells(1, 2700, spec)
    exact = _halves(backend, spec, chunk)
    for first in (1000, 1024, 1032, 1040, 1056, 2048, 2100):
        cache = backend.cache(spec, 2720)
        cache.append(*cut(chunk, 0, first))
        _check_exact(cache, exact, 1024, 8)
        for _ in range(3):
            cache.append(*cut(chunk, len(cache), len(cache) + 1))
            _check_exact(cache, exact, 1024, 8)
        n = len(cache)
        cache.append(*cells(7, 16, spec, size=50.0), draft=True)
        assert cache.truncate(n) == 0
        _check_exact(cache, exact, 1024, 8)
        cache.append(*cut(chunk, n, n + 500))
        _check_exact(cache, exact, 1024, 8)


def _halves(
    be: Backend, spec: kvcore.CacheSpec, chunk: tuple[np.ndarray, np.ndarray]
) -> list[np.ndarray]:
    """Return what float16 in the stored basis gives back in the model's, as the library rotates."""
    from kvcore.numerics import to_f16
    from kvcore.ops.rotate import rotate

    out = []
    for x, turns in zip(chunk, (spec.format.rotate_k, spec.format.rotate_v), strict=True):
        half = to_f16(rotate(x) if turns else x).astype(np.float32)
        out.append(rotate(half) if turns else half)
    return out


def _check_exact(cache: kvcore.KVCache, exact: list[np.ndarray], window: int, sinks: int) -> None:
    members = _members(window, sinks, len(cache))
    for got, want in zip(cache.read(members), exact, strict=True):
        np.testing.assert_array_equal(got, want[members])
    q = queries(len(cache), 1, heads=1)
    rows = [w[members].astype(float) for w in exact]
    out = attended(cache, q, ids=np.array(members, np.int32))
    assert not misses(cache, q[0], *rows, out[0])


@pytest.mark.parametrize("name", ["int8", "q4_0", "q2k"])
def test_kb19_chunk_longer_than_the_ring(backend: Backend, name: str) -> None:
    """One call of 400 cells into a ring of 24 to 48 slots: the cells that single calls leave."""
    spec = make_spec(name, window=8, sinks=2)
    chunk = cells(1, 400)
    whole, single = fed(backend, spec, chunk), backend.cache(spec, 512)
    _grow(single, chunk, 400, 1)
    assert same(whole, single) == []
    exact = _halves(backend, spec, chunk)
    members = [0, 1, *range(392, 400)]
    for got, want in zip(whole.read(members), exact, strict=True):
        np.testing.assert_array_equal(got, want[members])


def test_kb19_queries_of_a_long_chunk_see_no_later_cell(backend: Backend) -> None:
    """attend(q, k, v) after the append: query t equals attention over the first cells only."""
    spec = make_spec("q4_0", window=8, sinks=2)
    past, chunk = cells(1, 30), cells(2, 60)
    cache = fed(backend, spec, past, chunk)
    before = cache.read(range(30))  # the ring has moved on: the bulk's values, but for the sinks
    q = queries(3, 60)
    out = attended(cache, q, k=chunk[0], v=chunk[1])
    for t in (0, 7, 8, 25, 59):
        rows = [
            np.concatenate([old, new[: t + 1]]).astype(float)
            for old, new in zip(before, chunk, strict=True)
        ]
        assert not misses(cache, q[t], *rows, out[t])


@pytest.mark.parametrize("name", ["q4_0", "q2k"])
def test_each_query_of_a_verify_window_has_its_own_members(backend: Backend, name: str) -> None:
    """Query t of 17 reads by its own length: as the last query of a cache of that length would."""
    spec = make_spec(name, window=8, sinks=2)
    chunk = cells(1, 90)
    cache = fed(backend, spec, cut(chunk, 0, 73))
    cache.append(*cut(chunk, 73, 90), draft=True)
    q = queries(5, 17)
    out = attended(cache, q)
    for t in range(17):
        n = 74 + t
        alone = fed(backend, spec, cut(chunk, 0, 73))
        alone.append(*cut(chunk, 73, n), draft=True)
        rows = (r.astype(float) for r in alone.read())
        assert not misses(cache, q[t], *rows, out[t])
