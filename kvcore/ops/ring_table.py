"""ring_table: the static page table of a ring of slots."""

from __future__ import annotations

from typing import Any

import numpy as np

from kvcore.errors import ShapeError, message
from kvcore.numerics import I32
from kvcore.ops import Arg, Op


def check_ring(n_blocks: Any, n_slots: Any, unit: Any) -> tuple[int, int, int]:
    """Return the three sizes as ints, or raise ShapeError."""
    sizes = (n_blocks, n_slots, unit)
    for name, value, least in zip(("n_blocks", "n_slots", "unit"), sizes, (0, 1, 1), strict=True):
        whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
        if not whole or value < least:
            raise ShapeError(
                message("ring_table", f"{name} is not usable", got=value, expected=f">= {least}")
            )
    if n_slots < unit:
        raise ShapeError(
            message("ring_table", "fewer slots than one unit", got=n_slots, expected=f">= {unit}")
        )
    return int(n_blocks), int(n_slots), int(unit)


def ring_table(n_blocks: int, n_slots: int, unit: int = 1) -> I32:
    """Map block b to slot ``((b // unit) % (n_slots // unit)) * unit + b % unit``.

    Parameters
    ----------
    n_blocks : int
    n_slots : int
        At least `unit`; slots beyond the last whole unit stay unused.
    unit : int
        Blocks that lie together: ``layout.unit_pages``.

    Returns
    -------
    i32[n_blocks]

    Raises
    ------
    ShapeError
        On a size that cannot be.
    """
    blocks, slots, unit = check_ring(n_blocks, n_slots, unit)
    b = np.arange(blocks, dtype=np.int64)
    return ((b // unit) % (slots // unit) * unit + b % unit).astype(np.int32)


OP = Op(
    name="ring_table",
    version=1,
    args=(
        Arg(name="n_blocks", what="int"),
        Arg(name="n_slots", what="int"),
        Arg(name="unit", what="int", default=1),
    ),
    returns="i32[n_blocks]",
    reference=ring_table,
)
