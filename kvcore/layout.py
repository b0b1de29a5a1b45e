"""Where the bytes of a cell lie: planes of a pool, exact slots of a sequence.

The layout is the same on every backend, so that a snapshot saved on one loads on another.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kvcore.spec import GROUP_CELLS, SLACK, Codec


@dataclass(frozen=True, kw_only=True)
class Plane:
    """One array of a pool.

    Attributes
    ----------
    name : str
        "k_codes", "k_scales", "v_codes" or "v_scales".
    shape : tuple of int
    dtype : str
        "u1" (codes, bytes) or "f2" (scales).
    """

    name: str
    shape: tuple[int, ...]
    dtype: str

    @property
    def nbytes(self) -> int:
        """Bytes of the plane."""
        n = 1 if self.dtype == "u1" else 2
        for s in self.shape:
            n *= s
        return n


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Geometry of a pool and what an append into it needs to know.

    Attributes
    ----------
    k, v : Codec
    n_kv_heads, head_dim_k, head_dim_v : int
    page_size : int
        P cells.
    k_gain : float or "unbiased"
    rule : str
        Scale rule of partial groups in eager grouping: "shrink", "n" or "old".
    """

    k: Codec
    v: Codec
    n_kv_heads: int
    head_dim_k: int
    head_dim_v: int
    page_size: int = 32
    k_gain: Any = 1.0
    rule: str = "shrink"

    @property
    def per_channel(self) -> bool:
        """True if K or V has per-channel scales."""
        return self.k.per_channel or self.v.per_channel

    @property
    def unit_pages(self) -> int:
        """U: pages that must move and lie together (32/P for a per-channel codec, else 1)."""
        return max(1, GROUP_CELLS // self.page_size) if self.per_channel else 1

    @property
    def unit_cells(self) -> int:
        """Cells of one unit."""
        return self.unit_pages * self.page_size

    def codec(self, store: str) -> Codec:
        """Return the codec of store "k" or "v"."""
        return self.k if store == "k" else self.v

    def head_dim(self, store: str) -> int:
        """Return the head size of store "k" or "v"."""
        return self.head_dim_k if store == "k" else self.head_dim_v

    def planes(self, n_pages: int) -> tuple[Plane, ...]:
        """Return the planes of a pool of `n_pages` pages (a multiple of `unit_pages`).

        Codes are ``u8[page, H, P, row_bytes]``. Scales are ``f16[page, H, P, D/G]`` along the
        head dimension, or ``f16[unit, H, max(1, P/32), D]`` along cells, where unit =
        page // unit_pages.
        """
        out = []
        h, p = self.n_kv_heads, self.page_size
        for store in ("k", "v"):
            codec, d = self.codec(store), self.head_dim(store)
            out.append(
                Plane(name=f"{store}_codes", shape=(n_pages, h, p, codec.row_bytes(d)), dtype="u1")
            )
            if codec.scale is None:
                continue
            if codec.per_channel:
                units = n_pages // self.unit_pages
                shape: tuple[int, ...] = (units, h, max(1, p // GROUP_CELLS), d)
            else:
                shape = (n_pages, h, p, d // codec.scale.group)
            out.append(Plane(name=f"{store}_scales", shape=shape, dtype="f2"))
        return tuple(out)

    def pages_for(self, n_cells: int) -> int:
        """Return the pages that hold `n_cells` cells, rounded up to whole units."""
        units = -(-n_cells // self.unit_cells)
        return units * self.unit_pages

    def nbytes(self, n_pages: int) -> int:
        """Return the bytes of a pool of `n_pages` pages."""
        return sum(plane.nbytes for plane in self.planes(n_pages))

    @property
    def unit_bytes(self) -> int:
        """Bytes that move when one unit moves: all planes, codes and scales."""
        return self.nbytes(self.unit_pages)


# Columns of a state's marks, i32[B, N_MARKS]. A store's cells at or beyond its frontier are not yet
# in the bulk; its ring holds cells at or beyond its ring_lo; CENTRED is 1 once the centre is fixed.
(
    COMMITTED,
    LENGTH,
    K_FRONTIER,
    V_FRONTIER,
    K_RING_LO,
    V_RING_LO,
    CENTRED,
    FLAG,
) = range(8)
N_MARKS = 8
EVERYTHING = 2**31 - 1
"""Frontier of a store whose cells all go to the bulk at once."""


@dataclass(frozen=True, kw_only=True)
class StateLayout:
    """Exact slots and bookkeeping of one sequence in one layer.

    A cell below `sinks` has the slot of its number; any other cell c has slot
    ``sinks + c % ring`` of each store's own ring.

    Attributes
    ----------
    layout : Layout
    sinks, window : int
    deferred : bool
        A per-channel group is quantized once, when it is complete and committed.
    centred : bool
        A vector per head is subtracted from K before it is quantized.
    center_cells : int
        F: cells an automatic centre is made of; 0 if it is calibrated or there is none.
    """

    layout: Layout
    sinks: int = 0
    window: int = 0
    deferred: bool = True
    centred: bool = False
    center_cells: int = 0

    @property
    def overlay(self) -> bool:
        """True if sinks or window cells are kept exact for good."""
        return self.sinks > 0 or self.window > 0

    def _open_cells(self, store: str) -> int:
        waits = self.deferred and self.layout.codec(store).per_channel
        cells = GROUP_CELLS if waits else 0
        return max(cells, self.center_cells) if store == "k" else cells

    def ring(self, store: str) -> int:
        """Return R: ring slots of store "k" or "v"; 0 if it keeps no exact cell."""
        opened = self._open_cells(store)
        if not self.overlay:
            return opened + SLACK if opened else 0
        group = GROUP_CELLS if self.deferred and self.layout.per_channel else 0
        return max(self.window, group, opened) + SLACK

    def slots(self, store: str) -> int:
        """Return the exact slots of store "k" or "v"."""
        ring = self.ring(store)
        return self.sinks + ring if ring else 0

    def delayed(self, store: str) -> bool:
        """True if cells of the store may be quantized after they were appended.

        Such a store is always encoded from the float16 value the exact slots hold.
        """
        codec = self.layout.codec(store)
        return (self.deferred and codec.per_channel) or (store == "k" and self.centred)

    def nbytes(self, batch: int = 1) -> int:
        """Return the bytes of exact slots, centre and marks of `batch` sequences."""
        h = self.layout.n_kv_heads
        n = sum(self.slots(s) * h * self.layout.head_dim(s) * 2 for s in ("k", "v"))
        centre = h * self.layout.head_dim_k * 2 if self.centred else 0
        return batch * (n + centre + 4 * N_MARKS)
