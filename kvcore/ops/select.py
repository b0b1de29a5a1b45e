"""select: score blocks of cells against indexer queries and keep the best, ties exact."""

from __future__ import annotations

from typing import Any

import numpy as np

from kvcore import operands
from kvcore.errors import RangeError, ShapeError, message
from kvcore.numerics import F32, I32, Array
from kvcore.ops import Arg, Op


def check_select(
    arrays: operands.Arrays, keys: Any, dead: Any, q: Any, lengths: Any, width: Any, block: Any
) -> tuple[Any, Any, Any, Any]:
    """Return keys, dead, q and lengths in one form, or raise ShapeError or RangeError."""
    op = "select"
    k = arrays.asarray(keys, "float", op, "keys")
    operands.shape_of(k, op, "keys", "[blocks, E]", (None, None))
    d = arrays.asarray(dead, "float", op, "dead")
    operands.shape_of(d, op, "dead", "[E]", (k.shape[1],))
    x = arrays.asarray(q, "float", op, "q")
    operands.shape_of(x, op, "q", "[T, heads, E]", (None, None, k.shape[1]))
    n = arrays.asarray(lengths, "int", op, "lengths")
    operands.shape_of(n, op, "lengths", "[T]", (x.shape[0],))
    for name, value in (("width", width), ("block", block)):
        if not isinstance(value, int | np.integer) or isinstance(value, bool) or value < 1:
            raise ShapeError(message(op, f"{name} is not usable", got=value, expected=">= 1"))
    if operands.is_host(n) and n.size:
        top = k.shape[0] * int(block) + int(block) - 1
        if int(n.min()) < 0 or int(n.max()) > top:
            bad = int(n.max()) if int(n.max()) > top else int(n.min())
            raise RangeError(
                message(op, "a length is out of range", got=bad, expected=f"0 to {top}")
            )
    return k, d, x, n


def select(
    keys: Any, dead: Any, q: Any, lengths: Any, width: int, block: int = 4
) -> tuple[I32, F32]:
    """Return the `width` cells of each query that lie in its best blocks.

    Parameters
    ----------
    keys : f32[blocks, E]
        Pooled key of each whole block of cells.
    dead : f32[E]
        Key of the last, incomplete block.
    q : f32[T, heads, E]
    lengths : i32[T]
        Cells that each query may see.
    width : int
    block : int
        Cells per block.

    Returns
    -------
    ids : i32[T, width]
        Ascending; all cells if there are no more than `width`, then -1.
    scores : f32[T, ceil(max length / block)]
        Score of each block, -inf beyond the query's length.

    Raises
    ------
    ShapeError, RangeError

    Notes
    -----
    score = sum over heads of max(0, dot), dots summed in ascending order in float32. The last
    incomplete block scores 1e9 more, so that it is always kept. Order: score descending, NaN
    last, -0 = +0, ties to the lower block; the last block taken is cut after its lowest cells.
    """
    k, d, x, n = check_select(operands.HOST, keys, dead, q, lengths, width, block)
    steps = x.shape[0]
    n_blocks = -(-int(n.max(initial=0)) // block)
    ids = np.full((steps, width), -1, np.int32)
    scores = np.full((steps, n_blocks), -np.inf, np.float32)
    for t in range(steps):
        length = int(n[t])
        scores[t, : -(-length // block)] = _scores(k, d, x[t], length, block)
        chosen = _choose(scores[t, : -(-length // block)], length, width, block)
        ids[t, : len(chosen)] = chosen
    return ids, scores


def _scores(keys: F32, dead: F32, q: F32, length: int, block: int) -> F32:
    whole, rest = divmod(length, block)
    rows = np.concatenate([keys[:whole], dead[None]]) if rest else keys[:whole]
    total = np.zeros(len(rows), np.float32)
    with np.errstate(over="ignore", invalid="ignore"):
        for head in q:
            dot = np.zeros(len(rows), np.float32)
            for e in range(rows.shape[1]):
                dot = dot + rows[:, e] * head[e]
            total = total + np.where(dot < 0, np.float32(0), dot)
        if rest:
            total[-1] = total[-1] + np.float32(1e9)
    return total


def _choose(scores: F32, length: int, width: int, block: int) -> Array:
    if length <= width:
        return np.arange(length)
    keyed = np.where(np.isnan(scores), -np.inf, scores) + np.float32(0)
    order = np.lexsort((np.arange(len(scores)), np.isnan(scores), -keyed))
    picked: list[int] = []
    for b in order:
        cells = range(b * block, min((b + 1) * block, length))
        picked.extend(cells[: width - len(picked)])
        if len(picked) == width:
            break
    return np.sort(np.asarray(picked))


OP = Op(
    name="select",
    version=1,
    args=(
        Arg(name="keys", what="f32[blocks, E]"),
        Arg(name="dead", what="f32[E]"),
        Arg(name="q", what="f32[T, heads, E]"),
        Arg(name="lengths", what="i32[T]"),
        Arg(name="width", what="int"),
        Arg(name="block", what="int", default=4),
    ),
    returns="i32[T, width], f32[T, blocks]",
    reference=select,
)
