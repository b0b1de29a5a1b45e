"""The device's part of a streamed cache: slots for units, by CLOCK or as a ring."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from kvcore.errors import RangeError, message
from kvcore.layout import Layout
from kvcore.numerics import Array
from kvcore.pages import Pages
from kvcore.pool import Pool
from kvcore.residency import CALLS, LOOKUPS, MISSES, OVERFLOW

if TYPE_CHECKING:
    from kvcore.backend import Backend


@dataclass(frozen=True, kw_only=True, slots=True)
class Counters:
    """What a streamed cache has done so far.

    Attributes
    ----------
    calls : int
        Times that units were asked for.
    lookups : int
        Units asked for.
    misses : int
        Of those, not on the device; they were given a slot.
    in_place : int
        Attentions that read host memory because their units did not fit.
    turns : int
        Turns that attentions over more units than fit were cut into.
    slots, resident : int
        Units the device can hold, and holds.
    """

    calls: int
    lookups: int
    misses: int
    in_place: int
    turns: int
    slots: int
    resident: int

    @property
    def hits(self) -> int:
        """Lookups that found their unit on the device."""
        return self.lookups - self.misses


class Slots:
    """Base: a device pool of slots over the units of a host pool.

    Parameters
    ----------
    backend : Backend
    layout : Layout
    n_slots : int
        Units.
    pages : Pages
        The host's.
    """

    def __init__(self, backend: Backend, layout: Layout, n_slots: int, pages: Pages) -> None:
        self.backend, self.layout, self.n_slots = backend, layout, n_slots
        self.pages = pages
        self.pool: Pool = backend.pool(layout, n_slots * layout.unit_pages)
        self.lock = threading.RLock()
        self.in_place = self.turns = 0

    def _pages_of(self, units: Array) -> Array:
        return self.pages.pages_of(units)

    def _load(self, units: Array, slots: Array) -> None:
        if len(units):
            self.backend.move(
                self.pages.pool, self._pages_of(units), self.pool, self._pages_of(slots)
            )

    def _store(self, units: Array, slots: Array) -> None:
        self.backend.move(self.pool, self._pages_of(slots), self.pages.pool, self._pages_of(units))

    def aside(self, blocks: Array, units: Array) -> tuple[Pool, Array]:
        """Return a pool of just these blocks of a cache, and its table; slots stay as they are."""
        u = self.layout.unit_pages
        pool = self.backend.pool(self.layout, len(blocks) * u)
        pages = np.arange(len(blocks) * u, dtype=np.int32)
        self.backend.move(self.pages.pool, self._pages_of(units[blocks]), pool, pages)
        slots = np.full(len(units), -1, np.int64)
        slots[blocks] = np.arange(len(blocks))
        return pool, self._as_table(slots)

    def _as_table(self, slots: Array) -> Array:
        u = self.layout.unit_pages
        pages = np.where(slots[:, None] < 0, -1, slots[:, None] * u + np.arange(u))
        return pages.reshape(-1).astype(np.int32)


class ClockSlots(Slots):
    """Any unit in any slot; CLOCK with a second chance decides which one leaves."""

    def __init__(self, backend: Backend, layout: Layout, n_slots: int, pages: Pages) -> None:
        super().__init__(backend, layout, n_slots, pages)
        self.map = backend.residency(layout, pages.n_units, n_slots)

    def reaches(self, blocks: Array, length: int, unit: int) -> bool:
        """Return True: any units that fit can be brought together."""
        return True

    def bring(self, blocks: Array, units: Array, filled: Array | None = None) -> None:
        """Make units resident, at most ``n_slots``; only `filled` ones have bytes to copy."""
        self._follow_growth()
        cells = np.sort(units) * self.layout.unit_cells
        placed = self.backend.to_host(self.backend.resolve(self.map, cells[None].astype(np.int32)))
        if int(self.backend.to_host(self.map.ctl)[OVERFLOW]):
            self.forget(None)
            raise RangeError(
                message("resolve", "units", got=len(units), expected=f"at most {self.n_slots}")
            )
        found, slots = placed[:, 0].astype(np.int64), placed[:, 1].astype(np.int64)
        worth = np.isin(found, units if filled is None else units[filled])
        self._load(found[worth], slots[worth])

    def _follow_growth(self) -> None:
        if self.map.table.shape[0] != self.pages.n_units:
            ctl = self.backend.to_host(self.map.ctl)
            self.map = self.backend.residency(self.layout, self.pages.n_units, self.n_slots)
            self.backend.write(self.map.ctl, ctl)

    def save(self, blocks: Array, units: Array) -> None:
        """Copy resident units to the host."""
        slots = self.backend.to_host(self.map.table)[units].astype(np.int64)
        self._store(units, slots)

    def forget(self, units: Array | None) -> None:
        """Drop units, or all of them, without copying: the host's bytes are newer."""
        be, where = self.backend, self.map
        if units is not None and not len(units):
            return
        table, held = np.array(be.to_host(where.table)), np.array(be.to_host(where.slot_unit))
        known = np.arange(len(table)) if units is None else units[units < len(table)]
        gone = table[known]
        gone = gone[gone >= 0]
        ref = np.array(be.to_host(where.slot_ref))
        table[known], held[gone], ref[gone] = -1, -1, 0
        be.write(where.table, table)
        be.write(where.slot_unit, held)
        be.write(where.slot_ref, ref)

    def table(self, units: Array) -> Array:
        """Return the device's page of each page of units, -1 = not resident."""
        where = self.backend.to_host(self.map.table)
        inside = units < len(where)
        slots = np.full(len(units), -1, np.int64)
        slots[inside] = where[units[inside]]
        return self._as_table(slots)

    def counters(self) -> Counters:
        """Return the counters."""
        words = self.backend.to_host(self.map.ctl).view(np.uint64)
        return Counters(
            calls=int(words[CALLS // 2]),
            lookups=int(words[LOOKUPS // 2]),
            misses=int(words[MISSES // 2]),
            in_place=self.in_place,
            turns=self.turns,
            slots=self.n_slots,
            resident=int((self.backend.to_host(self.map.slot_unit) >= 0).sum()),
        )


class RingSlots(Slots):
    """Block b of one cache in slot b % n_slots: the device holds the last cells."""

    def __init__(self, backend: Backend, layout: Layout, n_slots: int, pages: Pages) -> None:
        super().__init__(backend, layout, n_slots, pages)
        self._held = np.full(n_slots, -1, np.int64)
        self._calls = self._lookups = self._misses = 0

    def reaches(self, blocks: Array, length: int, unit: int) -> bool:
        """Return True if all blocks are among the last that the ring can hold."""
        return not blocks.size or int(blocks.min()) > (length - 1) // unit - self.n_slots

    def bring(self, blocks: Array, units: Array, filled: Array | None = None) -> None:
        """Make blocks resident, at most ``n_slots``; only `filled` ones have bytes to copy."""
        slots = self._slots_of(blocks)
        missing = self._held[slots] != units
        self._calls += 1
        self._lookups += len(units)
        self._misses += int(missing.sum())
        worth = missing if filled is None else missing & filled
        self._load(units[worth], slots[worth])
        self._held[slots] = units

    def _slots_of(self, blocks: Array) -> Array:
        u = self.layout.unit_pages
        n = int(blocks.max(initial=-1)) + 1
        pages = self.backend.to_host(self.backend.ring_table(n * u, self.n_slots * u, u))
        return pages[::u][blocks].astype(np.int64) // u

    def save(self, blocks: Array, units: Array) -> None:
        """Copy resident blocks to the host."""
        self._store(units, self._slots_of(blocks))

    def forget(self, units: Array | None) -> None:
        """Drop units, or all of them, without copying: the host's bytes are newer."""
        gone = np.ones(self.n_slots, bool) if units is None else np.isin(self._held, units)
        self._held[gone] = -1

    def table(self, units: Array) -> Array:
        """Return the device's page of each page of a cache's units, -1 = not resident."""
        blocks = np.arange(len(units))
        slots = self._slots_of(blocks) if len(units) else blocks
        return self._as_table(np.where(self._held[slots] == units, slots, -1))

    def counters(self) -> Counters:
        """Return the counters."""
        return Counters(
            calls=self._calls,
            lookups=self._lookups,
            misses=self._misses,
            in_place=self.in_place,
            turns=self.turns,
            slots=self.n_slots,
            resident=int((self._held >= 0).sum()),
        )
