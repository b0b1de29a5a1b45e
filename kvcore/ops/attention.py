"""attention: softmax(q k^T) v over stored cells, each read once, from where it is most exact."""

from __future__ import annotations

from typing import Any

import numpy as np

from kvcore import marks as rules
from kvcore import operands
from kvcore.addressing import exact_slot, read_bulk
from kvcore.numerics import F32, Array
from kvcore.operands import AttentionCall
from kvcore.ops import Arg, Direction, Op
from kvcore.pool import Pool, State

MOST_SCORE = float(np.float32(3e38))


def attention(
    q: Any,
    pool: Pool,
    table: Any,
    lengths: Any,
    ids: Any = None,
    state: State | None = None,
    scale: Any = None,
    softcap: Any = None,
    window: Any = None,
    k: Any = None,
    v: Any = None,
    return_lse: bool = False,
    out: Any = None,
    scratch: Any = None,
) -> Any:
    """Attend over the cells of B sequences, in the stored basis.

    Parameters
    ----------
    q : f32[B, T, Q, Dk]
        Rotated by the caller if K is. Query head h reads KV head h // (Q / H).
    pool : Pool
    table : i32[B, blocks]
        A cell on page -1 has weight 0.
    lengths : i32[B] or i32[B, T]
        Cells after the call's T ones (query t sees T - 1 - t fewer), or cells per query.
    ids : i32[B, N] or i32[B, T, N], optional
        Attend over these cells only; -1 is skipped, a repeat counts twice.
    state : State, optional
        Where sinks, window and tail are read exactly, and the centre.
    scale : float, optional
        1 / sqrt(Dk) unless given.
    softcap : float, optional
        Scores become softcap * tanh(score / softcap).
    window : int, optional
        Sliding-window limit: a query of n cells sees cells n - window and on.
    k, v : f32[B, T, H, D], optional
        The call's own T cells (the last T of `lengths`), read as given instead of as stored.
    return_lse : bool
        Also return the log of the softmax's sum.
    out : f32[B, T, Q, Dv], optional
        Written and returned instead of a new array; of the rank of `q`.
    scratch : Scratch, optional
        Memory from ``backend.scratch()`` that the call may use instead of allocating.

    Returns
    -------
    out : f32[B, T, Q, Dv]
        0 where nothing could be seen. Rank 3 if `q` had rank 3.
    lse : f32[B, T, Q]
        -inf where nothing could be seen.

    Raises
    ------
    ShapeError, RangeError

    Notes
    -----
    The reference computes in float64 over float32(level * scale). A backend that accumulates
    in float32 agrees within the bound of ``kvcore.bounds.attention_bound``. A score saturates at
    +-3e38, so that infinite ones compare as the largest do; a NaN passes through.
    """
    call = operands.attention(
        operands.HOST, q, pool, table, lengths, ids, state, scale, softcap, window, k, v
    )
    batch, steps, heads = call.q.shape[:3]
    found = np.zeros((batch, steps, heads, pool.layout.head_dim_v), np.float32)
    lse = np.full((batch, steps, heads), -np.inf, np.float32)
    for b in range(batch):
        for t in range(steps):
            cells = visible(call, pool, b, t)
            if cells.size:
                keys, values = read_cells(call, pool, state, b, t, cells)
                found[b, t], lse[b, t] = _softmax(call, call.q[b, t], keys, values)
    if call.rank == 3:
        found, lse = found[0], lse[0]
    found = operands.put(out, found, "attention")
    return (found, lse) if return_lse else found


def visible(call: AttentionCall, pool: Pool, b: int, t: int) -> Array:
    """Return the cells that query t of sequence b attends over, repeats kept."""
    n = int(call.lengths[b, t])
    cells = np.arange(n) if call.ids is None else call.ids[b, t].astype(np.int64)
    low = max(n - call.window, 0) if call.window else 0
    return cells[(cells >= low) & (cells < n)]


def read_cells(
    call: AttentionCall, pool: Pool, state: State | None, b: int, t: int, cells: Array
) -> tuple[Array, Array]:
    """Return K and V of the cells as the query reads them, f64[N, H, D], centre added.

    Rows of cells that nobody holds (page -1 and no exact slot) have K = NaN.
    """
    length = int(call.lengths[b, t])
    end = int(call.lengths[b].max(initial=0))
    own_start = end - call.q.shape[1] if call.k is not None else end
    found = []
    for store, own in (("k", call.k), ("v", call.v)):
        layout = pool.layout
        x = np.full((len(cells), layout.n_kv_heads, layout.head_dim(store)), np.nan)
        fresh = cells >= own_start
        exact = np.zeros(len(cells), bool)
        if state is not None:
            row = state.marks[b].tolist()
            exact = np.array(
                [rules.reads_exact(row, state.layout, store, int(c), length) for c in cells], bool
            )
        exact &= ~fresh
        resident = call.table[b][cells // layout.page_size] >= 0
        bulk = ~fresh & ~exact & resident
        if fresh.any():
            x[fresh] = own[b][cells[fresh] - own_start]
        if exact.any() and state is not None:
            x[exact] = getattr(state, store)[b, exact_slot(state, store, cells[exact])]
        x[bulk] = read_bulk(pool, store, call.table[b], cells[bulk])
        if state is not None and store == "k" and state.layout.centred:
            x[bulk] += state.centre[b].astype(np.float64)
        found.append((x, fresh | exact | resident))
    keys, values = found[0][0], found[1][0]
    missing = ~(found[0][1] & found[1][1])
    return keys[~missing], values[~missing]


def _softmax(call: AttentionCall, q: F32, keys: Array, values: Array) -> tuple[Array, Array]:
    """Return (out [Q, Dv], lse [Q]) of one query over cells, in float64."""
    heads, h = q.shape[0], keys.shape[1]
    if not len(keys):
        return np.zeros((heads, values.shape[2])), np.full(heads, -np.inf)
    grouped = q.astype(np.float64).reshape(h, heads // h, -1)
    scores = np.einsum("hgd,nhd->hgn", grouped, keys) * call.scale
    if call.softcap:
        scores = call.softcap * np.tanh(scores / call.softcap)
    scores = np.clip(scores, -MOST_SCORE, MOST_SCORE)
    top = scores.max(axis=-1, keepdims=True)
    weights = np.exp(scores - top)
    total = weights.sum(axis=-1, keepdims=True)
    out = np.einsum("hgn,nhd->hgd", weights / total, values)
    lse = (top + np.log(total))[..., 0]
    return out.reshape(heads, -1), lse.reshape(heads)


OP = Op(
    name="attention",
    version=1,
    args=(
        Arg(name="q", what="f32[B, T, Q, Dk]"),
        Arg(name="pool", what="Pool"),
        Arg(name="table", what="i32[B, blocks]"),
        Arg(name="lengths", what="i32[B] or i32[B, T]"),
        Arg(name="ids", what="i32[B, T, N]", default=None),
        Arg(name="state", what="State", default=None),
        Arg(name="scale", what="float", default=None),
        Arg(name="softcap", what="float", default=None),
        Arg(name="window", what="int", default=None),
        Arg(name="k", what="f32[B, T, H, Dk]", default=None),
        Arg(name="v", what="f32[B, T, H, Dv]", default=None),
        Arg(name="return_lse", what="bool", default=False),
        Arg(name="out", what="f32[B, T, Q, Dv]", direction=Direction.OUT, default=None),
        Arg(name="scratch", what="Scratch", direction=Direction.INOUT, default=None),
    ),
    returns="f32[B, T, Q, Dv] and, if asked, f32[B, T, Q]",
    reference=attention,
    per_codec=True,
)
