"""Packed rows of a batched call: how many belong to each sequence, and which go together."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from kvcore.errors import ShapeError, message
from kvcore.numerics import Array
from kvcore.roster import Member


def counts_of(op: str, raw: Any, batch: int, rows: int) -> list[int]:
    """Return the rows of each sequence, or raise ShapeError."""
    if raw is None:
        each, rest = divmod(rows, batch) if batch else (0, rows)
        if rest:
            raise ShapeError(
                message(op, "rows", got=rows, expected=f"a multiple of {batch}", fix="give counts")
            )
        return [each] * batch
    counts = np.asarray(raw)
    whole = counts.ndim == 1 and (counts.dtype.kind in "iu" or counts.size == 0)
    if not whole or counts.size != batch or (counts < 0).any() or int(counts.sum()) != rows:
        raise ShapeError(
            message(
                op,
                "counts",
                got=counts.tolist(),
                expected=f"{batch} counts >= 0 that add up to {rows} rows",
            )
        )
    return [int(c) for c in counts]


def runs(members: list[Member], steps: list[int], together: bool) -> Iterator[tuple[int, int, int]]:
    """Yield (i, j, first packed row) of neighbouring members with equal counts.

    Members without rows are left out, unless `together` (a call without any rows).
    """
    i, row = 0, 0
    while i < len(members):
        j = i + 1
        while (
            j < len(members)
            and steps[j] == steps[i]
            and members[j]._place == members[j - 1]._place + 1
        ):
            j += 1
        if steps[i] or together:
            yield i, j, row
        row += steps[i] * (j - i)
        i = j


def tables(members: list[Member]) -> Array:
    """Return the page tables of members side by side, i32[B, blocks], padded with -1."""
    blocks = max(len(m._table) for m in members)
    out = np.full((len(members), blocks), -1, np.int32)
    for row, m in zip(out, members, strict=True):
        row[: len(m._table)] = m._table
    return out
