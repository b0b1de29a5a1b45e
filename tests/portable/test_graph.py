"""KB-24: one step that allocates nothing and never waits, captured once and replayed 300 times."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import kvcore
from kvcore.numerics import Array
from kvcore.portable.backend import PortableBackend
from tests.portable.conftest import open_backend
from tests.shims import fake_cupy

H, Q, D, P = 2, 4, 64, 4
PROMPT, STEPS, WINDOW, SINKS = 30, 300, 40, 3
CELLS = PROMPT + STEPS
BLOCKS = -(-CELLS // 32) * 8
SPEC = kvcore.CacheSpec(
    format="q2k",
    n_kv_heads=H,
    head_dim=D,
    page_size=P,
    recipe=None,
    window=WINDOW,
    sinks=SINKS,
)


class Step:
    """Rotate, append one cell, attend over chosen cells: every operand at a fixed place.

    Everything that changes from step to step lies on the device: values, position, length, table
    and the ids of the selected cells.
    """

    def __init__(self, be: PortableBackend) -> None:
        self.be = be
        self.pool = be.pool(SPEC.layout, BLOCKS)
        self.state = be.state(SPEC.state_layout)
        self.pages = np.arange(BLOCKS).reshape(-1, 8)[::-1].reshape(-1).astype(np.int32)
        self.table = be.allocate((BLOCKS,), "i4")
        self.position, self.length = be.allocate((1,), "i4"), be.allocate((1,), "i4")
        self.ids = be.allocate((1, WINDOW + 24), "i4")
        self.k, self.v = be.allocate((1, H, D), "f4"), be.allocate((1, H, D), "f4")
        self.q = be.allocate((1, Q, D), "f4")
        self.turned, self.asked = be.allocate((1, H, D), "f4"), be.allocate((1, Q, D), "f4")
        self.out = be.allocate((1, Q, D), "f4")
        self.scratch = [be.scratch() for _ in range(2)]

    def set(self, cell: int, k: Array, v: Array, q: Array) -> None:
        """Put the operands of a step where the kernels read them."""
        be, n = self.be, cell + 1
        for array, values in ((self.k, k), (self.v, v), (self.q, q)):
            be.write(array, values[None])
        be.write(self.position, np.array([cell], np.int32))
        be.write(self.length, np.array([n], np.int32))
        be.write(self.table, shown(self.pages, n))
        be.write(self.ids, chosen(n))

    def __call__(self) -> None:
        be = self.be
        be.rotate(self.k, out=self.turned)
        be.rotate(self.q, out=self.asked)
        be.append(
            self.pool, self.table, self.position, self.turned, self.v,
            state=self.state, scratch=self.scratch[0],
        )  # fmt: skip
        be.attention(
            self.asked, self.pool, self.table, self.length, ids=self.ids,
            state=self.state, out=self.out, scratch=self.scratch[1],
        )  # fmt: skip


def shown(pages: Array, n: int) -> Array:
    """Return the table of n cells: units that are not begun have no page yet."""
    table = pages.copy()
    table[-(-n // 32) * 8 :] = -1
    return table


def chosen(n: int) -> Array:
    """Return the last WINDOW cells and every 17th before, -1 where there are fewer."""
    ids = np.full((1, WINDOW + 24), -1, np.int32)
    cells = sorted({*range(max(0, n - WINDOW), n), *range(0, n, 17)})
    ids[0, : len(cells)] = cells
    return ids


def values(seed: int) -> tuple[Array, Array, Array]:
    rng = np.random.default_rng(seed)
    k, v = rng.standard_normal((2, CELLS, H, D)).astype(np.float32)
    return k, v, rng.standard_normal((CELLS, Q, D)).astype(np.float32)


class Eager:
    """The same steps with every operand on the host and fresh memory in each call."""

    def __init__(self, be: PortableBackend) -> None:
        self.be = be
        self.pool, self.state = be.pool(SPEC.layout, BLOCKS), be.state(SPEC.state_layout)
        self.pages = np.arange(BLOCKS).reshape(-1, 8)[::-1].reshape(-1).astype(np.int32)

    def append(self, start: int, k: Array, v: Array) -> None:
        cells = np.arange(start, start + len(k), dtype=np.int32)
        table = shown(self.pages, start + len(k))
        self.be.append(self.pool, table, cells, self.be.rotate(k), v, state=self.state)

    def step(self, cell: int, k: Array, v: Array, q: Array) -> Array:
        self.append(cell, k[None], v[None])
        ids = chosen(cell + 1)
        out = self.be.attention(
            self.be.rotate(q[None]), self.pool, shown(self.pages, cell + 1),
            np.array([cell + 1]), ids=ids, state=self.state,
        )  # fmt: skip
        return self.be.to_host(out)


def begin(step: Step, k: Array, v: Array) -> None:
    """Store the prompt."""
    cells = np.arange(PROMPT, dtype=np.int32)
    table = shown(step.pages, PROMPT)
    step.be.append(step.pool, table, cells, step.be.rotate(k), v, state=step.state)


def compare(step: Step, run: Callable[[], None], first: int) -> None:
    """Run the steps from cell `first` on; each output equals the eager one bit for bit."""
    be = step.be
    eager = Eager(be)
    k, v, q = values(0)
    eager.append(0, k[:PROMPT], v[:PROMPT])
    for cell in range(PROMPT, first):
        eager.step(cell, k[cell], v[cell], q[cell])
    for cell in range(first, CELLS):
        step.set(cell, k[cell], v[cell], q[cell])
        run()
        want = eager.step(cell, k[cell], v[cell], q[cell])
        assert be.to_host(step.out).tobytes() == want.tobytes(), f"cell {cell}"
    be.synchronize()
    for name in step.pool.planes:
        got, want = (be.to_host(p.planes[name]) for p in (step.pool, eager.pool))
        assert np.array_equal(got, want), name
    for name in ("k", "v", "centre", "marks"):
        got, want = (be.to_host(getattr(s.state, name)) for s in (step, eager))
        assert np.array_equal(got, want), name


def test_kb24_a_step_with_operands_on_the_device_equals_eager(quick: PortableBackend) -> None:
    step = Step(quick)
    k, v, _ = values(0)
    begin(step, k[:PROMPT], v[:PROMPT])
    compare(step, step, PROMPT)


def test_kb24_a_warm_step_neither_allocates_nor_waits() -> None:
    be = open_backend("cuda-text")
    step = Step(be)
    k, v, q = values(0)
    begin(step, k[:PROMPT], v[:PROMPT])
    step.set(PROMPT, k[PROMPT], v[PROMPT], q[PROMPT])
    step()
    step.set(PROMPT + 1, k[PROMPT + 1], v[PROMPT + 1], q[PROMPT + 1])
    before = dict(fake_cupy.counts)
    step()
    after = dict(fake_cupy.counts)
    assert after["launch"] > before["launch"]
    assert (after["alloc"], after["synchronize"]) == (before["alloc"], before["synchronize"])


def test_kb24_a_captured_graph_replays_300_steps_bit_equal_to_eager() -> None:
    be = open_backend("cuda")  # a skip with its reason where there is no GPU
    import cupy

    k, v, q = values(0)
    stream: Any = cupy.cuda.Stream(non_blocking=True)
    with stream:
        step = Step(be)
        begin(step, k[:PROMPT], v[:PROMPT])
        step.set(PROMPT, k[PROMPT], v[PROMPT], q[PROMPT])
        step()  # builds the programs and takes the scratch
        stream.synchronize()
        stream.begin_capture()
        step()
        graph = stream.end_capture()
        compare(step, lambda: graph.launch(stream), PROMPT + 1)


def test_kb24_what_a_capture_cannot_hold_is_an_error_not_a_frozen_value() -> None:
    """A position on the host would be baked into the graph: the upload refuses to be captured."""
    be = open_backend("cuda")
    import cupy

    stream: Any = cupy.cuda.Stream(non_blocking=True)
    with stream:
        step = Step(be)
        k, v, q = values(0)
        begin(step, k[:PROMPT], v[:PROMPT])
        step.set(PROMPT, k[PROMPT], v[PROMPT], q[PROMPT])
        step()
        stream.synchronize()
        stream.begin_capture()
        with pytest.raises(cupy.cuda.runtime.CUDARuntimeError):
            be.append(
                step.pool, step.table, np.array([PROMPT + 1, PROMPT + 2]),
                np.ones((2, H, D), np.float32), np.ones((2, H, D), np.float32), state=step.state,
            )  # fmt: skip
        with pytest.raises(cupy.cuda.runtime.CUDARuntimeError):
            stream.end_capture()
    cupy.cuda.get_current_stream().synchronize()
