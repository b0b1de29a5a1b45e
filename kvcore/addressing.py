"""From a cell's number to its place in the planes (NumPy, for references and host checks)."""

from __future__ import annotations

import numpy as np

from kvcore.layout import Layout
from kvcore.numerics import F32, I32, Array
from kvcore.pool import Pool, State
from kvcore.quantize import decode_rows
from kvcore.spec import GROUP_CELLS


def locate(layout: Layout, table: I32, cells: Array) -> tuple[Array, Array]:
    """Return (page, slot in page) of `cells` through one row of a page table, both i64."""
    cells = np.asarray(cells, np.int64)
    return table[cells // layout.page_size].astype(np.int64), cells % layout.page_size


def scale_place(layout: Layout, page: Array, slot: Array) -> tuple[Array, Array]:
    """Return (unit, row) of the per-channel scale that a (page, slot) belongs to."""
    return page // layout.unit_pages, slot // GROUP_CELLS


def read_bulk(pool: Pool, store: str, table: I32, cells: Array) -> F32:
    """Return float32(level * scale) of cells, [N, H, D], in the stored basis, still centred."""
    layout = pool.layout
    codec = layout.codec(store)
    page, slot = locate(layout, table, cells)
    codes = np.asarray(pool.planes[f"{store}_codes"])[page, :, slot]
    scales = None
    if codec.scale is not None:
        plane = np.asarray(pool.planes[f"{store}_scales"])
        place = scale_place(layout, page, slot) if codec.per_channel else (page, slot)
        scales = plane[place[0], :, place[1]]
    return decode_rows(codec, codes, scales, layout.head_dim(store))


def exact_slot(state: State, store: str, cells: Array) -> Array:
    """Return the exact slot of each cell in a store's ring (sinks first)."""
    sinks, ring = state.layout.sinks, state.layout.ring(store)
    cells = np.asarray(cells, np.int64)
    return np.where(cells < sinks, cells, sinks + cells % ring)
