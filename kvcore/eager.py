"""Eager grouping: a per-channel group's scale is fixed by the append that writes its first cell.

The public engine's rule, kept bit-exact with its three rules for a partial group; the default
of kvcore is deferred grouping (see ``docs/decisions``).
"""

from __future__ import annotations

import numpy as np

from kvcore.addressing import locate, scale_place
from kvcore.numerics import F16, F16_NAN, F32, F32_MAX, Array, sequential_sum, squares, to_f16
from kvcore.pool import Pool
from kvcore.quantize import apply_gain, choose_codes, pack, remove_gain, rms, zero_code
from kvcore.spec import GROUP_CELLS


def append_eager(pool: Pool, table: Array, store: str, cells: Array, x: F32) -> None:
    """Encode a run of cells of a per-channel store.

    Parameters
    ----------
    pool : Pool
    table : i32[blocks]
    store : {"k", "v"}
    cells : i64[n]
        Consecutive.
    x : f32[n, H, D]
    """
    layout, codec = pool.layout, pool.layout.codec(store)
    gain = float(layout.k_gain) if store == "k" else 1.0
    scales = pool.planes[f"{store}_scales"]
    codes = pool.planes[f"{store}_codes"]
    end = int(cells[-1]) + 1 if cells.size else 0
    first = int(cells[0]) if cells.size else 0
    for group in range(first // GROUP_CELLS, -(-end // GROUP_CELLS)):
        start = group * GROUP_CELLS
        inside = (cells >= start) & (cells < start + GROUP_CELLS)
        page, slot = locate(layout, table, cells[inside])
        unit, line = (int(a[0]) for a in scale_place(layout, page[:1], slot[:1]))
        values = x[inside]
        if first <= start:
            finite = np.isfinite(values).all(axis=0)
            safe = np.where(finite, values, np.float32(0))
            previous = _previous(pool, table, store, start, gain)
            base = partial_scale(safe, previous, layout.rule)
            stored = np.where(
                finite, apply_gain(base, gain).view(np.uint16), np.uint16(F16_NAN)
            ).view(np.float16)
            scales[unit, :, line] = stored
        else:  # the stored scale stays: a non-finite value takes the code of 0
            finite = np.ones(values.shape[1:], np.bool_)
            safe = np.where(np.isfinite(values), values, np.float32(0))
            base = remove_gain(scales[unit, :, line], gain)
        chosen = choose_codes(codec, safe, base.astype(np.float32))
        chosen = np.where(finite, chosen, np.uint8(zero_code(codec)))
        codes[page, :, slot] = pack(codec, chosen)


def _previous(pool: Pool, table: Array, store: str, start: int, gain: float) -> F16 | None:
    """Return the un-gained scale of the group before, as stored; None for the first group."""
    if start == 0:
        return None
    layout = pool.layout
    page, slot = locate(layout, table, np.array([start - GROUP_CELLS]))
    unit, line = scale_place(layout, page, slot)
    return remove_gain(pool.planes[f"{store}_scales"][unit[0], :, line[0]], gain)


def partial_scale(x: F32, previous: F16 | None, rule: str) -> F16:
    """Return the un-gained scale of a fresh group with n of its 32 cells, f16[H, D].

    Parameters
    ----------
    x : f32[n, H, D]
    previous : f16[H, D] or None
        Un-gained scale of the group before.
    rule : {"shrink", "n", "old"}
        sqrt((ss + (32 - n) prev^2) / 32), sqrt(ss / n) or sqrt(ss / 32); with no group before,
        or one that stores NaN, "shrink" is "n".
    """
    n = x.shape[0]
    if n == GROUP_CELLS or rule == "old":
        return to_f16(rms(x, axis=0, count=GROUP_CELLS))
    if rule == "n" or previous is None:
        return to_f16(rms(x, axis=0, count=n))
    total = sequential_sum(squares(x))
    with np.errstate(over="ignore", invalid="ignore"):
        prior = np.float32(GROUP_CELLS - n) * squares(previous.astype(np.float32))
        root = np.sqrt((total + prior) / np.float32(GROUP_CELLS))
    shrunk = to_f16(np.minimum(root, F32_MAX))
    return np.where(np.isfinite(previous), shrunk, to_f16(rms(x, axis=0, count=n)))
