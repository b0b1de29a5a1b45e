"""Pool and State: the arrays that ops read and write."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kvcore.errors import ShapeError, message
from kvcore.layout import Layout, StateLayout


@dataclass(frozen=True, kw_only=True, eq=False)
class Pool:
    """The pages of one layer on one backend.

    Attributes
    ----------
    layout : Layout
    n_pages : int
        A multiple of ``layout.unit_pages``.
    planes : mapping of str to array
        The backend's arrays by plane name; see :meth:`Layout.planes`.
    backend : str
    """

    layout: Layout
    n_pages: int
    planes: Mapping[str, Any]
    backend: str

    @property
    def nbytes(self) -> int:
        """Bytes of all planes."""
        return self.layout.nbytes(self.n_pages)

    @property
    def n_cells(self) -> int:
        """Cells the pool can hold."""
        return self.n_pages * self.layout.page_size

    def __post_init__(self) -> None:
        if self.n_pages < 0 or self.n_pages % self.layout.unit_pages:
            raise ShapeError(
                message(
                    "pool",
                    "n_pages is not whole units",
                    got=self.n_pages,
                    expected=f"a multiple of {self.layout.unit_pages}",
                    fix="use layout.pages_for(cells)",
                )
            )


@dataclass(frozen=True, kw_only=True, eq=False)
class State:
    """What B sequences of one layer keep beside the pool: exact slots, centre and marks.

    Attributes
    ----------
    layout : StateLayout
    batch : int
    k, v : f16[B, slots, H, D]
        Exact cells: sinks first, then the ring; in the stored basis, not centred.
    centre : f16[B, H, Dk]
        Subtracted from K before it is quantized; zero until it is fixed.
    marks : i32[B, 8]
        Columns: committed, length, k_frontier, v_frontier, k_ring_lo, v_ring_lo, centred, flag.
    backend : str
    """

    layout: StateLayout
    batch: int
    k: Any
    v: Any
    centre: Any
    marks: Any
    backend: str

    @property
    def nbytes(self) -> int:
        """Bytes of all its arrays."""
        return self.layout.nbytes(self.batch)
