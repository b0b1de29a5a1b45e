"""restore: fill the exact slots of live overlay cells from the bulk."""

from __future__ import annotations

from typing import Any

import numpy as np

from kvcore import marks as rules
from kvcore import operands
from kvcore.addressing import exact_slot, read_bulk
from kvcore.errors import RangeError, ShapeError, message
from kvcore.layout import LENGTH, StateLayout
from kvcore.numerics import Array, to_f16
from kvcore.ops import Arg, Direction, Op
from kvcore.pool import Pool, State


def members(row: list[int], sl: StateLayout, store: str, n: int) -> Array:
    """Return the overlay's live cells that the bulk of a store holds, ascending."""
    end = min(n, row[rules.FRONTIER[store]])
    sinks = np.arange(min(sl.sinks, end))
    return np.concatenate([sinks, np.arange(max(n - sl.window, sl.sinks), max(end, sl.sinks))])


def check_restore(
    pool: Pool, overlay: State, table: Any, n_cells: Any, marks: Array
) -> tuple[Any, Any]:
    """Return the table and the lengths per sequence, or raise before any write.

    `marks` are the overlay's, on the host.
    """
    op = "restore"
    if overlay.layout.layout != pool.layout:
        raise ShapeError(f"[{op}] the overlay was made for another layout than the pool's")
    raw = np.full(overlay.batch, n_cells) if np.isscalar(n_cells) else n_cells
    n = operands.HOST.asarray(raw, "int", op, "n_cells").reshape(-1)
    operands.shape_of(n, op, "n_cells", f"[{overlay.batch}]", (overlay.batch,))
    if (n < 0).any() or (n > marks[:, LENGTH]).any():
        raise RangeError(
            message(op, "n_cells is out of range", got=n.tolist(), expected="0 to the length")
        )
    t = operands.table(operands.HOST, op, pool, table, overlay.batch)
    for b in range(overlay.batch):
        for store in ("k", "v"):
            if overlay.layout.ring(store) and overlay.layout.overlay:
                cells = members(marks[b].tolist(), overlay.layout, store, int(n[b]))
                if (t[b][cells // pool.layout.page_size] < 0).any():
                    raise RangeError(f"[{op}] a live cell of sequence {b} is not resident")
    return t, n


def restore(overlay: State, pool: Pool, table: Any, n_cells: Any) -> None:
    """Overwrite sinks and window with what the bulk holds, centre added.

    Parameters
    ----------
    overlay : State
        Written: the exact slots of the first `sinks` and last `window` cells of `n_cells`.
        Cells that are in the tail only are left alone.
    pool : Pool
    table : i32[B, blocks]
    n_cells : int or i32[B]
        Length of each sequence.

    Raises
    ------
    ShapeError, RangeError
        Before anything is written; also if a needed page is not resident.

    Notes
    -----
    Rounding: float16(float32(level * scale) + centre). The original float16 value is lost.
    """
    t, n = check_restore(pool, overlay, table, n_cells, overlay.marks)
    jobs = [
        (b, store, members(overlay.marks[b].tolist(), overlay.layout, store, int(n[b])))
        for b in range(overlay.batch)
        for store in ("k", "v")
        if overlay.layout.ring(store) and overlay.layout.overlay
    ]
    for b, store, cells in jobs:
        x = read_bulk(pool, store, t[b], cells)
        if store == "k" and overlay.layout.centred:
            x = x + overlay.centre[b].astype(np.float32)
        getattr(overlay, store)[b, exact_slot(overlay, store, cells)] = to_f16(x)
        low = rules.RING_LO[store]
        held = max(int(n[b]) - overlay.layout.window, 0)
        overlay.marks[b, low] = min(int(overlay.marks[b, low]), held)


OP = Op(
    name="restore",
    version=1,
    args=(
        Arg(name="overlay", what="State", direction=Direction.INOUT),
        Arg(name="pool", what="Pool"),
        Arg(name="table", what="i32[B, blocks]"),
        Arg(name="n_cells", what="i32[B]"),
    ),
    returns="None",
    reference=restore,
    per_codec=True,
)
