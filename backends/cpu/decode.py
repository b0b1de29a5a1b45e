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
def levels_of(info: Any, levels: Any, fields: Any, codes: Any, out: Any) -> None:
    """Write the value of each code of a row, in units of its scale."""
    kind, bits, group = info[KIND], info[BITS], info[GROUP]
    if kind == BYTES_KIND and info[UNIFORM]:
        for d in range(out.size):
            out[d] = np.float32(np.int8(codes[d]))
    elif kind == HALVES_KIND and info[UNIFORM]:
        half, zero = group // 2, np.float32(info[ZERO])
        for g in range(out.size // group):
            packed, low = codes[g * half : (g + 1) * half], out[g * group : g * group + half]
            high = out[g * group + half : (g + 1) * group]
            for j in range(half):
                low[j] = np.float32(np.int32(packed[j]) & np.int32(15)) - zero
                high[j] = np.float32(np.int32(packed[j]) >> np.int32(4)) - zero
    elif bits == 2:
        for i in range(codes.size):
            byte, at = codes[i], np.uint64(i) * _FOUR
            a, b, c, d = fields[byte, 0], fields[byte, 1], fields[byte, 2], fields[byte, 3]
            out[at], out[at + _ONE], out[at + _TWO], out[at + _THREE] = a, b, c, d
    else:
        _any_levels(kind, bits, group, levels, codes, out)


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
        Written; rows of missing cells become 0.
    how : u8[>= n]
        Written: MISSING, BULK or EXACT.
    """
    heads, head, dim, line_at = info[HEADS], place[HEAD], out.shape[1], np.int64(-1)
    for i in range(n):
        cell = cells[i]
        to = out[i]
        if cell >= place[OWN_START]:
            at = (place[B] * place[CHUNK] + cell - place[OWN_START]) * heads + head
            for d in range(dim):
                to[d] = own[at, d]
            how[i] = EXACT
            continue
        held = (inside[i] or cell >= place[FRONTIER]) and cell >= place[RING_LO]
        if info[RING] and (cell < info[SINKS] or held):
            slot = cell if cell < info[SINKS] else info[SINKS] + cell % info[RING]
            at = (place[B] * info[SLOTS] + slot) * heads + head
            for d in range(dim):
                to[d] = from_half(exact[at, d])
            how[i] = EXACT
            continue
        page, slot = np.int64(table[cell // info[PAGE]]), cell % info[PAGE]
        if page < 0:
            for d in range(dim):
                to[d] = np.float32(0)
            how[i] = MISSING
            continue
        how[i] = BULK
        row = bulk_row(info, page, head, slot)
        if info[KIND] < BYTES_KIND:
            floats_of(info[KIND], codes[row], to)
            continue
        levels_of(info, levels, fields, codes[row], to)
        if info[PER_CHANNEL]:
            at = line_row(info, page, head, slot)
            if line_at != at:
                for d in range(dim):
                    line[d] = from_half(scales[at, d])
                line_at = at
            for d in range(dim):
                to[d] = to[d] * line[d]
        else:
            group = info[GROUP]
            for g in range(dim // group):
                s = from_half(scales[row, g])
                part = to[g * group : (g + 1) * group]
                for d in range(group):
                    part[d] = part[d] * s


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
