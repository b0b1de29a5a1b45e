"""Streaming: the host, or a file, holds a cache; the device holds the units that are in use.

Every write goes to the device's copy of a unit and from there to the host, so the host is always
right and a unit can be dropped at any time. Units move whole, codes and scales together.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from kvcore import marks as rules
from kvcore.cache import KVCache
from kvcore.cache_spec import CacheSpec
from kvcore.errors import RangeError, ShapeError, message
from kvcore.hostpool import HostPools
from kvcore.locks import SharedLock
from kvcore.numerics import Array
from kvcore.operands import HOST
from kvcore.pages import Pages
from kvcore.pool import Pool
from kvcore.slots import ClockSlots, Counters, RingSlots
from kvcore.spec import GROUP_CELLS, MAX_DRAFT
from kvcore.turns import PartlyResident

if TYPE_CHECKING:
    from kvcore.backend import Backend
    from kvcore.snapshot_image import Image


class StreamedCache(KVCache):
    """A cache whose pages lie on the host. Made by ``backend.stream(spec, capacity, resident)``.

    As :class:`KVCache` in everything one can do with it; attention is bit for bit that of a
    resident cache. Over more cells than fit on the device, a backend that reads host memory
    reads them in place; any other takes them in turns.

    Parameters
    ----------
    backend : Backend
    spec : CacheSpec
    capacity, resident : int
    path : str, optional
    ring : bool
    """

    def __init__(
        self,
        backend: Backend,
        spec: CacheSpec,
        capacity: int,
        resident: int,
        path: str | None = None,
        ring: bool = False,
    ) -> None:
        self._hosts = HostPools(backend, path)
        n_slots = _slots(spec, resident)
        super().__init__(backend, spec, capacity)
        self._ring = ring
        self._slots = self._new_slots(n_slots)

    def _new_pages(self, units: int) -> Pages:
        return Pages(self.backend, self.spec.layout, units, elastic=True, make=self._hosts.make)

    def _new_slots(self, n_slots: int) -> ClockSlots | RingSlots:
        kind = RingSlots if self._ring else ClockSlots
        return kind(self.backend, self.spec.layout, n_slots, self._pages)

    def _sibling(self) -> StreamedCache:
        twin = super()._sibling()
        twin._hosts, twin._ring, twin._lock = self._hosts, self._ring, SharedLock()
        twin._slots = self._new_slots(self._slots.n_slots) if self._ring else self._slots
        return twin

    # -- facts ----------------------------------------------------------------------------

    @property
    def nbytes(self) -> int:
        """Bytes on the device: slots, exact cells, centre and marks."""
        return self._slots.pool.nbytes + self._state.nbytes

    @property
    def host_nbytes(self) -> int:
        """Bytes on the host (shared pages counted in full)."""
        return self.spec.layout.nbytes(len(self._table))

    @property
    def counters(self) -> Counters:
        """Lookups, hits and misses so far, of all forks together."""
        return self._slots.counters()

    @property
    def resident_table(self) -> Array:
        """Page of each block in the device's pool, -1 = not there, i32[blocks]."""
        return self._slots.table(self._units)

    # -- writing --------------------------------------------------------------------------

    def _write(self, start: int, k: Any, v: Any, committed: int) -> None:
        with self._slots.lock:  # no reader of a fork may evict what is being written
            self._write_pieces(start, k, v, committed)

    def _write_pieces(self, start: int, k: Any, v: Any, committed: int) -> None:
        """Append in pieces whose units fit on the device, cut between groups."""
        unit, steps = self.spec.layout.unit_cells, int(k.shape[0])
        at, end = start, start + steps
        while True:
            first = min(at, *(self._row[m] for m in rules.FRONTIER.values()))
            stop = min(end, (first // unit + self._slots.n_slots) * unit)
            if stop < end and stop // GROUP_CELLS * GROUP_CELLS > at:
                stop = stop // GROUP_CELLS * GROUP_CELLS
            rows = slice(at - start, stop - start)
            super()._write(
                at,
                self.backend.part(k, rows.start, rows.stop),
                self.backend.part(v, rows.start, rows.stop),
                min(committed, stop),
            )
            at = stop
            if at == end:
                return

    def _open(self, first: int, end: int) -> tuple[Pool, Array]:
        old = self._units
        super()._open(first, end)
        units = self._units
        fresh = np.arange(len(units)) >= len(old)
        fresh[: len(old)] = units[: len(old)] != old
        self._slots.forget(units[fresh])
        blocks, wanted = self._span(first, end)
        self._slots.bring(blocks, wanted, blocks * self.spec.layout.unit_cells < len(self))
        return self._slots.pool, self._slots.table(units)

    def _close(self, first: int, end: int) -> None:
        self._slots.save(*self._span(first, end))

    def _span(self, first: int, end: int) -> tuple[Array, Array]:
        unit = self.spec.layout.unit_cells
        blocks = np.arange(first // unit, -(-end // unit))
        return blocks, self._units[blocks]

    def _adopt(self, image: Image, digest: bytes) -> None:
        super()._adopt(image, digest)
        with self._slots.lock:
            self._slots.forget(self._units)

    def _rename(self, place: Array) -> None:
        super()._rename(place)
        self._slots.forget(None)

    # -- reading --------------------------------------------------------------------------

    def _attend(self, q: Any, ids: Any, options: dict[str, Any], return_lse: bool) -> Any:
        steps, n = int(q.shape[0]), len(self)
        unit = self.spec.layout.unit_cells
        low = self._low(steps, options["window"])
        blocks = self._blocks(ids, low)
        with self._slots.lock:
            if len(blocks) <= self._slots.n_slots and self._slots.reaches(blocks, n, unit):
                self._slots.bring(blocks, self._units[blocks])
                table = self._slots.table(self._units)
                return self._one(q, self._slots.pool, table, ids, options, return_lse)
            if self._ring:
                raise RangeError(
                    message(
                        "attend",
                        "cells lie outside the ring",
                        got=f"cells from {max(int(blocks[0]) * unit, low)}",
                        expected=f"the last {self._slots.n_slots} units of {unit} cells",
                        fix="give window= or ids=, or stream without ring",
                    )
                )
            if self.backend.arrays is HOST:
                self._slots.in_place += 1
                return self._one(q, self.pool, self._table, ids, options, return_lse)
            source = PartlyResident(
                self._slots.pool,
                self._slots.table(self._units),
                self._listing(ids, low),
                self._slots.n_slots,
                self._turn,
            )
            return self.backend.attention_in_turns(
                q, source, n, ids=ids, state=self._state, return_lse=return_lse, **options
            )

    def _one(
        self, q: Any, pool: Pool, table: Array, ids: Any, options: dict[str, Any], lse: bool
    ) -> Any:
        return self.backend.attention(
            q,
            pool,
            table,
            np.array([len(self)], np.int32),
            ids=ids,
            state=self._state,
            return_lse=lse,
            **options,
        )

    def _turn(self, blocks: Array) -> tuple[Pool, Array]:
        """Return a pool of the device with some units, and their table."""
        self._slots.turns += 1
        if len(blocks) > self._slots.n_slots:  # one tile of scattered ids: a pool for it alone
            return self._slots.aside(blocks, self._units)
        self._slots.bring(blocks, self._units[blocks])
        return self._slots.pool, self._slots.table(self._units)

    def _blocks(self, ids: Any, low: int) -> Array:
        """Return every unit that some query may read, ascending."""
        if ids is None:
            unit = self.spec.layout.unit_cells
            return np.arange(low // unit, -(-len(self) // unit))
        every = np.unique(self._listing(ids, low))
        return every[every >= 0]

    def _listing(self, ids: Any, low: int) -> Array:
        """Return the unit of each position of the list of cells, -1 where none is read."""
        n = len(self)
        cells = np.arange(n)[None] if ids is None else self.backend.to_host(ids)
        cells = cells.reshape(-1, cells.shape[-1]).astype(np.int64)
        inside = (cells >= low) & (cells < n)
        return np.where(inside, cells // self.spec.layout.unit_cells, -1)

    def _low(self, steps: int, window: Any) -> int:
        """Return the first cell that some query may read."""
        n = len(self)
        limit = int(window) if isinstance(window, int | np.integer) and window > 0 else n
        return max(n - steps + 1 - limit, 0)


def _slots(spec: CacheSpec, resident: int) -> int:
    """Return the units on the device, or raise ShapeError if one append may need more."""
    unit = spec.layout.unit_cells
    whole = isinstance(resident, int | np.integer) and not isinstance(resident, bool)
    waits = spec.grouping == "deferred" and spec.format.per_channel
    most = max(spec.center_cells, GROUP_CELLS if waits else 0)
    least = unit + (most + MAX_DRAFT if most else 0)
    if not whole or resident < least:
        raise ShapeError(
            message(
                "stream",
                "too few resident cells",
                got=resident,
                expected=f"at least {least}: what one append of this spec touches",
            )
        )
    return int(-(-int(resident) // unit))


def stage(backend: Backend, host: Pool, n_cells: int) -> Pool:
    """Return a device pool with the first cells of a host pool, page for page.

    Parameters
    ----------
    backend : Backend
    host : Pool
        Of NumPy planes.
    n_cells : int
        Rounded up to whole units.
    """
    staged = backend.pool(host.layout, host.layout.pages_for(n_cells))
    pages = np.arange(staged.n_pages, dtype=np.int32)
    backend.move(host, pages, staged, pages)
    return staged


def unstage(backend: Backend, staged: Pool, host: Pool, first: int, end: int) -> None:
    """Copy the units that hold cells [first, end) of a staged pool back; touch no other."""
    unit, u = host.layout.unit_cells, host.layout.unit_pages
    if not 0 <= first <= end <= staged.n_cells:
        raise RangeError(
            message("unstage", "cells", got=(first, end), expected=f"within 0 to {staged.n_cells}")
        )
    pages = np.arange(first // unit * u, -(-end // unit) * u, dtype=np.int32)
    backend.move(staged, pages, host, pages)
