"""Read cells: from their exact slot, the call's own chunk, or the bulk, as float32 rows."""

from __future__ import annotations

from typing import Any

import numpy as np

from .halves import float_of, from_bfloat, from_half, to_half
from .jit import inner, kernel
from .store import (
    BF16_KIND,
    BITS,
    BYTES_KIND,
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

OWN, SLOT, STORED = range(3)

B, HEAD, OWN_START, FRONTIER, RING_LO, CHUNK = range(6)
"""Columns of a place: sequence, head, first own cell, marks of the store, cells of the chunk."""


_ONE, _TWO, _THREE, _FOUR = (np.uint64(i) for i in range(1, 5))


@inner(always=True)
def bulk_row(info: Any, page: Any, head: Any, slot: Any) -> Any:
    """Return the row of a cell's codes."""
    return (page * info[HEADS] + head) * info[PAGE] + slot


@inner(always=True)
def line_row(info: Any, page: Any, head: Any, slot: Any) -> Any:
    """Return the row of the per-channel scales that a cell shares."""
    return ((page // info[UNIT]) * info[HEADS] + head) * info[LINES] + slot // 32


@inner(always=True)
def _pair(codes: Any, at: Any) -> Any:
    """Return two little-endian bytes as int32. Unsigned indices: no wrap-around to check."""
    return np.int32(codes[at]) | np.int32(codes[at + _ONE]) << np.int32(8)


@inner()
def floats_of(kind: Any, codes: Any, out: Any) -> None:
    """Write a row that is stored as floats; bytes are joined, so no alignment is asked for."""
    if kind == F32_KIND:
        for d in range(out.size):
            at = np.uint64(d) * np.uint64(4)
            out[d] = float_of(_pair(codes, at) | np.int32(_pair(codes, at + _TWO) << np.int32(16)))
    elif kind == BF16_KIND:
        for d in range(out.size):
            out[d] = from_bfloat(_pair(codes, np.uint64(d) * _TWO))
    else:
        for d in range(out.size):
            out[d] = from_half(_pair(codes, np.uint64(d) * _TWO))


@inner()
def grid_of(info: Any, codes: Any, scales: Any, out: Any) -> None:
    """Write code * scale of rows on a uniform grid, packed in bytes or in halves."""
    group, zero = info[GROUP], np.float32(info[ZERO])
    half = group // 2
    for g in range(out.size // group):
        s = from_half(scales[g])
        if info[KIND] == BYTES_KIND:
            whole, to = codes[g * group : (g + 1) * group], out[g * group : (g + 1) * group]
            for j in range(group):
                to[j] = np.float32(np.int8(whole[j])) * s
        else:
            packed, low = codes[g * half : (g + 1) * half], out[g * group : g * group + half]
            high = out[g * group + half : (g + 1) * group]
            for j in range(half):
                low[j] = (np.float32(np.int32(packed[j]) & np.int32(15)) - zero) * s
                high[j] = (np.float32(np.int32(packed[j]) >> np.int32(4)) - zero) * s


@inner()
def levels_of(info: Any, levels: Any, fields: Any, codes: Any, out: Any) -> None:
    """Write the value of each code of rows, in units of its scale."""
    if info[BITS] == 2 and info[KIND] != HALVES_KIND:
        for i in range(codes.size):
            byte, at = codes[i], np.uint64(i) * _FOUR
            a, b, c, d = fields[byte, 0], fields[byte, 1], fields[byte, 2], fields[byte, 3]
            out[at], out[at + _ONE], out[at + _TWO], out[at + _THREE] = a, b, c, d
    else:
        _any_levels(info[KIND], info[BITS], info[GROUP], levels, codes, out)


@inner()
def _any_levels(kind: Any, bits: Any, group: Any, levels: Any, codes: Any, out: Any) -> None:
    """As `levels_of`, for every table and packing."""
    mask = (1 << bits) - 1
    for d in range(out.size):
        at, shift = d * bits // 8, d * bits % 8
        if kind == HALVES_KIND:
            in_group = d % group
            at = (d - in_group) // 2 + in_group % (group // 2)
            shift = 4 * (in_group // (group // 2))
        out[d] = levels[(np.int64(codes[at]) >> shift) & mask]


@inner(always=True)
def _source(cell: Any, inside: Any, own_start: Any, frontier: Any, ring_lo: Any, sinks: Any) -> Any:
    """Return where a query reads a cell: OWN, SLOT or STORED; `inside` is its window's answer."""
    held = (inside or cell >= frontier) and cell >= ring_lo
    return OWN if cell >= own_start else (SLOT if cell < sinks or held else STORED)


@inner()
def _decode(
    info: Any, levels: Any, fields: Any, codes: Any, scales: Any, row: Any, line_at: Any,
    line: Any, out: Any,
) -> None:  # fmt: skip
    """Decode rows that lie one after the other and, if per channel, share their scales."""
    n, dim = out.shape
    flat, to = codes.reshape(n * codes.shape[1]), out.reshape(n * dim)
    if info[KIND] < BYTES_KIND:
        floats_of(info[KIND], flat, to)
    elif info[UNIFORM] and not info[PER_CHANNEL]:
        grid_of(info, flat, scales[row : row + n].reshape(n * scales.shape[1]), to)
    else:
        levels_of(info, levels, fields, flat, to)
        if info[PER_CHANNEL]:
            for d in range(dim):
                line[d] = from_half(scales[line_at, d])
            for i in range(n):
                for d in range(dim):
                    out[i, d] = out[i, d] * line[d]
        else:
            group = info[GROUP]
            for i in range(n * dim // group):
                s = from_half(scales[row + i * group // dim, i % (dim // group)])
                for j in range(i * group, (i + 1) * group):
                    to[j] = to[j] * s


@inner()
def load_cells(
    info: Any,
    levels: Any,
    fields: Any,
    codes: Any,
    scales: Any,
    exact: Any,
    own: Any,
    table: Any,
    place: Any,
    cells: Any,
    inside: Any,
    n: Any,
    line: Any,
    out: Any,
    how: Any,
) -> None:
    """Write rows of n cells of one sequence and head, each from where its query reads it.

    Parameters
    ----------
    info, levels, fields, codes, scales, exact
        Of the :class:`Store`.
    own : f32[B * T * H, D]
        The call's own chunk.
    table : i32[blocks]
    place : i64[6]
    cells : i64[>= n]
    inside : u8[>= n]
        1 if the query's window holds the cell.
    n : int
    line : f32[D]
        Scratch.
    out : f32[>= n, D]
        Written; rows of missing cells are left alone.
    how : u8[>= n]
        Written: MISSING, BULK or EXACT.
    """
    heads, head, dim, ring = info[HEADS], place[HEAD], out.shape[1], info[RING]
    own_start, frontier, ring_lo = place[OWN_START], place[FRONTIER], place[RING_LO]
    sinks = info[SINKS] if ring else 0
    ring_lo = ring_lo if ring else own_start  # without a ring no slot holds anything
    i = 0
    while i < n:
        cell = cells[i]
        source = _source(cell, inside[i], own_start, frontier, ring_lo, sinks)
        how[i] = EXACT
        if source == OWN:
            at = (place[B] * place[CHUNK] + cell - own_start) * heads + head
            for d in range(dim):
                out[i, d] = own[at, d]
        elif source == SLOT:
            slot = cell if cell < sinks else sinks + cell % ring
            at = (place[B] * info[SLOTS] + slot) * heads + head
            for d in range(dim):
                out[i, d] = from_half(exact[at, d])
        else:
            page, slot = np.int64(table[cell // info[PAGE]]), cell % info[PAGE]
            # A run of cells that lie one after the other is decoded at once.
            end = min(n, i + info[PAGE] - slot, i + 32 - cell % 32)
            start = i
            i += 1
            while i < end and cells[i] == cell + i - start:
                if _source(cells[i], inside[i], own_start, frontier, ring_lo, sinks) != STORED:
                    break
                i += 1
            for j in range(start, i):
                how[j] = BULK if page >= 0 else MISSING
            if page >= 0:
                row, line_at = bulk_row(info, page, head, slot), line_row(info, page, head, slot)
                _decode(
                    info, levels, fields, codes[row : row + i - start], scales, row, line_at, line,
                    out[start:i],
                )  # fmt: skip
            continue
        i += 1


@kernel
def read_cells(
    store: Any, own: Any, table: Any, place: Any, cells: Any, inside: Any, out: Any, how: Any
) -> None:
    """Read cells of one store, sequence and head; see :func:`load_cells`.

    Parameters
    ----------
    store : Store
    own : f32[B * T * H, D]
    table : i32[blocks]
    place : i64[6]
    cells : i64[n]
    inside : u8[n]
    out : f32[n, D]
    how : u8[n]
    """
    line = np.empty(out.shape[1], np.float32)
    load_cells(
        store.info, store.levels, store.fields, store.codes, store.scales, store.exact, own, table,
        place, cells, inside, cells.size, line, out, how,
    )  # fmt: skip


@kernel
def narrow(x: Any, out: Any) -> None:
    """Round f32[n] to float16 bits u16[n]."""
    for i in range(x.size):
        out[i] = to_half(x[i])
