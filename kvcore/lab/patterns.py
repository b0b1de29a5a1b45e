"""The ways in which a sequence's cells arrive at a cache."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from kvcore.lab.arms import Arm
from kvcore.lab.caches import HostCache
from kvcore.lab.engine import LayerCache
from kvcore.lab.weights import Floats

PATTERNS = ("one-shot", "3-cell windows", "100-cell chunks", "prompt+decode")

_VERIFY = 3
_CHUNK = 100


def pieces(pattern: str, n: int) -> Iterator[tuple[int, int]]:
    """Yield the first and last-plus-one cell of every append of a pattern.

    Parameters
    ----------
    pattern : str
        "one-shot": all cells; "3-cell windows": half as a prompt, then three at a time, as a
        verify window whose drafts are all accepted; "100-cell chunks"; "prompt+decode": a prompt
        that ends inside a group (half, less 7), then single cells.
    n : int
        Cells in all.
    """
    first = {"one-shot": n, "3-cell windows": max(n // 2, 1), "100-cell chunks": min(_CHUNK, n)}
    step = {"one-shot": n, "3-cell windows": _VERIFY, "100-cell chunks": _CHUNK}
    start, size = 0, first.get(pattern, max(n // 2 - 7, 1))
    while start < n:
        yield start, min(start + size, n)
        start, size = start + size, step.get(pattern, 1)


def feed(cache: LayerCache, arm: Arm, pattern: str, k: Floats, v: Floats) -> None:
    """Append cells in a pattern; verify windows go in as drafts and are committed."""
    drafts = pattern == "3-cell windows"
    for start, end in pieces(pattern, len(k)):
        one = slice(start, end)
        if drafts and start and isinstance(cache, HostCache):
            inner: Any = cache.cache
            inner.append(k[one], v[one], draft=True)
            inner.commit(end)
        else:
            cache.append(k[one], v[one])
