"""rotate: butterflies over sixteen rows side by side, so that every stage runs at full width."""

from __future__ import annotations

from typing import Any

import numpy as np

from .jit import kernel

LANES = 16


@kernel
def hadamard(x: Any, block: Any, scale: Any, out: Any) -> None:
    """Rotate rows by the orthonormal Hadamard matrix of their length.

    Parameters
    ----------
    x : f32[n, block]
    block : int
    scale : f32
        1 / sqrt(block), multiplied in first.
    out : f32[n, block]
        Written.
    """
    lanes = np.zeros((block, LANES), np.float32)
    for start in range(0, x.shape[0], LANES):
        n = min(LANES, x.shape[0] - start)
        for r in range(n):
            for d in range(block):
                lanes[d, r] = x[start + r, d] * scale
        step = 1
        while step < block:
            for first in range(0, block, 2 * step):
                for d in range(first, first + step):
                    for r in range(LANES):
                        u, v = lanes[d, r], lanes[d + step, r]
                        lanes[d, r] = u + v
                        lanes[d + step, r] = u - v
            step *= 2
        for r in range(n):
            for d in range(block):
                out[start + r, d] = lanes[d, r]
