"""Quantizers: float32 values to codes and scales, one rounded operation at a time."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from .decode import bulk_row
from .halves import bits_of, finite, from_half, to_bfloat, to_half
from .jit import inner, kernel
from .store import (
    AGAINST_STORED,
    BITS,
    BYTES_KIND,
    DIVIDE_HALF_EVEN,
    F16_KIND,
    F32_KIND,
    GROUP,
    HALVES_KIND,
    HEADS,
    KIND,
    NEAREST_LEVEL,
    PAGE,
    RECIPROCAL_HALF_AWAY,
    RECIPROCAL_TRUNC,
    RMS,
    ROUNDING,
    RULE,
    SIGNED_ABSMAX,
    ZERO,
)

_ZERO, _ONE, _HALF = np.float32(0), np.float32(1), np.float32(0.5)
_TOP = np.float32(np.finfo(np.float32).max)
_ROUND = np.float32(12582912.0)  # 1.5 * 2^23: adding it rounds a small number to an integer
_NAN16 = np.uint16(0x7E00)


@inner(always=True)
def root_mean(total: Any, count: Any) -> Any:
    """Return sqrt(total / count); a sum that overflowed gives the largest float32."""
    root = np.float32(math.sqrt(np.float32(total / count)))
    return _TOP if root > _TOP else root


@inner()
def nearest_level(x: Any, s: Any, thresholds: Any) -> Any:
    """Return how many thresholds, times a scale, lie below x: the code of a codebook."""
    code = 0
    if s > _ZERO:
        for t in range(thresholds.size):
            code += 1 if x > thresholds[t] * s else 0
    return np.uint8(code)


@inner()
def _grid_code(x: Any, s: Any, inverse: Any, rounding: Any, numbers: Any) -> Any:
    """Return the code of x on a uniform grid. The ends are integers: clipping may come first."""
    low, high = numbers[1], numbers[2]
    if rounding == DIVIDE_HALF_EVEN:
        y = np.float32(x / s) if s > _ZERO else _ZERO
    else:
        y = np.float32(x * inverse)
        y = np.float32(y + numbers[3]) if rounding == RECIPROCAL_TRUNC else y
    y = y if y > low else low
    y = high if y > high else y
    if rounding == DIVIDE_HALF_EVEN:
        return np.uint8(np.int32(np.float32(y + _ROUND) - _ROUND))
    whole = np.int32(y)
    if rounding == RECIPROCAL_HALF_AWAY:
        rest = np.float32(y - np.float32(whole))
        whole += np.int32(1 if rest >= _HALF else (-1 if rest <= -_HALF else 0))
    return np.uint8(whole)


@inner(always=True)
def quotient(top: Any, bottom: Any, stored: Any) -> Any:
    """Return the bits of f16(top / bottom), or `stored` where that is 0 or of the other sign."""
    sign = stored & np.uint16(0x8000)
    along = np.float32(-bottom) if sign else bottom
    found = np.float32(top / along) if along > _ZERO else _ZERO
    found = found if found <= _TOP else _TOP
    return np.uint16(to_half(found) | sign) if along > _ZERO else stored


@inner()
def _statistic(x: Any, rule: Any) -> Any:
    """Return the statistic of a finite group."""
    total, top, signed = _ZERO, _ZERO, x[0]
    for j in range(x.size):
        a = np.float32(abs(x[j]))
        total = np.float32(total + np.float32(x[j] * x[j]))
        signed = x[j] if a > top or (x[j] == top and top > _ZERO) else signed
        top = a if a > top else top
    if rule == RMS:
        return root_mean(total, np.float32(x.size))
    return signed if rule == SIGNED_ABSMAX else top


@inner()
def _group(info: Any, numbers: Any, thresholds: Any, x: Any, codes: Any) -> Any:
    """Choose the codes of one group of values; return the bits of its scale."""
    codebook = info[ROUNDING] == NEAREST_LEVEL
    clean = True
    for j in range(x.size):
        clean = clean and finite(x[j])
    if not clean:
        for j in range(x.size):
            codes[j] = np.uint8(0 if codebook else info[ZERO])
        return _NAN16
    exact = np.float32(_statistic(x, info[RULE]) / numbers[0])
    stored = to_half(exact)
    s = from_half(stored) if info[AGAINST_STORED] else exact
    inverse = np.float32(_ONE / s) if s != _ZERO else _ZERO
    if codebook:
        for j in range(x.size):
            codes[j] = nearest_level(x[j], s, thresholds)
    else:
        for j in range(x.size):
            codes[j] = _grid_code(x[j], s, inverse, info[ROUNDING], numbers)
    return stored


@inner()
def _unbias(levels: Any, x: Any, codes: Any, stored: Any) -> Any:
    """Return the bits of the scale that makes <x, x^> = <x, x>."""
    top = bottom = _ZERO
    for j in range(x.size):
        top = np.float32(top + np.float32(x[j] * x[j]))
        bottom = np.float32(bottom + np.float32(x[j] * levels[codes[j]]))
    return quotient(top, bottom, stored)


@inner()
def pack_row(kind: Any, bits: Any, group: Any, codes: Any, out: Any) -> None:
    """Pack one-byte codes into a row."""
    if kind == BYTES_KIND:
        for d in range(codes.size):
            out[d] = codes[d]
    elif kind == HALVES_KIND:
        half = group // 2
        for i in range(out.size):
            j = i // half * group + i % half
            out[i] = np.uint8(codes[j] | (codes[j + half] << np.uint8(4)))
    else:
        each = 8 // bits
        for i in range(out.size):
            byte = 0
            for j in range(each):
                byte |= np.int64(codes[i * each + j]) << (bits * j)
            out[i] = np.uint8(byte)


@inner()
def _floats(kind: Any, x: Any, out: Any) -> None:
    """Write a row as floats, byte by byte, so that no alignment is asked for."""
    if kind == F32_KIND:
        for d in range(x.size):
            bits = bits_of(x[d])
            for j in range(4):
                out[4 * d + j] = np.uint8((bits >> (8 * j)) & 255)
        return
    for d in range(x.size):
        half = to_half(x[d]) if kind == F16_KIND else to_bfloat(x[d])
        out[2 * d] = np.uint8(half & np.uint16(255))
        out[2 * d + 1] = np.uint8(half >> np.uint16(8))


@kernel
def write_rows(store: Any, x: Any, table: Any, cells: Any, unbiased: Any) -> None:
    """Encode cells of a store whose cells stand alone; of two equal ones the last wins.

    Parameters
    ----------
    store : Store
        Codes and scales are written.
    x : f32[n, H, D]
    table : i32[blocks]
    cells : i64[n]
    unbiased : int
    """
    info, numbers, levels, thresholds = store.info, store.numbers, store.levels, store.thresholds
    dim, group = x.shape[2], info[GROUP]
    codes = np.empty(dim, np.uint8)
    for i in range(x.shape[0]):
        page, slot = np.int64(table[cells[i] // info[PAGE]]), cells[i] % info[PAGE]
        for h in range(info[HEADS]):
            row = bulk_row(info, page, h, slot)
            if info[KIND] < BYTES_KIND:
                _floats(info[KIND], x[i, h], store.codes[row])
                continue
            for g in range(dim // group):
                values = x[i, h, g * group : (g + 1) * group]
                mine = codes[g * group : (g + 1) * group]
                bits = _group(info, numbers, thresholds, values, mine)
                if unbiased and bits != _NAN16:
                    bits = _unbias(levels, values, mine, bits)
                store.scales[row, g] = bits
            pack_row(info[KIND], info[BITS], group, codes, store.codes[row])
