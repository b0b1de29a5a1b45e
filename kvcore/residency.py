"""Residency: which units of an authoritative host pool lie in the slots of a device pool."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

EPOCH, HAND, PLACED, OVERFLOW, MISSES, LOOKUPS, CALLS = 0, 1, 2, 3, 4, 6, 8
"""Columns of ``ctl``; MISSES, LOOKUPS and CALLS are u64 in two i32 words each."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Residency:
    """The map of a streamed pool, mutated by resolve.

    Attributes
    ----------
    table : i32[n_units]
        Slot of each unit, -1 = not resident.
    slot_unit, slot_stamp, slot_ref : i32[n_slots]
        Unit in each slot (-1 = empty), epoch of its last use (-1 = never), second-chance bit.
    ctl : i32[16]
    unit_cells : int
        Cells of a unit.
    """

    table: Any
    slot_unit: Any
    slot_stamp: Any
    slot_ref: Any
    ctl: Any
    unit_cells: int
