"""Read cells: from their exact slot, the call's own chunk, or the bulk, as float32 rows."""

from __future__ import annotations

from typing import Any

import numpy as np

from .halves import from_bfloat, from_half
from .jit import inner
from .store import (
    BF16_KIND,
    BITS,
    BYTES_KIND,
    F16_KIND,
    F32_KIND,
    GROUP,
    HALVES_KIND,
    HEADS,
    KIND,
    LINES,
    PAGE,
    PER_CHANNEL,
    RING,
    SINKS,
    SLOTS,
    UNIFORM,
    UNIT,
    ZERO,
)

MISSING, BULK, EXACT = 0, 1, 2
"""Where a cell was read from."""

B, HEAD, OWN_START, FRONTIER, RING_LO, CHUNK = range(6)
"""Columns of a place: sequence, head, first own cell, marks of the store, cells of the chunk."""


@inner(always=True)
def bulk_row(info: Any, page: Any, head: Any, slot: Any) -> Any:
    """Return the row of a cell's codes."""
    return (page * info[HEADS] + head) * info[PAGE] + slot


@inner(always=True)
def line_row(info: Any, page: Any, head: Any, slot: Any) -> Any:
    """Return the row of the per-channel scales that a cell shares."""
    return ((page // info[UNIT]) * info[HEADS] + head) * info[LINES] + slot // 32


@inner(always=True)
def exact_slot(info: Any, cell: Any, inside: Any, place: Any) -> Any:
    """Return the exact slot a query reads, or -1; `inside` says that its window holds the cell."""
    if info[RING] == 0:
        return -1
    if cell < info[SINKS]:
        return cell
    if (inside or cell >= place[FRONTIER]) and cell >= place[RING_LO]:
        return info[SINKS] + cell % info[RING]
    return -1


@inner()
def _levels(store: Any, codes: Any, out: Any) -> None:
    """Write the value of each code of a row, in units of its scale."""
    info, dim = store.info, out.size
    if info[KIND] == BYTES_KIND:
        if info[UNIFORM]:
            signed = codes.view(np.int8)
            for d in range(dim):
                out[d] = np.float32(signed[d])
        else:
            for d in range(dim):
                out[d] = store.levels[codes[d]]
    elif info[KIND] == HALVES_KIND:
        half = info[GROUP] // 2
        zero = np.float32(info[ZERO])
        for start in range(0, dim, 2 * half):
            packed = codes[start // 2 : start // 2 + half]
            low, high = out[start : start + half], out[start + half : start + 2 * half]
            if info[UNIFORM]:
                for j in range(half):
                    low[j] = np.float32(packed[j] & np.uint8(15)) - zero
                    high[j] = np.float32(packed[j] >> np.uint8(4)) - zero
            else:
                for j in range(half):
                    low[j] = store.levels[packed[j] & np.uint8(15)]
                    high[j] = store.levels[packed[j] >> np.uint8(4)]
    else:
        _spread(store.fields, info[BITS], codes, out)


@inner()
def _spread(fields: Any, bits: Any, codes: Any, out: Any) -> None:
    """Write the 8 / bits values of each byte: one table row, copied."""
    if bits == 2:
        for i in range(codes.size):
            byte = codes[i]
            a, b, c, d = fields[byte, 0], fields[byte, 1], fields[byte, 2], fields[byte, 3]
            out[4 * i], out[4 * i + 1], out[4 * i + 2], out[4 * i + 3] = a, b, c, d
        return
    each = 8 // bits
    for i in range(codes.size):
        for j in range(each):
            out[each * i + j] = fields[codes[i], j]


@inner()
def _floats(kind: Any, codes: Any, out: Any) -> None:
    """Write a row that is stored as floats."""
    if kind == F32_KIND:
        whole = codes.view(np.float32)
        for d in range(out.size):
            out[d] = whole[d]
        return
    short = codes.view(np.uint16)
    if kind == F16_KIND:
        for d in range(out.size):
            out[d] = from_half(short[d])
    elif kind == BF16_KIND:
        for d in range(out.size):
            out[d] = from_bfloat(short[d])


@inner()
def bulk_values(
    store: Any, page: Any, head: Any, slot: Any, line: Any, line_at: Any, out: Any
) -> None:
    """Write float32(level * scale) of one cell and head.

    `line` f32[D] keeps the per-channel scales last used, `line_at` i64[1] their row.
    """
    info = store.info
    row = bulk_row(info, page, head, slot)
    codes = store.codes[row]
    if info[KIND] < BYTES_KIND:
        _floats(info[KIND], codes, out)
        return
    _levels(store, codes, out)
    if info[PER_CHANNEL]:
        at = line_row(info, page, head, slot)
        if line_at[0] != at:
            scales = store.scales[at]
            for d in range(out.size):
                line[d] = from_half(scales[d])
            line_at[0] = at
        for d in range(out.size):
            out[d] = out[d] * line[d]
        return
    group = info[GROUP]
    scales = store.scales[row]
    for g in range(out.size // group):
        s = from_half(scales[g])
        part = out[g * group : (g + 1) * group]
        for d in range(group):
            part[d] = part[d] * s


@inner()
def load_cells(
    store: Any,
    own: Any,
    table: Any,
    place: Any,
    cells: Any,
    inside: Any,
    n: Any,
    out: Any,
    how: Any,
) -> None:
    """Write rows of cells of one sequence and head, each from where its query reads it.

    Parameters
    ----------
    store : Store
    own : f32[B * T * H, D]
        The call's own chunk.
    table : i32[blocks]
    place : i64[6]
    cells : i64[>= n]
    inside : u8[>= n]
        1 if the query's window holds the cell.
    n : int
    out : f32[>= n, D]
        Rows of missing cells are left alone.
    how : u8[>= n]
        MISSING, BULK or EXACT.
    """
    info, head, dim = store.info, place[HEAD], out.shape[1]
    line, line_at = np.empty(dim, np.float32), np.full(1, -1)
    for i in range(n):
        cell = cells[i]
        if cell >= place[OWN_START]:
            at = (place[B] * place[CHUNK] + cell - place[OWN_START]) * info[HEADS] + head
            for d in range(dim):
                out[i, d] = own[at, d]
            how[i] = EXACT
            continue
        slot = exact_slot(info, cell, inside[i], place)
        if slot >= 0:
            halves = store.exact[(place[B] * info[SLOTS] + slot) * info[HEADS] + head]
            for d in range(dim):
                out[i, d] = from_half(halves[d])
            how[i] = EXACT
            continue
        page = np.int64(table[cell // info[PAGE]])
        if page < 0:
            how[i] = MISSING
            continue
        bulk_values(store, page, head, cell % info[PAGE], line, line_at, out[i])
        how[i] = BULK
