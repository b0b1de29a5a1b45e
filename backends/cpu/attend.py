"""Attention: one work item reads a run of cells of one sequence and KV head once.

All query heads of the KV head, and all queries of the item, share each dequantized tile.
"""

from __future__ import annotations

import math
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

WINDOW, LIMIT, USE_IDS = range(3)
"""Columns of ``Queries.options``: overlay window, sliding limit, and a flag."""

UNSEEN, OUTSIDE, INSIDE, MIXED = range(4)
"""How a query sees a tile: not at all, whole beyond or within its window, or in part."""

_NOTHING = np.float32(-np.inf)
_MOST = np.float32(3e38)
"""Where a score saturates."""

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
        Zero if there is none.
    own_k, own_v : f32[B * T * H, D]
    own_start : i64[B]
    numbers : f32[2]
    options : i64[3]
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


@inner()
def _list_cells(
    lengths: Any, ids: Any, t: Any, first: Any, end: Any, options: Any, cells: Any, inside: Any
) -> Any:
    """List the cells of [first, end) that query t of a sequence sees; return how many.

    lengths : i32[T]; ids : i32[T, N]; cells i64[32] and inside u8[32] are written.
    """
    length, limit = np.int64(lengths[t]), options[LIMIT]
    low = max(length - limit, 0) if limit else 0
    edge, n = length - options[WINDOW], 0
    if not options[USE_IDS]:
        first, end = max(first, low), min(end, length)
        for cell in range(first, end):
            cells[cell - first], inside[cell - first] = cell, cell >= edge
        return max(end - first, 0)
    for i in range(first, end):
        cell = np.int64(ids[t, i])
        if low <= cell < length:
            cells[n] = cell
            inside[n] = cell >= edge
            n += 1
    return n


@inner()
def _view(length: Any, first: Any, end: Any, own: Any, options: Any) -> Any:
    """Return how a query of `length` cells sees [first, end): UNSEEN, OUTSIDE, INSIDE or MIXED.

    `own` says that all these cells are the call's own, so that the window does not matter.
    """
    limit, edge = options[LIMIT], length - options[WINDOW]
    low = max(length - limit, 0) if limit else 0
    if length <= first or low >= end:
        return UNSEEN
    if length < end or low > first:
        return MIXED
    if own or first >= edge:
        return INSIDE
    return OUTSIDE if end <= edge else MIXED


@inner()
def _run_end(
    lengths: Any, t: Any, t1: Any, view: Any, first: Any, end: Any, own: Any, options: Any
) -> Any:
    """Return the first query after t that does not read a tile as t does."""
    n = t + 1
    while n < t1:
        same = lengths[n] == lengths[t]
        if not same and view != MIXED:
            same = _view(np.int64(lengths[n]), first, end, own, options) == view
        if not same:
            break
        n += 1
    return n


@inner()
def _blank_missing(k: Any, v: Any, how_k: Any, how_v: Any, n: Any) -> Any:
    """Zero the rows of cells that nobody holds, and those up to four; return how many are held."""
    held = 0
    for i in range((n + 3) // 4 * 4):  # sums take four cells at a time
        if i < n and how_k[i] != MISSING and how_v[i] != MISSING:
            held += 1
            continue
        how_k[i] = MISSING
        for d in range(k.shape[1]):
            k[i, d] = np.float32(0)
        for d in range(v.shape[1]):
            v[i, d] = np.float32(0)
    return held


@inner()
def _absorb(
    q: Any,
    k: Any,
    v: Any,
    how: Any,
    bias: Any,
    r0: Any,
    r1: Any,
    n: Any,
    numbers: Any,
    s: Any,
    lanes: Any,
    sums: Any,
    acc: Any,
) -> None:
    """Fold a tile of n cells into rows r0 .. r1: maximum and sum in `sums`, values in `acc`."""
    padded = (n + 3) // 4 * 4
    scores(q, k, r0, r1, padded, s)
    scale, cap = numbers[SCALE], numbers[SOFTCAP]
    for r in range(r0, r1):
        shift = bias[r]
        for c in range(n):
            x = s[r, c] * scale
            x = x + shift if how[c] == BULK else x
            x = np.float32(cap * np.float32(math.tanh(x / cap))) if cap > 0 else x
            x = -_MOST if x < -_MOST else x  # a NaN passes
            x = _MOST if x > _MOST else x
            s[r, c] = x if how[c] != MISSING else _NOTHING
        best, total, rescale = weigh(s[r], n, sums[r, 0], lanes)
        sums[r, 0] = best
        sums[r, 1] = sums[r, 1] * rescale + total
        sums[r, 2] = np.float32(1)
        if rescale != np.float32(1):
            for d in range(acc.shape[1]):
                acc[r, d] = acc[r, d] * rescale
    add_weighted(s, v, r0, r1, padded, acc)


@inner()
def _start(
    asked_q: Any, centre: Any, t0: Any, t1: Any, h: Any, group: Any, scale: Any, q: Any, bias: Any,
    sums: Any, acc: Any,
) -> None:  # fmt: skip
    """Copy the item's query rows, take each one's product with the centre, clear the sums."""
    for r in range((t1 - t0) * group):
        total = np.float32(0)
        for d in range(q.shape[1]):
            x = asked_q[t0 + r // group, h * group + r % group, d]
            q[r, d] = x
            total += x * centre[d]
        bias[r] = total * scale
        sums[r, 0] = np.float32(-np.inf)
        sums[r, 1] = sums[r, 2] = np.float32(0)
        for d in range(acc.shape[1]):
            acc[r, d] = np.float32(0)


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
    acc : f32[n, rows + 1, Dv]
        Written: weighted sum of values, relative to the maximum. The last row is scratch.
    """
    rows, dk, dv = acc.shape[1], asked.q.shape[3], acc.shape[2]
    lengths, options, numbers = asked.lengths, asked.options, asked.numbers
    group = asked.q.shape[2] // asked.centre.shape[1]
    q, s = np.empty((rows, dk), np.float32), np.empty((rows, TILE), np.float32)
    tile_k, tile_v = np.empty((TILE, dk), np.float32), np.empty((TILE, dv), np.float32)
    bias, lanes = np.empty(rows, np.float32), np.empty(8, np.float32)
    line = np.empty(max(dk, dv), np.float32)
    cells, place = np.empty(TILE, np.int64), np.empty(6, np.int64)
    inside, how_k = np.empty(TILE, np.uint8), np.empty(TILE, np.uint8)
    how_v = np.empty(TILE, np.uint8)
    for i in range(first, last):
        b, h, t0, t1 = items[i, ITEM_B], items[i, ITEM_H], items[i, ITEM_T0], items[i, ITEM_T1]
        _start(
            asked.q[b], asked.centre[b, h], t0, t1, h, group, numbers[SCALE], q, bias, sums[i],
            acc[i],
        )  # fmt: skip
        place[B], place[HEAD], place[CHUNK] = b, h, lengths.shape[1]
        place[OWN_START] = asked.own_start[b]
        ids = asked.ids[b if options[USE_IDS] else 0]
        for start in range(items[i, ITEM_FIRST], items[i, ITEM_END], TILE):
            end = min(start + TILE, items[i, ITEM_END])
            own = start >= place[OWN_START]
            after = t0
            while after < t1:
                t, view = after, MIXED
                if not options[USE_IDS]:
                    view = _view(np.int64(lengths[b, t]), start, end, own, options)
                    after = _run_end(lengths[b], t, t1, view, start, end, own, options)
                else:
                    after = t1
                if view == UNSEEN:
                    continue
                n = _list_cells(lengths[b], ids, t, start, end, options, cells, inside)
                for which in range(2 if n else 0):
                    is_k = which == 0
                    store = k if is_k else v
                    place[FRONTIER] = asked.marks[b, K_FRONTIER if is_k else V_FRONTIER]
                    place[RING_LO] = asked.marks[b, K_RING_LO if is_k else V_RING_LO]
                    load_cells(
                        store.info, store.levels, store.fields, store.codes, store.scales,
                        store.exact, asked.own_k if is_k else asked.own_v, table[b], place, cells,
                        inside, n, line, tile_k if is_k else tile_v, how_k if is_k else how_v,
                    )  # fmt: skip
                if n and _blank_missing(tile_k, tile_v, how_k, how_v, n):
                    r0, r1 = (t - t0) * group, (after - t0) * group
                    _absorb(
                        q, tile_k, tile_v, how_k, bias, r0, r1, n, numbers, s, lanes, sums[i],
                        acc[i],
                    )  # fmt: skip


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
    acc : f32[n, rows + 1, Dv]
    out : f32[B, T, Q, Dv]
        Zero; written.
    lse : f32[B, T, Q]
        -inf; written where a cell was seen.
    """
    for j in range(splits.size - 1):
        begin, end = splits[j], splits[j + 1]
        b, t0, h = items[begin, ITEM_B], items[begin, ITEM_T0], items[begin, ITEM_H]
        for r in range((items[begin, ITEM_T1] - t0) * group):
            to, best, seen = out[b, t0 + r // group, h * group + r % group], _NOTHING, False
            for i in range(begin, end):
                best = max(best, sums[i, r, 0])
                seen = seen or sums[i, r, 2] > 0
            total = 0.0
            for i in range(begin, end):
                apart = np.float64(sums[i, r, 0]) - np.float64(best)
                factor = math.exp(apart) if apart < 0 else 1.0
                total += factor * np.float64(sums[i, r, 1])
                for d in range(to.size):
                    to[d] = to[d] + np.float32(factor) * acc[i, r, d]
            # Cells were seen and all scored -inf: 0 / 0, a NaN, as the softmax itself gives.
            scale = np.float32(1.0 / total if total != 0 else (math.nan if seen else 0.0))
            for d in range(to.size):
                to[d] = to[d] * scale
            if seen:
                found = np.float64(best) + math.log(total) if total != 0 else math.nan
                lse[b, t0 + r // group, h * group + r % group] = np.float32(found)
