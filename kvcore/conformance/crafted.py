"""Values on which one wrong rounding shows: searched for, not hoped for.

Random data lets a fused multiply-add, a reciprocal instead of a division, another order of a sum or
another rounding of ties pass by the million. These groups are drawn near the decision points of
each codec and kept only if the right and the wrong arithmetic give different results.
"""

from __future__ import annotations

import numpy as np

from kvcore.conformance.values import ordinary
from kvcore.numerics import F32, Array, sequential_sum, squares, to_f16
from kvcore.quantize import threshold_table
from kvcore.spec import GROUP_CELLS, Codec, Rounding, Rule

DRAWN = 2000
"""Groups that are searched for those sensitive to each fault of a sum: about every second is."""

NEAR = 3
"""Neighbouring float32 values on each side of a decision point."""


def channels(rng: np.random.Generator, count: int, dtype: type = np.float32) -> F32:
    """Return f32[32, count]: groups of cells whose stored RMS tells wrong sums apart.

    Half are sensitive to the order of the sum, half to a fused multiply-add. Values of float16 have
    exact squares, so that with `dtype` float16 all are sensitive to the order.
    """
    x = _near_a_tie(rng, DRAWN, dtype)
    right = _scale(sequential_sum(squares(x)))
    other = _scale(sequential_sum(squares(x[::-1])))
    tree = _scale(_in_pairs(squares(x)))
    fused = _scale(_fused_sum(x))
    orders = np.flatnonzero((right != other) | (right != tree))
    fuses = np.flatnonzero(right != fused)
    half = count if dtype is np.float16 else count // 2
    chosen = [np.resize(orders, half), np.resize(fuses, count - half)]
    return np.ascontiguousarray(x[:, np.concatenate(chosen)])


def _near_a_tie(rng: np.random.Generator, count: int, dtype: type) -> F32:
    """Return groups f32[32, count] whose exact RMS is all but halfway between two float16 values.

    Three values of each group make up what is missing, each finer than the one before.
    """
    x = rng.normal(size=(GROUP_CELLS, count)).astype(dtype).astype(np.float64)
    x[:3] = 0.0
    low = np.sqrt(((x * x).sum(axis=0) + 8.0) / GROUP_CELLS).astype(np.float16)
    high = np.nextafter(low, np.float16(np.inf))
    middle = (low.astype(np.float64) + high.astype(np.float64)) / 2
    for i in range(3):
        missing = np.maximum(GROUP_CELLS * middle * middle - (x * x).sum(axis=0), 0.0)
        root = np.sqrt(missing).astype(dtype)
        over = root.astype(np.float64) ** 2 > missing
        x[i] = np.where(over & (i < 2), np.nextafter(root, dtype(0)), root)
    return np.asarray(rng.permuted(x, axis=0), np.float32)


def _scale(total: F32) -> Array:
    return to_f16(np.sqrt(total / np.float32(GROUP_CELLS)))


def _in_pairs(terms: F32) -> F32:
    while len(terms) > 1:
        terms = terms[::2] + terms[1::2]
    return np.asarray(terms[0], np.float32)


def _fused_sum(x: F32) -> F32:
    total = np.zeros(x.shape[1:], np.float64)
    for cell in x.astype(np.float64):  # the product is exact in float64
        total = (total + cell * cell).astype(np.float32).astype(np.float64)
    return total.astype(np.float32)


def rows(codec: Codec, rng: np.random.Generator, n_rows: int, dim: int) -> F32:
    """Return f32[n_rows, dim]: groups whose values lie at the codec's decision points.

    Each group's first value fixes its scale; the others are thresholds between codes times that
    scale, and their nearest float32 neighbours.
    """
    if codec.scale is None:
        return _halves(rng, (n_rows, dim))
    if codec.scale.rule is Rule.RMS:
        return _rms_rows(codec, rng, n_rows, dim)
    group = codec.scale.group
    n = n_rows * dim // group
    top = np.exp(rng.uniform(-6, 6, n)).astype(np.float32)
    top[: n // 4] = 2.0 ** rng.integers(-8, 8, n // 4)
    top *= np.where(rng.random(n) < 0.5, np.float32(-1), np.float32(1))
    if codec.scale.rule is Rule.ABSMAX:
        top = np.abs(top)
    exact = (top / np.float32(codec.scale.divisor)).astype(np.float32)
    scale = to_f16(exact).astype(np.float32) if codec.scale.stored else exact
    low, high = int(codec.levels[0]), int(codec.levels[-1])
    middle = rng.integers(low, high, (n, group)) + 0.5
    x = _near(rng, (middle * scale[:, None].astype(np.float64)).astype(np.float32))
    x = np.clip(x, -np.abs(top)[:, None], np.abs(top)[:, None])
    _insert_splits(codec, x, top, scale)
    x[:, 0] = top
    return np.asarray(x.reshape(n_rows, dim), np.float32)


def _near(rng: np.random.Generator, x: F32) -> F32:
    """Move each value by up to NEAR float32 steps, either way."""
    bits = x.view(np.int32) + rng.integers(-NEAR, NEAR + 1, x.shape, dtype=np.int32)
    return np.asarray(bits.view(np.float32))


def _insert_splits(codec: Codec, x: F32, top: F32, scale: F32) -> None:
    """Where a group has a value on which a wrong formula gives another code, repeat it."""
    s = scale[:, None]
    with np.errstate(all="ignore"):
        inverse = np.float32(1) / s
        if codec.rounding is Rounding.RECIPROCAL_TRUNC:
            half = np.float32(codec.zero + 0.5)
            right = np.trunc(x * inverse + half)
            fused = (x.astype(np.float64) * inverse + half).astype(np.float32)
            wrong = [np.trunc(fused), np.trunc(x / s + half)]
        else:
            right = np.rint(x / s)
            wrong = [np.rint(x * inverse)]
    for other in wrong:
        split = right != other
        found = np.flatnonzero(split.any(axis=1))
        first = split.argmax(axis=1)
        for i in found:
            x[i, 1:5] = x[i, first[i]]


def _rms_rows(codec: Codec, rng: np.random.Generator, n_rows: int, dim: int) -> F32:
    """Groups of 32 from the channel search, then some whose values sit on thresholds."""
    n = n_rows * dim // GROUP_CELLS
    x = np.ascontiguousarray(channels(rng, n).T)
    on = rng.integers(0, 2, (n, GROUP_CELLS)).astype(bool)
    on[: n // 2] = False
    # Two magnitudes whose mean square is 1: values at +-threshold, the rest make up the energy.
    t = float(max(threshold_table(codec).max(), np.float32(0.5)))
    count = on.sum(axis=1, keepdims=True)
    with np.errstate(invalid="ignore", divide="ignore"):
        rest = np.sqrt(np.maximum(GROUP_CELLS - count * t * t, 0.0) / (GROUP_CELLS - count))
    level = np.where(on, t, np.where(np.isfinite(rest), rest, 1.0))
    signs = np.where(rng.random(x.shape) < 0.5, -1.0, 1.0)
    x[n // 2 :] = _near(rng, (level * signs).astype(np.float32))[n // 2 :]
    return np.asarray(x.reshape(n_rows, dim), np.float32)


def _halves(rng: np.random.Generator, shape: tuple[int, ...]) -> F32:
    """Values halfway between two neighbours of float16 and of bfloat16, and next to them."""
    x = ordinary(rng, shape)
    bits = x.view(np.uint32)
    coarse = np.where(rng.random(shape) < 0.5, np.uint32(13), np.uint32(16))
    ties = (bits >> coarse << coarse) | (np.uint32(1) << (coarse - np.uint32(1)))
    return _near(rng, np.asarray(ties, np.uint32).view(np.float32))
