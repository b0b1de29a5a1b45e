"""One body with all it is rendered from, and what a layout's codecs give to it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from kvcore.compiler.body import read_body
from kvcore.compiler.kernel import Buf, KernelDecl, Val
from kvcore.compiler.render import Constant, Source, float_bits, render
from kvcore.compiler.target import get_target
from kvcore.layout import Layout
from kvcore.quantize import level_table, threshold_table
from kvcore.spec import Codec, Packing, Rounding, Rule

OPS = Path(__file__).parent.parent / "ops"
"""Where the bodies lie."""

_RULES = {Rule.ABSMAX: 0, Rule.SIGNED_ABSMAX: 1, Rule.RMS: 2}
_ROUNDINGS = {
    Rounding.DIVIDE_HALF_EVEN: 0,
    Rounding.RECIPROCAL_HALF_AWAY: 1,
    Rounding.RECIPROCAL_TRUNC: 2,
    Rounding.NEAREST_LEVEL: 3,
}
_FLOATS = {"f32": 0, "f16": 1, "bf16": 2}


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """One body with all it is rendered from.

    Attributes
    ----------
    kernels : tuple of KernelDecl
    constants : mapping of str to Constant
    tables : mapping of str to tuple of int
    path : Path
    """

    kernels: tuple[KernelDecl, ...]
    constants: Mapping[str, Constant]
    tables: Mapping[str, tuple[int, ...]]
    path: Path

    def render(self, target: str) -> Source:
        """Return the source for a target."""
        return render(
            self.kernels, self.constants, self.tables, read_body(self.path), get_target(target)
        )


def _codec_constants(store: str, codec: Codec, head_dim: int) -> dict[str, Constant]:
    kind = _FLOATS[codec.float_type] if codec.float_type else (4 if codec.codebook else 3)
    scale, levels = codec.scale, codec.levels or (0.0,)
    grid = kind == 3
    values: dict[str, Constant] = {
        "DIM": head_dim,
        "KIND": kind,
        "BITS": codec.bits,
        "PER_BYTE": max(1, 8 // codec.bits),
        "CODE_MASK": 2 ** min(codec.bits, 8) - 1,
        "GROUP": scale.group if scale else 32,
        "PER_CHANNEL": int(codec.per_channel),
        "RULE": _RULES[scale.rule] if scale else 0,
        "ROUNDING": _ROUNDINGS[codec.rounding] if codec.rounding else 3,
        "DIVISOR": float(scale.divisor) if scale else 1.0,
        "STORED": int(scale.stored) if scale else 1,
        "SIGNED": int(codec.signed),
        "ZERO": codec.zero,
        "LOW": int(levels[0]) + codec.zero if grid else 0,
        "HIGH": int(levels[-1]) + codec.zero if grid else len(levels) - 1,
        "N_LEVELS": len(levels),
        "HALVES": int(codec.packing is Packing.HALVES),
        "ROW_BYTES": codec.row_bytes(head_dim),
    }
    return {f"{store.upper()}_{name}": value for name, value in values.items()}


def codec_tables(layout: Layout) -> dict[str, tuple[int, ...]]:
    """Return levels and thresholds of both stores; one zero where a codec has no codebook."""
    tables = {}
    for store in ("k", "v"):
        codec = layout.codec(store)
        levels = level_table(codec)[: len(codec.levels)] if codec.codebook else np.zeros(1)
        middles = threshold_table(codec) if codec.codebook else np.zeros(1)
        tables[f"{store}_levels"] = tuple(float_bits(float(x)) for x in levels)
        tables[f"{store}_thresholds"] = tuple(float_bits(float(x)) for x in middles)
    return tables


def layout_constants(layout: Layout) -> dict[str, Constant]:
    """Return what `codec.h` asks of both stores."""
    return {
        **_codec_constants("k", layout.k, layout.head_dim_k),
        **_codec_constants("v", layout.v, layout.head_dim_v),
    }


def planes(const: bool) -> tuple[Buf, ...]:
    """Return the four planes of a pool."""
    return (
        Buf("k_codes", "u8", const=const),
        Buf("k_scales", "f16", const=const),
        Buf("v_codes", "u8", const=const),
        Buf("v_scales", "f16", const=const),
    )


GEOMETRY = (
    Val("n_heads", "i32"),
    Val("page_size", "i32"),
    Val("n_pages_each", "i32"),
    Val("n_pages", "i32"),
)
"""Heads, cells per page, pages of one table row, pages of the pool."""

RINGS = (
    Val("sinks", "i32"),
    Val("k_ring", "i32"),
    Val("v_ring", "i32"),
    Val("n_k_slots", "i32"),
    Val("n_v_slots", "i32"),
)


def ints(*names: str) -> tuple[Val, ...]:
    """Return i32 values."""
    return tuple(Val(name, "i32") for name in names)


def read(*names: str, ctype: str = "i32") -> tuple[Buf, ...]:
    """Return buffers that are only read."""
    return tuple(Buf(name, ctype, const=True) for name in names)
