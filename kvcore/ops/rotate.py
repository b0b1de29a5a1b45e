"""rotate: the block-diagonal Hadamard rotation, its own inverse."""

from __future__ import annotations

from typing import Any

import numpy as np

from kvcore import operands
from kvcore.errors import ShapeError, message
from kvcore.operands import HOST
from kvcore.ops import Arg, Direction, Op
from kvcore.spec import rotation_block


def check_rotate(shape: tuple[int, ...]) -> int:
    """Return the Hadamard block for an array of this shape.

    Raises
    ------
    ShapeError
        If it is a scalar.
    FormatError
        If the last axis has no block of at least 32.
    """
    if not shape:
        raise ShapeError(message("rotate", "x has no axis", got="a scalar", expected="[..., D]"))
    return rotation_block(shape[-1])


def rotate(x: Any, out: Any = None) -> Any:
    """Rotate every row by an orthonormal Hadamard matrix (Sylvester order).

    Parameters
    ----------
    x : f32[..., D]
        D is split into blocks of the largest power of two dividing it (at least 32).
    out : f32[..., D], optional
        Written and returned instead of a new array; may be `x`.

    Returns
    -------
    f32[..., D]
        Applying it twice gives `x` back up to rounding.

    Raises
    ------
    FormatError
        If D has no block of at least 32; the message names the next D that works.
    ShapeError
        If `x` is not a float array.

    Notes
    -----
    Rounding: values are scaled first by float32(1 / sqrt(block)); stages ascend 1, 2, 4, ...;
    the lower index gets u + v, the upper u - v, each rounded to float32.
    """
    a = HOST.asarray(x, "float", "rotate", "x")
    block = check_rotate(a.shape)
    with np.errstate(over="ignore", invalid="ignore"):
        y = a.reshape(-1, block) * np.float32(1.0 / np.sqrt(block))
        step = 1
        while step < block:
            pairs = y.reshape(-1, block // (2 * step), 2, step)
            low, high = pairs[:, :, 0], pairs[:, :, 1]
            y = np.stack([low + high, low - high], axis=2).reshape(-1, block)
            step *= 2
    return operands.put(out, y.reshape(a.shape), "rotate")


OP = Op(
    name="rotate",
    version=1,
    args=(
        Arg(name="x", what="f32[..., D]"),
        Arg(name="out", what="f32[..., D]", direction=Direction.OUT, default=None),
    ),
    returns="f32[..., D]",
    reference=rotate,
)
