"""Prefix sharing: units of pages known by the caller's key chain, or by their bytes."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from kvcore import marks as rules
from kvcore.cache_spec import CacheSpec
from kvcore.layout import CENTRED, COMMITTED, LENGTH
from kvcore.locks import SharedLock
from kvcore.numerics import Array
from kvcore.pages import Pages, checked_cells

if TYPE_CHECKING:
    from kvcore.held import Held

ARRAYS = ("k", "v", "centre")


@dataclass(kw_only=True, slots=True, eq=False)
class _Link:
    """A published piece of a prefix.

    Attributes
    ----------
    units : i64[n]
        Held by the link itself, too.
    end : int
        Cells up to its end.
    row, exact
        Marks and state arrays of a sequence that stands at `end`, if one did when it published.
    first : dict of str to array
        Of the first link: the state's arrays, for sinks and centre.
    """

    units: Array
    end: int
    parent: _Link | None
    key: Any
    used: int
    row: list[int] | None = None
    exact: dict[str, Array] = field(default_factory=dict)
    next: dict[Any, _Link] = field(default_factory=dict)


class Prefixes:
    """The published links of one pool, a tree of key chains.

    Parameters
    ----------
    spec : CacheSpec
    pages : Pages
    lock : SharedLock
        Of the sequences over those pages; their calls hold it.
    """

    def __init__(self, spec: CacheSpec, pages: Pages, lock: SharedLock) -> None:
        self.spec, self.pages, self._lock = spec, pages, lock
        pages.join(self)
        self._roots: dict[Any, _Link] = {}
        self._clock = itertools.count()

    def ends(self, cells: int) -> Array:
        """Return the end of every link within `cells` cells."""
        cells = checked_cells("links", "cells", cells, 0, 2**31 - 1)
        unit = self.spec.layout.unit_cells
        first = -(-max(self.spec.center_cells, self.spec.sinks, 1) // unit) * unit
        return np.arange(first, cells + 1, unit, dtype=np.int64)

    # -- publishing -----------------------------------------------------------------------

    def publish(self, member: Held, keys: Sequence[Any]) -> int:
        """Hold the final leading units of a sequence under a key chain; return the cells.

        Stops where a rollback has left marks in the bulk, and at a centre other than that of the
        chain's first publisher: whoever resumes must get what an undisturbed cache would hold.
        """
        unit = self.spec.layout.unit_cells
        level, parent, done = self._roots, None, 0
        ends = self.ends(min(_final(member), member._faithful))
        for key, end in zip(keys, ends.tolist(), strict=False):
            link = level.get(key)
            if link is None:
                units = member._units[done // unit : end // unit].copy()
                self.pages.share(units)
                link = _Link(units=units, end=end, parent=parent, key=key, used=0)
                if parent is None:
                    link.exact = _arrays(member)
                level[key] = link
            elif parent is None and not self._same_centre(link, member):
                return 0
            link.used = next(self._clock)
            level, parent, done = link.next, link, end
        if parent is not None:
            self._checkpoint(parent, member)
        return done

    def _same_centre(self, link: _Link, member: Held) -> bool:
        if not self.spec.state_layout.center_cells:
            return True
        mine = np.array(member.backend.to_host(member.state.centre))
        return bool(np.array_equal(mine, link.exact["centre"]))

    def _checkpoint(self, link: _Link, member: Held) -> None:
        """Keep the exact cells of a sequence that stands at, or within slack of, a link's end."""
        row, sl = list(member.marks), self.spec.state_layout
        if link.row is not None or len(member) != member.committed:
            return
        if member._refilled > max(link.end - sl.window, 0):
            return
        at = rules.truncate(row, sl, link.end).row if link.end < len(member) else row
        if rules.inexact(at, sl) == 0 and at[CENTRED] == row[CENTRED]:
            link.row, link.exact = at, _arrays(member)

    # -- resuming -------------------------------------------------------------------------

    def resume(self, member: Held, keys: Sequence[Any]) -> tuple[int, int]:
        """Start an empty sequence with the longest published prefix; return (cells, inexact)."""
        chain = self._match(keys)
        if not chain:
            return 0, 0
        last, first = chain[-1], chain[0]
        units = np.concatenate([link.units for link in chain])
        self.pages.share(units)
        member._set_units(units)
        if last.row is not None:
            _write(member, last.exact)
            member._set_row(list(last.row))
            return last.end, 0
        lost = self._refill(member, first, last.end)
        member._trust(refilled=last.end)
        return last.end, lost

    def _match(self, keys: Sequence[Any]) -> list[_Link]:
        chain: list[_Link] = []
        level = self._roots
        for key in keys:
            link = level.get(key)
            if link is None:
                break
            link.used = next(self._clock)
            chain.append(link)
            level = link.next
        return chain

    def _refill(self, member: Held, first: _Link, n: int) -> int:
        """Make the state of a sequence of `n` cells from the first link's sinks and the bulk."""
        sl, be = self.spec.state_layout, member.backend
        _write(member, first.exact)
        row = rules.append(rules.fresh(sl), sl, n, n)
        for mark in rules.RING_LO.values():
            row[mark] = n
        member._set_row(row)
        window = np.arange(max(n - sl.window, min(sl.sinks, n)), n)
        if not sl.overlay or not window.size:
            return 0
        be.restore(member.state, member.pool, member.table, np.array([n], np.int32))
        for store in ("k", "v"):
            slots = np.array(be.to_host(getattr(member.state, store)))
            slots[:, : sl.sinks] = first.exact[store][:, : sl.sinks]
            be.write(getattr(member.state, store), slots)
            row[rules.RING_LO[store]] = max(n - sl.window, 0)
        member._set_row(row)
        return len(window)

    # -- giving up ------------------------------------------------------------------------

    def reclaim(self, need: int) -> None:
        """Give up links that only this index holds, least recently used first, for free units.

        Stops when `need` units are free; gives up nothing if that cannot be reached.
        """
        short = need - self.pages.n_free
        if 0 < short <= sum(self._reclaimable(link) for link in self._roots.values()):
            self._give_up(short)

    def forget(self) -> None:
        """Give up every link that only this index holds."""
        self._give_up(self.pages.n_units)

    def _reclaimable(self, link: _Link) -> int:
        below = sum(self._reclaimable(child) for child in link.next.values())
        free_below = all(self._lone(child) for child in link.next.values())
        return below + (len(link.units) if free_below and self._lone(link) else 0)

    def _give_up(self, short: int) -> None:
        for leaf in sorted(self._leaves(), key=lambda x: x.used):
            link: _Link | None = leaf
            while short > 0 and link is not None and not link.next and self._lone(link):
                self.pages.drop(link.units)
                short -= len(link.units)
                siblings = link.parent.next if link.parent else self._roots
                del siblings[link.key]
                link = link.parent

    def _lone(self, link: _Link) -> bool:
        return bool((self.pages.users[link.units] == 1).all())

    def _leaves(self) -> list[_Link]:
        found, stack = [], list(self._roots.values())
        while stack:
            link = stack.pop()
            stack.extend(link.next.values())
            if not link.next:
                found.append(link)
        return found

    def _rename(self, place: Array) -> None:
        """Follow the units to where a defragmentation moved them."""
        stack = list(self._roots.values())
        while stack:
            link = stack.pop()
            link.units = place[link.units]
            stack.extend(link.next.values())

    # -- equal bytes ----------------------------------------------------------------------

    def deduplicate(self, members: list[Held]) -> None:
        """Point every final unit to the first one with the same bytes."""
        from kvcore.snapshot import STAGING, rows_per_unit

        layout = self.spec.layout
        step = max(1, STAGING // max(layout.unit_bytes, 1))
        final = {id(m): _final(m) // layout.unit_cells for m in members}
        none = np.zeros(0, np.int64)
        every = np.unique(np.concatenate([none, *(m._units[: final[id(m)]] for m in members)]))
        digests: dict[int, bytes] = {}
        for at in range(0, len(every), step):
            units = every[at : at + step]
            be = self.pages.backend
            part = be.pool(layout, len(units) * layout.unit_pages)
            be.move(
                self.pages.pool,
                self.pages.pages_of(units),
                part,
                np.arange(part.n_pages, dtype=np.int32),
            )
            planes = {name: be.to_host(a) for name, a in part.planes.items()}
            for i, unit in enumerate(units.tolist()):
                h = hashlib.sha256()
                for name, plane in planes.items():
                    n = rows_per_unit(layout, name)
                    h.update(np.ascontiguousarray(plane[i * n : (i + 1) * n]).tobytes())
                digests[unit] = h.digest()
        self._merge(members, final, digests)

    def _merge(self, members: list[Held], final: dict[int, int], digests: dict[int, bytes]) -> None:
        first: dict[bytes, int] = {}
        for member in members:
            units = member._units.copy()
            for i in range(final[id(member)]):
                unit = int(units[i])
                keep = first.setdefault(digests[unit], unit)
                if keep != unit:
                    self.pages.share(np.array([keep]))
                    self.pages.drop(np.array([unit]))
                    units[i] = keep
            member._set_units(units)


def _final(member: Held) -> int:
    """Return the leading cells whose bulk bytes will not change: committed, grouped, centred."""
    row = member.marks
    return min(row[COMMITTED], row[LENGTH], *(row[m] for m in rules.FRONTIER.values()))


def _arrays(member: Held) -> dict[str, Array]:
    return {n: np.array(member.backend.to_host(getattr(member.state, n))) for n in ARRAYS}


def _write(member: Held, arrays: dict[str, Array]) -> None:
    for name, values in arrays.items():
        member.backend.write(getattr(member.state, name), values)
