"""resolve: make the units that queries need resident, CLOCK with a second chance."""

from __future__ import annotations

from typing import Any

import numpy as np

from kvcore import operands
from kvcore.errors import RangeError, ShapeError, message
from kvcore.numerics import I32, Array
from kvcore.ops import Arg, Direction, Op
from kvcore.residency import (
    CALLS,
    EPOCH,
    HAND,
    LOOKUPS,
    MISSES,
    OVERFLOW,
    PLACED,
    Residency,
)


def check_resolve(residency: Residency, ids: Any) -> Array:
    """Return ids as i32[n_q, cap] of cells (-1 = none), checked before any write."""
    a = operands.HOST.asarray(ids, "int", "resolve", "ids")
    a = a.reshape(1, -1) if a.ndim == 1 else a
    operands.shape_of(a, "resolve", "ids", "[n_q, cap]", (None, None))
    cells = residency.table.shape[0] * residency.unit_cells
    if a.size and (int(a.max()) >= cells or int(a.min()) < -1):
        bad = int(a.max()) if int(a.max()) >= cells else int(a.min())
        raise RangeError(
            message("resolve", "an id is out of range", got=bad, expected=f"-1 <= id < {cells}")
        )
    for row in a:
        if (np.diff(row[row >= 0]) < 0).any():
            raise ShapeError("[resolve] ids of a query must ascend: got a descending pair")
    return np.asarray(a, np.int32)


def resolve(residency: Residency, ids: Any) -> I32:
    """Place the units of the given cells in slots.

    Parameters
    ----------
    residency : Residency
        Written.
    ids : i32[n_q, cap]
        Cells that each query reads, ascending; -1 = none.

    Returns
    -------
    i32[n, 2]
        (unit, slot) of every unit that was placed, in the order of placing: copy these, from
        the host pool to the device pool, before reading.

    Raises
    ------
    ShapeError, RangeError
        Before anything is written.

    Notes
    -----
    A unit used by this call is never evicted. A unit that finds no slot within three turns of
    the hand stays away (table -1), and the overflow mark is set. Lookups count one per distinct
    consecutive unit of a query; misses count placed units.
    """
    a = check_resolve(residency, ids)
    ctl = residency.ctl
    counters = ctl.view(np.uint64)
    counters[CALLS // 2] += 1
    ctl[EPOCH] = 1 if ctl[EPOCH] == np.iinfo(np.int32).max else ctl[EPOCH] + 1
    if ctl[EPOCH] == 1:
        residency.slot_stamp[:] = -1  # the epoch wrapped: no stamp may look current
    epoch = int(ctl[EPOCH])
    missing: list[int] = []
    for row in a:
        units = row[row >= 0] // residency.unit_cells
        for unit in units[np.insert(np.diff(units) != 0, 0, True)] if units.size else units:
            counters[LOOKUPS // 2] += 1
            slot = int(residency.table[unit])
            if slot >= 0:
                residency.slot_stamp[slot] = epoch
                residency.slot_ref[slot] = 1
            elif int(unit) not in missing:
                missing.append(int(unit))
    placed = _place(residency, missing, epoch)
    counters[MISSES // 2] += len(placed)
    ctl[PLACED] = len(placed)
    ctl[OVERFLOW] = int(len(placed) < len(missing))
    return np.asarray(placed, np.int32).reshape(-1, 2)


def _place(residency: Residency, missing: list[int], epoch: int) -> list[tuple[int, int]]:
    n_slots = residency.slot_unit.shape[0]
    hand, scanned = int(residency.ctl[HAND]), 0
    placed: list[tuple[int, int]] = []
    while len(placed) < len(missing) and scanned < 3 * n_slots:
        slot, hand, scanned = hand, (hand + 1) % n_slots, scanned + 1
        if residency.slot_stamp[slot] == epoch:
            continue
        old = int(residency.slot_unit[slot])
        if old >= 0 and residency.slot_ref[slot]:
            residency.slot_ref[slot] = 0
            continue
        unit = missing[len(placed)]
        if old >= 0:
            residency.table[old] = -1
        residency.table[unit] = slot
        residency.slot_unit[slot] = unit
        residency.slot_stamp[slot] = epoch
        residency.slot_ref[slot] = 1
        placed.append((unit, slot))
    residency.ctl[HAND] = hand
    return placed


OP = Op(
    name="resolve",
    version=1,
    args=(
        Arg(name="residency", what="Residency", direction=Direction.INOUT),
        Arg(name="ids", what="i32[n_q, cap]"),
    ),
    returns="i32[n, 2]",
    reference=resolve,
)
