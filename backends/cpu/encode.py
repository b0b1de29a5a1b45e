"""Quantizers: float32 values to codes and scales, one rounded operation at a time."""

from __future__ import annotations

from typing import Any

import numpy as np

from .decode import bulk_row
from .halves import finite, from_half, to_bfloat, to_half
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
    RMS,
    ROUNDING,
    RULE,
    SIGNED_ABSMAX,
    ZERO,
)

_ZERO, _ONE, _HALF = np.float32(0), np.float32(1), np.float32(0.5)
_TOP = np.float32(np.finfo(np.float32).max)
_NAN16 = np.uint16(0x7E00)


@inner(always=True)
def root_mean(total: Any, count: Any) -> Any:
    """Return sqrt(total / count); a sum that overflowed gives the largest float32."""
    root = np.sqrt(np.float32(total / count))
    return _TOP if root > _TOP else root


@inner(always=True)
def code_of(store: Any, x: Any, s: Any, inverse: Any) -> Any:
    """Return the code of one value against scale s (and 1 / s, or 0 if s is 0)."""
    rounding = store.info[ROUNDING]
    if rounding == NEAREST_LEVEL:
        code = np.uint8(0)
        if s > _ZERO:
            for t in store.thresholds:
                code += np.uint8(x > t * s)
        return np.uint8(code)
    if rounding == DIVIDE_HALF_EVEN:
        y = np.rint(x / s) if s > _ZERO else _ZERO
    else:
        y = x * inverse
        if rounding == RECIPROCAL_HALF_AWAY:
            whole = np.trunc(y)
            away = np.copysign(_ONE, y) if np.abs(y - whole) >= _HALF else _ZERO
            y = np.float32(whole + away)
        else:
            y = np.trunc(np.float32(y + store.numbers[3]))
    low, high = store.numbers[1], store.numbers[2]
    y = _ZERO if np.isnan(y) else y
    y = low if y < low else (high if y > high else y)
    return np.uint8(np.int32(y))


@inner(always=True)
def quotient(top: Any, bottom: Any, stored: Any) -> Any:
    """Return the unbiased scale's bits: f16(top / bottom), or `stored` if bottom <= 0."""
    if not bottom > _ZERO:
        return stored
    found = np.float32(top / bottom)
    return to_half(found if found < np.inf else _TOP)


@inner()
def _statistic(store: Any, x: Any) -> Any:
    """Return the exact scale of a finite group."""
    rule, divisor = store.info[RULE], store.numbers[0]
    if rule == RMS:
        total = _ZERO
        for j in range(x.size):
            total = np.float32(total + np.float32(x[j] * x[j]))
        return np.float32(root_mean(total, np.float32(x.size)) / divisor)
    top = _ZERO
    for j in range(x.size):
        a = np.abs(x[j])
        top = a if a > top else top
    if rule == SIGNED_ABSMAX:
        positive = False
        for j in range(x.size):
            positive = positive or x[j] == top
        if top == _ZERO:
            top = x[0]
        elif not positive:
            top = -top
    return np.float32(top / divisor)


@inner()
def _group(store: Any, x: Any, unbiased: Any, codes: Any) -> Any:
    """Choose the codes of one group of values; return the bits of its scale."""
    info = store.info
    clean = True
    for j in range(x.size):
        clean = clean and finite(x[j])
    if not clean:
        codes[:] = np.uint8(0 if info[ROUNDING] == NEAREST_LEVEL else info[ZERO])
        return _NAN16
    exact = _statistic(store, x)
    stored = to_half(exact)
    s = from_half(stored) if info[AGAINST_STORED] else exact
    inverse = np.float32(_ONE / s) if s != _ZERO else _ZERO
    for j in range(x.size):
        codes[j] = code_of(store, x[j], s, inverse)
    if unbiased:
        top = bottom = _ZERO
        for j in range(x.size):
            top = np.float32(top + np.float32(x[j] * x[j]))
            bottom = np.float32(bottom + np.float32(x[j] * store.levels[codes[j]]))
        stored = quotient(top, bottom, stored)
    return stored


@inner()
def pack_row(info: Any, codes: Any, out: Any) -> None:
    """Pack one-byte codes into a row."""
    if info[KIND] == BYTES_KIND:
        for d in range(codes.size):
            out[d] = codes[d]
    elif info[KIND] == HALVES_KIND:
        half = info[GROUP] // 2
        for start in range(0, codes.size, 2 * half):
            for j in range(half):
                both = codes[start + j] | (codes[start + half + j] << np.uint8(4))
                out[start // 2 + j] = np.uint8(both)
    else:
        bits = info[BITS]
        each = 8 // bits
        for i in range(out.size):
            byte = 0
            for j in range(each):
                byte |= np.int64(codes[i * each + j]) << (bits * j)
            out[i] = np.uint8(byte)


@inner()
def _floats(kind: Any, x: Any, out: Any) -> None:
    if kind == F32_KIND:
        whole = out.view(np.float32)
        for d in range(x.size):
            whole[d] = x[d]
        return
    short = out.view(np.uint16)
    if kind == F16_KIND:
        for d in range(x.size):
            short[d] = to_half(x[d])
    else:
        for d in range(x.size):
            short[d] = to_bfloat(x[d])


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
    info, dim = store.info, x.shape[2]
    codes = np.empty(dim, np.uint8)
    for i in range(x.shape[0]):
        page, slot = np.int64(table[cells[i] // info[PAGE]]), cells[i] % info[PAGE]
        for h in range(info[HEADS]):
            row = bulk_row(info, page, h, slot)
            if info[KIND] < BYTES_KIND:
                _floats(info[KIND], x[i, h], store.codes[row])
                continue
            group = info[GROUP]
            for g in range(dim // group):
                a, b = g * group, (g + 1) * group
                store.scales[row, g] = _group(store, x[i, h, a:b], unbiased, codes[a:b])
            pack_row(info, codes, store.codes[row])
