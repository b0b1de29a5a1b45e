"""Kernels that read runs of cells: for matrix products, for gather and for restore."""

from __future__ import annotations

from typing import Any

import numpy as np

from kvcore.layout import EVERYTHING, K_FRONTIER, K_RING_LO, V_FRONTIER, V_RING_LO

from .attend import set_place
from .decode import FRONTIER, HEAD, MISSING, OWN_START, RING_LO, B, load_cells
from .halves import to_half
from .jit import kernel
from .store import HEADS

RUN = 32
"""Cells read at a time by `gather`."""


@kernel
def read_block(
    k: Any, v: Any, asked: Any, table: Any, b: Any, h: Any, first: Any, inside: Any,
    out_k: Any, out_v: Any, how: Any,
) -> None:  # fmt: skip
    """Read a run of cells of one head as its queries read them.

    Parameters
    ----------
    k, v : Store
    asked : Queries
    table : i32[blocks]
    b, h, first : int
    inside : int
        1 if the cells lie in the window of the queries.
    out_k : f32[n, Dk]
    out_v : f32[n, Dv]
        Written; zero where a cell is missing.
    how : u8[n]
        Written: MISSING, or where K was read from.
    """
    n = how.size
    cells, inner = np.arange(first, first + n), np.full(n, inside, np.uint8)
    place, how_v = np.zeros(6, np.int64), np.empty(n, np.uint8)
    set_place(place, asked, b, h, K_FRONTIER, K_RING_LO)
    load_cells(k, asked.own_k, table, place, cells, inner, n, out_k, how)
    set_place(place, asked, b, h, V_FRONTIER, V_RING_LO)
    load_cells(v, asked.own_v, table, place, cells, inner, n, out_v, how_v)
    for i in range(n):
        if how[i] == MISSING or how_v[i] == MISSING:
            how[i] = MISSING
            out_k[i] = np.float32(0)
            out_v[i] = np.float32(0)


@kernel
def read_bulk(
    store: Any, table: Any, cells: Any, centre: Any, add: Any, rows: Any, out: Any
) -> None:
    """Read cells from the bulk as float16.

    Parameters
    ----------
    store : Store
    table : i32[blocks]
    cells : i64[n]
    centre : f32[H, D]
    add : int
        1 to add the centre before rounding.
    rows : i64[n]
        Where each cell goes.
    out : u16[m, D]
        Written: row ``rows[i] * H + h``.
    """
    heads, dim = store.info[HEADS], out.shape[1]
    place, how = np.zeros(6, np.int64), np.empty(RUN, np.uint8)
    place[OWN_START], place[FRONTIER], place[RING_LO] = EVERYTHING, EVERYTHING, EVERYTHING
    block, own = np.empty((RUN, dim), np.float32), np.empty((1, dim), np.float32)
    inside = np.zeros(RUN, np.uint8)
    for h in range(heads):
        place[B], place[HEAD] = 0, h
        for start in range(0, cells.size, RUN):
            n = min(RUN, cells.size - start)
            load_cells(store, own, table, place, cells[start : start + n], inside, n, block, how)
            for i in range(n):
                to = rows[start + i] * heads + h
                for d in range(dim):
                    x = block[i, d] + centre[h, d] if add else block[i, d]
                    out[to, d] = to_half(x)
