"""How a sequence's marks move: pure integer rules, the same on every backend.

A row of marks is ``i32[8]``, see :mod:`kvcore.layout` for its columns.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvcore.layout import (
    CENTRED,
    COMMITTED,
    EVERYTHING,
    FLAG,
    K_FRONTIER,
    K_RING_LO,
    LENGTH,
    N_MARKS,
    V_FRONTIER,
    V_RING_LO,
    StateLayout,
)
from kvcore.spec import GROUP_CELLS

FRONTIER = {"k": K_FRONTIER, "v": V_FRONTIER}
RING_LO = {"k": K_RING_LO, "v": V_RING_LO}


def fresh(sl: StateLayout) -> list[int]:
    """Return the marks of an empty sequence."""
    row = [0] * N_MARKS
    row[CENTRED] = int(sl.centred and not sl.center_cells)
    for store in ("k", "v"):
        row[FRONTIER[store]] = _frontier(sl, store, 0, bool(row[CENTRED]))
    return row


def _frontier(sl: StateLayout, store: str, committed: int, centred: bool) -> int:
    """Return where the bulk of a store ends when nothing is frozen."""
    if store == "k" and sl.center_cells and not centred:
        return 0
    if sl.deferred and sl.layout.codec(store).per_channel:
        return committed // GROUP_CELLS * GROUP_CELLS
    return EVERYTHING


def append(row: list[int], sl: StateLayout, n_new: int, committed: int) -> list[int]:
    """Return the marks after `n_new` cells were appended and `committed` cells are final."""
    new = list(row)
    new[LENGTH] += n_new
    new[COMMITTED] = committed
    if sl.center_cells and committed >= sl.center_cells:
        new[CENTRED] = 1
    for store in ("k", "v"):
        grown = _frontier(sl, store, committed, bool(new[CENTRED]))
        new[FRONTIER[store]] = max(row[FRONTIER[store]], grown)
        new[RING_LO[store]] = max(row[RING_LO[store]], new[LENGTH] - sl.ring(store))
    return new


@dataclass(frozen=True, kw_only=True, slots=True)
class Truncated:
    """Marks after a truncate, and what it cost.

    Attributes
    ----------
    row : list of int
    inexact : int
        Live cells that an undisturbed cache would read exactly and this one reads from a bulk of
        fewer bits than float16, counting an open group that froze.
    faithful : int
        Leading cells whose bulk is still what an undisturbed cache would hold: up to a group
        whose scale knew dropped cells, none if the centre did.
    """

    row: list[int]
    inexact: int
    faithful: int


def truncate(row: list[int], sl: StateLayout, n: int) -> Truncated:
    """Return the marks after all cells from `n` on are dropped (n <= length)."""
    if n == 0:
        return Truncated(row=fresh(sl), inexact=0, faithful=EVERYTHING)
    new = list(row)
    new[LENGTH] = n
    new[COMMITTED] = min(row[COMMITTED], n)
    if sl.center_cells and row[CENTRED] and n < sl.center_cells and _exact(row, sl, "k", 0, n):
        new[CENTRED] = 0
    for store in ("k", "v"):
        new[FRONTIER[store]] = _reopened(row, new, sl, store, n)
        new[RING_LO[store]] = min(row[RING_LO[store]], n)
    return Truncated(row=new, inexact=inexact(new, sl), faithful=_faithful(new, sl, n))


def _faithful(new: list[int], sl: StateLayout, n: int) -> int:
    if sl.center_cells and new[CENTRED] and n < sl.center_cells:
        return 0
    start = n // GROUP_CELLS * GROUP_CELLS
    for store in ("k", "v"):
        grouped = sl.layout.codec(store).per_channel
        if grouped and n > start and (not sl.deferred or new[FRONTIER[store]] > start):
            return start
    return EVERYTHING


def _exact(row: list[int], sl: StateLayout, store: str, first: int, end: int) -> bool:
    """Return True if cells [first, end) of a store all have their exact value."""
    return bool(sl.ring(store)) and max(first, sl.sinks) >= min(row[RING_LO[store]], end)


def _reopened(row: list[int], new: list[int], sl: StateLayout, store: str, n: int) -> int:
    frontier = row[FRONTIER[store]]
    if store == "k" and sl.center_cells and not new[CENTRED]:
        return 0
    if not (sl.deferred and sl.layout.codec(store).per_channel) or n >= frontier:
        return frontier
    start = n // GROUP_CELLS * GROUP_CELLS
    if n == start or _exact(row, sl, store, start, n):
        return start
    return start + GROUP_CELLS


def inexact(row: list[int], sl: StateLayout) -> int:
    """Count live cells that should be exact but are read from a bulk that is not."""
    n = row[LENGTH]
    lost: set[int] = set()
    for store in ("k", "v"):
        if not sl.ring(store) or sl.layout.codec(store).float_type in ("f16", "f32"):
            continue
        should = range(max(n - sl.window, 0), n)
        if sl.deferred and sl.layout.codec(store).per_channel:
            should = range(min(should.start, n // GROUP_CELLS * GROUP_CELLS), n)
        low = row[RING_LO[store]]
        lost.update(c for c in should if sl.sinks <= c < low)
    return len(lost)


def fault(row: list[int], sl: StateLayout) -> str:
    """Return why a settled row of marks cannot be, or "": what a loaded snapshot must satisfy.

    Every row that :func:`append` and :func:`truncate` make without open drafts passes.
    """
    length, centred = row[LENGTH], bool(row[CENTRED])
    if row[COMMITTED] != length or length < 0 or row[FLAG] or row[CENTRED] not in (0, 1):
        return "committed, length, centred or flag"
    if length == 0:
        return "" if row == fresh(sl) else "marks of an empty sequence"
    late = bool(sl.center_cells) and length < sl.center_cells
    if row[CENTRED] != int(sl.centred) and not (late and not centred):
        return "centred"
    for store in ("k", "v"):
        end, low = row[FRONTIER[store]], row[RING_LO[store]]
        whole = _frontier(sl, store, length, centred)
        waits = store == "k" and bool(sl.center_cells) and not centred
        grouped = sl.deferred and sl.layout.codec(store).per_channel and not waits
        frozen = whole + GROUP_CELLS if grouped and length > whole else whole
        if end not in (whole, frozen):
            return f"{store}_frontier"
        if not max(length - sl.ring(store), 0) <= low <= length:
            return f"{store}_ring_lo"
        if end < length and low > max(end, min(sl.sinks, length)):
            return f"{store}_ring_lo"
    return ""


def reads_exact(row: list[int], sl: StateLayout, store: str, cell: int, length: int) -> bool:
    """Return True if a query of `length` cells reads `cell` of a store from its exact slot."""
    if not sl.ring(store):
        return False
    if cell < sl.sinks:
        return True
    member = cell >= length - sl.window or cell >= row[FRONTIER[store]]
    return member and cell >= row[RING_LO[store]]
