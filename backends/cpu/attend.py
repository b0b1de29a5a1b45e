"""Decode attention: one work item reads a run of cells of one sequence and KV head once.

All query heads of the KV head, and all queries of the call, share each dequantized tile.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from kvcore.layout import K_FRONTIER, K_RING_LO, V_FRONTIER, V_RING_LO
from kvcore.numerics import F32, I32, Array

from .decode import (
    BULK,
    CHUNK,
    FRONTIER,
    HEAD,
    MISSING,
    OWN_START,
    RING_LO,
    B,
    load_cells,
)
from .jit import inner, kernel
from .softmax import TILE, add_weighted, scores, weigh

SCALE, SOFTCAP = 0, 1
"""Columns of ``Queries.numbers``."""

WINDOW, LIMIT, USE_IDS, CENTRED = range(4)
"""Columns of ``Queries.options``: overlay window, sliding limit, and two flags."""

ITEM_B, ITEM_H, ITEM_T0, ITEM_T1, ITEM_FIRST, ITEM_END = range(6)
"""Columns of an item: sequence, KV head, its queries, its cells (or places in ids)."""


class Queries(NamedTuple):
    """What a call asks.

    Attributes
    ----------
    q : f32[B, T, Q, Dk]
    lengths : i32[B, T]
    ids : i32[B, T, N]
    marks : i32[B, 8]
    centre : f32[B, H, Dk]
    own_k, own_v : f32[B * T * H, D]
    own_start : i64[B]
    numbers : f32[2]
    options : i64[4]
    """

    q: F32
    lengths: I32
    ids: I32
    marks: I32
    centre: F32
    own_k: F32
    own_v: F32
    own_start: Array
    numbers: F32
    options: Array


class Scratch(NamedTuple):
    """One tile at work."""

    cells: Array
    inside: Array
    how_k: Array
    how_v: Array
    k: F32
    v: F32
    s: F32
    lanes: F32
    bias: F32
    place_k: Array
    place_v: Array


@inner()
def set_place(place: Any, asked: Any, b: Any, h: Any, frontier: Any, ring_lo: Any) -> None:
    """Fill one store's place for a sequence and head."""
    place[B], place[HEAD] = b, h
    place[OWN_START] = asked.own_start[b]
    place[FRONTIER], place[RING_LO] = asked.marks[b, frontier], asked.marks[b, ring_lo]
    place[CHUNK] = asked.lengths.shape[1]


@inner()
def _list_cells(asked: Any, b: Any, t: Any, first: Any, end: Any, work: Any) -> Any:
    """List the cells of [first, end) that query t sees; return how many."""
    length = np.int64(asked.lengths[b, t])
    limit = asked.options[LIMIT]
    low = length - limit if limit else np.int64(0)
    edge = length - asked.options[WINDOW]
    n = 0
    for i in range(first, end):
        cell = np.int64(asked.ids[b, t, i]) if asked.options[USE_IDS] else np.int64(i)
        if 0 <= cell < length and cell >= low:
            work.cells[n] = cell
            work.inside[n] = cell >= edge
            n += 1
    return n


@inner()
def _alike(asked: Any, b: Any, t0: Any, t1: Any, first: Any, end: Any) -> Any:
    """Return True if all queries see all of [first, end), or none does, from the same source."""
    least = most = np.int64(asked.lengths[b, t0])
    for t in range(t0 + 1, t1):
        length = np.int64(asked.lengths[b, t])
        least, most = min(least, length), max(most, length)
    if least == most:
        return True
    window, limit = asked.options[WINDOW], asked.options[LIMIT]
    if end > least or (limit and first < most - limit):
        return False
    return end <= least - window or first >= most - window


@inner()
def _load(asked: Any, k: Any, v: Any, row: Any, n: Any, work: Any) -> Any:
    """Read K and V of the listed cells; drop those that nobody holds; return how many stay."""
    load_cells(k, asked.own_k, row, work.place_k, work.cells, work.inside, n, work.k, work.how_k)
    load_cells(v, asked.own_v, row, work.place_v, work.cells, work.inside, n, work.v, work.how_v)
    kept = 0
    for i in range(n):
        if work.how_k[i] == MISSING or work.how_v[i] == MISSING:
            continue
        if kept < i:
            work.k[kept], work.v[kept] = work.k[i], work.v[i]
            work.how_k[kept] = work.how_k[i]
        kept += 1
    for i in range(kept, (kept + 3) // 4 * 4):  # sums take four cells at a time
        work.k[i] = np.float32(0)
        work.v[i] = np.float32(0)
    return kept


@inner()
def _absorb(asked: Any, q: Any, r0: Any, r1: Any, n: Any, work: Any, sums: Any, acc: Any) -> None:
    """Fold a tile of n cells into rows r0 .. r1: maximum and sum in `sums`, values in `acc`."""
    padded = (n + 3) // 4 * 4
    scores(q, work.k, r0, r1, padded, work.s)
    scale, cap = asked.numbers[SCALE], asked.numbers[SOFTCAP]
    for r in range(r0, r1):
        s = work.s[r]
        for c in range(n):
            s[c] = s[c] * scale
        if asked.options[CENTRED]:
            for c in range(n):
                if work.how_k[c] == BULK:
                    s[c] = s[c] + work.bias[r]
        if cap > 0:
            for c in range(n):
                s[c] = cap * np.tanh(s[c] / cap)
        best, total, rescale = weigh(s, n, sums[r, 0], work.lanes)
        sums[r, 0] = best
        sums[r, 1] = sums[r, 1] * rescale + total
        sums[r, 2] = np.float32(1)
        if rescale != np.float32(1):
            for d in range(acc.shape[1]):
                acc[r, d] = acc[r, d] * rescale
    add_weighted(work.s, work.v, r0, r1, padded, acc)


@inner()
def _queries(asked: Any, item: Any, group: Any, q: Any, work: Any) -> None:
    """Copy the item's query rows; with a centre, take each one's product with it."""
    b, h, dim = item[ITEM_B], item[ITEM_H], q.shape[1]
    for t in range(item[ITEM_T0], item[ITEM_T1]):
        for g in range(group):
            r = (t - item[ITEM_T0]) * group + g
            total = np.float32(0)
            for d in range(dim):
                q[r, d] = asked.q[b, t, h * group + g, d]
                total += q[r, d] * asked.centre[b, h, d]
            work.bias[r] = total * asked.numbers[SCALE]


@inner()
def _scratch(rows: Any, dk: Any, dv: Any) -> Any:
    return Scratch(
        np.empty(TILE, np.int64),
        np.empty(TILE, np.uint8),
        np.empty(TILE, np.uint8),
        np.empty(TILE, np.uint8),
        np.empty((TILE, dk), np.float32),
        np.empty((TILE, dv), np.float32),
        np.empty((rows, TILE), np.float32),
        np.empty(8, np.float32),
        np.empty(rows, np.float32),
        np.empty(6, np.int64),
        np.empty(6, np.int64),
    )


@kernel
def attend(
    items: Any, first: Any, last: Any, asked: Any, k: Any, v: Any, table: Any, sums: Any, acc: Any
) -> None:
    """Attend over the cells of items first .. last.

    Parameters
    ----------
    items : i64[n, 6]
    first, last : int
    asked : Queries
    k, v : Store
    table : i32[B, blocks]
    sums : f32[n, rows, 3]
        Written: maximum, sum of weights, 1 if a cell was seen.
    acc : f32[n, rows, Dv]
        Written: weighted sum of values, relative to the maximum.
    """
    rows, dk = sums.shape[1], asked.q.shape[3]
    group = asked.q.shape[2] // asked.centre.shape[1]
    q = np.empty((rows, dk), np.float32)
    work = _scratch(rows, dk, acc.shape[2])
    for i in range(first, last):
        item = items[i]
        b, t0, t1 = item[ITEM_B], item[ITEM_T0], item[ITEM_T1]
        sums[i, :, 0] = np.float32(-np.inf)
        sums[i, :, 1:] = np.float32(0)
        acc[i] = np.float32(0)
        _queries(asked, item, group, q, work)
        set_place(work.place_k, asked, b, item[ITEM_H], K_FRONTIER, K_RING_LO)
        set_place(work.place_v, asked, b, item[ITEM_H], V_FRONTIER, V_RING_LO)
        for start in range(item[ITEM_FIRST], item[ITEM_END], TILE):
            end = min(start + TILE, item[ITEM_END])
            together = _alike(asked, b, t0, t1, start, end)
            for t in range(t0, t0 + 1 if together else t1):
                n = _list_cells(asked, b, t, start, end, work)
                n = _load(asked, k, v, table[b], n, work) if n else 0
                if n:
                    r0 = (t - t0) * group
                    r1 = (t1 - t0) * group if together else r0 + group
                    _absorb(asked, q, r0, r1, n, work, sums[i], acc[i])


@kernel
def merge(items: Any, splits: Any, group: Any, sums: Any, acc: Any, out: Any, lse: Any) -> None:
    """Merge the partial softmaxes of consecutive items, in order of their cells.

    Parameters
    ----------
    items : i64[n, 6]
    splits : i64[m + 1]
        Items splits[j] .. splits[j + 1] are one sequence, head and run of queries.
    group : int
        Query heads of a KV head.
    sums : f32[n, rows, 3]
    acc : f32[n, rows, Dv]
    out : f32[B, T, Q, Dv]
        Written.
    lse : f32[B, T, Q]
        Written.
    """
    for j in range(splits.size - 1):
        item = items[splits[j]]
        for r in range((item[ITEM_T1] - item[ITEM_T0]) * group):
            b, t, h = item[ITEM_B], item[ITEM_T0] + r // group, item[ITEM_H] * group + r % group
            best, seen = np.float32(-np.inf), False
            for i in range(splits[j], splits[j + 1]):
                best = max(best, sums[i, r, 0])
                seen = seen or sums[i, r, 2] > 0
            total = np.float64(0)
            out[b, t, h] = np.float32(0)
            for i in range(splits[j], splits[j + 1]):
                apart = sums[i, r, 0] < best
                factor = np.exp(np.float64(sums[i, r, 0]) - np.float64(best)) if apart else 1.0
                total += factor * sums[i, r, 1]
                for d in range(out.shape[3]):
                    out[b, t, h, d] += np.float32(factor) * acc[i, r, d]
            if not seen:
                lse[b, t, h] = np.float32(-np.inf)
                continue
            # Cells were seen and all scored -inf: 0 / 0, a NaN, as the softmax itself gives.
            scale = np.float32(1.0 / total) if total != 0 else np.float32(np.nan)
            for d in range(out.shape[3]):
                out[b, t, h, d] = out[b, t, h, d] * scale
            lse[b, t, h] = np.float32(np.float64(best) + np.log(total)) if total != 0 else scale
