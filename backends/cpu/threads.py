"""The backend's own threads: a few workers that run kernels, which hold no GIL."""

from __future__ import annotations

import functools
import itertools
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

PIECES = 4
"""Pieces of work a thread: enough to even out pieces that take longer."""


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
    """Call ``part(first, last)`` over [0, n) in pieces, on several threads.

    The caller works too and never waits for a busy pool: workers that have not started when no
    piece is left are called off. The first exception is raised after every piece has ended.
    """
    helpers = min(count(), n) - 1 if parallel else 0
    if helpers < 1:
        part(0, n)
        return
    pieces = min(n, PIECES * (helpers + 1))
    edges = [n * i // pieces for i in range(pieces + 1)]
    turn = itertools.count()

    def work() -> None:
        while (i := next(turn)) < pieces:
            part(edges[i], edges[i + 1])

    pool = _workers(os.getpid())
    waiting = [pool.submit(work) for _ in range(helpers)]
    try:
        work()
    finally:
        errors = [f.exception() for f in waiting if not f.cancel()]
    for error in errors:
        if error is not None:
            raise error
