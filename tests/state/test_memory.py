"""Places that must not be written, bytes that must not be read, and one place named twice."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import kvcore
from kvcore.backend import Backend
from kvcore.cache_spec import CacheSpec
from kvcore.errors import ShapeError
from kvcore.pool import Pool, State
from tests.state.world import FORMATS, HEADS, cells, make_spec, queries

POISON = {"0xFF": 0xFFFF, "infinity": 0x7C00, "0x5A": 0x5A5A}


def _fill(be: Backend, array: Any, word: int) -> None:
    """Overwrite an array with a 16-bit pattern."""
    host = be.to_host(array)
    noise = np.resize(np.array([word], np.uint16).view(np.uint8), host.nbytes)
    be.write(array, noise.view(host.dtype).reshape(host.shape))


def _pool(be: Backend, spec: CacheSpec, pages: int, word: int = 0x5A5A) -> Pool:
    pool = be.pool(spec.layout, pages)
    for plane in pool.planes.values():
        _fill(be, plane, word)
    return pool


def _bytes(be: Backend, pool: Pool) -> dict[str, bytes]:
    return {name: be.to_host(a).tobytes() for name, a in pool.planes.items()}


def _stored(be: Backend, spec: CacheSpec, chunk: tuple[np.ndarray, np.ndarray]) -> list[Any]:
    turns = (spec.format.rotate_k, spec.format.rotate_v)
    return [be.rotate(x) if t else x for x, t in zip(chunk, turns, strict=True)]


@pytest.mark.parametrize("name", ["f16", "int8", "q4_0"])
def test_kb09_padding_rows_write_nowhere(backend: Backend, name: str) -> None:
    """Cells [0, 1, -1, 2] into the middle three of five pages: the guards stay 0x5A."""
    spec = make_spec(name)
    pool, table = _pool(backend, spec, 5), np.array([1, 2, 3], np.int32)
    values = np.array([1, 2, 99, 3], np.float32)[:, None, None]
    rows = _stored(backend, spec, (np.ones((4, HEADS, 64), np.float32) * values,) * 2)
    clean = _pool(backend, spec, 5)
    backend.append(pool, table, np.array([0, 1, -1, 2], np.int32), *rows)
    kept = [backend.part(r, 0, 2) if not isinstance(r, np.ndarray) else r[:2] for r in rows]
    last = [backend.part(r, 3, 4) if not isinstance(r, np.ndarray) else r[3:] for r in rows]
    backend.append(clean, table, np.array([0, 1], np.int32), *kept)
    backend.append(clean, table, np.array([2], np.int32), *last)
    assert _bytes(backend, pool) == _bytes(backend, clean)
    for plane in pool.planes.values():
        host = backend.to_host(plane)
        assert (host[[0, 4]].view(np.uint8) == 0x5A).all()
        assert (host[[2, 3]].view(np.uint8) == 0x5A).all()


@pytest.mark.parametrize(
    ("table", "cell"),
    [([1, 2, 3], 12), ([1, -1, 3], 5), ([1, 2, 3], 2**31 - 1), ([1, 2, 3], -2), ([1, 2, 7], 9)],
)
def test_kb09_cells_without_a_place_are_refused_before_writing(
    backend: Backend, table: list[int], cell: int
) -> None:
    spec = make_spec("q4_0")
    pool = _pool(backend, spec, 5)
    before = _bytes(backend, pool)
    rows = [
        r[:1] if isinstance(r, np.ndarray) else backend.part(r, 0, 1)
        for r in _stored(backend, spec, cells(1, 1))
    ]
    pages, ids = np.array(table, np.int32), np.array([cell], np.int32)
    with pytest.raises((IndexError, ValueError), match="append"):
        backend.append(pool, pages, ids, *rows)
    with pytest.raises((IndexError, ValueError), match="gather"):
        backend.gather(pool, pages, ids)
    if cell != -2 and max(table) < 5 and -1 not in table:
        with pytest.raises((IndexError, ValueError), match="attention"):
            backend.attention(queries(1, 1), pool, pages, np.array([12], np.int32), ids=ids)
    assert _bytes(backend, pool) == before


def test_kb09_device_held_positions_skip_and_tell(backend: Backend) -> None:
    """A bad row on the device is skipped; the next synchronisation raises, once."""
    spec = make_spec("q4_0")
    ints = backend.arrays.asarray(np.array([0, 77, 1], np.int32), "int", "test", "x")
    if isinstance(ints, np.ndarray):
        ints = backend.allocate((3,), "i4")
        backend.write(ints, np.array([0, 77, 1], np.int32))
    if isinstance(ints, np.ndarray):
        pytest.skip(f"{backend.name}: integers of the host are checked, none is held by a device")
    pool, table = _pool(backend, spec, 5), np.array([1, 2, 3], np.int32)
    rows = _stored(backend, spec, cells(1, 3))
    backend.append(pool, table, ints, *rows)
    with pytest.raises(IndexError, match="skipped"):
        backend.synchronize()
    backend.synchronize()
    for plane in pool.planes.values():
        assert (backend.to_host(plane)[[0, 2, 3, 4]].view(np.uint8) == 0x5A).all()


@pytest.mark.parametrize("overlay", [{}, {"window": 3, "sinks": 1}], ids=["bare", "overlay"])
@pytest.mark.parametrize("name", FORMATS)
def test_kb10_unwritten_memory_is_never_read(
    backend: Backend, name: str, overlay: dict[str, int]
) -> None:
    """Pool and exact slots full of NaN, Inf or 0x5A: outputs as over zeros, bit for bit."""
    spec = make_spec(name, **overlay)
    unit = spec.layout.unit_pages
    found = {}
    for title, word in {"zeros": 0, **POISON}.items():
        pool = _pool(backend, spec, 3 * unit, word)
        state = backend.state(spec.state_layout, 1)
        for array in (state.k, state.v, state.centre):
            if array.shape[1]:
                _fill(backend, array, word)
        table = np.arange(unit, 3 * unit, dtype=np.int32)
        found[title] = _use(backend, spec, pool, state, table)
    for title in POISON:
        for part, want in found["zeros"].items():
            assert found[title][part] == want, f"{part} over {title}"


def _use(
    be: Backend, spec: CacheSpec, pool: Pool, state: State, table: np.ndarray
) -> dict[str, bytes]:
    n, q = 5, queries(1, 2)
    be.append(
        pool, table, np.arange(n, dtype=np.int32), *_stored(be, spec, cells(1, n)), state=state
    )
    length = np.array([n], np.int32)
    out, lse = be.attention(q, pool, table, length, state=state, return_lse=True)
    parts = {"out": out, "lse": lse}
    deferred = spec.format.per_channel
    if not deferred:
        k, v = be.gather(pool, table, np.arange(n, dtype=np.int32))
        parts |= {"k": k, "v": v}
        host = kvcore.get_backend("reference").pool(spec.layout, pool.n_pages)
        be.move(pool, table, host, table)
        rows = host.planes["k_codes"].reshape(-1, *host.planes["k_codes"].shape[1:])
        parts["staged"] = np.ascontiguousarray(rows[table[0], :, :4])
    if spec.window:
        be.restore(state, pool, table, n)
        parts["restored"] = be.attention(q, pool, table, length, state=state)
    be.synchronize()
    return {name: np.asarray(be.to_host(a)).tobytes() for name, a in parts.items()}


def test_kb10_a_closed_group_does_not_look_at_later_cells(backend: Backend) -> None:
    """q2k: 33 cells in a poisoned unit; the scale of group 0 is that of its 32 cells."""
    spec = make_spec("q2k")
    scales = {}
    for word in (0, 0x7C00):
        pool, state = _pool(backend, spec, 16, word), backend.state(spec.state_layout, 1)
        rows = _stored(backend, spec, cells(1, 33))
        table, at = np.arange(16, dtype=np.int32), np.arange(33, dtype=np.int32)
        backend.append(pool, table, at, *rows, state=state)
        scales[word] = backend.to_host(pool.planes["k_scales"])[0].tobytes()
    assert scales[0] == scales[0x7C00]


@pytest.mark.parametrize("name", ["f16", "int8", "q4_0"])
def test_kb12_last_of_equal_destinations_wins(backend: Backend, name: str) -> None:
    """Codes and scales of one row, every time; also among 512 rows for 129 places."""
    spec = make_spec(name, n_kv_heads=8, page_size=32)
    table = np.arange(8, dtype=np.int32)
    values = np.array([1, 100, -5, 0.01], np.float32)[:, None, None]
    base = np.random.default_rng(1).standard_normal((1, 8, 64)).astype(np.float32)
    rows = _stored(backend, spec, (base * values, base * values))
    alone = _pool(backend, spec, 8)
    last = _stored(backend, spec, (base * values[3:], base * values[3:]))
    backend.append(alone, table, np.array([7], np.int32), *last)
    want = _bytes(backend, alone)
    for _ in range(20):
        pool = _pool(backend, spec, 8)
        backend.append(pool, table, np.full(4, 7, np.int32), *rows)
        assert _bytes(backend, pool) == want

    rng = np.random.default_rng(2)
    where = rng.integers(0, 129, 512).astype(np.int32)
    many = rng.standard_normal((512, 8, 64)) * np.exp(rng.standard_normal((512, 1, 1)) * 3)
    many = many.astype(np.float32)
    pool, plain = _pool(backend, spec, 8), _pool(backend, spec, 8)
    backend.append(pool, table, where, *_stored(backend, spec, (many, many)))
    final = {int(cell): row for row, cell in enumerate(where)}
    kept = sorted(final.values())
    backend.append(plain, table, where[kept], *_stored(backend, spec, (many[kept], many[kept])))
    assert _bytes(backend, pool) == _bytes(backend, plain)


def test_kb12_groups_and_states_refuse_repeats_before_writing(backend: Backend) -> None:
    spec = make_spec("q2k")
    pool, state = _pool(backend, spec, 16), backend.state(spec.state_layout, 1)
    before = _bytes(backend, pool)
    table, rows = np.arange(16, dtype=np.int32), _stored(backend, spec, cells(1, 4))
    for at in ([7, 7, 7, 7], [0, 1, 1, 2], [0, 2, 3, 4], [3, 2, 1, 0]):
        for kept in (None, state):
            with pytest.raises(ShapeError, match="append"):
                backend.append(pool, table, np.array(at, np.int32), *rows, state=kept)
    assert _bytes(backend, pool) == before


@pytest.mark.parametrize("name", FORMATS)
def test_kb12_repeated_ids(backend: Backend, name: str) -> None:
    """gather gives equal rows; attention counts a repeat twice."""
    spec = make_spec(name)
    cache = backend.cache(spec, 128)
    cache.append(*cells(1, 64))
    k, v = cache.read()
    ids = np.array([5, 9, 5, 63, 9, 5], np.int32)
    got = backend.gather(cache.pool, cache.table, ids)
    for rows in got:
        host = backend.to_host(rows)
        np.testing.assert_array_equal(host[0], host[2])
        np.testing.assert_array_equal(host[1], host[4])
    from tests.state.world import misses

    q = queries(1, 1)
    out = backend.to_host(cache.attend(q, ids=ids))
    assert not misses(cache, q[0], k[ids].astype(float), v[ids].astype(float), out[0])
