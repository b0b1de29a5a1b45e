"""The arithmetic of a tile of 32 cells: scores, weights and weighted sums, in float32."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from .halves import bits_of, float_of
from .jit import inner

TILE = 32
"""Cells of a tile."""

_LOG2E = np.float32(1.4426950408889634)
_LN2_HIGH = np.float32(0.693359375)
_LN2_LOW = np.float32(-2.12194440e-4)
_ROUND = np.float32(12582912.0)  # 1.5 * 2^23: adding it leaves the nearest integer in low bits
_LEAST = np.float32(-87.3)  # below, the weight is under 2^-125.9 and counts as 0
_C = tuple(np.float32(1.0 / math.factorial(n)) for n in range(2, 8))
_C2, _C3, _C4, _C5, _C6, _C7 = _C
_ONE = np.float32(1.0)
_NOTHING = np.float32(-np.inf)


@inner(always=True)
def exp(x: Any) -> Any:
    """Return e^x for x <= 0 (a NaN stays one), within 2 ulp; 0 below -87.3."""
    low = _LEAST if x < _LEAST else x
    shifted = low * _LOG2E + _ROUND
    n = shifted - _ROUND
    r = (low - n * _LN2_HIGH) - n * _LN2_LOW
    p = _C6 + r * _C7
    p = _C5 + r * p
    p = _C4 + r * p
    p = _C3 + r * p
    p = _C2 + r * p
    p = _ONE + (r + r * r * p)
    power = float_of((bits_of(shifted) << np.int32(23)) + np.int32(0x3F800000))
    return np.float32(0) if x < _LEAST else p * power


@inner(fast=True)
def scores(q: Any, k: Any, first: Any, last: Any, n: Any, s: Any) -> None:
    """Write s[r, c] = <q[r], k[c]> for rows first .. last and n cells, a multiple of 4.

    Rows go in pairs; an odd one is paired with the last row of `q` and `s`, which nobody reads.
    """
    for r0 in range(first, last, 2):
        r1 = r0 + 1 if r0 + 1 < last else q.shape[0] - 1
        for c in range(0, n, 4):
            a0 = a1 = a2 = a3 = b0 = b1 = b2 = b3 = np.float32(0)
            for d in range(q.shape[1]):
                x, y = q[r0, d], q[r1, d]
                k0, k1, k2, k3 = k[c, d], k[c + 1, d], k[c + 2, d], k[c + 3, d]
                a0 += x * k0
                a1 += x * k1
                a2 += x * k2
                a3 += x * k3
                b0 += y * k0
                b1 += y * k1
                b2 += y * k2
                b3 += y * k3
            s[r0, c], s[r0, c + 1], s[r0, c + 2], s[r0, c + 3] = a0, a1, a2, a3
            s[r1, c], s[r1, c + 1], s[r1, c + 2], s[r1, c + 3] = b0, b1, b2, b3


@inner(fast=True)
def add_weighted(p: Any, v: Any, first: Any, last: Any, n: Any, o: Any) -> None:
    """Add sum over n cells (a multiple of 4) of p[r, c] * v[c] to o[r], rows first .. last.

    An odd row is paired with the last row of `p` and `o`, which nobody reads.
    """
    for r0 in range(first, last, 2):
        r1 = r0 + 1 if r0 + 1 < last else p.shape[0] - 1
        for c in range(0, n, 4):
            x0, x1, x2, x3 = p[r0, c], p[r0, c + 1], p[r0, c + 2], p[r0, c + 3]
            y0, y1, y2, y3 = p[r1, c], p[r1, c + 1], p[r1, c + 2], p[r1, c + 3]
            for d in range(o.shape[1]):
                v0, v1, v2, v3 = v[c, d], v[c + 1, d], v[c + 2, d], v[c + 3, d]
                o[r0, d] += x0 * v0 + x1 * v1 + x2 * v2 + x3 * v3
                o[r1, d] += y0 * v0 + y1 * v1 + y2 * v2 + y3 * v3


@inner()
def weigh(s: Any, n: Any, best: Any, lanes: Any) -> tuple[Any, Any, Any]:
    """Turn 32 scores into weights relative to the new maximum.

    Parameters
    ----------
    s : f32[32]
        Scores of n cells; becomes their weights, 0 beyond n.
    n : int
    best : float
        The maximum so far, -inf at first.
    lanes : f32[8]
        Scratch.

    Returns
    -------
    best, sum, rescale
        The new maximum, the sum of the weights, and the factor of everything summed before. A NaN
        score gives a NaN sum.
    """
    for c in range(n, TILE):
        s[c] = _NOTHING
    for j in range(8):
        a = s[j] if s[j] > s[j + 8] else s[j + 8]
        b = s[j + 16] if s[j + 16] > s[j + 24] else s[j + 24]
        lanes[j] = a if a > b else b
    new = best
    for j in range(8):
        new = lanes[j] if lanes[j] > new else new
    # All scores -inf so far: measure from 0, so that they weigh 0 and a NaN still shows.
    base = np.float32(0) if new == _NOTHING else new
    for c in range(TILE):
        s[c] = exp(s[c] - base)
    for j in range(8):
        lanes[j] = (s[j] + s[j + 8]) + (s[j + 16] + s[j + 24])
    total = ((lanes[0] + lanes[1]) + (lanes[2] + lanes[3])) + (
        (lanes[4] + lanes[5]) + (lanes[6] + lanes[7])
    )
    rescale = _ONE if new == best else exp(best - new)
    return new, total, rescale
