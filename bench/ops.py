"""Milliseconds per op on one device, as markdown.

    python -m bench.ops --backend cuda [--cells 4096 32768 131072] [--format f16 ...]

For each format, context and shape (query heads / KV heads / head size): append of one token,
attention of one query token over the whole context, gather of 4096 cells. CUDA is timed by events
on the stream; elsewhere the clock around a synchronisation. The median of several rounds, each of
enough calls to last a while; nothing is allocated inside (out=, scratch=).
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

import kvcore
from kvcore.backend import Backend

FORMATS = ("f16", "int8", "q4_0", "q2k")
CELLS = (4096, 32768, 131072)
SHAPES = ((24, 2, 256), (32, 8, 128))
PAGE = 32
GATHERED = 4096
CHUNK = 4096


@dataclass(frozen=True, kw_only=True)
class Shape:
    """Query heads, KV heads, head size."""

    queries: int
    heads: int
    dim: int

    def __str__(self) -> str:
        return f"{self.queries}/{self.heads}/{self.dim}"


class Clock:
    """Times calls on a backend: CUDA events where there are, else the wall."""

    def __init__(self, be: Backend) -> None:
        self._be = be
        self._cupy: Any = None
        if be.name == "cuda":
            import cupy

            self._cupy = cupy

    def once(self, call: Callable[[], Any], n: int) -> float:
        """Return milliseconds of one of n calls."""
        if self._cupy is None:
            start = time.perf_counter()
            for _ in range(n):
                call()
            self._be.synchronize()
            return (time.perf_counter() - start) * 1e3 / n
        first, last = self._cupy.cuda.Event(), self._cupy.cuda.Event()
        first.record()
        for _ in range(n):
            call()
        last.record()
        last.synchronize()
        return float(self._cupy.cuda.get_elapsed_time(first, last)) / n

    def measure(self, call: Callable[[], Any], rounds: int, budget_ms: float) -> float:
        """Return the median of a few rounds, warmed up."""
        call()
        self._be.synchronize()
        n = max(1, min(200, int(budget_ms / max(self.once(call, 1), 1e-3))))
        found = [self.once(call, n) for _ in range(rounds)]
        self._be.synchronize()
        return statistics.median(found)


def device_ints(be: Backend, values: Any) -> Any:
    """Return int32 values where the backend's kernels read them."""
    data = np.ascontiguousarray(values, np.int32)
    array = be.allocate(data.shape, "i4")
    be.write(array, data)
    return array


def fill(be: Backend, pool: Any, table: Any, cells: int, shape: Shape) -> None:
    """Write every cell of the context, a chunk at a time."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((CHUNK, shape.heads, shape.dim)).astype(np.float32)
    for start in range(0, cells, CHUNK):
        n = min(CHUNK, cells - start)
        be.append(pool, table, np.arange(start, start + n, dtype=np.int32), x[:n], x[:n])
    be.synchronize()


def row(
    be: Backend, clock: Clock, name: str, shape: Shape, cells: int, rounds: int, budget: float
) -> list[str]:
    """Measure one line of the table."""
    spec = kvcore.CacheSpec(
        format=name, n_kv_heads=shape.heads, head_dim=shape.dim, page_size=PAGE, recipe=None
    )
    pages = spec.layout.pages_for(cells + PAGE)
    pool = be.pool(spec.layout, pages)
    table = np.random.default_rng(1).permutation(pages).astype(np.int32)
    fill(be, pool, table, cells, shape)
    held = device_ints(be, table)
    scratch = be.scratch()
    one = be.arrays.asarray(np.ones((1, shape.heads, shape.dim), np.float32), "float", "bench", "k")
    q = be.arrays.asarray(np.ones((1, shape.queries, shape.dim), np.float32), "float", "bench", "q")
    out = be.allocate((1, shape.queries, shape.dim), "f4")
    position = device_ints(be, [cells])
    length = device_ints(be, [cells])
    picked = np.sort(np.random.default_rng(2).choice(cells, min(cells, GATHERED), replace=False))
    ids = device_ints(be, picked)
    calls = {
        "append": lambda: be.append(pool, held, position, one, one, scratch=scratch),
        "attention": lambda: be.attention(q, pool, held, length, out=out, scratch=scratch),
        "gather": lambda: be.gather(pool, held, ids),
    }
    found = {op: clock.measure(call, rounds, budget) for op, call in calls.items()}
    bytes_read = cells * spec.bytes_per_cell
    rate = bytes_read / found["attention"] / 1e6
    times = [f"{found[op]:.4f}" for op in calls]
    return [name, str(shape), f"{cells}", *times, f"{bytes_read / 2**20:.1f}", f"{rate:.1f}"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--backend")
    parser.add_argument("--cells", type=int, nargs="+", default=list(CELLS))
    parser.add_argument("--format", nargs="+", default=list(FORMATS))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--budget-ms", type=float, default=100.0, help="length of one round")
    options = parser.parse_args()
    be = kvcore.get_backend(options.backend)
    clock = Clock(be)
    print(f"# ms per op: {be.name}, {be.device}\n")
    print(
        f"Portable bodies, pages of {PAGE} cells in random order, no state; append of one token, "
        f"attention of one token over the whole context, gather of {GATHERED} cells; median of "
        f"{options.rounds} rounds.\n"
    )
    head = ["format", "Q/H/D", "cells", "append", "attention", "gather", "MiB read", "GB/s"]
    print("| " + " | ".join(head) + " |\n|---|---|" + "---:|" * (len(head) - 2))
    for queries, heads, dim in SHAPES:
        shape = Shape(queries=queries, heads=heads, dim=dim)
        for name in options.format:
            for cells in options.cells:
                line = row(be, clock, name, shape, cells, options.rounds, options.budget_ms)
                print("| " + " | ".join(line) + " |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
