"""The allocator: one pool, who uses each of its units, and what is free."""

from __future__ import annotations

import heapq
import threading
import weakref
from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import numpy as np

from kvcore.errors import OutOfPages, RangeError, ShapeError, message
from kvcore.layout import Layout
from kvcore.numerics import Array
from kvcore.pool import Pool

if TYPE_CHECKING:
    from kvcore.backend import Backend


class Pages:
    """Units of pages over one pool, each used by nobody, one or many owners.

    A unit is the least that is given, shared, copied or moved: ``layout.unit_pages`` pages.
    The lowest free unit is always given first, so equal histories have equal tables.

    Parameters
    ----------
    backend : Backend
    layout : Layout
    units : int
    elastic : bool
        Grow when units run out; otherwise :meth:`take` raises OutOfPages.
    make : callable, optional
        ``make(layout, n_pages) -> Pool`` instead of ``backend.pool``.

    Attributes
    ----------
    pool : Pool
        Replaced by a larger one when it grows.
    users : i64[units]
        Owners of each unit.
    owners : weakref.WeakSet
        Whatever holds numbers of units: has a ``_lock`` and is told new ones by ``_rename``.
    lock : threading.RLock
        Held by whoever changes owners, or writes pages of a pool that may be replaced.
    """

    def __init__(
        self,
        backend: Backend,
        layout: Layout,
        units: int,
        elastic: bool = False,
        make: Callable[[Layout, int], Pool] | None = None,
    ) -> None:
        self.backend, self.layout, self.elastic = backend, layout, elastic
        self._make = backend.pool if make is None else make
        self.pool: Pool = self._make(layout, units * layout.unit_pages)
        self.users: Array = np.zeros(units, np.int64)
        self.owners: weakref.WeakSet[Any] = weakref.WeakSet()
        self._free = list(range(units))
        self.lock = threading.RLock()

    @property
    def n_units(self) -> int:
        """Units of the pool."""
        return len(self.users)

    @property
    def n_free(self) -> int:
        """Units that nobody uses."""
        return len(self._free)

    def pages_of(self, units: Array) -> Array:
        """Return the pages of units, in order, as i32."""
        u = self.layout.unit_pages
        pages = np.asarray(units, np.int64)[:, None] * u + np.arange(u)
        return pages.reshape(-1).astype(np.int32)

    def require(self, n: int) -> None:
        """Make sure that `n` units are free.

        Raises
        ------
        OutOfPages
            If there are fewer and the pool may not grow; nothing is changed.
        """
        with self.lock:
            if n <= self.n_free:
                return
            if not self.elastic:
                u = self.layout.unit_pages
                raise OutOfPages(
                    message(
                        "pages",
                        "too few free pages",
                        got=f"{self.n_free * u} free of {self.n_units * u}",
                        expected=f"{n * u}",
                        fix="free or truncate sequences, or grow the pool",
                    )
                )
            self.grow(n - self.n_free)

    def take(self, n: int) -> Array:
        """Return `n` free units, now used once.

        Raises
        ------
        OutOfPages
            As :meth:`require`.
        """
        with self.lock:
            self.require(n)
            units = np.array([heapq.heappop(self._free) for _ in range(n)], np.int64)
            self.users[units] += 1
            return units

    def share(self, units: Array) -> None:
        """Count one more owner of units that are in use."""
        with self.lock:
            self._check_used("share", units)
            self.users[units] += 1

    def drop(self, units: Array) -> None:
        """Count one owner less; a unit that nobody uses is free again.

        Raises
        ------
        ShapeError
            If a unit has no owner or is named twice: nothing is changed.
        """
        with self.lock:
            self._check_used("free", units)
            self.users[units] -= 1
            for unit in units[self.users[units] == 0].tolist():
                heapq.heappush(self._free, unit)

    def _check_used(self, op: str, units: Array) -> None:
        bad = units[self.users[units] < 1]
        if bad.size or np.unique(units).size != units.size:
            raise ShapeError(
                message(
                    op,
                    "a unit without owner, or named twice",
                    got=f"units {np.asarray(units).tolist()[:8]}",
                    expected="distinct units in use",
                )
            )

    def own(self, units: Array) -> Array:
        """Return units for one owner to write: shared ones are copied and given up.

        Raises
        ------
        OutOfPages
            If there are too few free units for the copies; nothing is changed.
        """
        with self.lock:
            shared = self.users[units] > 1
            if not shared.any():
                return units
            copies = self.take(int(shared.sum()))
            self.backend.move(
                self.pool, self.pages_of(units[shared]), self.pool, self.pages_of(copies)
            )
            self.drop(units[shared])
            out: Array = units.copy()
            out[shared] = copies
            return out

    def grow(self, at_least: int) -> None:
        """Add units to the pool: `at_least`, and half as many again as there are if elastic."""
        with self.lock:
            old, units = self.pool, self.n_units
            more = max(at_least, units // 2) if self.elastic else at_least
            grown = self._make(self.layout, (units + more) * self.layout.unit_pages)
            every = np.arange(old.n_pages, dtype=np.int32)
            self.backend.move(old, every, grown, every)
            self.pool = grown
            self.users = np.concatenate([self.users, np.zeros(more, np.int64)])
            for unit in range(units, units + more):
                heapq.heappush(self._free, unit)

    def join(self, owner: Any) -> None:
        """Count in whoever will hold units."""
        with self.lock:
            self.owners.add(owner)

    def leave(self, owner: Any) -> None:
        """Count out whoever holds none any more."""
        with self.lock:
            self.owners.discard(owner)

    def defragment(self, shrink: bool = False) -> int:
        """Move the used units to the lowest places and rename them in every owner's table.

        Takes every owner's lock. `shrink` also gives up the free units. Returns how many moved.
        """
        while True:
            locks = self._locks()
            with ExitStack() as held:
                for key in sorted(locks):
                    held.enter_context(locks[key].writing())
                held.enter_context(self.lock)
                # A fork may have joined while the locks were waited for; with all of them held
                # nobody can.
                if self._locks().keys() <= locks.keys():
                    return self._defragment(shrink)

    def _locks(self) -> dict[int, Any]:
        with self.lock:
            return {id(o._lock): o._lock for o in list(self.owners)}

    def _defragment(self, shrink: bool) -> int:
        place, moved = self._compact()
        for owner in list(self.owners):
            owner._rename(place)
        if shrink:
            self.shrink()
        return moved

    def _compact(self) -> tuple[Array, int]:
        """Move the used units to the lowest places; return every unit's new place, and a count."""
        place = np.arange(self.n_units)
        used = int((self.users > 0).sum())
        holes = np.flatnonzero(self.users[:used] == 0)
        high = np.flatnonzero(self.users[used:] > 0) + used
        if holes.size:
            self.backend.move(self.pool, self.pages_of(high), self.pool, self.pages_of(holes))
            self.users[holes], self.users[high] = self.users[high], 0
            place[high] = holes
        self._free = list(range(used, self.n_units))
        return place, len(holes)

    def shrink(self) -> None:
        """Give up the free units behind the last used one."""
        with self.lock:
            used = np.flatnonzero(self.users > 0)
            units = int(used[-1]) + 1 if used.size else 0
            old = self.pool
            small = self._make(self.layout, units * self.layout.unit_pages)
            every = np.arange(small.n_pages, dtype=np.int32)
            self.backend.move(old, every, small, every)
            self.pool = small
            self.users = self.users[:units].copy()
            self._free = np.flatnonzero(self.users == 0).tolist()


def checked_cells(op: str, name: str, value: Any, low: int, high: int) -> int:
    """Return a count of cells as an int, or raise RangeError naming it."""
    whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
    if not whole or not low <= value <= high:
        raise RangeError(
            message(op, f"{name} is not usable", got=value, expected=f"{low} <= {name} <= {high}")
        )
    return int(value)
