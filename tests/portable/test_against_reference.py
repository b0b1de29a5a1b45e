"""What the conformance kit does not ask: seeded faults (``bench.mutations``) showed it."""

from __future__ import annotations

import numpy as np
import pytest

import kvcore
from kvcore.compiler.device import Tensor
from kvcore.numerics import Array
from kvcore.portable.backend import PortableBackend
from kvcore.reference import Reference


def rollback(be: PortableBackend) -> tuple[Array, Array]:
    """Return attention after a truncate past the ring, by the reference and by a device."""
    spec = kvcore.CacheSpec(
        format="int8", n_kv_heads=2, head_dim=64, recipe=None, window=40, sinks=2
    )
    x = np.random.default_rng(1).standard_normal((220, 2, 64)).astype(np.float32)
    found = []
    for side in (Reference(), be):
        cache = side.cache(spec, 256)
        cache.append(x[:200], x[:200])
        cache.truncate(110)
        cache.append(x[200:], -x[200:])
        found.append(side.to_host(cache.attend(x[200:203] / 8)))
    return found[0], found[1]


def frozen(be: PortableBackend) -> list[tuple[str, Array, Array]]:
    """Return planes and marks after a few cells entered a group that a deep truncate froze."""
    spec = kvcore.CacheSpec(
        format="q2", n_kv_heads=2, head_dim=64, page_size=4, recipe=None, window=8, sinks=2
    )
    x = np.random.default_rng(4).standard_normal((220, 2, 64)).astype(np.float32)
    sides = []
    for side in (Reference(), be):
        cache = side.cache(spec, 256)
        cache.append(x[:200], x[:200])
        cache.truncate(70)
        cache.append(x[200:205], x[200:205])
        arrays = {**cache.pool.planes, "marks": cache.state.marks}
        sides.append({name: side.to_host(a) for name, a in arrays.items()})
    return [(name, a, sides[1][name]) for name, a in sides[0].items()]


def centres(be: PortableBackend) -> list[tuple[str, Array, Array]]:
    """Return planes and states of a batch whose sequences have centres of their own."""
    spec = kvcore.CacheSpec(
        format="q4_0", n_kv_heads=2, head_dim=64, recipe=None, k_center="auto", center_cells=32
    )
    rng = np.random.default_rng(2)
    x = rng.standard_normal((2, 70, 2, 64)).astype(np.float32)
    x[0] += rng.standard_normal((2, 64)).astype(np.float32) * 4
    positions = np.tile(np.arange(70, dtype=np.int32), (2, 1))
    table = np.array([[3, 0, 5], [1, 4, 2]], np.int32)
    sides = []
    for side in (Reference(), be):
        pool, state = side.pool(spec.layout, 6), side.state(spec.state_layout, 2)
        for start, stop in ((0, 40), (40, 70)):
            part = np.ascontiguousarray(x[:, start:stop])
            side.append(pool, table, positions[:, start:stop], part, part, state=state)
        arrays = {**pool.planes, "centre": state.centre, "marks": state.marks}
        sides.append({name: side.to_host(a) for name, a in arrays.items()})
    return [(name, a, sides[1][name]) for name, a in sides[0].items()]


def verify_window(be: PortableBackend) -> tuple[Array, Array]:
    """Return a verify window's attention, by lengths [B] that the device holds and by the rule."""
    layout = kvcore.CacheSpec(format="f16", n_kv_heads=2, head_dim=64).layout
    x = np.random.default_rng(5).standard_normal((20, 2, 64)).astype(np.float32)
    pool = be.pool(layout, 1)
    be.append(pool, [0], np.arange(20), x, x)
    held = be.arrays.upload(np.array([20], np.int32))
    got = be.attention(x[:4], pool, [0], held)
    each = [be.attention(x[t : t + 1], pool, [0], np.array([17 + t])) for t in range(4)]
    return np.concatenate([be.to_host(o) for o in each]), be.to_host(got)


def strided(be: PortableBackend) -> tuple[Array, Array]:
    """Return a rotation of every second row of a device array, and of its copy."""
    x = np.random.default_rng(6).standard_normal((8, 2, 64)).astype(np.float32)
    whole = be.arrays.upload(x)
    steps = (2 * 512, 256, 4)
    view = Tensor(buffer=whole.buffer, shape=(4, 2, 64), strides=steps, dtype="f32")
    device = be.engine.device
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(device, "from_external", lambda given: given)
        got = be.rotate(view)
    return be.to_host(be.rotate(x[::2].copy())), be.to_host(got)


def very_low(be: PortableBackend) -> tuple[Array, Array]:
    """Return attention whose every score is near -300, by the reference and by a device."""
    layout = kvcore.CacheSpec(format="f32", n_kv_heads=1, head_dim=32).layout
    x = np.random.default_rng(7).standard_normal((9, 1, 32)).astype(np.float32)
    keys = -np.abs(x) - 1
    q = np.full((1, 1, 32), 10, np.float32)
    found = []
    for side in (Reference(), be):
        pool = side.pool(layout, 1)
        side.append(pool, [0], np.arange(9), keys, x)
        found.append(side.to_host(side.attention(q, pool, [0], np.array([9]), scale=0.5)))
    return found[0], found[1]


def odd_units(be: PortableBackend) -> tuple[Array, Array]:
    """Return the scales of a pool whose pages hold two bytes of them, and of its moved copy."""
    spec = kvcore.CacheSpec(format="int8", n_kv_heads=1, head_dim=64, page_size=1)
    x = np.random.default_rng(8).standard_normal((5, 1, 64)).astype(np.float32)
    pools = [be.pool(spec.layout, 5) for _ in range(2)]
    be.append(pools[0], np.arange(5), np.arange(5), x, x)
    be.move(pools[0], np.arange(5), pools[1], np.arange(5)[::-1])
    scales = [be.to_host(pool.planes["k_scales"]) for pool in pools]
    return scales[0], np.ascontiguousarray(scales[1][::-1])


def test_scores_far_below_zero_are_as_good_as_any(quick: PortableBackend) -> None:
    want, got = very_low(quick)
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)


def test_units_of_two_bytes_move_whole(quick: PortableBackend) -> None:
    want, got = odd_units(quick)
    assert want.tobytes() == got.tobytes()


def test_a_verify_window_by_lengths_on_the_device(quick: PortableBackend) -> None:
    want, got = verify_window(quick)
    assert want.tobytes() == got.tobytes()


def test_every_second_row_of_a_device_array(quick: PortableBackend) -> None:
    want, got = strided(quick)
    assert want.tobytes() == got.tobytes()


def test_after_a_deep_rollback_lost_cells_are_read_from_the_bulk(quick: PortableBackend) -> None:
    want, got = rollback(quick)
    # the same cells are read on both sides: 131 terms, so only float32 sums differ
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)


def test_cells_that_enter_a_frozen_group_leave_its_frontier(quick: PortableBackend) -> None:
    for name, want, got in frozen(quick):
        assert want.tobytes() == got.tobytes(), name


def test_every_sequence_of_a_batch_has_its_own_centre(quick: PortableBackend) -> None:
    for name, want, got in centres(quick):
        assert want.tobytes() == got.tobytes(), name


@pytest.mark.parametrize("gain", [1.07, 1.1, 1.31])
def test_a_frozen_group_is_encoded_against_the_scale_without_its_gain(
    quick: PortableBackend, gain: float
) -> None:
    """float16(stored / gain), rounded, times each threshold: values there and one ulp around."""
    spec = kvcore.CacheSpec(format="q2k", n_kv_heads=1, head_dim=64, k_gain=gain, rule="n")
    layout = spec.layout
    rng = np.random.default_rng(3)
    first = rng.standard_normal((4, 1, 64)).astype(np.float32)
    pools = []
    for side in (Reference(), quick):
        pool = side.pool(layout, 1)
        side.append(pool, [0], np.arange(4), first, first)
        stored = side.to_host(pool.planes["k_scales"])[0, 0, 0].astype(np.float32)
        plain = (stored / np.float32(gain)).astype(np.float16).astype(np.float32)
        rows = [np.float32(t) * plain for t in layout.k.thresholds]
        rows += [np.nextafter(r, np.float32(9)) for r in rows]
        rows += [np.float32(t) * (stored / np.float32(gain)) for t in layout.k.thresholds]
        more = np.stack(rows)[:, None, :].astype(np.float32)
        side.append(pool, [0], np.arange(4, 4 + len(more)), more, more)
        pools.append({n: side.to_host(a) for n, a in pool.planes.items()})
    for name in pools[0]:
        assert np.array_equal(pools[0][name], pools[1][name]), name
