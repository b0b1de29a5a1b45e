"""Rounding and summing exactly as every backend must: one float32 operation at a time.

NumPy's float32 arithmetic rounds each operation; nothing here may be fused or reordered.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

F32 = npt.NDArray[np.float32]
F16 = npt.NDArray[np.float16]
U8 = npt.NDArray[np.uint8]
U16 = npt.NDArray[np.uint16]
I32 = npt.NDArray[np.int32]
Array = npt.NDArray[Any]

F16_NAN = 0x7E00
F32_MAX = np.finfo(np.float32).max
BF16_MAX = 0x7F7F


def to_f16(x: Array) -> F16:
    """Round float32 to float16: nearest even, finite values saturate at 65504.

    Infinities stay; a NaN becomes sign | 0x7E00 (its payload is dropped).
    """
    x = np.asarray(x, np.float32)
    with np.errstate(over="ignore", invalid="ignore"):
        out = x.astype(np.float16)
    bits = out.view(np.uint16)
    sign = bits & 0x8000
    over = np.isinf(out) & np.isfinite(x)
    bits = np.where(over, sign | 0x7BFF, bits)
    bits = np.where(np.isnan(x), (np.signbit(x).astype(np.uint16) << 15) | F16_NAN, bits)
    return np.asarray(bits, np.uint16).view(np.float16)


def to_bf16(x: Array) -> U16:
    """Round float32 to bfloat16 bits: nearest even, finite values saturate.

    Infinities stay; a NaN becomes sign | 0x7FC0.
    """
    x = np.asarray(x, np.float32)
    u = x.view(np.uint32)
    rounded = ((u + 0x7FFF + ((u >> 16) & 1)) >> 16).astype(np.uint16)
    sign = ((u >> 31) << 15).astype(np.uint16)
    over = ((rounded & 0x7FFF) == 0x7F80) & np.isfinite(x)
    rounded = np.where(over, sign | BF16_MAX, rounded)
    rounded = np.where(np.isinf(x), sign | 0x7F80, rounded)
    return np.where(np.isnan(x), sign | 0x7FC0, rounded).astype(np.uint16)


def from_bf16(bits: U16) -> F32:
    """Widen bfloat16 bits to float32, exactly."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


def to_f32(x: Any) -> F32:
    """Convert a float array to float32; finite float64 values saturate instead of overflowing."""
    a = np.asarray(x)
    if a.dtype == np.float64:
        top = np.finfo(np.float32).max
        a = np.where(np.isfinite(a), np.clip(a, -top, top), a)
    return np.asarray(a, dtype=np.float32, order="C")  # a scalar stays one


def sequential_sum(terms: F32, axis: int = 0) -> F32:
    """Sum float32 `terms` in ascending order along `axis`, rounding after every addition."""
    moved = np.moveaxis(terms, axis, 0)
    total = np.zeros(moved.shape[1:], np.float32)
    with np.errstate(over="ignore", invalid="ignore"):
        for term in moved:
            total = total + term
    return total


def squares(x: F32) -> F32:
    """Return x * x in float32; overflow gives infinity without a warning."""
    with np.errstate(over="ignore", under="ignore"):
        return x * x
