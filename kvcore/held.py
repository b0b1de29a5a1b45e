"""What a cache holds: units of a pool, exact cells, centre, marks and the lock over them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from kvcore import marks as rules
from kvcore.basis import Basis
from kvcore.cache_spec import CacheSpec
from kvcore.errors import ShapeError, message
from kvcore.layout import COMMITTED, LENGTH
from kvcore.locks import SharedLock
from kvcore.numerics import Array
from kvcore.pages import Pages
from kvcore.pool import Pool, State

if TYPE_CHECKING:
    from kvcore.backend import Backend
    from kvcore.snapshot_image import Image

T = TypeVar("T", bound="Held")

MAX_CELLS = 2**31 - 2**20
"""Whole pages of every page size, and a cell's number still fits 32 bits."""


class Held:
    """Pages and state of one sequence, with their sharing and replacing.

    Everything here is in the stored basis. Methods that begin with an underscore expect their
    caller to hold the lock.

    Parameters
    ----------
    backend : Backend
    spec : CacheSpec
    capacity : int
    reserve : int, optional
    """

    def __init__(
        self, backend: Backend, spec: CacheSpec, capacity: int, reserve: int | None = None
    ) -> None:
        whole = isinstance(capacity, int | np.integer) and not isinstance(capacity, bool)
        if not whole or not 1 <= capacity <= MAX_CELLS:
            raise ShapeError(
                message(
                    "cache",
                    "capacity is not usable",
                    got=capacity,
                    expected=f"1 <= cells <= {MAX_CELLS}",
                )
            )
        self.backend, self.spec = backend, spec
        layout = spec.layout
        self.capacity = layout.pages_for(int(capacity)) * layout.page_size
        held = self.capacity if reserve is None else min(reserve, self.capacity)
        units = layout.pages_for(held) // layout.unit_pages
        self._pages = self._new_pages(units)
        self._set_units(self._pages.take(units))
        self._basis = Basis(backend=backend, spec=spec)
        self._state = backend.state(spec.state_layout, 1, self._basis.centre())
        self._row = rules.fresh(spec.state_layout)
        self._lock = SharedLock()
        self._saved: tuple[bytes, int] = (b"", 0)
        self._trust()
        self._pages.join(self)

    def _new_pages(self, units: int) -> Pages:
        return Pages(self.backend, self.spec.layout, units, elastic=True)

    def _sibling(self: T) -> T:
        """Return an empty cache without units over the same pages."""
        twin = object.__new__(type(self))
        twin.backend, twin.spec, twin.capacity = self.backend, self.spec, self.capacity
        twin._basis, twin._pages, twin._lock = self._basis, self._pages, SharedLock()
        twin._set_units(self._units[:0])
        twin._state = self.backend.state(self.spec.state_layout, 1, self._basis.centre())
        twin._row = rules.fresh(self.spec.state_layout)
        twin._saved = (b"", 0)
        twin._trust()
        twin._pages.join(twin)
        return twin

    def __del__(self, _finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        # An argument, because modules may be gone when the interpreter ends.
        units = getattr(self, "_units", None)
        if units is not None and units.size and not _finalizing():
            self._pages.drop(units)

    # -- facts ----------------------------------------------------------------------------

    def __len__(self) -> int:
        """Return the cells held, drafts included."""
        return self._row[LENGTH]

    @property
    def committed(self) -> int:
        """Cells that are final."""
        return self._row[COMMITTED]

    @property
    def marks(self) -> tuple[int, ...]:
        """The eight marks of :mod:`kvcore.layout`, as the host knows them."""
        return tuple(self._row)

    @property
    def pool(self) -> Pool:
        """The pool under it, shared with its forks."""
        return self._pages.pool

    @property
    def state(self) -> State:
        """Exact cells, centre and marks."""
        return self._state

    @property
    def nbytes(self) -> int:
        """Bytes of its pages, exact cells, centre and marks (shared pages counted in full)."""
        return self.spec.layout.nbytes(len(self._table)) + self._state.nbytes

    @property
    def table(self) -> Array:
        """Page table, i32[blocks]."""
        return self._table

    def _set_units(self, units: Array) -> None:
        self._units = units
        self._table = self._pages.pages_of(units)

    # -- pages ----------------------------------------------------------------------------

    def _lacking(self, first: int, end: int) -> tuple[int, Array]:
        """Return how many units must be added, and which shared ones copied, to write cells."""
        unit = self.spec.layout.unit_cells
        need = -(-end // unit)
        touched = np.arange(first // unit, min(need, len(self._units)))
        shared = touched[self._pages.users[self._units[touched]] > 1]
        return max(need - len(self._units), 0), shared

    def _open(self, first: int, end: int) -> tuple[Pool, Array]:
        """Return pool and table for writing cells [first, end): none of them shared."""
        added, shared = self._lacking(first, end)
        if added or shared.size:
            self._pages.require(added + len(shared))
            units = np.concatenate([self._units, self._pages.take(added)])
            units[shared] = self._pages.own(units[shared])
            self._set_units(units)
        return self.pool, self._table

    def _close(self, first: int, end: int) -> None:
        """Take note that cells [first, end) were written."""

    def _release(self, n: int) -> None:
        """Give up the units behind cell `n` if others use them; own ones stay reserved."""
        kept = -(-n // self.spec.layout.unit_cells)
        rest = self._units[kept:]
        with self._pages.lock:
            if rest.size and (self._pages.users[rest] > 1).any():
                self._pages.drop(rest)
                self._set_units(self._units[:kept])

    def _set_row(self, row: list[int]) -> None:
        self._row = row
        self.backend.write(self._state.marks, np.asarray([row], np.int32))

    # -- trust ----------------------------------------------------------------------------

    def _trust(self, faithful: int = MAX_CELLS, refilled: int = 0) -> None:
        """Take note of what is here that an undisturbed cache of these cells would not have.

        Parameters
        ----------
        faithful : int
            Leading cells whose bulk is what an undisturbed cache would hold.
        refilled : int
            Window cells below this one may come from the bulk, though they are read as exact.
        """
        self._faithful, self._refilled = faithful, refilled

    # -- sharing --------------------------------------------------------------------------

    def fork(self: T) -> T:
        """Return a second cache that continues from the same cells.

        Units that hold cells are shared; one that either writes is copied first. The fork takes
        the units it writes from the family's pool, which grows when it has too few.

        Raises
        ------
        ShapeError
            If drafts are open.
        """
        with self._lock.reading():
            self._check_settled("fork")
            return self._fork()

    def _fork(self: T) -> T:
        twin, be = self._sibling(), self.backend
        used = -(-len(self) // self.spec.layout.unit_cells)
        with self._pages.lock:
            self._pages.share(self._units[:used])
            twin._set_units(self._units[:used].copy())
        for name in ("k", "v", "centre", "marks"):
            be.write(getattr(twin._state, name), be.to_host(getattr(self._state, name)))
        twin._row, twin._saved = list(self._row), self._saved
        twin._trust(self._faithful, self._refilled)
        return twin

    def _check_settled(self, op: str) -> None:
        if len(self) != self.committed:
            raise ShapeError(
                f"[{op}] {len(self) - self.committed} drafts are open: commit or truncate first"
            )

    def free(self) -> None:
        """Give its pages back to its forks; the cache is empty and unusable afterwards."""
        with self._lock.writing():
            self._pages.drop(self._units)
            self._set_units(self._units[:0])
            self.capacity = 0
            self._saved = (b"", 0)
            self._set_row(rules.fresh(self.spec.state_layout))
            self._trust()

    def defragment(self, shrink: bool = False) -> int:
        """Move the units of all caches over this pool to its lowest places.

        Parameters
        ----------
        shrink : bool
            Also give up the pool's free units.

        Returns
        -------
        int
            Units that moved.
        """
        return self._pages.defragment(shrink)

    def _rename(self, place: Array) -> None:
        self._set_units(place[self._units])

    def _source(self) -> tuple[Pool, Array]:
        """Return the pool and table that hold every cell."""
        return self.pool, self._table

    def _adopt(self, image: Image, digest: bytes) -> None:
        """Take over checked contents. The old ones are given up only when the new ones lie."""
        from kvcore.snapshot import place

        be, cells = self.backend, image.row[LENGTH]
        n = -(-cells // self.spec.layout.unit_cells)
        with self._pages.lock:
            spare = self._pages.users[self._units] == 1
            mine = self._units[:n][spare[:n]]
            units = np.concatenate([mine, self._pages.take(n - len(mine))])
            place(be, image, self.pool, self._pages.pages_of(units))  # only unshared pages
            rest = self._units[~np.isin(self._units, units)]
            kept = rest[self._pages.users[rest] == 1]
            self._pages.drop(rest[self._pages.users[rest] > 1])
            self._set_units(np.concatenate([units, kept]))
        be.write(self._state.k, image.exact_k[None])
        be.write(self._state.v, image.exact_v[None])
        be.write(self._state.centre, image.centre[None])
        self._set_row(list(image.row))
        self._trust(faithful=0 if cells else MAX_CELLS)  # whatever happened to it before
        self._saved = (digest, cells)
