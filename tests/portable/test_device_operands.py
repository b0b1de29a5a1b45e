"""Operands that a device holds: of any stride and width, and never inspected by the host."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import kvcore
from kvcore.compiler.device import Tensor, c_strides, dtype_name
from kvcore.errors import RangeError, ShapeError
from kvcore.numerics import Array
from kvcore.pool import Pool, State
from kvcore.portable.arrays import DeviceArray
from kvcore.portable.backend import PortableBackend
from kvcore.reference import Reference

H, D, P = 2, 64, 4


def spec_of(name: str = "k4v2c", **more: Any) -> kvcore.CacheSpec:
    return kvcore.CacheSpec(format=name, n_kv_heads=H, head_dim=D, page_size=P, recipe=None, **more)


def held(be: PortableBackend, values: Any) -> DeviceArray:
    """Return int32 values in the device's memory."""
    return be.arrays.upload(np.asarray(values, np.int32))


@dataclass(kw_only=True)
class Filled:
    """64 cells in a pool of 24 pages, through a table of 20; what a bad call must leave alone."""

    be: PortableBackend
    pool: Pool
    state: State | None
    table: Array
    rows: Array

    def bytes(self) -> dict[str, bytes]:
        arrays = dict(self.pool.planes)
        if self.state is not None:
            arrays |= {n: getattr(self.state, n) for n in ("k", "v", "centre")}
        return {name: self.be.to_host(a).tobytes() for name, a in arrays.items()}


def filled(be: PortableBackend, name: str, stateful: bool) -> Filled:
    spec = spec_of(name, window=8, sinks=2) if stateful else spec_of(name)
    pool = be.pool(spec.layout, 24)
    state = be.state(spec.state_layout) if stateful else None
    table = np.arange(20, dtype=np.int32)
    rows = np.random.default_rng(0).standard_normal((70, H, D)).astype(np.float32)
    be.append(pool, table, np.arange(64, dtype=np.int32), rows[:64], rows[:64], state=state)
    be.synchronize()
    return Filled(be=be, pool=pool, state=state, table=table, rows=rows)


def refused_late(f: Filled, call: Callable[[], Any]) -> Any:
    """Return the call's result after checking that it raised at the synchronisation, once."""
    before = f.bytes()
    result = call()
    with pytest.raises(RangeError, match=r"\[synchronize\] a device-held operand"):
        f.be.synchronize()
    f.be.synchronize()
    assert f.bytes() == before
    return result


@pytest.mark.parametrize(
    ("positions", "table"),
    [
        ([64, 65, 80], None),  # a cell beyond the table
        ([-2, -1, -1], None),
        ([2**31 - 1, -1, -1], None),
        ([64, 66, 67], None),  # a gap: K and V of this format come in groups
        ([64, 65, 66], -1),  # no page
        ([64, 65, 66], 24),  # a page beyond the pool
        ([64, 65, 66], 2**31 - 1),
        ([64, 65, 66], -(2**31)),
        ([64, 65, 66], 17),  # a page that does not belong to the unit of its cells
    ],
)
@pytest.mark.parametrize("stateful", [False, True])
def test_a_bad_append_changes_nothing_and_raises_at_the_synchronisation(
    quick: PortableBackend, stateful: bool, positions: list[int], table: int | None
) -> None:
    f = filled(quick, "q2", stateful)
    pages = f.table.copy()
    if table is not None:
        pages[16] = table
    x = f.rows[:3]
    refused_late(
        f,
        lambda: f.be.append(f.pool, held(f.be, pages), held(f.be, positions), x, x, state=f.state),
    )
    if f.state is not None:
        assert f.be.to_host(f.state.marks)[0, 1] == 64
        assert f.be.to_host(f.state.marks)[0, 7] == 1  # the sequence says so for good


def test_bad_rows_of_a_row_codec_are_skipped_one_by_one(quick: PortableBackend) -> None:
    f = filled(quick, "int8", False)
    x = f.rows[:3]
    f.be.append(f.pool, f.table, held(f.be, [64, 999, 65]), x, x)
    with pytest.raises(RangeError):
        f.be.synchronize()
    k, _ = f.be.gather(f.pool, f.table, np.array([64, 65]))
    clean = filled(quick, "int8", False)
    clean.be.append(clean.pool, f.table, np.array([64, 65]), x[::2], x[::2])
    want, _ = clean.be.gather(clean.pool, f.table, np.array([64, 65]))
    assert np.array_equal(f.be.to_host(k), f.be.to_host(want))
    assert f.bytes() == clean.bytes()


@pytest.mark.parametrize("ids", [[0, 80], [0, -1], [2**31 - 1, 0]])
def test_a_bad_id_of_gather_gives_zeros_and_raises_later(
    quick: PortableBackend, ids: list[int]
) -> None:
    f = filled(quick, "q2", False)
    good = [i for i in ids if i == 0]
    got = refused_late(f, lambda: f.be.gather(f.pool, f.table, held(f.be, ids)))
    want = f.be.gather(f.pool, f.table, np.array(good))
    for a, b in zip(got, want, strict=True):
        rows = f.be.to_host(a)
        assert np.array_equal(rows[ids.index(0)], f.be.to_host(b)[0])
        assert not rows[1 - ids.index(0)].any()


@pytest.mark.parametrize("length", [81, 2**31 - 1, -1])
def test_a_bad_length_sees_nothing_and_raises_later(quick: PortableBackend, length: int) -> None:
    f = filled(quick, "q2", False)
    q = np.ones((2, 1, 4, D), np.float32)
    tables = np.stack([f.table, f.table])
    out, lse = refused_late(
        f,
        lambda: f.be.attention(q, f.pool, tables, held(f.be, [length, 64]), return_lse=True),
    )
    out, lse = f.be.to_host(out), f.be.to_host(lse)
    good, _ = f.be.attention(q[:1], f.pool, f.table, np.array([64]), return_lse=True)
    assert not out[0].any()
    assert np.isneginf(lse[0]).all()
    assert np.array_equal(out[1], f.be.to_host(good)[0])


def test_a_bad_page_or_id_is_masked_and_raises_later(quick: PortableBackend) -> None:
    f = filled(quick, "q2", False)
    q = np.ones((1, 4, D), np.float32)
    pages = f.table.copy()
    pages[0] = 24
    ids = np.arange(P, 64)
    want = f.be.to_host(f.be.attention(q, f.pool, f.table, np.array([64]), ids=ids))
    for table, chosen in ((pages, np.arange(64)), (f.table, [*ids, 64, 99, -2])):
        got = refused_late(
            f,
            lambda table=table, chosen=chosen: f.be.attention(
                q, f.pool, held(f.be, table), np.array([64]), ids=held(f.be, chosen)
            ),
        )
        np.testing.assert_allclose(f.be.to_host(got), want, rtol=1e-5, atol=1e-6)


def test_a_length_that_the_keys_cannot_have_selects_nothing(quick: PortableBackend) -> None:
    rng = np.random.default_rng(1)
    keys, dead = rng.standard_normal((5, 16)).astype("f4"), np.zeros(16, np.float32)
    q = rng.standard_normal((3, 2, 16)).astype("f4")
    ids, scores = quick.select(keys, dead, q, held(quick, [24, -1, 20]), 8)
    with pytest.raises(RangeError):
        quick.synchronize()
    want = Reference().select(keys, dead, q[2:], np.array([20]), 8)
    assert (quick.to_host(ids)[:2] == -1).all()
    assert np.isneginf(quick.to_host(scores)[:2]).all()
    assert np.array_equal(quick.to_host(ids)[2:], want[0])


class Foreign:
    """A caller's array on the device: raw bytes with any strides and dtype."""

    def __init__(self, be: PortableBackend, array: Array) -> None:
        base = array
        while isinstance(base.base, np.ndarray):
            base = base.base
        self.dtype, self.shape = array.dtype, array.shape
        start = array.ctypes.data - base.ctypes.data
        buffer = be.arrays.upload(base.ravel("K").view(np.uint8)).buffer
        self.tensor = Tensor(
            buffer=buffer.view(start, base.nbytes - start),
            shape=array.shape,
            strides=array.strides,
            dtype=dtype_name(array.dtype),
        )


@pytest.fixture
def foreign(be: PortableBackend, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Let the device take :class:`Foreign` arrays, as it takes those of its own runtime."""
    device: Any = be.engine.device
    real = device.from_external
    monkeypatch.setattr(
        device, "from_external", lambda x: x.tensor if isinstance(x, Foreign) else real(x)
    )
    return lambda array: Foreign(be, array)


def _views() -> dict[str, Array]:
    base = np.random.default_rng(2).standard_normal((12, 3, H, 2 * D)).astype(np.float32)
    return {
        "every second row": base[::2, 0, :, :D],
        "fused": base[:6, 1, :, D:],
        "half": base.astype(np.float16)[::2, 0, :, D:],
        "bfloat16": base.astype(ml_dtypes.bfloat16)[:6, 2, :, :D],
        "packed half": np.ascontiguousarray(base[:6, 0, :, :D]).astype(np.float16),
        "columns first": np.asfortranarray(base[:6, 0, :, :D]),
    }


@pytest.mark.parametrize("name", _views())
def test_s1_strided_and_narrow_device_arrays_equal_their_copy(
    be: PortableBackend, foreign: Any, name: str
) -> None:
    view = _views()[name]
    plain = np.ascontiguousarray(view).astype(np.float32)
    pools = [be.pool(spec_of("int8").layout, 4) for _ in range(2)]
    table, positions = np.arange(4), np.arange(6)
    be.append(pools[0], table, positions, foreign(view), foreign(view))
    be.append(pools[1], table, positions, plain, plain)
    for plane in pools[0].planes:
        a, b = (be.to_host(p.planes[plane]) for p in pools)
        assert np.array_equal(a, b)
    assert np.array_equal(be.to_host(be.rotate(foreign(view))), be.to_host(be.rotate(plain)))
    queries = [be.attention(x, pools[0], table, np.array([6])) for x in (foreign(view), plain)]
    assert np.array_equal(*(be.to_host(x) for x in queries))


def test_64_bit_and_strided_device_integers_equal_the_host_ones(
    be: PortableBackend, foreign: Any
) -> None:
    x = np.random.default_rng(3).standard_normal((6, H, D)).astype(np.float32)
    pools = [be.pool(spec_of("int8").layout, 4) for _ in range(2)]
    table = np.array([3, 9, 1, 9, 0, 9, 2, 9], np.int64)[::2]
    positions = np.array([5, 9, 4, 9, 0, 9, 7, 9, -1, 9, 2, 9], np.int32)[::2]
    be.append(pools[0], foreign(table), foreign(positions), x, x)
    be.append(pools[1], table, positions, x, x)
    be.synchronize()
    for plane in pools[0].planes:
        assert np.array_equal(*(be.to_host(p.planes[plane]) for p in pools))
    wide = np.array([0, 2**40], np.int64)
    be.gather(pools[0], table, foreign(wide))
    with pytest.raises(RangeError):
        be.synchronize()


def test_device_arrays_of_a_wrong_kind_are_refused(be: PortableBackend, foreign: Any) -> None:
    pool = be.pool(spec_of("int8").layout, 4)
    x = np.ones((1, H, D), np.float32)
    with pytest.raises(ShapeError, match=r"positions has the wrong dtype: got f32"):
        be.append(pool, np.arange(4), foreign(np.zeros(1, np.float32)), x, x)
    with pytest.raises(ShapeError, match=r"k has the wrong dtype: got f64"):
        be.append(pool, np.arange(4), np.arange(1), foreign(x.astype(np.float64)), x)
    with pytest.raises(ShapeError, match=r"x has too many axes"):
        be.rotate(foreign(np.zeros((2, 2, 2, 2, 64, 2), np.float32)[..., 0]))
    if be.engine.device.kind == "cpu":
        planes = {n: be.to_host(a) for n, a in pool.planes.items()}
        with pytest.raises(ShapeError, match=r"an array that is written: got one on the host"):
            be.append(be.pool(pool.layout, 4, planes), np.arange(4), np.arange(1), x, x)


def test_out_and_scratch_give_the_same_bits_and_are_checked(be: PortableBackend) -> None:
    spec = spec_of("q4_0", window=8)
    x = np.random.default_rng(4).standard_normal((40, H, D)).astype(np.float32)
    scratch = be.scratch()
    pool, state = be.pool(spec.layout, 12), be.state(spec.state_layout)
    other, plain = be.pool(spec.layout, 12), be.state(spec.state_layout)
    table = np.arange(12)
    for start, stop in ((0, 33), (33, 34), (34, 40)):
        cells = np.arange(start, stop)
        be.append(pool, table, cells, x[start:stop], x[start:stop], state=state, scratch=scratch)
        be.append(other, table, cells, x[start:stop], x[start:stop], state=plain)
    for plane in pool.planes:
        assert np.array_equal(*(be.to_host(p.planes[plane]) for p in (pool, other)))
    q = x[:2]
    out = be.allocate((2, H, D), "f4")
    given = be.attention(q, pool, table, np.array([40]), state=state, out=out, scratch=scratch)
    assert given is out
    want = be.attention(q, other, table, np.array([40]), state=plain)
    assert np.array_equal(be.to_host(out), be.to_host(want))
    assert np.array_equal(be.to_host(be.rotate(q, out=out)), be.to_host(be.rotate(q)))
    for bad in (be.allocate((2, H, D + 1), "f4"), be.allocate((2, H, D), "f2"), q.copy()):
        with pytest.raises(ShapeError, match=r"\[rotate\] out is not usable"):
            be.rotate(q, out=bad)


def test_strides_of_a_packed_array_are_what_c_says() -> None:
    assert c_strides((2, 3, 4), 2) == np.zeros((2, 3, 4), np.float16).strides
