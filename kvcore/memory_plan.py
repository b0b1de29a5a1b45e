"""What a cache will take in memory, before anything is allocated, and what fits in a given one.

The sums are those of :class:`kvcore.layout.Layout` and :class:`kvcore.layout.StateLayout`, so a
plan equals the ``nbytes`` of the caches it describes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from kvcore.cache_spec import CacheSpec
from kvcore.errors import FormatError, ShapeError, message
from kvcore.formats import names as format_names
from kvcore.layout import N_MARKS, StateLayout
from kvcore.spec import SLACK

STORES = ("k", "v")


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryPlan:
    """Bytes of a model's caches. Unless said otherwise: one layer, all sequences.

    Attributes
    ----------
    spec : CacheSpec
    layers, context, batch : int
        As asked for; `context` in cells of each sequence.
    cells : int
        `context` rounded up to whole units of pages.
    planes : mapping of str to int
        Bytes by plane of the pool.
    overlay : int
        Exact float16 slots of sinks and window, slack included.
    tail : int
        Further exact slots: of groups not yet complete, of cells that wait for the centre.
    centre : int
    marks : int
    """

    spec: CacheSpec
    layers: int
    context: int
    batch: int
    cells: int
    planes: Mapping[str, int]
    overlay: int
    tail: int
    centre: int
    marks: int

    @property
    def pool(self) -> int:
        """Bytes of all planes."""
        return sum(self.planes.values())

    @property
    def per_layer(self) -> int:
        """Bytes of one layer: what ``cache.nbytes`` says, times the batch."""
        return self.pool + self.overlay + self.tail + self.centre + self.marks

    @property
    def total(self) -> int:
        """Bytes over all layers."""
        return self.layers * self.per_layer

    @property
    def f16_total(self) -> int:
        """Bytes of the same cells in float16, with nothing beside them, over all layers."""
        spec = self.spec
        values = spec.n_kv_heads * (spec.head_dim + int(spec.head_dim_v))
        return self.layers * self.batch * self.context * values * 2

    def parts(self) -> dict[str, int]:
        """Return bytes by part of one layer: each plane, then overlay, tail, centre and marks."""
        return {
            **self.planes,
            "overlay": self.overlay,
            "tail": self.tail,
            "centre": self.centre,
            "marks": self.marks,
        }


def plan(spec: CacheSpec, layers: int = 1, context: int = 4096, batch: int = 1) -> MemoryPlan:
    """Return the bytes that the caches of a model take.

    Parameters
    ----------
    spec : CacheSpec
        What each layer's cache holds.
    layers : int
    context : int
        Cells of each sequence.
    batch : int
        Sequences.

    Raises
    ------
    ShapeError
        If a count is not a whole number of at least 1.
    """
    for name, value in (("layers", layers), ("context", context), ("batch", batch)):
        _check_count(name, value)
    layout, state = spec.layout, spec.state_layout
    n_pages = layout.pages_for(int(context))
    overlay, tail = _exact_bytes(state)
    centred = layout.n_kv_heads * layout.head_dim_k * 2 if state.centred else 0
    return MemoryPlan(
        spec=spec,
        layers=int(layers),
        context=int(context),
        batch=int(batch),
        cells=n_pages * layout.page_size,
        planes={p.name: p.nbytes * int(batch) for p in layout.planes(n_pages)},
        overlay=overlay * int(batch),
        tail=tail * int(batch),
        centre=centred * int(batch),
        marks=4 * N_MARKS * int(batch),
    )


def _check_count(name: str, value: Any, least: int = 1) -> None:
    whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
    if not whole or value < least:
        raise ShapeError(message("plan", name, got=value, expected=f"a whole number >= {least}"))


def _exact_bytes(state: StateLayout) -> tuple[int, int]:
    """Return the exact slots' bytes of one sequence, split into overlay and tail."""
    overlay = tail = 0
    for store in STORES:
        slot_bytes = state.layout.n_kv_heads * state.layout.head_dim(store) * 2
        kept = state.sinks + state.window + SLACK if state.overlay else 0
        overlay += kept * slot_bytes
        tail += (state.slots(store) - kept) * slot_bytes
    return overlay, tail


def longest_context(spec: CacheSpec, memory_bytes: int, layers: int = 1, batch: int = 1) -> int:
    """Return the most cells of each sequence whose caches fit in `memory_bytes`; 0 if none do.

    Raises
    ------
    ShapeError
        If a count is not a whole number (of at least 1; 0 for the memory).
    """
    _check_count("layers", layers)
    _check_count("batch", batch)
    _check_count("memory_bytes", memory_bytes, 0)
    left = int(memory_bytes) // (int(layers) * int(batch)) - spec.state_layout.nbytes(1)
    return max(left // spec.layout.unit_bytes, 0) * spec.layout.unit_cells


@dataclass(frozen=True, kw_only=True, slots=True)
class Fit:
    """How far one format reaches in a given memory.

    Attributes
    ----------
    format : str
    bytes_per_cell : int
        0 if the format does not hold heads of this size.
    context : int
        The longest context in cells; 0 if nothing fits.
    plan : MemoryPlan or None
        The plan at that context.
    reason : str
        Why the format cannot be used, or why nothing fits.
    """

    format: str
    bytes_per_cell: int = 0
    context: int = 0
    plan: MemoryPlan | None = field(default=None, repr=False)
    reason: str = ""


def fits(
    memory_bytes: int,
    *,
    n_kv_heads: int,
    head_dim: int,
    head_dim_v: int | None = None,
    layers: int = 1,
    batch: int = 1,
    formats: Iterable[Any] | None = None,
    **fields: Any,
) -> tuple[Fit, ...]:
    """Return the longest context of each format in a given memory.

    Parameters
    ----------
    memory_bytes : int
        For the caches of all layers and sequences.
    n_kv_heads, head_dim, head_dim_v : int
    layers, batch : int
    formats : iterable of str or Format, optional
        All known ones by default.
    **fields
        Other fields of `CacheSpec`, such as ``recipe=None`` or ``page_size=16``.

    Raises
    ------
    FormatError, ShapeError
        On an unknown format or a field that cannot be; a format that does not hold heads of this
        size is answered with the reason instead.
    """
    # What no format could mend is the caller's mistake, not an answer per format.
    CacheSpec(format="f32", n_kv_heads=n_kv_heads, head_dim=head_dim, head_dim_v=head_dim_v)
    out = []
    for fmt in format_names() if formats is None else formats:
        name = str(getattr(fmt, "name", fmt))
        try:
            spec = CacheSpec(
                format=fmt,
                n_kv_heads=n_kv_heads,
                head_dim=head_dim,
                head_dim_v=head_dim_v,
                **fields,
            )
        except FormatError as error:
            if formats is not None:
                raise
            out.append(Fit(format=name, reason=str(error)))
            continue
        n = longest_context(spec, memory_bytes, layers, batch)
        out.append(
            Fit(
                format=name,
                bytes_per_cell=spec.bytes_per_cell,
                context=n,
                plan=plan(spec, layers, n, batch) if n else None,
                reason="" if n else _too_little(spec, memory_bytes, layers, batch),
            )
        )
    return tuple(out)


def _too_little(spec: CacheSpec, memory_bytes: int, layers: int, batch: int) -> str:
    cells = spec.layout.unit_cells
    least = plan(spec, layers, cells, batch).total
    return message(
        "plan",
        f"{spec.format.name} has no room for one page",
        got=f"{memory_bytes} bytes",
        expected=f">= {least}",
        fix=f"{cells} cells take {least} bytes",
    )
