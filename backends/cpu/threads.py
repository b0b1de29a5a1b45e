"""The backend's own threads: a few workers that run kernels, which hold no GIL."""

from __future__ import annotations

import functools
import itertools
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor


@functools.cache
def count() -> int:
    """Return how many threads a call may use: KVCORE_CPU_THREADS, or the cores this process has."""
    asked = os.environ.get("KVCORE_CPU_THREADS", "")
    if asked.isdigit() and int(asked):
        return int(asked)
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@functools.cache
def _workers(pid: int) -> ThreadPoolExecutor:
    """Return this process's workers: a forked child cannot use its parent's."""
    return ThreadPoolExecutor(max(count() - 1, 1), thread_name_prefix="kvcore")


def run(part: Callable[[int, int], None], n: int, parallel: bool = True) -> None:
    """Call ``part(first, last)`` over [0, n), in equal parts on several threads.

    The caller's own thread takes the last part, so that it never waits for a busy pool to start
    its work. The first exception is raised after every part has ended.
    """
    parts = min(count(), n) if parallel else 1
    if parts <= 1:
        part(0, n)
        return
    edges = [n * i // parts for i in range(parts + 1)]
    pool = _workers(os.getpid())
    waiting = [pool.submit(part, a, b) for a, b in itertools.pairwise(edges[:-1])]
    try:
        part(edges[-2], edges[-1])
    finally:
        errors = [f.exception() for f in waiting]
    for error in errors:
        if error is not None:
            raise error
