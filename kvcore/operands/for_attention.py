"""The operands of attention."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from kvcore.errors import RangeError, ShapeError, message
from kvcore.operands.arrays import Arrays, is_host, rank4, shape_of
from kvcore.operands.tables import check_ids, check_state, table
from kvcore.pool import Pool, State


@dataclass(frozen=True, kw_only=True, eq=False)
class AttentionCall:
    """Checked operands of attention.

    Attributes
    ----------
    q : f32[B, T, Q, Dk]
    table : i32[B, blocks]
    lengths : i32[B, T]
        Cells that each query may see; as given, [B] or [B, T], if a device holds them.
    ids : i32[B, T, N] or None
        As given, [B, N] or [B, T, N], if a device holds them.
    scale, softcap : float
        softcap 0 means none.
    window : int
        Sliding-window limit in cells; 0 means none.
    k, v : f32[B, T, H, D] or None
        The call's own chunk, read exactly.
    rank : int
        Rank of the query as given, 3 or 4.
    """

    q: Any
    table: Any
    lengths: Any
    ids: Any
    scale: float
    softcap: float
    window: int
    k: Any
    v: Any
    rank: int


def attention(
    arrays: Arrays,
    q: Any,
    pool: Pool,
    table_: Any,
    lengths: Any,
    ids: Any = None,
    state: State | None = None,
    scale: Any = None,
    softcap: Any = None,
    window: Any = None,
    k: Any = None,
    v: Any = None,
) -> AttentionCall:
    """Check the operands of attention; see :mod:`kvcore.ops.attention`."""
    op, layout = "attention", pool.layout
    h, dk, dv = layout.n_kv_heads, layout.head_dim_k, layout.head_dim_v
    query = arrays.asarray(q, "float", op, "q")
    rank = len(query.shape)
    if rank == 3:
        query = query.reshape(1, *query.shape)
    shape_of(query, op, "q", f"[B, T, Q, Dk] with Dk={dk}", (None, None, None, dk))
    batch, steps, heads = query.shape[:3]
    if heads < h or heads % h:
        raise ShapeError(
            message(
                op,
                "query heads do not share the KV heads evenly",
                got=f"Q={heads}, H={h}",
                expected="Q a multiple of H",
            )
        )
    t = table(arrays, op, pool, table_, batch)
    sizes = _lengths(arrays, op, lengths, batch, steps)
    if (k is None) != (v is None):
        raise ShapeError(f"[{op}] k and v come together: got one of them, expected both or none")
    own = (None, None)
    if k is not None:
        own = (
            rank4(arrays.asarray(k, "float", op, "k"), op, "k", "[B, T, H, Dk]", h, dk),
            rank4(arrays.asarray(v, "float", op, "v"), op, "v", "[B, T, H, Dv]", h, dv),
        )
        for a, name in zip(own, "kv", strict=True):
            shape_of(a, op, name, f"[{batch}, {steps}, ...]", (batch, steps, None, None))
    if state is not None:
        check_state(op, pool, state, batch)
    chosen = None if ids is None else _attention_ids(arrays, ids, batch, steps, sizes)
    if is_host(sizes) and sizes.size:
        capacity = t.shape[1] * layout.page_size
        if int(sizes.min()) < 0 or int(sizes.max()) > capacity:
            bad = int(sizes.min()) if int(sizes.min()) < 0 else int(sizes.max())
            raise RangeError(
                message(op, "a length is out of range", got=bad, expected=f"0 to {capacity}")
            )
    return AttentionCall(
        q=query,
        table=t,
        lengths=sizes,
        ids=chosen,
        scale=_number(op, "scale", scale, 1.0 / math.sqrt(dk)),
        softcap=_number(op, "softcap", softcap, 0.0, least=0.0),
        window=_limit(op, window),
        k=own[0],
        v=own[1],
        rank=rank,
    )


def _lengths(arrays: Arrays, op: str, raw: Any, batch: int, steps: int) -> Any:
    """Return lengths per query; [B] counts the cells after the call's T cells."""
    sizes = arrays.asarray(np.asarray(raw) if np.isscalar(raw) else raw, "int", op, "lengths")
    if len(sizes.shape) == 0:
        sizes = sizes.reshape(1)
    if len(sizes.shape) == 2:
        shape_of(sizes, op, "lengths", f"[{batch}, {steps}]", (batch, steps))
        return sizes
    shape_of(sizes, op, "lengths", f"[{batch}] or [{batch}, {steps}]", (batch,))
    if not is_host(sizes):
        return sizes
    back = np.arange(steps, dtype=np.int32) - (steps - 1)
    return np.maximum(sizes.reshape(batch, 1) + back, 0)


def _attention_ids(arrays: Arrays, ids: Any, batch: int, steps: int, sizes: Any) -> Any:
    op = "attention"
    chosen = arrays.asarray(ids, "int", op, "ids")
    if len(chosen.shape) == 1:
        chosen = chosen.reshape(1, chosen.shape[0])
    if len(chosen.shape) == 2:
        shape_of(chosen, op, "ids", f"[{batch}, N]", (batch, None))
        if not is_host(chosen):
            return chosen
        chosen = chosen.reshape(batch, 1, chosen.shape[1]).repeat(steps, 1)
    shape_of(chosen, op, "ids", f"[{batch}, N] or [{batch}, {steps}, N]", (batch, steps, None))
    if is_host(chosen) and is_host(sizes) and chosen.size:
        if int(chosen.min()) < -1:
            check_ids(op, chosen, -1, int(sizes.max()))
        beyond = chosen >= sizes[..., None]
        if beyond.any():
            b, s, _ = (int(x[0]) for x in np.nonzero(beyond))
            raise RangeError(
                message(
                    op,
                    "an id is out of range",
                    got=int(chosen[beyond][0]),
                    expected=f"-1 <= id < {int(sizes[b, s])} for query {s} of sequence {b}",
                )
            )
    return chosen


def _number(op: str, name: str, raw: Any, default: float, least: float | None = None) -> float:
    if raw is None:
        return float(np.float32(default))
    given = np.asarray(raw)
    if given.dtype.kind not in "fiu" or given.size != 1:
        raise ShapeError(message(op, f"{name} is not a number", got=raw, expected="float"))
    value = float(np.float32(given.reshape(())))
    if not math.isfinite(value) or (least is not None and value < least):
        raise ShapeError(message(op, f"{name} is not usable", got=raw, expected="a finite number"))
    return value


def _limit(op: str, raw: Any) -> int:
    if raw is None:
        return 0
    if not isinstance(raw, int | np.integer) or isinstance(raw, bool) or raw < 1:
        raise ShapeError(
            message(op, "window is not usable", got=raw, expected="an integer >= 1 or None")
        )
    return min(int(raw), 2**31 - 1)  # no cell lies farther back
