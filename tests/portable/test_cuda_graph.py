"""KB-24: a captured decode step replays with device-held positions, bit-equal to eager calls.

Needs a real CUDA device; elsewhere each test is a named skip.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import kvcore
from kvcore.dispatch import probe
from kvcore.errors import ShapeError

H, D, Q, STEPS, PAGE = 2, 64, 8, 300, 4


@pytest.fixture(scope="module")
def be() -> Any:
    found = probe("cuda")
    if not found.available:
        pytest.skip(f"no CUDA device: {found.reason}")
    return kvcore.get_backend("cuda")


class World:
    """A pool, a state and the operands of a step, all on the device."""

    def __init__(self, be: Any, name: str) -> None:
        import cupy

        self.be = be
        spec = kvcore.CacheSpec(
            format=name, n_kv_heads=H, head_dim=D, page_size=PAGE, window=40, sinks=4
        )
        self.spec, layout = spec, spec.layout
        self.pool = be.pool(layout, layout.pages_for(STEPS))
        self.state = be.state(spec.state_layout)
        u = layout.unit_pages
        units = np.random.default_rng(1).permutation(self.pool.n_pages // u)
        pages = (units[:, None] * u + np.arange(u)).reshape(1, -1)
        self.table = cupy.asarray(pages, cupy.int32)
        self.position = cupy.zeros((1, 1), cupy.int32)
        self.length = cupy.zeros(1, cupy.int32)
        self.k, self.v = (cupy.zeros((1, 1, H, D), cupy.float32) for _ in range(2))
        self.q, self.out = (cupy.zeros((1, 1, Q, D), cupy.float32) for _ in range(2))
        self.scratch = be.scratch()

    def step(self) -> None:
        be, fmt = self.be, self.spec.format
        if fmt.rotate_k:
            be.rotate(self.k, out=self.k)
            be.rotate(self.q, out=self.q)
        if fmt.rotate_v:
            be.rotate(self.v, out=self.v)
        be.append(
            self.pool, self.table, self.position, self.k, self.v, state=self.state,
            scratch=self.scratch,
        )  # fmt: skip
        be.attention(
            self.q, self.pool, self.table, self.length, state=self.state, out=self.out,
            scratch=self.scratch,
        )  # fmt: skip
        if fmt.rotate_v:
            be.rotate(self.out, out=self.out)

    def feed(self, i: int, k: Any, v: Any, q: Any) -> None:
        self.k[0, 0], self.v[0, 0], self.q[0, 0] = k[i], v[i], q[i]
        self.position.fill(i)
        self.length.fill(i + 1)

    def bytes(self) -> list[bytes]:
        arrays = [*self.pool.planes.values()]
        arrays += [getattr(self.state, n) for n in ("k", "v", "centre", "marks")]
        return [np.ascontiguousarray(self.be.to_host(a)).tobytes() for a in arrays]


def captured(be: Any, world: World, name: str) -> Any:
    """Return the world's step as a graph; kernels and scratch are made ready on a twin."""
    from kvcore.backends.cuda.graph import CapturedStep

    twin = World(be, name)
    twin.scratch = world.scratch
    twin.length.fill(1)
    twin.step()
    be.synchronize()
    return CapturedStep(world.step, (world.pool, world.state))


@pytest.mark.parametrize("name", ["f16", "int8", "q4_0", "q2k", "q2"])
def test_kb_24_300_replayed_steps_equal_eager_ones(be: Any, name: str) -> None:
    import cupy

    rng = cupy.random.default_rng(0)
    k, v = (rng.standard_normal((STEPS, H, D), cupy.float32) + 1 for _ in range(2))
    q = rng.standard_normal((STEPS, Q, D), cupy.float32)
    replayed, eager = World(be, name), World(be, name)
    graph = captured(be, replayed, name)
    for i in range(STEPS):
        replayed.feed(i, k, v, q)
        graph.replay(replayed.pool, replayed.state)
        eager.feed(i, k, v, q)
        eager.step()
        assert (replayed.out.get() == eager.out.get()).all(), f"step {i}"
    be.synchronize()
    assert replayed.bytes() == eager.bytes()
    assert int(be.to_host(replayed.state.marks)[0, 1]) == STEPS


def test_kb_24_a_pool_that_moved_needs_a_fresh_capture(be: Any) -> None:
    world = World(be, "q4_0")
    graph = captured(be, world, "q4_0")
    moved = be.pool(world.spec.layout, world.pool.n_pages)
    with pytest.raises(ShapeError, match="capture again after a pool grows or moves"):
        graph.replay(moved, world.state)
