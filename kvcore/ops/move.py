"""move: copy whole units of pages between pools: fork, stage, unstage, evict, refill."""

from __future__ import annotations

from typing import Any

import numpy as np

from kvcore import operands
from kvcore.errors import ShapeError, message
from kvcore.numerics import Array
from kvcore.ops import Arg, Direction, Op
from kvcore.pool import Pool


def check_move(src: Pool, src_pages: Any, dst: Pool, dst_pages: Any) -> tuple[Array, Array]:
    """Return both page lists as i64, or raise before any write."""
    if src.layout != dst.layout:
        raise ShapeError("[move] the pools have different layouts: expected the same")
    a = operands.pages("move", "src_pages", src_pages, src)
    b = operands.pages("move", "dst_pages", dst_pages, dst)
    if a.size != b.size:
        raise ShapeError(
            message(
                "move",
                "the lists differ in length",
                got=f"{a.size} and {b.size}",
                expected="as many pages on both sides",
            )
        )
    if np.unique(b).size != b.size:
        raise ShapeError("[move] a page is written twice: expected distinct dst_pages")
    if src is dst and np.intersect1d(a, b).size:
        raise ShapeError("[move] a page is both read and written: expected disjoint lists")
    return a, b


def move(src: Pool, src_pages: Any, dst: Pool, dst_pages: Any) -> None:
    """Copy pages, codes and scales, from one pool to another or within one.

    Parameters
    ----------
    src : Pool
    src_pages : i32[n]
    dst : Pool
        Of the same layout; written.
    dst_pages : i32[n]
        Distinct; whole units on both sides (runs of ``layout.unit_pages``).

    Raises
    ------
    ShapeError, RangeError
        Before anything is written.
    """
    a, b = check_move(src, src_pages, dst, dst_pages)
    u = src.layout.unit_pages
    for name, plane in src.planes.items():
        if name.endswith("scales") and src.layout.codec(name[0]).per_channel:
            dst.planes[name][b[::u] // u] = plane[a[::u] // u]
        else:
            dst.planes[name][b] = plane[a]


OP = Op(
    name="move",
    version=1,
    args=(
        Arg(name="src", what="Pool"),
        Arg(name="src_pages", what="i32[n]"),
        Arg(name="dst", what="Pool", direction=Direction.INOUT),
        Arg(name="dst_pages", what="i32[n]"),
    ),
    returns="None",
    reference=move,
    per_codec=True,
)
