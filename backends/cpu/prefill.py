"""Attention of many queries at once: matrix products over blocks of dequantized cells."""

from __future__ import annotations

import numpy as np

from kvcore import marks as rules
from kvcore.numerics import F32, Array

from . import threads
from .attend import LIMIT, SCALE, SOFTCAP, WINDOW, Queries
from .decode import BULK, MISSING, read_cells
from .store import RING, Store, Stores

BLOCK = 512
"""Cells dequantized at a time."""

ROWS = 8192
"""Query rows multiplied at a time: bounds the scores in memory to 16 MiB."""


def attend(asked: Queries, table: Array, stores: Stores, out: F32, lse: F32) -> None:
    """Fill out f32[B, T, Q, Dv] and lse f32[B, T, Q]; every query sees a run of cells."""
    batch, heads = asked.centre.shape[:2]

    def part(first: int, last: int) -> None:
        for i in range(first, last):
            b, h = divmod(i, heads)
            _Head(asked, table, stores, b, h, out.shape[3]).run(out, lse)

    threads.run(part, batch * heads)


class _Head:
    """All queries of one sequence over one KV head: a running softmax over blocks of cells."""

    def __init__(
        self, asked: Queries, table: Array, stores: Stores, b: int, h: int, dim_v: int
    ) -> None:
        self.asked, self.table, self.stores, self.b, self.h = asked, table[b], stores, b, h
        steps, queries = asked.q.shape[1:3]
        self.group = queries // asked.centre.shape[1]
        self.heads = slice(h * self.group, (h + 1) * self.group)
        self.q = np.ascontiguousarray(asked.q[b, :, self.heads])
        self.scale, self.softcap = asked.numbers[SCALE], asked.numbers[SOFTCAP]
        with np.errstate(all="ignore"):
            self.bias = (self.q @ asked.centre[b, h]) * self.scale
        self.centred = bool(asked.centre[b, h].any())
        self.lengths = asked.lengths[b].astype(np.int64)
        self.best = np.full((steps, self.group, 1), -np.inf, np.float32)
        self.total = np.zeros((steps, self.group, 1), np.float32)
        self.acc = np.zeros((steps, self.group, dim_v), np.float32)
        self.seen = np.zeros(steps, bool)

    def run(self, out: F32, lse: F32) -> None:
        end = int(self.lengths.max())
        limit = int(self.asked.options[LIMIT])
        low = max(int(self.lengths.min()) - limit, 0) if limit else 0
        with np.errstate(all="ignore"):  # non-finite values pass through, as the contract says
            for first in range(low, end, BLOCK):
                self._block(np.arange(first, min(first + BLOCK, end)))
            seen = self.seen[:, None, None]
            out[self.b, :, self.heads] = np.where(seen, self.acc / self.total, np.float32(0))
            found = np.where(self.total != 0, self.best + np.log(self.total), np.float32(np.nan))
            lse[self.b, :, self.heads] = np.where(seen, found, np.float32(-np.inf))[..., 0]

    def _block(self, cells: Array) -> None:
        """Fold a run of cells into every query that sees some of them."""
        limit, window = int(self.asked.options[LIMIT]), int(self.asked.options[WINDOW])
        low = self.lengths - limit if limit else np.zeros_like(self.lengths)
        rows = np.flatnonzero((self.lengths > cells[0]) & (low <= cells[-1]))
        if not rows.size:
            return
        t0, t1 = int(rows[0]), int(rows[-1]) + 1
        visible = (cells < self.lengths[t0:t1, None]) & (cells >= low[t0:t1, None])
        inside = cells >= self.lengths[t0:t1, None] - window
        rings = self.stores.k.info[RING] or self.stores.v.info[RING]
        for flag in (False, True) if rings else (False,):
            # A cell that some queries read exactly and others from the bulk is read both ways.
            mask = visible & (inside == flag) if rings else visible
            if mask.any():
                self._fold(cells, flag, mask, t0)

    def _fold(self, cells: Array, inside: bool, mask: Array, t0: int) -> None:
        n = len(cells)
        k = np.empty((n, self.q.shape[2]), np.float32)
        v = np.empty((n, self.acc.shape[2]), np.float32)
        how, how_v = np.empty(n, np.uint8), np.empty(n, np.uint8)
        self._read(self.stores.v, "v", cells, inside, v, how_v)
        self._read(self.stores.k, "k", cells, inside, k, how)
        missing = (how == MISSING) | (how_v == MISSING)
        v[missing] = 0
        if missing.any():
            mask = mask & ~missing
        bulk = how == BULK
        clean = bool(np.isfinite(v).all())
        step = max(1, ROWS // self.group)
        for start in range(0, len(mask), step):
            part = mask[start : start + step]
            some = np.flatnonzero(part.any(axis=1))
            if some.size:
                a, b = int(some[0]), int(some[-1]) + 1
                self._rows(slice(t0 + start + a, t0 + start + b), part[a:b], k, v, bulk, clean)

    def _read(
        self, store: Store, name: str, cells: Array, inside: bool, out: F32, how: Array
    ) -> None:
        asked, b = self.asked, self.b
        frontier, ring_lo = (
            asked.marks[b, rules.FRONTIER[name]],
            asked.marks[b, rules.RING_LO[name]],
        )
        steps = asked.lengths.shape[1]
        place = np.array([b, self.h, asked.own_start[b], frontier, ring_lo, steps], np.int64)
        own = asked.own_k if name == "k" else asked.own_v
        flags = np.full(len(cells), inside, np.uint8)
        read_cells(store, own, self.table, place, cells, flags, out, how)

    def _rows(self, ts: slice, mask: Array, k: F32, v: F32, bulk: Array, clean: bool) -> None:
        """Fold a block into the queries `ts`; `mask` says which cells each of them sees."""
        q = self.q[ts]
        s = (q.reshape(-1, q.shape[2]) @ k.T).reshape(*q.shape[:2], -1)
        s *= self.scale
        if self.centred:
            s += np.where(bulk, self.bias[ts, :, None], np.float32(0))
        if self.softcap:
            s = self.softcap * np.tanh(s / self.softcap)
        whole = bool(mask.all())
        if not whole:
            np.copyto(s, np.float32(-np.inf), where=~mask[:, None])
        best = np.maximum(self.best[ts], s.max(axis=2, keepdims=True))
        base = np.where(best == -np.inf, np.float32(0), best)
        s -= base
        np.exp(s, out=s)
        rescale = np.exp(self.best[ts] - base)
        self.total[ts] = self.total[ts] * rescale + s.sum(axis=2, keepdims=True)
        self.acc[ts] = self.acc[ts] * rescale + self._values(s, mask, v, whole or clean)
        self.best[ts] = best
        self.seen[ts] |= mask.any(axis=1)

    @staticmethod
    def _values(weights: F32, mask: Array, v: F32, plain: bool) -> F32:
        """Return the weighted values; what a query does not see must not reach it, NaN or not."""
        if plain:
            flat = weights.reshape(-1, weights.shape[2]) @ v
            return np.asarray(flat.reshape(*weights.shape[:2], -1), np.float32)
        seen = [w[:, m] @ v[m] for w, m in zip(weights, mask, strict=True)]
        return np.asarray(np.stack(seen), np.float32)
