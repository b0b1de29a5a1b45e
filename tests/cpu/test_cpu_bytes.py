"""Stored bytes and marks of the CPU backend equal the reference's, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest
from cpu_scenes import CAPACITY, CODECS, STEPS, Scene, append, examples, scenes, step
from hypothesis import given
from hypothesis import strategies as st

from kvcore.conformance.twin import value_differences
from kvcore.conformance.values import hard
from kvcore.dispatch import get_backend
from kvcore.errors import FormatError, KvcoreError
from kvcore.ops.ring_table import ring_table
from kvcore.reference import Reference

pytest.importorskip("numba")


@examples(120)
@given(scenes(), STEPS)
def test_every_plane_and_mark_equals_the_reference_after_any_history(
    scene: Scene, steps: list[tuple[str, int]]
) -> None:
    twin, table = scene.twin()
    if twin.states is None:
        start = 0
        for _, n in steps:
            if start < CAPACITY:
                append(scene, twin, table, n, starts=[start] * scene.batch)
            start += n
    else:
        for what in steps:
            step(scene, twin, table, what)
            assert list(twin.differences()) == [], what
    assert list(twin.differences()) == []


@pytest.mark.parametrize("name", CODECS)
def test_hard_values_of_each_codec(name: str) -> None:
    scene = Scene(
        k=name, v=name, heads=2, dims=(64, 96), page_size=16, gain=1.0, rule="shrink",
        state=(3, 20, True, "none"), batch=1, values="hard", seed=7,
    )  # fmt: skip
    twin, table = scene.twin()
    for n in (1, 64, 3, 100):
        append(scene, twin, table, n)
    assert list(twin.differences()) == []


@examples(30)
@given(scenes(), st.integers(0, 2**32 - 1))
def test_rows_of_any_order_the_last_of_two_equal_cells_wins(scene: Scene, seed: int) -> None:
    twin, table = Scene(**{**_fields(scene), "state": None}).twin()
    if twin.layout.per_channel:
        return
    rng = np.random.default_rng(seed)
    n = int(rng.integers(0, 60))
    positions = rng.integers(-1, CAPACITY, (scene.batch, n)).astype(np.int32)
    positions[:, n // 2 :] = positions[:, : n - n // 2]
    twin.append(table, positions, *scene.draw(twin, n))
    assert list(twin.differences()) == []


def _fields(scene: Scene) -> dict[str, object]:
    return {name: getattr(scene, name) for name in scene.__dataclass_fields__}


@examples(40)
@given(scenes(), st.integers(0, 2**32 - 1))
def test_gather_move_and_restore_equal_the_reference(scene: Scene, seed: int) -> None:
    twin, table = scene.twin()
    if twin.states is None:
        append(scene, twin, table, 150, starts=[0] * scene.batch)
    else:
        append(scene, twin, table, 150)
    rng = np.random.default_rng(seed)
    ids = rng.integers(0, CAPACITY, (scene.batch, int(rng.integers(0, 70)))).astype(np.int32)
    be, ref = twin.bench.be, twin.bench.ref
    for got, want in zip(
        be.gather(twin.pools[1], table, ids), ref.gather(twin.pools[0], table, ids), strict=True
    ):
        assert list(value_differences("gather", got, want)) == []
    u = twin.layout.unit_pages
    units = rng.permutation(twin.n_pages // u)[:2]
    src, dst = (units[i] * u + np.arange(u) for i in (0, 1))
    for side, pool in ((ref, twin.pools[0]), (be, twin.pools[1])):
        side.move(pool, src, pool, dst)
    if twin.states is not None:
        n = rng.integers(0, np.asarray(twin.lengths) + 1).astype(np.int32)
        ref.restore(twin.states[0], twin.pools[0], table, n)
        be.restore(twin.states[1], twin.pools[1], table, n)
    assert list(twin.differences()) == []


@examples(40)
@given(
    st.integers(0, 2**32 - 1),
    st.sampled_from((32, 64, 96, 128, 160, 256, 512)),
    st.integers(0, 40),
)
def test_rotate_equals_the_reference_bit_for_bit(seed: int, dim: int, rows: int) -> None:
    x = hard(np.random.default_rng(seed), (rows, 2, dim))
    be, want = get_backend("cpu"), Reference().rotate(x)
    assert list(value_differences("rotate", be.rotate(x), want)) == []
    frozen = x.copy()
    frozen.setflags(write=False)
    assert list(value_differences("rotate", be.rotate(frozen), want)) == []
    assert be.rotate(x, out=x) is x
    assert list(value_differences("rotate in place", x, want)) == []


@examples(40)
@given(st.integers(0, 2**32 - 1))
def test_select_equals_the_reference_ties_and_nan_included(seed: int) -> None:
    rng = np.random.default_rng(seed)
    block, blocks, e = int(rng.integers(1, 6)), int(rng.integers(1, 60)), int(rng.integers(1, 40))
    keys = rng.integers(-2, 3, (blocks, e)).astype(np.float32)
    keys[rng.random(blocks) < 0.1] = np.nan
    dead = rng.normal(size=e).astype(np.float32)
    q = rng.integers(-2, 3, (3, 4, e)).astype(np.float32)
    lengths = rng.integers(0, blocks * block + block, 3).astype(np.int32)
    width = int(rng.integers(1, 2 * blocks + 2))
    got = get_backend("cpu").select(keys, dead, q, lengths, width, block)
    want = Reference().select(keys, dead, q, lengths, width, block)
    assert np.array_equal(got[0], want[0])
    assert list(value_differences("scores", got[1], want[1])) == []


@examples(30)
@given(scenes(), st.integers(0, 2**32 - 1))
def test_resolve_makes_the_same_map_as_the_reference(scene: Scene, seed: int) -> None:
    rng = np.random.default_rng(seed)
    twin, _ = scene.twin()
    units, slots = int(rng.integers(1, 40)), int(rng.integers(1, 30))
    be, ref = twin.bench.be, twin.bench.ref
    mine, theirs = (side.residency(twin.layout, units, slots) for side in (ref, be))
    for at in (mine, theirs):
        at.ctl[0] = 2**31 - 3 if seed % 2 else 0
    for _ in range(6):
        cells = rng.integers(-1, units * mine.unit_cells, (2, 12))
        ids = np.sort(cells, axis=1).astype(np.int32)
        assert np.array_equal(ref.resolve(mine, ids), be.resolve(theirs, ids))
        for name in ("table", "slot_unit", "slot_stamp", "slot_ref", "ctl"):
            assert np.array_equal(getattr(mine, name), getattr(theirs, name)), name


@given(st.integers(0, 200), st.integers(1, 60), st.integers(1, 8))
def test_ring_table_equals_the_reference(blocks: int, slots: int, unit: int) -> None:
    be = get_backend("cpu")
    if slots < unit:
        with pytest.raises(KvcoreError):
            be.ring_table(blocks, slots, unit)
    else:
        assert np.array_equal(be.ring_table(blocks, slots, unit), ring_table(blocks, slots, unit))


def test_unbiased_per_channel_without_a_state_is_refused_before_any_write() -> None:
    scene = Scene(
        k="q2c", v="f16", heads=1, dims=(32, 32), page_size=32, gain="unbiased", rule="n",
        state=(0, 0, True, "none"), batch=1, values="ordinary", seed=1,
    )  # fmt: skip
    twin, table = scene.twin()
    before = {name: plane.copy() for name, plane in twin.pools[1].planes.items()}
    with pytest.raises(FormatError, match="unbiased"):
        twin.bench.be.append(twin.pools[1], table, np.arange(3)[None], *scene.draw(twin, 3))
    for name, plane in twin.pools[1].planes.items():
        assert np.array_equal(plane.view(np.uint8), before[name].view(np.uint8))
