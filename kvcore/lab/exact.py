"""Caches of the lab that keep every cell exactly, and one that replays a decode step by step."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from kvcore.lab.engine import LayerCache
from kvcore.lab.weights import Floats
from kvcore.spec import GROUP_CELLS

Bools = npt.NDArray[np.bool_]


class ExactCache:
    """Every cell in float32, attended by plain matrix products: where prompts are read exactly.

    Parameters
    ----------
    layer, n_kv_heads, head_dim : int
        As the engine's cache factory gives them.
    capacity : int
        Cells to start with; it grows.

    Attributes
    ----------
    queries : list of float32[T, Q, D]
        Of every call of :meth:`attend`, if ``keep_queries`` is set.
    """

    def __init__(self, layer: int, n_kv_heads: int, head_dim: int, capacity: int = 512) -> None:
        self._k = np.empty((capacity, n_kv_heads, head_dim), np.float32)
        self._v = np.empty_like(self._k)
        self._n = 0
        self.keep_queries = False
        self.queries: list[Floats] = []

    @property
    def k(self) -> Floats:
        """K of all cells, float32[N, H, D]."""
        return self._k[: self._n]

    @property
    def v(self) -> Floats:
        """V of all cells, float32[N, H, D]."""
        return self._v[: self._n]

    def append(self, k: Floats, v: Floats) -> None:
        """Store the next T cells."""
        end = self._n + len(k)
        if end > len(self._k):
            more = max(end, 2 * len(self._k)) - len(self._k)
            spare = np.empty((more, *self._k.shape[1:]), np.float32)
            self._k, self._v = np.concatenate([self._k, spare]), np.concatenate([self._v, spare])
        self._k[self._n : end], self._v[self._n : end] = k, v
        self._n = end

    def attend(
        self,
        q: Floats,
        *,
        k: Floats | None = None,
        v: Floats | None = None,
        scale: float | None = None,
        window: int | None = None,
    ) -> Floats:
        """Attend from the last T positions; `k` and `v` are what is stored anyway."""
        if self.keep_queries:
            self.queries.append(q.copy())
        first = 0 if window is None else max(0, self._n - len(q) - window + 1)
        return attend(q, self.k[first:], self.v[first:], scale=scale, window=window)

    def truncate(self, n: int) -> None:
        """Drop the cells from n on."""
        self._n = min(self._n, n)

    def __len__(self) -> int:
        return self._n

    @property
    def nbytes(self) -> int:
        """Bytes of the live cells."""
        return self.k.nbytes + self.v.nbytes


def hidden(n_queries: int, n_cells: int, window: int | None) -> Bools:
    """Return which cells each of the last queries cannot see, bool[T, N].

    Query t stands at position ``n_cells - n_queries + t`` and sees itself, what is before it and,
    with a window, only the last `window` of those.
    """
    position = np.arange(n_cells - n_queries, n_cells)[:, None]
    cell = np.arange(n_cells)[None]
    out: Bools = cell > position
    if window:
        out |= cell <= position - window
    return out


def attend(
    q: Floats,
    k: Floats,
    v: Floats,
    *,
    scale: float | None = None,
    window: int | None = None,
) -> Floats:
    """Attention of the last T positions over cells, in float32.

    Parameters
    ----------
    q : float32[T, Q, D]
    k, v : float32[N, H, D]
    scale : float, optional
        1 / sqrt(D) unless given.
    window : int, optional

    Returns
    -------
    float32[T, Q, D]
    """
    steps, heads, dim = q.shape
    group = heads // k.shape[1]
    unseen = hidden(steps, len(k), window)[:, None]
    out = np.empty((steps, heads, v.shape[2]), np.float32)
    for h in range(k.shape[1]):
        mine = slice(h * group, (h + 1) * group)
        queries = q[:, mine].reshape(steps * group, dim) * np.float32(scale or dim**-0.5)
        scores = (queries @ k[:, h].T).reshape(steps, group, -1)
        np.copyto(scores, -np.inf, where=unseen)
        scores -= scores.max(-1, keepdims=True)
        np.exp(scores, out=scores)
        scores /= scores.sum(-1, keepdims=True)
        mixed = scores.reshape(steps * group, -1) @ v[:, h]
        out[:, mine] = mixed.reshape(steps, group, -1)
    return out


class OneByOne:
    """Replays T forced tokens on a cache as T decode steps: append one cell, attend, next.

    A layer's cache depends on that layer's cells only, so with forced tokens all steps of one
    layer may run before the next layer starts; the matrix products around it run for all tokens
    at once. Steps between two events of the store (a group of 32 completes) may also be given to
    the cache together: a query reads by its own length, so it reads the same values either way.

    Parameters
    ----------
    cache : LayerCache
    together : int
        Steps in one call at most. 1 for a cache whose bytes depend on how cells arrive (eager
        grouping); at most 17, the cells that may follow a window without loss.
    """

    def __init__(self, cache: LayerCache, together: int = 1) -> None:
        self.cache, self._together = cache, together
        self._new: tuple[Floats, Floats] | None = None

    def append(self, k: Floats, v: Floats) -> None:
        """Note the cells that :meth:`attend` will append step by step."""
        self._new = (k, v)

    def attend(
        self,
        q: Floats,
        *,
        k: Floats | None = None,
        v: Floats | None = None,
        scale: float | None = None,
        window: int | None = None,
    ) -> Floats:
        """Append and attend T times; every cell is read as it is stored."""
        assert self._new is not None
        new_k, new_v = self._new
        out = np.empty_like(q)
        for start, end in steps(len(self.cache), len(q), self._together):
            some = slice(start, end)
            self.cache.append(new_k[some], new_v[some])
            out[some] = self.cache.attend(q[some], scale=scale, window=window)
        self._new = None
        return out

    def truncate(self, n: int) -> Any:
        """Drop the cells from n on."""
        return self.cache.truncate(n)

    def __len__(self) -> int:
        return len(self.cache)

    @property
    def nbytes(self) -> int:
        """Bytes of the cache under it."""
        return self.cache.nbytes


def steps(stored: int, count: int, together: int) -> Iterator[tuple[int, int]]:
    """Yield first and last-plus-one of the steps that one call may take.

    A cell that completes a group of 32 goes alone: with it the group's other cells change the
    place they are read from, and steps before it must not see that.

    Parameters
    ----------
    stored : int
        Cells in the cache before.
    count : int
        Steps.
    together : int
        Steps a call at most.
    """
    start = 0
    while start < count:
        left = GROUP_CELLS - 1 - (stored + start) % GROUP_CELLS  # before the completing cell
        end = min(start + max(min(together, left), 1), count)
        yield start, end
        start = end
