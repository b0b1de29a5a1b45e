"""Milliseconds per op on one backend: append, gather and decode attention of packed caches.

    python bench/ops.py --backend cuda [--cells 4096 32768 131072] [--formats f16 int8 q4_0 q2k]

Stateless ops on one layer's pool, real random data, a shuffled page table (whole units), operands
held by the device where the backend takes them there. A figure is the median over rounds of (calls
between two synchronisations / number of calls); GB/s counts the packed K and V bytes that the op
must move. Markdown on stdout.
"""

from __future__ import annotations

import argparse
import platform
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import kvcore

SHAPES = {"24/2/256": (24, 2, 256), "32/8/128": (32, 8, 128)}
GATHERED = 2051
CHUNK = 4096
ROUNDS = 7


def timed(be: Any, call: Callable[[], Any], budget: float) -> float:
    """Return the median milliseconds of one call; each round lasts about budget / ROUNDS s."""
    for _ in range(2):
        call()
    be.synchronize()
    start = time.perf_counter()
    call()
    be.synchronize()
    once = time.perf_counter() - start
    n = max(1, min(200, int(budget / ROUNDS / max(once, 1e-6))))
    rounds = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        for _ in range(n):
            call()
        be.synchronize()
        rounds.append((time.perf_counter() - start) / n * 1e3)
    return statistics.median(rounds)


def on_device(be: Any, values: np.ndarray[Any, Any], kind: str) -> Any:
    """Return values where the backend keeps operands."""
    if kind == "float" or not hasattr(be.arrays, "upload"):
        return be.arrays.asarray(values, kind, "bench", "operand")
    return be.arrays.upload(np.ascontiguousarray(values, np.int32))


def shuffled_table(layout: Any, n_pages: int, rng: np.random.Generator) -> np.ndarray[Any, Any]:
    """Return a page table whose units are in random order."""
    u = layout.unit_pages
    units = rng.permutation(n_pages // u)
    return (units[:, None] * u + np.arange(u)).reshape(1, -1).astype(np.int32)


def filled_pool(be: Any, spec: Any, cells: int, table: Any, rng: np.random.Generator) -> Any:
    """Return a pool of random cells, appended in chunks."""
    layout = spec.layout
    pool = be.pool(layout, layout.pages_for(cells))
    h, d = layout.n_kv_heads, layout.head_dim_k
    x = rng.standard_normal((2, CHUNK, h, d), np.float32)
    k, v = on_device(be, x[0], "float"), on_device(be, x[1], "float")
    for start in range(0, cells, CHUNK):
        positions = np.arange(start, start + CHUNK, dtype=np.int32)
        be.append(pool, table, positions, k, v)
    return pool


def measure(be: Any, name: str, shape: str, cells: int, budget: float) -> dict[str, float]:
    """Return milliseconds by op for one format, shape and length."""
    heads, h, d = SHAPES[shape]
    rng = np.random.default_rng(0)
    spec = kvcore.CacheSpec(
        format=name, n_kv_heads=h, head_dim=d, page_size=64, recipe=None, grouping="eager"
    )
    layout = spec.layout
    host_table = shuffled_table(layout, layout.pages_for(cells), rng)
    table = on_device(be, host_table, "int")
    pool = filled_pool(be, spec, cells, host_table, rng)
    k, v, one_k, one_v = (
        on_device(be, rng.standard_normal((n, h, d), np.float32), "float")
        for n in (CHUNK, CHUNK, 1, 1)
    )
    chunk = on_device(be, np.arange(CHUNK)[None], "int")
    last = on_device(be, np.array([[cells - 1]]), "int")
    ids = on_device(be, np.sort(rng.choice(cells, GATHERED, replace=False))[None], "int")
    q = on_device(be, rng.standard_normal((1, 1, heads, d), np.float32), "float")
    lengths = on_device(be, np.array([cells]), "int")
    scratch, out = be.scratch(), be.attention(q, pool, table, lengths)
    return {
        "append 4096": timed(
            be, lambda: be.append(pool, table, chunk, k, v, scratch=scratch), budget
        ),
        "append 1": timed(
            be, lambda: be.append(pool, table, last, one_k, one_v, scratch=scratch), budget
        ),
        f"gather {GATHERED}": timed(be, lambda: be.gather(pool, table, ids), budget),
        "attention": timed(
            be,
            lambda: be.attention(q, pool, table, lengths, out=out, scratch=scratch),
            budget,
        ),
        "bytes": float(cells * spec.bytes_per_cell),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backend", required=True)
    parser.add_argument("--cells", type=int, nargs="*", default=[4096, 32768, 131072])
    parser.add_argument("--formats", nargs="*", default=["f16", "int8", "q4_0", "q2k"])
    parser.add_argument("--shapes", nargs="*", default=list(SHAPES), choices=list(SHAPES))
    parser.add_argument("--seconds", type=float, default=0.7, help="budget of one figure")
    options = parser.parse_args()
    be = kvcore.get_backend(options.backend)
    print(
        f"{be.name}: {be.device}; kvcore {kvcore.__version__}, Python {platform.python_version()}"
    )
    print("\nMilliseconds a call (heads / KV heads / head size; B = 1; pages of 64 cells)\n")
    names = ["append 4096", "append 1", f"gather {GATHERED}", "attention"]
    print(f"| shape | cells | format | {' | '.join(names)} | attention GB/s |")
    print("|---|--:|---|" + "--:|" * (len(names) + 1))
    for shape in options.shapes:
        for cells in options.cells:
            for name in options.formats:
                row = measure(be, name, shape, cells, options.seconds)
                rate = row["bytes"] / row["attention"] / 1e6
                figures = " | ".join(f"{row[n]:.4g}" for n in names)
                print(f"| {shape} | {cells} | {name} | {figures} | {rate:.4g} |", flush=True)


if __name__ == "__main__":
    main()
