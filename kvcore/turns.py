"""Which cells an attention takes together when not all of them fit on the device."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from kvcore.numerics import Array
from kvcore.pool import Pool


@dataclass(frozen=True, slots=True, eq=False)
class Turn:
    """Listed positions that are read together.

    Attributes
    ----------
    rows : range
        Queries.
    first, stop : int
        Positions of their list of cells: all of a dense call's cells, or ids.
    blocks : i64[n]
        Units of the cache that these cells lie in, ascending.
    """

    rows: range
    first: int
    stop: int
    blocks: Array


@dataclass(frozen=True, slots=True, eq=False)
class PartlyResident:
    """What :meth:`kvcore.backend.Backend.attention_in_turns` reads.

    Attributes
    ----------
    pool : Pool
        Of the device.
    table : i32[blocks]
    listing : i64[R, N]
        Unit of each listed position, -1 where none is read; one row for all T queries, or T.
    most : int
        Units that a turn may bring, unless a tile alone needs more.
    bring : callable (blocks) -> (Pool, i32[blocks])
        Makes units resident; the pool and table to read them by until the next call.
    """

    pool: Pool
    table: Array
    listing: Array
    most: int
    bring: Callable[[Array], tuple[Pool, Array]]

    def turns(self, tile: int, n_queries: int) -> list[Turn]:
        """Return turns in order: each as many whole tiles as fit, at least one.

        Parameters
        ----------
        tile : int
            Positions that the kernel takes at once.
        n_queries : int
            T.
        """
        shared = len(self.listing) == 1
        found = []
        for i, row in enumerate(self.listing):
            rows = range(n_queries) if shared else range(i, i + 1)
            found += [Turn(rows, *cut) for cut in _cuts(row, tile, self.most)]
        return found


def _cuts(row: Array, tile: int, most: int) -> list[tuple[int, int, Any]]:
    """Return (first, stop, blocks) of each turn of one list."""
    n_tiles, width = -(-len(row) // tile), int(row.max(initial=0)) + 1
    keys = np.unique(np.where(row < 0, -1, np.arange(len(row)) // tile * width + row))
    owners, blocks = np.divmod(keys[keys >= 0], width)
    edges = np.searchsorted(owners, np.arange(n_tiles + 1)).tolist()
    cuts, first, held = [], 0, np.zeros(0, np.int64)
    for i in range(n_tiles):
        both = np.union1d(held, blocks[edges[i] : edges[i + 1]])
        if len(both) > most and i > first:
            cuts.append((first * tile, i * tile, held))
            first, both = i, blocks[edges[i] : edges[i + 1]]
        held = both
    cuts.append((first * tile, len(row), held))
    return cuts
