"""Values that cases store: ordinary ones with channel structure, and hard ones.

All drawn from a seeded generator, so that a case is the same on every machine.
"""

from __future__ import annotations

import numpy as np

from kvcore.numerics import F32

HARD = (
    0.0,
    -0.0,
    2.0**-149,
    -(2.0**-140),
    2.0**-26,
    2.0**-25,
    -(2.0**-24),
    3 * 2.0**-25,
    2.0**-14,
    0.5,
    -1.5,
    2.5,
    63.5,
    -127.0,
    65504.0,
    -65519.0,
    65520.0,
    70144.0,
    524160.0,
    -8321040.0,
    1e30,
    -3e38,
)
"""Zeros, subnormals, halves, float16's edges, the edges of scales, and outliers."""

NON_FINITE = (np.nan, np.inf, -np.inf)


def ordinary(rng: np.random.Generator, shape: tuple[int, ...]) -> F32:
    """Return normal values whose channels differ in spread and mean, as real keys do."""
    spread = np.exp(rng.normal(0.0, 1.0, shape[-1]))
    mean = rng.normal(0.0, 1.0, shape[-1]) * spread
    return (rng.normal(0.0, 1.0, shape) * spread + mean).astype(np.float32)


def hard(rng: np.random.Generator, shape: tuple[int, ...]) -> F32:
    """Return finite values that break careless quantizers.

    Whole rows and whole channels are zeros, one magnitude with both signs, tiny, or on a grid of
    halves, and single values are replaced by :data:`HARD` ones.
    """
    x = ordinary(rng, shape)
    for axis in (0, len(shape) - 1):
        lines = np.moveaxis(x, axis, 0)
        for i in range(lines.shape[0]):
            kind = rng.integers(8)
            line = lines[i]
            if kind == 0:
                line[...] = np.float32(-0.0 if rng.random() < 0.5 else 0.0)
            elif kind == 1:
                line[...] = np.where(rng.random(line.shape) < 0.5, np.float32(-3), np.float32(3))
            elif kind == 2:
                line *= np.float32(2.0**-30)
            elif kind == 3:
                line[...] = rng.integers(-16, 17, line.shape) * np.float32(0.5)
    picked = rng.random(shape) < 0.01
    x[picked] = rng.choice(np.asarray(HARD, np.float32), int(picked.sum()))
    return x


def non_finite(rng: np.random.Generator, shape: tuple[int, ...]) -> F32:
    """Return ordinary values with a few NaNs and infinities."""
    x = ordinary(rng, shape)
    flat = x.reshape(-1)
    where = rng.choice(flat.size, -(-flat.size // 400), replace=False)
    flat[where] = rng.choice(np.asarray(NON_FINITE, np.float32), where.size)
    return x


KINDS = {"ordinary": ordinary, "hard": hard, "non-finite": non_finite}
