"""What each body needs to be rendered: entries, constants and tables, from a layout. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

from kvcore.compiler.body import read_body
from kvcore.compiler.kernel import Buf, KernelDecl, Local, Val
from kvcore.compiler.render import Constant, Source, float_bits, render
from kvcore.compiler.target import get_target
from kvcore.layout import Layout, StateLayout
from kvcore.quantize import level_table, threshold_table
from kvcore.spec import Codec, Packing, Rounding, Rule

OPS = Path(__file__).parent.parent / "ops"
CAST = Path(__file__).parent / "cast.c"
LANES = 64
SPLIT = 256
"""Cells that one group of lanes attends over; the same everywhere, so that bits agree."""

_RULES = {Rule.ABSMAX: 0, Rule.SIGNED_ABSMAX: 1, Rule.RMS: 2}
_ROUNDINGS = {
    Rounding.DIVIDE_HALF_EVEN: 0,
    Rounding.RECIPROCAL_HALF_AWAY: 1,
    Rounding.RECIPROCAL_TRUNC: 2,
    Rounding.NEAREST_LEVEL: 3,
}
_FLOATS = {"f32": 0, "f16": 1, "bf16": 2}
_TILE_BYTES = 16384
_MAX_ACCUMULATORS = 32


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


def _tables(layout: Layout) -> dict[str, tuple[int, ...]]:
    tables = {}
    for store in ("k", "v"):
        codec = layout.codec(store)
        levels = level_table(codec)[: len(codec.levels)] if codec.codebook else np.zeros(1)
        middles = threshold_table(codec) if codec.codebook else np.zeros(1)
        tables[f"{store}_levels"] = tuple(float_bits(float(x)) for x in levels)
        tables[f"{store}_thresholds"] = tuple(float_bits(float(x)) for x in middles)
    return tables


def _layout_constants(layout: Layout) -> dict[str, Constant]:
    return {
        **_codec_constants("k", layout.k, layout.head_dim_k),
        **_codec_constants("v", layout.v, layout.head_dim_v),
    }


def _planes(const: bool) -> tuple[Buf, ...]:
    return (
        Buf("k_codes", "u8", const=const),
        Buf("k_scales", "f16", const=const),
        Buf("v_codes", "u8", const=const),
        Buf("v_scales", "f16", const=const),
    )


_GEOMETRY = (Val("n_heads", "i32"), Val("page_size", "i32"), Val("n_pages_each", "i32"))
_RINGS = (
    Val("sinks", "i32"),
    Val("k_ring", "i32"),
    Val("v_ring", "i32"),
    Val("n_k_slots", "i32"),
    Val("n_v_slots", "i32"),
)


def _ints(*names: str) -> tuple[Val, ...]:
    return tuple(Val(name, "i32") for name in names)


def _read(*names: str, ctype: str = "i32") -> tuple[Buf, ...]:
    return tuple(Buf(name, ctype, const=True) for name in names)


@cache
def rotate_recipe(block: int) -> Recipe:
    """Return what rotates blocks of a power of two."""
    lanes = min(block // 2, 256)
    kernel = KernelDecl(
        "rotate",
        args=(Buf("x", "f32", const=True, alias=True), Buf("y", "f32", alias=True), *_ints("n_blocks", "n_columns")),
        locals=(Local("values", "f32", block),),
        lanes=lanes,
    )
    scale = float(np.float32(1.0 / np.sqrt(block)))
    return Recipe(
        kernels=(kernel,),
        constants={"BLOCK": block, "LANES": lanes, "SCALE": scale},
        tables={},
        path=OPS / "rotate.c",
    )


def _append_kernels() -> tuple[KernelDecl, ...]:
    fresh = (*_read("k", "v", ctype="f32"),)
    slots = (*_read("k_slots", "v_slots", "centre", ctype="f16"),)
    maps = _read("marks", "next", "starts", "counts", "source", "table")
    store = (*fresh, *slots, *maps)
    numbers = (
        *_GEOMETRY, *_RINGS, *_ints("n_tokens", "n_sequences", "n_chunks", "unbiased", "rule"),
        Val("gain", "f32"),
    )  # fmt: skip
    plan = KernelDecl(
        "plan",
        args=(
            *_read("marks", "positions", "table", "commit"),
            Buf("next", "i32"), Buf("starts", "i32"), Buf("counts", "i32"),
            Buf("source", "i32"), Buf("errors", "i32"),
            *_ints("n_sequences", "n_tokens", "page_size", "n_pages_each", "has_state", "draft"),
            *_ints("has_commit", "needs_run", "k_ring", "v_ring"),
        ),
    )  # fmt: skip
    centre = KernelDecl(
        "fix_centre",
        args=(
            *_read("k", ctype="f32"), *_read("k_slots", ctype="f16"), Buf("centre", "f16"),
            *_read("marks", "next", "starts", "source"),
            *_ints("n_heads", "n_tokens", "sinks", "k_ring", "n_k_slots"),
        ),
    )  # fmt: skip
    rows = KernelDecl(
        "rows",
        args=(*store, *_read("positions"), *_planes(const=False), *numbers, *_ints("has_state")),
    )
    groups = KernelDecl("groups", args=(*store, *_planes(const=False), *numbers))
    eager = KernelDecl("eager", args=(*store, *_planes(const=False), *numbers))
    exact = KernelDecl(
        "exact",
        args=(
            *fresh, Buf("k_slots", "f16"), Buf("v_slots", "f16"), Buf("marks", "i32"),
            *_read("next", "starts", "counts", "source"),
            *_ints("n_heads", "n_tokens", "n_chunks"), *_RINGS,
        ),
    )  # fmt: skip
    return plan, centre, rows, groups, eager, exact


@cache
def append_recipe(layout: Layout, state: StateLayout | None) -> Recipe:
    """Return what appends into pools of a layout, with or without states."""
    return Recipe(
        kernels=_append_kernels(),
        constants={
            **_layout_constants(layout),
            "DEFERRED": int(state is not None and state.deferred),
            "CENTRE": int(state is not None and state.centred),
            "CENTER_CELLS": state.center_cells if state is not None else 0,
        },
        tables=_tables(layout),
        path=OPS / "append.c",
    )


@cache
def gather_recipe(layout: Layout) -> Recipe:
    """Return what gathers cells of a layout."""
    kernel = KernelDecl(
        "gather",
        args=(
            *_planes(const=True), *_read("table", "ids"), Buf("k", "f16"), Buf("v", "f16"),
            Buf("errors", "i32"), *_GEOMETRY, *_ints("n_ids", "n_chunks"),
        ),
    )  # fmt: skip
    return Recipe(
        kernels=(kernel,),
        constants=_layout_constants(layout),
        tables=_tables(layout),
        path=OPS / "gather.c",
    )


@cache
def restore_recipe(layout: Layout, centred: bool) -> Recipe:
    """Return what restores overlays of a layout."""
    kernel = KernelDecl(
        "restore",
        args=(
            *_planes(const=True), *_read("table", "marks", "lengths"),
            *_read("centre", ctype="f16"), Buf("k_slots", "f16"), Buf("v_slots", "f16"),
            Buf("errors", "i32"), *_GEOMETRY, *_RINGS, *_ints("window", "n_chunks"),
        ),
    )  # fmt: skip
    reach = KernelDecl(
        "reach",
        args=(
            Buf("marks", "i32"), *_read("lengths"),
            *_ints("n_sequences", "window", "k_ring", "v_ring"),
        ),
    )  # fmt: skip
    return Recipe(
        kernels=(kernel, reach),
        constants={**_layout_constants(layout), "CENTRE": int(centred)},
        tables=_tables(layout),
        path=OPS / "restore.c",
    )


@dataclass(frozen=True, kw_only=True)
class AttentionShape:
    """How the work of attention is cut.

    Attributes
    ----------
    tile : int
        Cells dequantized at a time.
    heads, chunks : int
        Query heads of one KV head that one group of lanes takes, and how many such parts there are.
    """

    tile: int
    heads: int
    chunks: int


def attention_shape(layout: Layout, group_heads: int) -> AttentionShape:
    """Return how attention is cut for `group_heads` query heads per KV head."""
    widest = max(layout.head_dim_k, layout.head_dim_v)
    tile = 32
    while tile > 1 and tile * widest * 4 > _TILE_BYTES:
        tile //= 2
    heads = min(group_heads, 16, max(1, _MAX_ACCUMULATORS * LANES // layout.head_dim_v))
    return AttentionShape(tile=tile, heads=heads, chunks=-(-group_heads // heads))


@cache
def attention_recipe(layout: Layout, centred: bool, group_heads: int) -> Recipe:
    """Return what attends over pools of a layout."""
    shape = attention_shape(layout, group_heads)
    widest = max(layout.head_dim_k, layout.head_dim_v)
    split = KernelDecl(
        "split",
        args=(
            *_read("q", ctype="f32"), *_planes(const=True),
            *_read("table", "lengths", "ids", "marks"),
            *_read("k_slots", "v_slots", "centre", ctype="f16"),
            *_read("own_k", "own_v", ctype="f32"),
            Buf("partial", "f32"), Buf("sums", "f32"), Buf("errors", "i32"),
            *_GEOMETRY, *_RINGS,
            *_ints("n_tokens", "n_splits", "n_ids", "per_query", "has_ids", "ids_per_query"),
            *_ints("has_state", "has_own", "window", "limit"),
            Val("scale", "f32"), Val("softcap", "f32"),
        ),
        locals=(
            Local("place", "i64", 4 * shape.tile),
            Local("tile", "f32", shape.tile * widest),
            Local("weights", "f32", shape.heads * shape.tile),
            Local("shrinks", "f32", shape.heads),
            Local("where", "i32", 2 * shape.tile),
        ),
    )  # fmt: skip
    merge = KernelDecl(
        "merge",
        args=(
            *_read("partial", "sums", ctype="f32"), Buf("out", "f32"), Buf("lse", "f32"),
            *_ints("n_splits", "n_queries"),
        ),
    )  # fmt: skip
    return Recipe(
        kernels=(split, merge),
        constants={
            **_layout_constants(layout),
            "CENTRE": int(centred),
            "GROUP_HEADS": group_heads,
            "HEADS": shape.heads,
            "N_CHUNKS": shape.chunks,
            "TILE": shape.tile,
            "SPLIT": SPLIT,
            "N_ACC": -(-shape.heads * layout.head_dim_v // LANES),
        },
        tables=_tables(layout),
        path=OPS / "attention.c",
    )


@cache
def plain_recipe(name: str) -> Recipe:
    """Return an op whose body depends on no codec: move, ring_table, resolve or select."""
    kernels = {
        "move": (
            KernelDecl(
                "move",
                args=(
                    *_read("origin", ctype="u8"), Buf("target", "u8"),
                    *_read("from_units", "to_units"), Val("unit_bytes", "i64"), *_ints("n_chunks"),
                ),
            ),
        ),
        "ring_table": (
            KernelDecl("ring_table", args=(Buf("slots", "i32"), *_ints("n_blocks", "n_slots",
                                                                      "unit"))),
        ),
        "resolve": (
            KernelDecl(
                "resolve",
                args=(
                    *(Buf(n, "i32") for n in ("table", "slot_unit", "slot_stamp", "slot_ref",
                                              "ctl")),
                    *_read("ids"), Buf("missing", "i32"), Buf("moves", "i32"),
                    Buf("errors", "i32"),
                    *_ints("n_queries", "n_ids", "n_units", "n_slots", "unit_cells"),
                ),
                lanes=1,
            ),
        ),
        "select": (
            KernelDecl(
                "scores",
                args=(
                    *_read("keys", "dead", "q", ctype="f32"), *_read("lengths"),
                    Buf("out", "f32"),
                    *_ints("n_blocks", "n_heads", "dim", "block_cells", "n_chunks"),
                ),
            ),
            KernelDecl(
                "choose",
                args=(
                    *_read("out", ctype="f32"), *_read("lengths"), Buf("chosen", "i32"),
                    *_ints("n_blocks", "width", "block_cells"),
                ),
                locals=(Local("above", "i32", 64), Local("ties", "i32", 64)),
            ),
        ),
    }[name]  # fmt: skip
    return Recipe(kernels=kernels, constants={}, tables={}, path=OPS / f"{name}.c")


@cache
def cast_recipe() -> Recipe:
    """Return what packs callers' arrays."""
    shape = (*_ints("n", "n1", "n2", "n3", "kind"), *(Val(f"s{i}", "i64") for i in range(4)))
    kernels = tuple(
        KernelDecl(f"to_{ctype}", args=(Buf("x", "u8", const=True), Buf("y", ctype), *shape))
        for ctype in ("f32", "i32")
    )
    return Recipe(kernels=kernels, constants={}, tables={}, path=CAST)
