"""float16 and bfloat16 in integer arithmetic: the same bits on every processor.

No half-float instruction is used: a processor without them, and Python itself, agree.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .jit import inner

_SIGN = np.int32(-(2**31))
_MAGNITUDE = np.int32(0x7FFFFFFF)
_INF = np.int32(0x7F800000)
_OVER = np.int32(0x477FF000)  # 65520, the first float32 that would round to infinity
_SMALL = np.int32(0x38800000)  # 2^-14, the smallest normal half
_HALF = np.float32(0.5)
_HALF_BITS = np.int32(0x3F000000)
_REBIAS = np.int32(112 << 23)
_ONE_UP = np.int32(1 << 23)
_FRONT = np.float32(2.0**-14)


@inner(always=True)
def bits_of(x: Any) -> Any:
    """Return the bits of a float32 as int32."""
    return np.float32(x).view(np.int32)


@inner(always=True)
def float_of(bits: Any) -> Any:
    """Return the float32 with these int32 bits."""
    return np.int32(bits).view(np.float32)


@inner(always=True)
def finite(x: Any) -> Any:
    """Return True unless x is an infinity or a NaN."""
    return (bits_of(x) & _MAGNITUDE) < _INF


@inner(always=True)
def to_half(x: Any) -> Any:
    """Round a float32 to float16 bits: nearest even; finite values saturate; NaN is 0x7E00."""
    u = bits_of(x)
    a = np.int32(u & _MAGNITUDE)
    # A subnormal half: adding 0.5 makes the float32 adder round at the right bit.
    small = np.int32(bits_of(float_of(a) + _HALF) - _HALF_BITS)
    odd = (a >> np.int32(13)) & np.int32(1)
    normal = np.int32((np.int32(max(a, _SMALL) - _REBIAS) + np.int32(0xFFF) + odd) >> np.int32(13))
    h = small if a < _SMALL else normal
    h = np.int32(0x7BFF) if a >= _OVER else h
    h = np.int32(0x7C00) if a == _INF else h
    h = np.int32(0x7E00) if a > _INF else h
    return np.uint16(h | ((u >> np.int32(16)) & np.int32(0x8000)))


@inner(always=True)
def from_half(h: Any) -> Any:
    """Widen float16 bits to float32, exactly; a NaN keeps its sign."""
    w = np.int32(h)
    a = np.int32((w & np.int32(0x7FFF)) << np.int32(13))
    e = a & np.int32(0x0F800000)
    f = np.int32(a + _REBIAS)
    f = np.int32(f + _REBIAS) if e == np.int32(0x0F800000) else f
    # A subnormal half: read it with a one in front, then take the one away. No float32 on the way
    # is subnormal, so that a process that flushes those gets the same bits.
    f = bits_of(float_of(f + _ONE_UP) - _FRONT) if e == np.int32(0) else f
    sign = _SIGN if w & np.int32(0x8000) else np.int32(0)
    return float_of(f | sign)


@inner(always=True)
def to_bfloat(x: Any) -> Any:
    """Round a float32 to bfloat16 bits: nearest even; finite values saturate; NaN is 0x7FC0."""
    u = bits_of(x)
    a = np.int32(u & _MAGNITUDE)
    low = np.int32(min(a, np.int32(0x7F7F7FFF)))
    h = np.int32((low + np.int32(0x7FFF) + ((low >> np.int32(16)) & np.int32(1))) >> np.int32(16))
    h = np.int32(0x7F80) if a == _INF else h
    h = np.int32(0x7FC0) if a > _INF else h
    return np.uint16(h | ((u >> np.int32(16)) & np.int32(0x8000)))


@inner(always=True)
def from_bfloat(h: Any) -> Any:
    """Widen bfloat16 bits to float32, exactly."""
    w = np.int32(h)
    high = np.int32((w & np.int32(0x7FFF)) << np.int32(16))
    return float_of(high | _SIGN if w & np.int32(0x8000) else high)
