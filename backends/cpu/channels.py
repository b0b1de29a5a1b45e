"""Per-channel groups: 32 cells share one scale per channel; deferred, eager and frozen."""

from __future__ import annotations

from typing import Any

import numpy as np

from kvcore.spec import GROUP_CELLS

from .decode import bulk_row, line_row
from .encode import nearest_level, pack_row, quotient, root_mean
from .halves import finite, from_half, to_half
from .jit import inner, kernel
from .store import BITS, GROUP, HEADS, KIND, PAGE, RING, SINKS, SLOTS

DEFERRED, EAGER, FROZEN = range(3)
"""Whole groups; groups whose first cell is in the run get a scale; the stored scale stays."""

SHRINK, PER_N, OLD = range(3)
"""Rules of a partial group."""

_ZERO, _ONE = np.float32(0), np.float32(1)
_TOP = np.float32(np.finfo(np.float32).max)
_NAN16 = np.uint16(0x7E00)
_CELLS = np.float32(GROUP_CELLS)


@inner(always=True)
def _without_gain(stored: Any, gain: Any) -> Any:
    """Return the bits of the scale that codes are chosen against."""
    return to_half(np.float32(from_half(stored) / gain)) if gain != _ONE else stored


@inner(always=True)
def _partial(total: Any, n: Any, previous: Any, known: Any, rule: Any) -> Any:
    """Return the exact scale of a fresh group of n cells whose squares sum to `total`."""
    if n == GROUP_CELLS or rule == OLD:
        return root_mean(total, _CELLS)
    if rule == PER_N or not known or not finite(previous):
        return root_mean(total, np.float32(n))
    prior = np.float32(np.float32(GROUP_CELLS - n) * np.float32(previous * previous))
    return root_mean(np.float32(total + prior), _CELLS)


@inner()
def _sums(x: Any, counted: Any, clean: Any, total: Any) -> None:
    """Sum the squares of every channel, cells ascending; mark channels with non-finite values.

    x : f32[n, D]; the cells from `counted` on are summed.
    """
    for d in range(x.shape[1]):
        clean[d], total[d] = np.uint8(1), _ZERO
    for i in range(x.shape[0]):
        for d in range(x.shape[1]):
            square = np.float32(x[i, d] * x[i, d])
            clean[d] &= np.uint8(finite(x[i, d]))
            total[d] = np.float32(total[d] + square) if i >= counted else total[d]


@inner()
def _unbias(
    x: Any, counted: Any, against: Any, levels: Any, thresholds: Any, clean: Any, out: Any
) -> None:
    """Replace the scales of clean channels by sum x^2 / sum x*level over the counted cells."""
    for d in range(x.shape[1]):
        s, top, bottom = from_half(against[d]), _ZERO, _ZERO
        for i in range(counted, x.shape[0]):
            v = x[i, d]
            top = np.float32(top + np.float32(v * v))
            bottom = np.float32(bottom + np.float32(v * levels[nearest_level(v, s, thresholds)]))
        out[d] = quotient(top, bottom, against[d]) if clean[d] else out[d]


@inner()
def _choose(x: Any, against: Any, clean: Any, thresholds: Any, codes: Any) -> None:
    """Choose the codes of one cell against the scales of its channels; a non-finite value is 0."""
    for d in range(x.size):
        v = x[d] if finite(x[d]) else _ZERO
        code = nearest_level(v, from_half(against[d]), thresholds)
        codes[d] = code if clean[d] else np.uint8(0)


@kernel
def write_groups(
    store: Any, x: Any, table: Any, first: Any, sinks: Any, mode: Any, rule: Any, gain: Any,
    unbiased: Any,
) -> None:  # fmt: skip
    """Encode a run of cells of a per-channel store.

    Parameters
    ----------
    store : Store
        Codes and scales are written.
    x : f32[n, H, D]
    table : i32[blocks]
    first : int
        Cell of x[0].
    sinks : int
        Cells below it stay out of a deferred group's scale.
    mode : int
        DEFERRED (whole groups), EAGER or FROZEN.
    rule : int
        Of a partial group: SHRINK, PER_N or OLD.
    gain : f32
    unbiased : int
    """
    info, dim, end = store.info, x.shape[2], first + x.shape[0]
    clean, codes = np.empty(dim, np.uint8), np.empty(dim, np.uint8)
    total, against = np.empty(dim, np.float32), np.empty(dim, np.uint16)
    for start in range(first // GROUP_CELLS * GROUP_CELLS, end, GROUP_CELLS):
        low, high = max(start, first), min(start + GROUP_CELLS, end)
        for h in range(info[HEADS]):
            part = x[low - first : high - first, h]
            page = np.int64(table[low // info[PAGE]])
            scales = store.scales[line_row(info, page, h, low % info[PAGE])]
            if mode == FROZEN or (mode == EAGER and start < first):
                for d in range(dim):
                    clean[d] = np.uint8(1)
                    against[d] = scales[d] if unbiased else _without_gain(scales[d], gain)
            else:
                counted = min(max(sinks - start, 0), GROUP_CELLS) if mode == DEFERRED else 0
                counted = 0 if counted == GROUP_CELLS else counted
                _sums(part, counted, clean, total)
                n = high - low - counted if mode == DEFERRED else high - low
                before, known = start - GROUP_CELLS, mode == EAGER and start > 0
                page = np.int64(table[before // info[PAGE]]) if known else page
                last = line_row(info, page, h, before % info[PAGE] if known else low % info[PAGE])
                for d in range(dim):
                    previous = from_half(_without_gain(store.scales[last, d], gain))
                    chosen = PER_N if mode == DEFERRED else rule
                    against[d] = to_half(_partial(total[d], n, previous, known, chosen))
                for d in range(dim):
                    bits = to_half(np.float32(gain * from_half(against[d])))
                    bits = bits if gain != _ONE else against[d]
                    scales[d] = bits if clean[d] else _NAN16
                if unbiased:
                    _unbias(part, counted, against, store.levels, store.thresholds, clean, scales)
            for i in range(high - low):
                _choose(part[i], against, clean, store.thresholds, codes)
                cell = low + i
                page = np.int64(table[cell // info[PAGE]])
                row = bulk_row(info, page, h, cell % info[PAGE])
                pack_row(info[KIND], info[BITS], info[GROUP], codes, store.codes[row])


@kernel
def fetch(
    store: Any, new: Any, at: Any, start: Any, first: Any, centre: Any, subtract: Any, out: Any
) -> None:
    """Bring the values that a delayed store encodes: exact float16 values, minus the centre.

    Parameters
    ----------
    store : Store
    new : f32[T, H, D]
        Cells start, start + 1, ... of this call.
    at : int
        Sequence.
    start, first : int
        First new cell, first cell wanted.
    centre : f32[H, D]
    subtract : int
    out : f32[n, H, D]
        Written.
    """
    info = store.info
    for i in range(out.shape[0]):
        cell = first + i
        slot = cell if cell < info[SINKS] else info[SINKS] + cell % info[RING]
        for h in range(info[HEADS]):
            row = (at * info[SLOTS] + slot) * info[HEADS] + h
            for d in range(out.shape[2]):
                bits = store.exact[row, d] if cell < start else to_half(new[cell - start, h, d])
                x = from_half(bits)
                out[i, h, d] = np.float32(x - centre[h, d]) if subtract else x


@kernel
def write_exact(store: Any, new: Any, at: Any, start: Any, keep: Any) -> None:
    """Round new cells to float16 into their exact slots.

    Parameters
    ----------
    store : Store
        Exact slots are written.
    new : f32[T, H, D]
    at, start : int
        Sequence, first new cell.
    keep : int
        Cells below it that are not sinks are already out of the ring.
    """
    info = store.info
    for i in range(new.shape[0]):
        cell = start + i
        if cell >= info[SINKS] and cell < keep:
            continue
        slot = cell if cell < info[SINKS] else info[SINKS] + cell % info[RING]
        for h in range(info[HEADS]):
            row = (at * info[SLOTS] + slot) * info[HEADS] + h
            for d in range(new.shape[2]):
                store.exact[row, d] = to_half(new[i, h, d])
