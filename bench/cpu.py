"""What the CPU backend's ops cost here, beside dense float32 NumPy, in interleaved samples.

    python bench/cpu.py                        # every format, three shapes
    python bench/cpu.py --format q2k --shape 3x3x64 --cells 1024 --samples 50
    python bench/cpu.py --cold                 # compile time of each kernel, in an empty cache

A sample of every arm is taken in turn, in random order, so that what else runs on the machine meets
all of them alike. Compare figures of one run only.
"""

from __future__ import annotations

import argparse
import logging
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from statistics import median

import numpy as np

import kvcore

SHAPES = ("3x3x64", "2x12x256", "8x4x128")
FORMATS = ("f16", "int8", "q4_0", "q2k")
CHUNK = 512

Arm = tuple[str, Callable[[], object]]


def arms(format: str, heads: int, group: int, dim: int, cells: int) -> Iterator[Arm]:
    """Yield what is timed for one format: decode, verify, append, prefill."""
    rng = np.random.default_rng(0)
    spec = kvcore.CacheSpec(format=format, n_kv_heads=heads, head_dim=dim)
    cache = kvcore.get_backend("cpu").cache(spec, cells + CHUNK)
    k, v = rng.standard_normal((2, cells, heads, dim)).astype(np.float32)
    cache.append(k, v)
    q = rng.standard_normal((CHUNK, heads * group, dim)).astype(np.float32)

    def append(n: int) -> None:
        cache.append(k[:n], v[:n])
        cache.truncate(cells)

    def prefill() -> None:
        cache.append(k[:CHUNK], v[:CHUNK])
        cache.attend(q, k[:CHUNK], v[:CHUNK])
        cache.truncate(cells)

    yield f"{format} attend 1", lambda: cache.attend(q[:1])
    yield f"{format} attend 5", lambda: cache.attend(q[:5])
    yield f"{format} append 1", lambda: append(1)
    yield f"{format} prompt {min(CHUNK, cells)}", prefill


def dense(heads: int, group: int, dim: int, cells: int) -> Arm:
    """Return attention of one query over float32 arrays, in NumPy."""
    rng = np.random.default_rng(0)
    k, v = rng.standard_normal((2, heads, cells, dim)).astype(np.float32)
    q = rng.standard_normal((heads, group, dim)).astype(np.float32)

    def attend() -> object:
        s = q @ k.swapaxes(1, 2) * np.float32(dim**-0.5)
        p = np.exp(s - s.max(axis=2, keepdims=True))
        return (p / p.sum(axis=2, keepdims=True)) @ v

    return "NumPy float32 attend 1", attend


def sample(every: list[Arm], n: int) -> dict[str, list[float]]:
    """Time each arm n times, interleaved."""
    times: dict[str, list[float]] = {name: [] for name, _ in every}
    for _, run in every:
        run()
    for _ in range(n):
        for name, run in random.sample(every, len(every)):
            start = time.perf_counter()
            run()
            times[name].append(time.perf_counter() - start)
    return times


def cold() -> int:
    """Compile every kernel of a q2k decode in a process with an empty cache."""
    code = (
        "import logging, numpy as np, kvcore, time\n"
        "logging.basicConfig(format='%(message)s', level=logging.INFO)\n"
        "start = time.perf_counter()\n"
        "be = kvcore.get_backend('cpu')\n"
        "cache = be.cache(kvcore.CacheSpec(format='q2k', n_kv_heads=1, head_dim=64), 256)\n"
        "x = np.ones((140, 1, 64), np.float32)\n"
        "cache.append(x, x); cache.attend(x[:1])\n"
        "print(f'first answer after {time.perf_counter() - start:.2f} s')\n"
    )
    with tempfile.TemporaryDirectory() as folder:
        for title in ("empty cache", "second process"):
            print(f"-- {title}", flush=True)
            env = {**os.environ, "NUMBA_CACHE_DIR": folder}
            subprocess.run([sys.executable, "-c", code], check=True, env=env)
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--format", action="append", choices=tuple(kvcore.formats()))
    parser.add_argument("--shape", action="append", help="KV heads x queries per head x head size")
    parser.add_argument("--cells", type=int, default=4096)
    parser.add_argument("--samples", type=int, default=20)
    parser.add_argument("--cold", action="store_true")
    args = parser.parse_args()
    logging.basicConfig(format="%(message)s")
    if args.cold:
        return cold()
    for shape in args.shape or SHAPES:
        heads, group, dim = (int(n) for n in shape.split("x"))
        every = [dense(heads, group, dim, args.cells)]
        for name in args.format or FORMATS:
            every += arms(name, heads, group, dim, args.cells)
        times = sample(every, args.samples)
        base = median(times[every[0][0]])
        print(f"-- {heads} KV heads x {group} queries x {dim}, {args.cells} cells")
        for name, found in times.items():
            mid, least = median(found), min(found)
            ratio = f"{base / mid:6.2f} x NumPy" if name.endswith("attend 1") else ""
            per_cell = f"{least / args.cells * 1e9:7.0f} ns/cell" if "attend" in name else " " * 15
            ms = f"median {mid * 1e3:9.3f} ms, best {least * 1e3:9.3f}"
            print(f"{name:<24} {ms}  {per_cell} {ratio}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
