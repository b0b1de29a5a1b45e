"""The reference quantizers: values to codes and scales, and back. The truth for every backend.

Rules are read from the codec's data; there is no code per format. A group that holds a
non-finite value stores a NaN scale and the codec's zero codes, so that it reads as NaN and no
other group is touched.
"""

from __future__ import annotations

import numpy as np

from kvcore.numerics import (
    F16,
    F16_NAN,
    F32,
    F32_MAX,
    U8,
    from_bf16,
    sequential_sum,
    squares,
    to_bf16,
    to_f16,
)
from kvcore.spec import Codec, Packing, Rounding, Rule


def level_table(codec: Codec) -> F32:
    """Return the value of each code, f32[2**bits], in units of the scale.

    Codes of a grid beyond its levels (-128 of a signed byte) decode by the grid; none is written.
    """
    n = 2**codec.bits
    if codec.signed:
        return np.arange(n, dtype=np.uint8).view(np.int8).astype(np.float32)
    if not codec.codebook:
        grid: F32 = np.arange(n, dtype=np.float32) - np.float32(codec.zero)
        return grid
    table: F32 = np.zeros(n, np.float32)
    table[: len(codec.levels)] = np.asarray(codec.levels, np.float64)
    return table


def threshold_table(codec: Codec) -> F32:
    """Return the midpoints between levels as float32."""
    return np.asarray(codec.thresholds, np.float64).astype(np.float32)


def zero_code(codec: Codec) -> int:
    """Return the code that a group with a non-finite value is filled with."""
    return 0 if codec.codebook else codec.zero


def choose_codes(codec: Codec, x: F32, scale: F32) -> U8:
    """Return the codes of `x`, unpacked, one a byte.

    Parameters
    ----------
    codec : Codec
    x : f32[...]
    scale : f32, broadcast against `x`
        The scale that codes are chosen against (stored or exact, see ``Scale.stored``).
    """
    x, s = np.broadcast_arrays(np.asarray(x, np.float32), np.asarray(scale, np.float32))
    with np.errstate(all="ignore"):
        if codec.rounding is Rounding.NEAREST_LEVEL:
            codes = np.zeros(x.shape, np.uint8)
            for t in threshold_table(codec):
                codes += x > np.float32(t) * s
            return np.where(s > 0, codes, 0).astype(np.uint8)
        if codec.rounding is Rounding.DIVIDE_HALF_EVEN:
            y = np.where(s > 0, np.rint(x / np.where(s > 0, s, np.float32(1))), np.float32(0))
        else:
            inverse = np.where(s != 0, np.float32(1) / s, np.float32(0))
            y = x * inverse
            if codec.rounding is Rounding.RECIPROCAL_HALF_AWAY:
                whole = np.trunc(y)
                y = whole + np.where(np.abs(y - whole) >= 0.5, np.copysign(np.float32(1), y), 0)
            else:
                y = np.trunc(y + np.float32(codec.zero + 0.5))
    low, high = codec.levels[0] + codec.zero, codec.levels[-1] + codec.zero
    y = np.where(np.isnan(y), np.float32(0), y)
    y = np.clip(y, np.float32(low), np.float32(high))
    return y.astype(np.int32).astype(np.uint8)


def _statistic(codec: Codec, x: F32) -> F32:
    """Return the exact float32 scale of groups along the last axis of `x`."""
    assert codec.scale is not None
    rule = codec.scale.rule
    divisor = np.float32(codec.scale.divisor)
    if rule is Rule.RMS:
        return np.asarray(rms(x, axis=-1) / divisor, np.float32)
    size = np.abs(x)
    top = size.max(axis=-1)
    if rule is Rule.SIGNED_ABSMAX:
        first = np.take_along_axis(x, size.argmax(axis=-1)[..., None], -1)[..., 0]
        top = np.where((x == top[..., None]).any(axis=-1) & (top > 0), top, first)
    return np.asarray(top / divisor, np.float32)


def rms(x: F32, axis: int, count: int | None = None) -> F32:
    """Return sqrt(sum of squares / count) in float32, squares summed in ascending order.

    A sum that overflows gives the largest float32, which saturates as a scale.
    """
    n = np.float32(x.shape[axis] if count is None else count)
    total = sequential_sum(squares(x), axis)
    return np.asarray(np.minimum(np.sqrt(total / n), F32_MAX), np.float32)


def unbiased(codec: Codec, x: F32, codes: U8, scale: F16, axis: int) -> F16:
    """Return f16(sum x^2 / sum x*level) along `axis`, so that <x, x^> = <x, x>.

    It keeps the sign of `scale` (a signed absmax may be negative); where it would not, or the sum
    is 0, `scale` stays. A quotient that overflows, or whose sums do, saturates.
    """
    levels = level_table(codec)[codes]
    sign = np.where(np.signbit(scale), np.float32(-1), np.float32(1))
    with np.errstate(all="ignore"):
        top = sequential_sum(squares(x), axis)
        bottom = sequential_sum(x * levels, axis) * sign
        quotient = top / bottom
        found = to_f16(np.where(quotient < np.inf, quotient, F32_MAX) * sign)
    return np.where(bottom > 0, found, scale)


def encode_rows(codec: Codec, x: F32, gain: object = 1.0) -> tuple[U8, F16 | None]:
    """Encode values that are stored cell by cell.

    Parameters
    ----------
    codec : Codec
        With no scale, or scales along the head dimension.
    x : f32[..., D]
    gain : 1.0 or "unbiased"

    Returns
    -------
    codes : u8[..., row_bytes]
    scales : f16[..., D/G] or None
    """
    x = np.ascontiguousarray(x, np.float32)
    if codec.scale is None:
        return _encode_floats(codec, x), None
    groups = x.reshape(*x.shape[:-1], x.shape[-1] // codec.scale.group, codec.scale.group)
    finite = np.isfinite(groups).all(axis=-1)
    safe = np.where(np.expand_dims(finite, -1), groups, np.float32(0))
    exact = _statistic(codec, safe)
    stored = to_f16(exact)
    against = stored.astype(np.float32) if codec.scale.stored else exact
    codes = choose_codes(codec, safe, against[..., None])
    if gain == "unbiased":
        stored = unbiased(codec, safe, codes, stored, -1)
    codes = np.where(np.expand_dims(finite, -1), codes, np.uint8(zero_code(codec)))
    scales = np.where(finite, stored.view(np.uint16), np.uint16(F16_NAN)).view(np.float16)
    return pack(codec, codes.reshape(x.shape)), scales


def _encode_floats(codec: Codec, x: F32) -> U8:
    if codec.float_type == "f32":
        bits = x.view(np.uint8)
    elif codec.float_type == "f16":
        bits = np.ascontiguousarray(to_f16(x)).view(np.uint8)
    else:
        bits = np.ascontiguousarray(to_bf16(x)).view(np.uint8)
    return bits.reshape(*x.shape[:-1], codec.row_bytes(x.shape[-1]))


def decode_rows(codec: Codec, codes: U8, scales: F16 | None, head_dim: int) -> F32:
    """Decode rows: float32(level * scale), one product.

    Parameters
    ----------
    codec : Codec
    codes : u8[..., row_bytes]
    scales : f16[..., D/G] (row codecs) or f16[..., D] (per channel) or None
    head_dim : int

    Returns
    -------
    f32[..., D]
    """
    codes = np.ascontiguousarray(codes)
    if codec.scale is None:
        if codec.float_type == "f32":
            return codes.view(np.float32)
        if codec.float_type == "f16":
            return codes.view(np.float16).astype(np.float32)
        return from_bf16(codes.view(np.uint16))
    assert scales is not None
    values = level_table(codec)[unpack(codec, codes, head_dim)]
    s = scales.astype(np.float32)
    with np.errstate(invalid="ignore"):
        if codec.per_channel:
            return values * s
        n_groups = head_dim // codec.scale.group
        grouped = values.reshape(*values.shape[:-1], n_groups, codec.scale.group) * s[..., None]
    return grouped.reshape(values.shape)


def pack(codec: Codec, codes: U8) -> U8:
    """Pack one-byte codes ``u8[..., D]`` into ``u8[..., row_bytes]``."""
    if codec.packing is Packing.BYTES:
        return codes
    if codec.packing is Packing.HALVES:
        assert codec.scale is not None
        lead, d, half = codes.shape[:-1], codes.shape[-1], codec.scale.group // 2
        pairs = codes.reshape(*lead, d // (2 * half), 2, half)
        both = pairs[..., 0, :] | pairs[..., 1, :] << np.uint8(4)
        return np.asarray(both.reshape(*lead, d // 2), np.uint8)
    per_byte = 8 // codec.bits
    fields = codes.reshape(*codes.shape[:-1], codes.shape[-1] // per_byte, per_byte)
    out = np.zeros(fields.shape[:-1], np.uint8)
    for i in range(fields.shape[-1]):
        out |= fields[..., i] << np.uint8(codec.bits * i)
    return out


def unpack(codec: Codec, packed: U8, head_dim: int) -> U8:
    """Undo :func:`pack`; returns ``u8[..., D]``."""
    if codec.packing is Packing.BYTES:
        return packed
    if codec.packing is Packing.HALVES:
        assert codec.scale is not None
        half = codec.scale.group // 2
        halves = packed.reshape(*packed.shape[:-1], head_dim // (2 * half), half)
        both = np.stack([halves & 15, halves >> 4], axis=-2)
        return both.reshape(*packed.shape[:-1], head_dim)
    mask = np.uint8(2**codec.bits - 1)
    fields = [(packed >> np.uint8(codec.bits * i)) & mask for i in range(8 // codec.bits)]
    return np.stack(fields, axis=-1).reshape(*packed.shape[:-1], head_dim)


def apply_gain(scale: F16, gain: float) -> F16:
    """Return f16(gain * scale): the stored scale of a per-channel K group."""
    return to_f16(np.float32(gain) * scale.astype(np.float32)) if gain != 1.0 else scale


def remove_gain(stored: F16, gain: float) -> F16:
    """Return f16(stored / gain): the scale that later codes are chosen against."""
    if gain == 1.0:
        return stored
    with np.errstate(invalid="ignore"):  # a NaN scale stays NaN
        return to_f16(stored.astype(np.float32) / np.float32(gain))


def encode_group(
    codec: Codec, x: F32, counted: np.ndarray[tuple[int], np.dtype[np.bool_]], gain: object = 1.0
) -> tuple[U8, F16]:
    """Encode one complete per-channel group.

    Parameters
    ----------
    codec : Codec
    x : f32[32, ..., D], cells first
    counted : bool[32]
        Cells the scale is made of (sinks are left out; none counted means all are).
    gain : float or "unbiased"

    Returns
    -------
    codes : u8[32, ..., row_bytes]
    scale : f16[..., D]
    """
    if not counted.any():
        counted = np.ones_like(counted)
    finite = np.isfinite(x).all(axis=0)
    safe = np.where(finite, x, np.float32(0))
    base = to_f16(rms(safe[counted], axis=0))
    codes = choose_codes(codec, safe, base.astype(np.float32))
    if gain == "unbiased":
        scale = unbiased(codec, safe[counted], codes[counted], base, 0)
    else:
        scale = apply_gain(base, float(gain))  # type: ignore[arg-type]
    codes = np.where(finite, codes, np.uint8(zero_code(codec)))
    bits = np.where(finite, scale.view(np.uint16), np.uint16(F16_NAN)).view(np.float16)
    return pack(codec, codes), bits
