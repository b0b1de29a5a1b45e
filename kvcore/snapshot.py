"""Snapshots: a cache as one file that loads on every backend, exact cells included.

A snapshot is a pure function of the cache's cells and marks: bytes that no reader can see (the
unwritten rest of a page or group, dead ring slots) are saved as zeros, so that nothing of another
sequence leaves with a file, and equal caches have equal snapshots on every backend.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from kvcore import marks as rules
from kvcore.container import seal_of
from kvcore.errors import FormatError, message
from kvcore.layout import CENTRED, LENGTH, Layout
from kvcore.numerics import Array
from kvcore.pages import checked_cells
from kvcore.pool import Pool
from kvcore.snapshot_image import Image, read, write
from kvcore.spec import GROUP_CELLS

if TYPE_CHECKING:
    from kvcore.backend import Backend
    from kvcore.cache import KVCache
    from kvcore.held import Held

STAGING = 1 << 26
"""Bytes copied from a device at a time."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Incremental:
    """A snapshot made with the help of an earlier one.

    Attributes
    ----------
    data : bytes
        What a full snapshot would be.
    reused : int
        Leading cells whose bytes were taken from the earlier one: whole units.
    """

    data: bytes
    reused: int


# -- saving -------------------------------------------------------------------------------


def save(cache: KVCache) -> bytes:
    """Return the snapshot of a cache; see :meth:`KVCache.snapshot`."""
    return save_incremental(cache, b"").data


def save_incremental(cache: KVCache, base: bytes) -> Incremental:
    """Return the snapshot of a cache, copying from the device only what is new since `base`.

    Parameters
    ----------
    cache : KVCache
    base : bytes
        The last snapshot that this cache saved, loaded or inherited by a fork; anything else is
        of no use and is not read. b"" for a full capture.

    Raises
    ------
    ShapeError
        If drafts are open.
    """
    with cache._lock.reading():
        cache._check_settled("snapshot")
        state = _exact(cache)
        known, low = cache._saved
        old = read(base) if base and seal_of(base) == known else None
        reused = 0 if old is None else _reusable(old, list(cache.marks), state[2], low)
        image = _gathered(cache, state, old, reused)
        data = write(image)
        cache._saved = (seal_of(data), len(cache))
        return Incremental(data=data, reused=reused)


def capture(cache: Held) -> Image:
    """Return a cache's contents; the caller holds its lock."""
    return _gathered(cache, _exact(cache), None, 0)


def _gathered(
    cache: Held, state: tuple[Array, Array, Array], old: Image | None, reused: int
) -> Image:
    row = list(cache.marks)
    return Image(
        spec=cache.spec,
        capacity=cache.capacity,
        row=row,
        planes=_capture(cache, row, old, reused),
        exact_k=state[0],
        exact_v=state[1],
        centre=state[2],
    )


def _reusable(old: Image, row: list[int], centre: Array, low: int) -> int:
    """Return the leading cells whose bulk bytes are those of an earlier image."""
    if not np.array_equal(old.centre.view(np.uint16), centre.view(np.uint16)):
        return 0
    done = min(low, row[LENGTH], *(old.row[m] for m in rules.FRONTIER.values()))
    unit = old.spec.layout.unit_cells
    return done // unit * unit


def _exact(cache: Held) -> tuple[Array, Array, Array]:
    """Return exact K, exact V with dead slots zeroed, and the centre, from the device."""
    be, state, sl = cache.backend, cache.state, cache.spec.state_layout
    row = cache.marks
    be.synchronize()
    out = []
    for store in ("k", "v"):
        slots = np.array(be.to_host(getattr(state, store))[0])
        alive = np.zeros(len(slots), bool)
        if sl.ring(store):
            alive[: min(sl.sinks, row[LENGTH])] = True
            cells = np.arange(max(row[rules.RING_LO[store]], sl.sinks), row[LENGTH])
            alive[sl.sinks + cells % sl.ring(store)] = True
        slots[~alive] = 0
        out.append(slots)
    centre = np.array(be.to_host(state.centre)[0])
    return out[0], out[1], centre if row[CENTRED] else np.zeros_like(centre)


def _capture(cache: Held, row: list[int], old: Image | None, reused: int) -> dict[str, Array]:
    layout, be = cache.spec.layout, cache.backend
    n_units = -(-row[LENGTH] // layout.unit_cells)
    shapes = layout.planes(n_units * layout.unit_pages)
    planes = {p.name: np.empty(p.shape, p.dtype) for p in shapes}
    start = reused // layout.unit_cells
    if old is not None:
        for name, plane in planes.items():
            n = rows_per_unit(layout, name) * start
            plane[:n] = old.planes[name][:n]
    with cache._pages.lock:
        source, table = cache._source()
        for first, end in _chunks(layout, start, n_units):
            part = be.pool(layout, (end - first) * layout.unit_pages)
            pages = table[first * layout.unit_pages : end * layout.unit_pages]
            be.move(source, pages, part, np.arange(part.n_pages, dtype=np.int32))
            for name, plane in planes.items():
                n = rows_per_unit(layout, name)
                plane[first * n : end * n] = be.to_host(part.planes[name])
    blank(layout, planes, row)
    return planes


def _chunks(layout: Layout, start: int, end: int) -> Iterator[tuple[int, int]]:
    step = max(1, STAGING // max(layout.unit_bytes, 1))
    for first in range(start, end, step):
        yield first, min(first + step, end)


def rows_per_unit(layout: Layout, plane: str) -> int:
    """Return the leading rows of a plane that belong to one unit."""
    if plane.endswith("scales") and layout.codec(plane[0]).per_channel:
        return 1
    return layout.unit_pages


def blank(layout: Layout, planes: dict[str, Array], row: list[int]) -> None:
    """Zero what lies behind the last bulk cell of each store."""
    for name, plane in planes.items():
        cells = min(row[LENGTH], row[rules.FRONTIER[name[0]]])
        if name.endswith("scales") and layout.codec(name[0]).per_channel:
            cells = -(-cells // GROUP_CELLS)
        whole, rest = divmod(cells, plane.shape[2])
        plane[whole : whole + 1, :, rest:] = 0
        plane[whole + 1 :] = 0


# -- loading ------------------------------------------------------------------------------


def load_new(backend: Backend, data: bytes, capacity: int | None = None) -> KVCache:
    """Return a new cache on `backend` from a snapshot.

    Parameters
    ----------
    backend : Backend
    data : bytes
    capacity : int, optional
        Cells, whose pages are taken at once. By default the saved capacity, and pages are taken
        as cells arrive: a file cannot ask for memory that it does not fill.

    Raises
    ------
    ValueError
        Naming the field that is wrong.
    UnsupportedError
        If the backend has a declared gap for the format.
    """
    from kvcore.cache import KVCache
    from kvcore.held import MAX_CELLS

    if capacity is not None:
        capacity = checked_cells("load", "capacity", capacity, 1, MAX_CELLS)
    image = read(data)
    backend.require(image.spec)
    reserve = image.row[LENGTH] if capacity is None else None
    size = image.capacity if capacity is None else capacity
    _check_fits(image, size)
    cache = KVCache(backend, image.spec, size, reserve)
    cache._adopt(image, seal_of(data))
    return cache


def load_into(cache: KVCache, data: bytes) -> None:
    """Replace a cache's contents by a snapshot's; see :meth:`KVCache.load`."""
    image = read(data, cache.spec)
    with cache._lock.writing():
        _check_fits(image, cache.capacity)
        cache._adopt(image, seal_of(data))


def _check_fits(image: Image, capacity: int) -> None:
    if image.row[LENGTH] > capacity or not capacity:  # a freed cache has none
        raise FormatError(
            message(
                "snapshot", "cells", got=image.row[LENGTH], expected=f"at most {capacity} cells"
            )
        )


def place(backend: Backend, image: Image, target: Pool, table: Array) -> None:
    """Write an image's pages into pages of a pool, a bounded piece at a time."""
    layout = image.spec.layout
    units = len(table) // layout.unit_pages
    for first, end in _chunks(layout, 0, units):
        part = backend.pool(layout, (end - first) * layout.unit_pages)
        for name, plane in image.planes.items():
            n = rows_per_unit(layout, name)
            backend.write(part.planes[name], np.ascontiguousarray(plane[first * n : end * n]))
        pages = table[first * layout.unit_pages : end * layout.unit_pages]
        backend.move(part, np.arange(part.n_pages, dtype=np.int32), target, pages)
