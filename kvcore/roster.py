"""The roster of a batch: sequences come, fork and go over one pool and one state."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from kvcore import marks as rules
from kvcore.basis import Basis
from kvcore.cache import KVCache
from kvcore.cache_spec import CacheSpec
from kvcore.errors import RangeError, ShapeError, message
from kvcore.held import MAX_CELLS
from kvcore.locks import SharedLock
from kvcore.numerics import Array
from kvcore.pages import Pages, checked_cells
from kvcore.pool import State
from kvcore.prefix import Prefixes

if TYPE_CHECKING:
    from kvcore.backend import Backend

ARRAYS = ("k", "v", "centre", "marks")
ROWS = 8
"""Rows of a fresh state; doubled when they run out."""


class Member(KVCache):
    """One sequence of a batch: a cache whose state is a row of the batch's."""

    _owner: Roster
    _place: int

    def _sibling(self) -> Member:
        return self._owner._new()

    def _release(self, n: int) -> None:
        """Give the units behind cell `n` back to the pool."""
        kept = -(-n // self.spec.layout.unit_cells)
        self._pages.drop(self._units[kept:])
        self._set_units(self._units[:kept])

    def fork(self) -> Member:
        """Return a new sequence with the same cells."""
        return self._owner[self._owner.fork(self._owner._id_of(self))]

    def free(self) -> None:
        """Give pages and row back."""
        self._owner.free(self._owner._id_of(self))


class Roster:
    """Sequences by number over one pool; each is a row of one state.

    Parameters
    ----------
    backend : Backend
    spec : CacheSpec
    n_pages : int
        Rounded up to whole units.
    """

    def __init__(self, backend: Backend, spec: CacheSpec, n_pages: int) -> None:
        whole = isinstance(n_pages, int | np.integer) and not isinstance(n_pages, bool)
        if not whole or n_pages < 0:
            raise ShapeError(
                message("sequences", "n_pages", got=n_pages, expected="an integer >= 0")
            )
        self.backend, self.spec = backend, spec
        self._basis = Basis(backend=backend, spec=spec)
        unit = spec.layout.unit_pages
        self._pages = Pages(backend, spec.layout, -(-int(n_pages) // unit))
        self._lock = SharedLock()
        self._state = backend.state(spec.state_layout, ROWS, self._basis.centre())
        self._members: dict[int, Member] = {}
        self._rows: list[int | None] = [None] * ROWS
        self._next = 0
        self._prefixes = Prefixes(spec, self._pages, self._lock)

    # -- facts ----------------------------------------------------------------------------

    def __getitem__(self, seq: int) -> Member:
        """Return a sequence as a cache."""
        return self._find("sequences", seq)

    def __iter__(self) -> Iterator[int]:
        """Iterate the sequences' numbers."""
        return iter(list(self._members))

    def __len__(self) -> int:
        """Return how many sequences there are."""
        return len(self._members)

    def lengths(self, seqs: Sequence[int]) -> Array:
        """Return the cells of sequences, drafts included, i32[B]."""
        numbers = self._numbers("lengths", seqs)
        return np.array([len(self._find("lengths", s)) for s in numbers], np.int32)

    @property
    def n_pages(self) -> int:
        """Pages of the pool."""
        return self._pages.n_units * self.spec.layout.unit_pages

    @property
    def free_pages(self) -> int:
        """Pages that no sequence and no published prefix uses."""
        return self._pages.n_free * self.spec.layout.unit_pages

    @property
    def nbytes(self) -> int:
        """Bytes of the pool and of all exact cells, centres and marks."""
        return self._pages.pool.nbytes + self._state.nbytes

    def _numbers(self, op: str, seqs: Any) -> list[Any]:
        """Return sequences' numbers as a flat list, or raise ShapeError."""
        try:
            found = np.asarray(list(seqs)).reshape(-1)
        except (TypeError, ValueError):
            found = np.zeros(1, object)
        if found.size and found.dtype.kind not in "iu":
            raise ShapeError(
                message(op, "sequences", got=seqs, expected="numbers that add() returned, in a row")
            )
        return [int(x) for x in found]

    def _find(self, op: str, seq: Any) -> Member:
        whole = isinstance(seq, int | np.integer) and not isinstance(seq, bool)
        member = self._members.get(int(seq)) if whole else None
        if member is None:
            raise RangeError(
                message(op, "no such sequence", got=seq, expected="a number that add() returned")
            )
        return member

    def _id_of(self, member: Member) -> int:
        for seq, known in self._members.items():
            if known is member:
                return seq
        raise RangeError("[sequences] this sequence was freed: add or load another")

    # -- coming and going -----------------------------------------------------------------

    def add(self) -> int:
        """Return the number of a new, empty sequence. It takes pages as it grows."""
        with self._lock.writing():
            return self._id_of(self._new())

    def _new(self) -> Member:
        if None not in self._rows:
            self._more_rows()
        member = object.__new__(Member)
        member.backend, member.spec, member._basis = self.backend, self.spec, self._basis
        member._owner, member._pages, member._lock = self, self._pages, self._lock
        member.capacity = MAX_CELLS
        member._set_units(np.zeros(0, np.int64))
        member._saved = (b"", 0)
        member._place = self._rows.index(None)
        member._state = self._part(member._place, member._place + 1)
        member._set_row(rules.fresh(self.spec.state_layout))
        member._trust()
        self._pages.join(member)
        self._rows[member._place] = self._next
        self._members[self._next] = member
        self._next += 1
        return member

    def _part(self, start: int, stop: int) -> State:
        arrays = {n: self.backend.part(getattr(self._state, n), start, stop) for n in ARRAYS}
        return State(
            layout=self._state.layout, batch=stop - start, backend=self._state.backend, **arrays
        )

    def _more_rows(self) -> None:
        be, old = self.backend, self._state
        self._state = be.state(old.layout, 2 * old.batch, self._basis.centre())
        for name in ARRAYS:
            kept = be.part(getattr(self._state, name), 0, old.batch)
            be.write(kept, be.to_host(getattr(old, name)))
        self._rows += [None] * old.batch
        for member in self._members.values():
            member._state = self._part(member._place, member._place + 1)

    def load(self, snapshot: bytes) -> int:
        """Return a new sequence with the contents of a snapshot of the same spec."""
        from kvcore.snapshot import load_into

        seq = self.add()
        try:
            load_into(self[seq], snapshot)
        except Exception:
            self.free(seq)
            raise
        return seq

    def fork(self, seq: int) -> int:
        """Return a new sequence with the same cells; see :meth:`KVCache.fork`."""
        with self._lock.writing():
            member = self._find("fork", seq)
            member._check_settled("fork")
            return self._id_of(member._fork())

    def free(self, seq: int) -> None:
        """Forget a sequence: its pages and its row are free again."""
        with self._lock.writing():
            member = self._find("free", seq)
            self._pages.drop(member._units)
            member._set_units(member._units[:0])
            member._set_row(rules.fresh(self.spec.state_layout))
            member.capacity = 0
            self._rows[member._place] = None
            self._pages.leave(member)
            del self._members[seq]

    def grow(self, n_pages: int) -> None:
        """Add pages to the pool, rounded up to whole units."""
        n_pages = checked_cells("grow", "n_pages", n_pages, 0, MAX_CELLS)
        with self._lock.writing(), self._pages.lock:
            self._pages.grow(-(-n_pages // self.spec.layout.unit_pages))

    def defragment(self, shrink: bool = False) -> int:
        """Move the used pages to the lowest places; see :meth:`KVCache.defragment`."""
        return self._pages.defragment(shrink)
