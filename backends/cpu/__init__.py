"""The CPU backend: kernels compiled by numba, run on threads of its own.

Importing it needs NumPy only; numba is imported by the first op.
"""

from __future__ import annotations

import importlib.util
import os
import platform
from importlib import metadata
from typing import Any

import numpy as np

from kvcore.backend import Availability, Backend
from kvcore.cache_spec import CacheSpec
from kvcore.numerics import I32
from kvcore.ops.move import check_move
from kvcore.ops.ring_table import check_ring
from kvcore.pool import Pool, State
from kvcore.registry import implements, link
from kvcore.residency import Residency


class Cpu(Backend):
    """NumPy arrays of the host; every op compiled, none holds the GIL for long."""

    name = "cpu"

    @classmethod
    def probe(cls) -> Availability:
        """Return whether numba is installed, without importing it."""
        device = f"{platform.processor() or platform.machine()}, {os.cpu_count()} threads"
        if importlib.util.find_spec("numba") is None:
            return Availability(
                available=False,
                device=device,
                kind="cpu",
                reason="numba is not installed; pip install 'kvcore[cpu]'",
            )
        version = f"numba {metadata.version('numba')}"
        return Availability(available=True, device=device, kind="cpu", version=version)

    def kernel_name(self, op: str, spec: CacheSpec) -> str:
        """Return which code runs for an op."""
        names = {
            "attention": "numba attend, merge",
            "append": "numba write_groups / write_rows",
            "move": "NumPy indexing",
            "ring_table": "NumPy arithmetic",
        }
        return names.get(op, f"numba {op}")

    @implements("rotate", version=1)
    def rotate(self, x: Any, out: Any = None) -> Any:
        """See :func:`kvcore.ops.rotate.rotate`."""
        from . import small_ops

        return small_ops.rotate(x, out)

    @implements("append", version=1)
    def append(
        self,
        pool: Pool,
        table: Any,
        positions: Any,
        k: Any,
        v: Any,
        state: State | None = None,
        draft: bool = False,
        commit: Any = None,
        scratch: Any = None,
    ) -> None:
        """See :func:`kvcore.ops.append.append`."""
        from .append import append

        append(pool, table, positions, k, v, state, draft, commit)

    @implements("gather", version=1)
    def gather(self, pool: Pool, table: Any, ids: Any) -> Any:
        """See :func:`kvcore.ops.gather.gather`."""
        from . import small_ops

        return small_ops.gather(pool, table, ids)

    @implements("attention", version=1)
    def attention(
        self,
        q: Any,
        pool: Pool,
        table: Any,
        lengths: Any,
        ids: Any = None,
        state: State | None = None,
        scale: Any = None,
        softcap: Any = None,
        window: Any = None,
        k: Any = None,
        v: Any = None,
        return_lse: bool = False,
        out: Any = None,
        scratch: Any = None,
    ) -> Any:
        """See :func:`kvcore.ops.attention.attention`."""
        from .attention import attention

        return attention(
            q, pool, table, lengths, ids, state, scale, softcap, window, k, v, return_lse, out
        )

    @implements("restore", version=1)
    def restore(self, overlay: State, pool: Pool, table: Any, n_cells: Any) -> None:
        """See :func:`kvcore.ops.restore.restore`."""
        from . import small_ops

        small_ops.restore(overlay, pool, table, n_cells)

    @implements("ring_table", version=1)
    def ring_table(self, n_blocks: int, n_slots: int, unit: int = 1) -> I32:
        """See :func:`kvcore.ops.ring_table.ring_table`."""
        blocks, slots, unit = check_ring(n_blocks, n_slots, unit)
        whole, part = np.divmod(np.arange(blocks, dtype=np.int32), np.int32(unit))
        return np.asarray(whole % (slots // unit) * unit + part, np.int32)

    @implements("move", version=1)
    def move(self, src: Pool, src_pages: Any, dst: Pool, dst_pages: Any) -> None:
        """See :func:`kvcore.ops.move.move`."""
        a, b = check_move(src, src_pages, dst, dst_pages)
        u = src.layout.unit_pages
        for plane in src.layout.planes(src.n_pages):
            by_unit = plane.shape[0] != src.n_pages
            to, of = (b[::u] // u, a[::u] // u) if by_unit else (b, a)
            dst.planes[plane.name][to] = src.planes[plane.name][of]

    @implements("resolve", version=1)
    def resolve(self, residency: Residency, ids: Any) -> Any:
        """See :func:`kvcore.ops.resolve.resolve`."""
        from . import small_ops

        return small_ops.resolve(residency, ids)

    @implements("select", version=1)
    def select(self, keys: Any, dead: Any, q: Any, lengths: Any, width: int, block: int = 4) -> Any:
        """See :func:`kvcore.ops.select.select`."""
        from . import small_ops

        return small_ops.select(keys, dead, q, lengths, width, block)


BACKEND = link(Cpu)
