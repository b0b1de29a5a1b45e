"""attention: checked operands, cut into work items, run on threads, merged in order."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from kvcore import operands
from kvcore.layout import EVERYTHING, N_MARKS
from kvcore.numerics import F32, Array
from kvcore.operands import AttentionCall
from kvcore.pool import Pool, State
from kvcore.spec import MAX_DRAFT

from . import attend, threads
from .attend import Queries
from .softmax import TILE
from .store import Stores, open_stores, readable

SPLIT = 1024
"""Cells of one work item: fixed, so that results do not depend on the number of threads.

Many queries are work enough for all threads without cutting the context."""

CACHE_BYTES = 262_144
"""Of queries and sums that one item keeps."""

SERIAL = 3_000_000
"""Multiply-adds below which one thread is faster than waking others."""


def attention(
    q: Any,
    pool: Pool,
    table: Any,
    lengths: Any,
    ids: Any,
    state: State | None,
    scale: Any,
    softcap: Any,
    window: Any,
    k: Any,
    v: Any,
    return_lse: bool,
    out: Any,
) -> Any:
    """See :mod:`kvcore.ops.attention`."""
    call = operands.attention(
        operands.HOST, q, pool, table, lengths, ids, state, scale, softcap, window, k, v
    )
    batch, steps, heads = call.q.shape[:3]
    found = np.zeros((batch, steps, heads, pool.layout.head_dim_v), np.float32)
    lse = np.full((batch, steps, heads), -np.inf, np.float32)
    if found.size:
        stores = open_stores(pool, state)
        asked = _queries(call, pool, state)
        _run(asked, readable(call.table), stores, found, lse)
    if call.rank == 3:
        found, lse = found[0], lse[0]
    found = operands.put(out, found, "attention")
    return (found, lse) if return_lse else found


@functools.cache
def _no_ids() -> Array:
    return np.zeros((1, 1, 1), np.int32)


@functools.cache
def no_rows() -> F32:
    """Return the chunk of a call that brings none."""
    return np.zeros((1, 1), np.float32)


def _queries(call: AttentionCall, pool: Pool, state: State | None) -> Queries:
    batch, steps = call.lengths.shape
    layout = pool.layout
    centred = state is not None and state.layout.centred
    marks = np.zeros((batch, N_MARKS), np.int32) if state is None else readable(state.marks)
    centre = np.zeros((batch, layout.n_kv_heads, layout.head_dim_k), np.float32)
    if state is not None and centred:
        centre[...] = state.centre
    own_start = np.full(batch, EVERYTHING, np.int64)
    own = [no_rows(), no_rows()]
    if call.k is not None:
        own_start[:] = call.lengths.max(axis=1, initial=0) - np.int64(steps)
        own = [readable(a).reshape(-1, a.shape[3]) for a in (call.k, call.v)]
    return Queries(
        q=readable(call.q),
        lengths=readable(call.lengths),
        ids=_no_ids() if call.ids is None else readable(call.ids),
        marks=marks,
        centre=centre,
        own_k=own[0],
        own_v=own[1],
        own_start=own_start,
        numbers=np.array([call.scale, call.softcap], np.float32),
        options=np.array(
            [state.layout.window if state else 0, call.window, call.ids is not None], np.int64
        ),
    )


def _run(asked: Queries, table: Array, stores: Stores, out: F32, lse: F32) -> None:
    heads, group = asked.centre.shape[1], asked.q.shape[2] // asked.centre.shape[1]
    together = _together(asked, group, out.shape[3])
    items, splits = _items(asked, heads, together)
    rows = group * together
    sums = np.empty((len(items), rows, 3), np.float32)
    acc = np.empty((len(items), rows + 1, out.shape[3]), np.float32)
    cells = int((items[:, attend.ITEM_END] - items[:, attend.ITEM_FIRST]).sum())
    work = cells * rows * (asked.q.shape[3] + out.shape[3])

    def part(first: int, last: int) -> None:
        attend.attend(items, first, last, asked, stores.k, stores.v, table, sums, acc)

    threads.run(part, len(items), parallel=work > SERIAL)
    attend.merge(items, splits, group, sums, acc, out, lse)


def _together(asked: Queries, group: int, dim_v: int) -> int:
    """Return how many queries one item serves: what fits the second-level cache."""
    steps = asked.lengths.shape[1]
    if asked.options[attend.USE_IDS]:
        return 1
    query = 4 * group * (asked.q.shape[3] + dim_v)
    return int(min(steps, max(CACHE_BYTES // query, MAX_DRAFT)))


def _items(asked: Queries, heads: int, together: int) -> tuple[Array, Array]:
    """Return work items i64[n, 6] and where each softmax's items start, i64[m + 1]."""
    batch, steps = asked.lengths.shape
    chosen, limit = bool(asked.options[attend.USE_IDS]), int(asked.options[attend.LIMIT])
    rows, splits = [], [0]
    for b in range(batch):
        for t0 in range(0, steps, together):
            t1 = min(t0 + together, steps)
            sizes = asked.lengths[b, t0:t1]
            low = max(int(sizes.min()) - limit, 0) // TILE * TILE if limit else 0
            low, end = (0, asked.ids.shape[2]) if chosen else (low, int(sizes.max()))
            split = SPLIT if chosen or steps <= MAX_DRAFT else max(end, 1)
            for h in range(heads):
                starts = range(low, end, split) or (low,)
                rows += [(b, h, t0, t1, s, min(s + split, end)) for s in starts]
                splits.append(len(rows))
    return np.array(rows, np.int64), np.array(splits, np.int64)
