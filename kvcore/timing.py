"""How long a cache's calls take on this machine: for ``kvcore bench``, never for a test.

Bytes are those of the packed cells that a call must write or read, so that formats can be
compared with the memory's bandwidth.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from kvcore.cache_spec import CacheSpec
from kvcore.errors import ShapeError, message
from kvcore.numerics import F32

CHUNK = 512
"""Cells appended at a time while the cache is filled."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Timing:
    """One call, timed.

    Attributes
    ----------
    call : {"append chunk", "append step", "attend step"}
    format, backend : str
    context : int
        Cells held.
    runs : int
    seconds : float
        Median of a call.
    spread : float
        Slowest over fastest.
    nbytes : int
        Packed bytes of the cells that the call writes or reads.
    """

    call: str
    format: str
    backend: str
    context: int
    runs: int
    seconds: float
    spread: float
    nbytes: int

    @property
    def rate(self) -> float:
        """Packed bytes a second."""
        return self.nbytes / self.seconds


def time_cache(
    spec: CacheSpec,
    backend: Any,
    context: int,
    n_q_heads: int,
    *,
    seconds: float = 0.5,
    progress: Callable[[int, int], None] | None = None,
) -> tuple[Timing, ...]:
    """Fill a cache with `context` cells and time its calls.

    Parameters
    ----------
    spec : CacheSpec
    backend : Backend
    context : int
    n_q_heads : int
        A multiple of the spec's KV heads.
    seconds : float
        How long each call is repeated (at least three times).
    progress : callable (done, total), optional
        Told about cells appended.

    Raises
    ------
    ShapeError
        If `n_q_heads` is not a multiple of the KV heads.
    """
    h = spec.n_kv_heads
    if n_q_heads % h or n_q_heads < 1:
        raise ShapeError(message("bench", "query heads", got=n_q_heads, expected=f"n x {h}"))
    rng = np.random.default_rng(0)
    k, v = (_normal(rng, CHUNK, h, d) for d in (spec.head_dim, spec.head_dim_v))
    q = _normal(rng, 1, n_q_heads, spec.head_dim)
    cache = backend.cache(spec, context + CHUNK)

    def filled() -> None:
        backend.synchronize()

    chunks = []
    for start in range(0, context, CHUNK):
        n = min(CHUNK, context - start)
        chunks.append(_once(lambda n=n: cache.append(k[:n], v[:n]), filled))  # type: ignore[misc]
        if progress is not None:
            progress(start + n, context)
    size = spec.bytes_per_cell

    def timing(call: str, found: list[float], nbytes: int) -> Timing:
        return Timing(
            call=call,
            format=spec.format.name,
            backend=backend.name,
            context=context,
            runs=len(found),
            seconds=statistics.median(found),
            spread=max(found) / max(min(found), 1e-12),
            nbytes=nbytes,
        )

    attends = _repeat(lambda: cache.attend(q), filled, seconds)
    steps = _repeat(lambda: cache.append(k[:1], v[:1]), filled, seconds, at_most=CHUNK)
    # The first call may have compiled something.
    return (
        timing("append chunk", chunks[1:] or chunks, size * min(CHUNK, context)),
        timing("append step", steps, size),
        timing("attend step", attends, size * context),
    )


def _normal(rng: np.random.Generator, *shape: int) -> F32:
    return rng.standard_normal(shape, dtype=np.float32)


def _once(call: Callable[[], object], done: Callable[[], None]) -> float:
    start = time.perf_counter()
    call()
    done()
    return time.perf_counter() - start


def _repeat(
    call: Callable[[], object], done: Callable[[], None], seconds: float, at_most: int = 100_000
) -> list[float]:
    """Return the times of calls, after one that warms up."""
    _once(call, done)
    found: list[float] = []
    while len(found) < at_most - 1 and (len(found) < 3 or sum(found) < seconds):
        found.append(_once(call, done))
    return found
