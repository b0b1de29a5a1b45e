"""Streaming: a part on the device, the whole on the host, and no difference to be seen."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import kvcore
from kvcore.backend import Backend
from kvcore.errors import RangeError, ShapeError, UnsupportedError
from kvcore.operands import HOST
from kvcore.operands.arrays import HostArrays
from kvcore.reference import Reference
from kvcore.streaming import StreamedCache, stage, unstage
from tests.state.world import (
    FORMATS,
    attended,
    cells,
    contents,
    cut,
    fed,
    make_spec,
    queries,
    same,
)

UNIT_FORMATS = ("f16", "q4_0", "q2k")


def _pair(
    be: Backend, spec: kvcore.CacheSpec, resident: int, n: int = 300, **more: object
) -> tuple[kvcore.KVCache, StreamedCache]:
    streamed = be.stream(spec, 512, resident, **more)
    streamed.append(*cells(1, n))
    return fed(be, spec, cells(1, n)), streamed


@pytest.mark.parametrize("name", FORMATS)
def test_streamed_bytes_and_attention_equal_resident_ones(backend: Backend, name: str) -> None:
    spec = make_spec(name, window=8, sinks=2)
    resident, streamed = _pair(backend, spec, 96)
    assert same(streamed, resident) == []
    rng = np.random.default_rng(1)
    unit = spec.layout.unit_cells
    for step in range(8):
        units = np.sort(rng.choice(len(resident) // unit, 96 // unit - 1, replace=False))
        ids = (units[:, None] * unit + np.arange(unit)).reshape(-1).astype(np.int32)
        q = queries(step, 1)
        np.testing.assert_array_equal(
            attended(streamed, q, ids=ids), attended(resident, q, ids=ids)
        )
        np.testing.assert_array_equal(
            attended(streamed, q, window=50), attended(resident, q, window=50)
        )
        for one in (resident, streamed):
            one.append(*cells(step + 10, 1))
    counters = streamed.counters
    assert 0 < counters.misses < counters.lookups
    assert counters.hits + counters.misses == counters.lookups
    assert counters.resident <= counters.slots == -(-96 // unit)
    assert same(streamed, resident) == []


def _equal(
    streamed: StreamedCache, resident: kvcore.KVCache, q: np.ndarray, **more: object
) -> None:
    got, want = (one.attend(q, return_lse=True, **more) for one in (streamed, resident))
    for x, y in zip(got, want, strict=True):
        np.testing.assert_array_equal(*(resident.backend.to_host(a) for a in (x, y)))


@pytest.mark.parametrize("name", FORMATS)
def test_attention_over_more_than_the_device_holds(backend: Backend, name: str) -> None:
    """Dense, windowed, capped, selected by one list and by one a query: the resident bits."""
    spec = make_spec(name, window=8, sinks=2)
    resident, streamed = _pair(backend, spec, 96)
    rng = np.random.default_rng(4)
    q, one = queries(1, 3), queries(2, 1)
    _equal(streamed, resident, q)
    _equal(streamed, resident, one, window=290, softcap=20.0, scale=0.2)
    spread = rng.permutation(300).astype(np.int32)[:270]
    _equal(streamed, resident, one, ids=np.sort(spread))
    _equal(streamed, resident, one, ids=spread)
    each = rng.integers(-1, 298, (3, 290)).astype(np.int32)
    _equal(streamed, resident, q, ids=each)
    _equal(streamed, resident, q, ids=each, window=250)
    own = cells(1, 300)
    _equal(streamed, resident, q, k=own[0][-3:], v=own[1][-3:])
    counters = streamed.counters
    in_place = backend.arrays is HOST
    assert counters.in_place == (7 if in_place else 0)
    assert (counters.turns == 0) == in_place
    assert same(streamed, resident) == []


@pytest.mark.parametrize("dims", [(256, 256), (64, 128), (128, 64)])
@pytest.mark.parametrize("page_size", [4, 32, 96])
def test_turns_leave_no_trace_at_any_unit_and_head_size(
    backend: Backend, dims: tuple[int, int], page_size: int
) -> None:
    """One resident unit: smaller than a tile, as large, or cut by one."""
    spec = kvcore.CacheSpec(
        format="int8", n_kv_heads=2, head_dim=dims[0], head_dim_v=dims[1],
        page_size=page_size, recipe=None,
    )  # fmt: skip
    rng = np.random.default_rng(5)
    chunk = [rng.standard_normal((700, 2, d)).astype(np.float32) for d in dims]
    resident, streamed = backend.cache(spec, 768), backend.stream(spec, 768, page_size)
    for cache in (resident, streamed):
        cache.append(*chunk)
    assert streamed.counters.slots == 1
    q = rng.standard_normal((2, 6, dims[0])).astype(np.float32)
    _equal(streamed, resident, q)
    _equal(streamed, resident, q, ids=rng.permutation(600).astype(np.int32)[:333])


@pytest.mark.parametrize("name", UNIT_FORMATS)
def test_rollback_drafts_forks_and_loads_while_streaming(backend: Backend, name: str) -> None:
    spec = make_spec(name, window=8, sinks=2)
    pair = _pair(backend, spec, 128)
    for one in pair:
        one.append(*cells(2, 9), draft=True)
        one.commit(304)
        one.truncate(304)
        one.append(*cells(3, 200))
    assert same(*pair) == []
    forks = [one.fork() for one in pair]
    for one in pair:
        one.truncate(250)
        one.append(*cells(4, 40))
    for one in forks:
        one.append(*cells(5, 3))
    q = queries(2, 1)
    for left, right in (pair, forks):
        assert same(left, right) == []
        np.testing.assert_array_equal(attended(left, q, window=60), attended(right, q, window=60))
    data = forks[0].snapshot()
    for one in pair:
        one.load(data)
    np.testing.assert_array_equal(attended(pair[0], q, window=60), attended(pair[1], q, window=60))
    pair[1].defragment()
    np.testing.assert_array_equal(attended(pair[0], q, window=60), attended(pair[1], q, window=60))
    for one in pair:
        one.shift(10, 50, np.full(4, 0.5))
    assert same(*pair) == []
    np.testing.assert_array_equal(attended(pair[0], q, window=60), attended(pair[1], q, window=60))


@pytest.mark.parametrize("name", UNIT_FORMATS)
def test_file_tier(backend: Backend, name: str, tmp_path: Path) -> None:
    path = tmp_path / "pages"
    spec = make_spec(name)
    resident, streamed = _pair(backend, spec, 96, path=str(path))
    assert path.stat().st_size >= streamed.host_nbytes
    assert same(streamed, resident) == []
    fork = streamed.fork()
    fork.append(*cells(7, 100))
    assert same(fork, fed(backend, spec, cells(1, 300), cells(7, 100))) == []
    with pytest.raises(FileExistsError):
        backend.stream(spec, 512, 96, path=str(next(iter(tmp_path.iterdir()))))
    del fork, streamed
    import gc

    gc.collect()
    assert list(tmp_path.iterdir()) == []


def test_a_device_backend_without_turns_says_so() -> None:
    """One that has memory of its own and does not say how to take cells in turns."""

    class Device(Reference):
        name = "device"
        arrays = HostArrays()  # like, but not, the host's

    streamed = Device().stream(make_spec("f16"), 512, 96)
    streamed.append(*cells(1, 300))
    q = queries(1, 1)
    with pytest.raises(UnsupportedError, match="more cells than are resident"):
        streamed.attend(q)
    near = np.arange(200, 290, dtype=np.int32)
    resident = fed(Reference(), make_spec("f16"), cells(1, 300))
    np.testing.assert_array_equal(streamed.attend(q, ids=near), resident.attend(q, ids=near))


def test_quarter_residency_at_64k_cells(backend: Backend) -> None:
    """65,536 cells of which 16,384 fit: selections of 2,048 cells, hits and misses counted."""
    n, quarter = 65_536, 16_384
    spec = kvcore.CacheSpec(format="q4_0", n_kv_heads=1, head_dim=32, page_size=32, recipe=None)
    rng = np.random.default_rng(1)
    streamed, resident = backend.stream(spec, n, quarter), backend.cache(spec, n)
    for _ in range(8):
        k, v = rng.standard_normal((2, n // 8, 1, 32)).astype(np.float32)
        streamed.append(k, v)
        resident.append(k, v)
    at, written = n // 2, streamed.counters
    for _ in range(12):
        at = int(np.clip(at + rng.integers(-400, 400), 4096, n - 4096))
        near = rng.choice(np.arange(at - 2048, at + 2048), 1792, replace=False)
        ids = np.sort(np.concatenate([near, rng.choice(2048, 255, replace=False), [n - 1]]))
        q = rng.standard_normal((1, 2, 32)).astype(np.float32)
        ids = ids.astype(np.int32)
        np.testing.assert_array_equal(
            attended(streamed, q, ids=ids), attended(resident, q, ids=ids)
        )
    counters = streamed.counters
    assert counters.slots * 32 == quarter
    assert counters.resident == counters.slots
    hits, misses = counters.hits - written.hits, counters.misses - written.misses
    assert hits > misses > 0
    assert streamed.nbytes < 0.3 * resident.nbytes
    _equal(streamed, resident, rng.standard_normal((1, 2, 32)).astype(np.float32))
    assert streamed.counters.turns == (0 if backend.arrays is HOST else 4)


@pytest.mark.parametrize("name", ["f16", "q2k"])
def test_kb19_ring_holds_the_last_cells_only(backend: Backend, name: str) -> None:
    """Forty cells into a ring of sixteen (q2k: 128 of 64), in one call and one by one."""
    spec = make_spec(name)
    unit = spec.layout.unit_cells
    size, n = (16, 40) if unit == 4 else (96, 224)
    chunk = cells(1, n)
    whole = backend.stream(spec, 512, size, ring=True)
    single = backend.stream(spec, 512, size, ring=True)
    whole.append(*chunk)
    for i in range(n):
        single.append(*cut(chunk, i, i + 1))
    assert same(whole, single) == []
    first = (n - size) // unit * unit
    live = np.arange(-(-first // unit) * unit, n, dtype=np.int32)
    q = queries(1, 1)
    resident = fed(backend, spec, chunk)
    for ring in (whole, single):
        np.testing.assert_array_equal(attended(ring, q, ids=live), attended(resident, q, ids=live))
        table = ring.resident_table.reshape(-1, spec.layout.unit_pages)
        assert (table[: -(-n // unit) - size // unit] == -1).all()
        with pytest.raises(RangeError, match="ring"):
            ring.attend(q)
        with pytest.raises(RangeError, match="ring"):
            ring.attend(q, ids=np.array([0, n - 1], np.int32))


@pytest.mark.parametrize("name", ["f16", "q2k"])
def test_kb21_rollback_after_the_ring_has_wrapped(backend: Backend, name: str) -> None:
    """What the rejected cells evicted comes back from the host, bit for bit."""
    spec = make_spec(name)
    size = 16 if name == "f16" else 96
    ring = backend.stream(spec, 512, size, ring=True)
    chunk = cells(1, 300)
    ring.append(*chunk)
    ring.truncate(200)
    q = queries(1, 1)
    resident = fed(backend, spec, chunk)
    resident.truncate(200)
    window = size - spec.layout.unit_cells  # one that starts anywhere in a unit
    np.testing.assert_array_equal(
        attended(ring, q, window=window), attended(resident, q, window=window)
    )
    for one in (ring, resident):
        one.append(*cells(2, 7))
    assert same(ring, resident) == []
    np.testing.assert_array_equal(attended(ring, q, window=8), attended(resident, q, window=8))


def test_kb14_streams_and_rings_of_nothing(backend: Backend) -> None:
    spec = make_spec("q4_0", window=8, sinks=2)
    for ring in (False, True):
        cache = backend.stream(spec, 64, 64, ring=ring)
        out, lse = cache.attend(queries(1, 1), return_lse=True)
        assert (backend.to_host(out) == 0).all()
        assert (backend.to_host(lse) == -np.inf).all()
        assert cache.read()[0].shape[0] == 0
        assert cache.counters.misses == 0
        assert cache.truncate(0) == 0
        cache.load(cache.snapshot())
    table = backend.to_host(backend.ring_table(0, 4, 2))
    assert table.shape == (0,)


@pytest.mark.parametrize("shape", [(3, 2, 5), (0, 4), (1,)])
@pytest.mark.parametrize("dtype", ["u1", "f2"])
def test_host_memory_for_pages(backend: Backend, shape: tuple[int, ...], dtype: str) -> None:
    """Pinned or USM where the backend has it: always a zeroed, writable NumPy array."""
    arrays = [backend.allocate_host(shape, dtype) for _ in range(3)]
    for i, a in enumerate(arrays):
        assert isinstance(a, np.ndarray)
        assert (a.shape, a.dtype) == (shape, np.dtype(dtype))
        assert not a.any()
        a[...] = i + 1
    assert all((a == i + 1).all() for i, a in enumerate(arrays))


@pytest.mark.parametrize("resident", [0, 3, -4, 2.5])
def test_too_few_slots_are_refused(backend: Backend, resident: object) -> None:
    with pytest.raises(ShapeError, match="resident"):
        backend.stream(make_spec("f16"), 64, resident)
    with pytest.raises(ShapeError, match="81"):
        backend.stream(make_spec("q2k"), 64, 80)


@pytest.mark.parametrize("name", list(kvcore.formats()))
def test_kb23_every_byte_of_a_unit_moves(backend: Backend, name: str) -> None:
    """Out to the host, 0xFF over the device, in again: codes and scales byte for byte."""
    for heads, dim in ((1, 64), (2, 128), (3, 64)):
        spec = make_spec(name, n_kv_heads=heads, head_dim=dim)
        layout = spec.layout
        n = 2 * 32 + 5 if spec.format.per_channel else 12
        cache = fed(backend, spec, cells(1, n, spec), capacity=n)
        pool = cache.pool
        pages = np.arange(pool.n_pages, dtype=np.int32)
        host = kvcore.get_backend("reference").pool(layout, pool.n_pages)
        unstage(backend, pool, host, 0, pool.n_cells)
        saved = {p: backend.to_host(a).copy() for p, a in pool.planes.items()}
        assert sum(a.nbytes for a in saved.values()) == pool.nbytes == host.nbytes
        for plane, values in saved.items():
            np.testing.assert_array_equal(_bits(host.planes[plane]), _bits(values))
            noise = np.full(values.shape, 0xFFFF if values.dtype.itemsize == 2 else 0xFF)
            backend.write(
                pool.planes[plane], noise.astype(f"u{values.itemsize}").view(values.dtype)
            )
        backend.move(host, pages, pool, pages)
        staged = stage(backend, host, n)
        for plane, values in saved.items():
            np.testing.assert_array_equal(_bits(backend.to_host(pool.planes[plane])), _bits(values))
            part = backend.to_host(staged.planes[plane])
            np.testing.assert_array_equal(_bits(part), _bits(values[: len(part)]))


def _bits(a: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(a).view(f"u{a.dtype.itemsize}")


@pytest.mark.parametrize("name", ["int8", "q2k"])
def test_kb23_unstage_touches_nothing_outside(backend: Backend, name: str) -> None:
    spec = make_spec(name)
    pool = fed(backend, spec, cells(1, 120), capacity=128).pool
    host = kvcore.get_backend("reference").pool(spec.layout, pool.n_pages)
    for plane in host.planes.values():
        plane.view(np.uint8)[...] = 0x5A
    unstage(backend, pool, host, 37, 70)
    unit = spec.layout.unit_cells
    first, end = 37 // unit, -(-70 // unit)
    for plane, values in host.planes.items():
        rows = len(values) * unit // host.n_cells
        inside = slice(first * rows, end * rows)
        got = _bits(backend.to_host(pool.planes[plane]))
        np.testing.assert_array_equal(_bits(values)[inside], got[inside])
        outside = np.delete(_bits(values), np.arange(len(values))[inside], axis=0)
        assert (outside.view(np.uint8) == 0x5A).all()
    with pytest.raises(RangeError):
        unstage(backend, pool, host, 0, pool.n_cells + 1)


@pytest.mark.parametrize("name", UNIT_FORMATS)
def test_kb23_evicted_and_brought_back_with_one_slot_too_few(backend: Backend, name: str) -> None:
    spec = make_spec(name)
    unit = spec.layout.unit_cells
    slots = 3 if unit == 32 else 8
    n = (slots + 1) * unit
    streamed = backend.stream(spec, n, slots * unit)
    streamed.append(*cells(1, n))
    resident = fed(backend, spec, cells(1, n))
    q = queries(1, 1)
    for _ in range(2):
        for u in range(slots + 1):
            ids = np.arange(u * unit, (u + 1) * unit, dtype=np.int32)
            np.testing.assert_array_equal(
                attended(streamed, q, ids=ids), attended(resident, q, ids=ids)
            )
    assert same(streamed, resident) == []
    assert contents(streamed) == contents(resident)
