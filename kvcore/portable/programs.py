"""The recipe of every op's body for a layout. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

from kvcore.compiler.kernel import Buf, KernelDecl, Local, Val
from kvcore.layout import Layout, StateLayout
from kvcore.portable.recipe import (
    GEOMETRY,
    OPS,
    RINGS,
    Recipe,
    codec_tables,
    ints,
    layout_constants,
    planes,
    read,
)

CAST = Path(__file__).parent / "cast.c"
LANES = 64
SPLIT = 256
"""Cells that one group of lanes attends over; the same everywhere, so that bits agree."""

PLAIN = ("move", "ring_table", "resolve", "select")
"""Ops whose body depends on no layout."""

_TILE_BYTES = 16384
_MAX_ACCUMULATORS = 32


@cache
def rotate_recipe(block: int) -> Recipe:
    """Return what rotates blocks of a power of two."""
    lanes = min(block // 2, 256)
    kernel = KernelDecl(
        "rotate",
        args=(
            Buf("x", "f32", const=True, alias=True), Buf("y", "f32", alias=True),
            *ints("n_blocks", "n_columns"),
        ),
        locals=(Local("values", "f32", block),),
        lanes=lanes,
    )  # fmt: skip
    scale = float(np.float32(1.0 / np.sqrt(block)))
    return Recipe(
        kernels=(kernel,),
        constants={"BLOCK": block, "LANES": lanes, "SCALE": scale},
        tables={},
        path=OPS / "rotate.c",
    )


def _append_kernels() -> dict[str, KernelDecl]:
    fresh = (*read("k", "v", ctype="f32"),)
    slots = (*read("k_slots", "v_slots", "centre", ctype="f16"),)
    maps = read("marks", "next", "starts", "counts", "source", "table")
    store = (*fresh, *slots, *maps)
    numbers = (
        *GEOMETRY, *RINGS, *ints("n_tokens", "n_sequences", "n_chunks", "unbiased", "rule"),
        Val("gain", "f32"),
    )  # fmt: skip
    plan = KernelDecl(
        "plan",
        args=(
            *read("marks", "positions", "table", "commit"),
            Buf("next", "i32"), Buf("starts", "i32"), Buf("counts", "i32"),
            Buf("source", "i32"), Buf("errors", "i32"),
            *ints("n_sequences", "n_tokens", "page_size", "n_pages_each", "n_pages", "has_state"),
            *ints("draft", "has_commit", "needs_run", "rule", "k_ring", "v_ring"),
        ),
        locals=tuple(Local(name, "i32", LANES) for name in ("counted", "firsts", "lasts")),
    )  # fmt: skip
    centre = KernelDecl(
        "fix_centre",
        args=(
            *read("k", ctype="f32"), *read("k_slots", ctype="f16"), Buf("centre", "f16"),
            *read("marks", "next", "starts", "source"),
            *ints("n_heads", "n_tokens", "sinks", "k_ring", "n_k_slots"),
        ),
    )  # fmt: skip
    rows = KernelDecl(
        "rows",
        args=(*store, *read("positions"), *planes(const=False), *numbers, *ints("has_state")),
    )
    groups = KernelDecl("groups", args=(*store, *planes(const=False), *numbers))
    eager = KernelDecl("eager", args=(*store, *planes(const=False), *numbers))
    exact = KernelDecl(
        "exact",
        args=(
            *fresh, Buf("k_slots", "f16"), Buf("v_slots", "f16"), Buf("marks", "i32"),
            *read("next", "starts", "counts", "source"),
            *ints("n_heads", "n_tokens", "n_chunks"), *RINGS,
        ),
    )  # fmt: skip
    return {kernel.name: kernel for kernel in (plan, centre, rows, groups, eager, exact)}


def append_entries(layout: Layout, state: StateLayout | None) -> tuple[str, ...]:
    """Return the entries that an append runs, in order."""
    deferred = state is not None and state.deferred
    wanted = {
        "plan": True,
        "fix_centre": state is not None and state.center_cells > 0,
        "rows": layout.k.per_row or layout.v.per_row,
        "groups": layout.per_channel and deferred,
        "eager": layout.per_channel and not deferred,
        "exact": state is not None,
    }
    return tuple(name for name, needed in wanted.items() if needed)


@cache
def append_recipe(layout: Layout, state: StateLayout | None) -> Recipe:
    """Return what appends into pools of a layout, with or without states."""
    entries = append_entries(layout, state)
    kernels = _append_kernels()
    return Recipe(
        kernels=tuple(kernels[name] for name in entries),
        constants={
            **layout_constants(layout),
            "DEFERRED": int("groups" in entries),
            "CENTRE": int(state is not None and state.centred),
            "CENTER_CELLS": state.center_cells if state is not None else 0,
            "HAS_ROWS": int("rows" in entries),
            "HAS_GROUPS": int("groups" in entries),
            "HAS_EAGER": int("eager" in entries),
            "HAS_STATE": int("exact" in entries),
        },
        tables=codec_tables(layout),
        path=OPS / "append.c",
    )


@cache
def gather_recipe(layout: Layout) -> Recipe:
    """Return what gathers cells of a layout."""
    kernel = KernelDecl(
        "gather",
        args=(
            *planes(const=True), *read("table", "ids"), Buf("k", "f16"), Buf("v", "f16"),
            Buf("errors", "i32"), *GEOMETRY, *ints("n_ids", "n_chunks"),
        ),
    )  # fmt: skip
    return Recipe(
        kernels=(kernel,),
        constants=layout_constants(layout),
        tables=codec_tables(layout),
        path=OPS / "gather.c",
    )


@cache
def restore_recipe(layout: Layout, centred: bool) -> Recipe:
    """Return what restores overlays of a layout."""
    kernel = KernelDecl(
        "restore",
        args=(
            *planes(const=True), *read("table", "marks", "lengths"),
            *read("centre", ctype="f16"), Buf("k_slots", "f16"), Buf("v_slots", "f16"),
            Buf("errors", "i32"), *GEOMETRY, *RINGS, *ints("window", "n_chunks"),
        ),
    )  # fmt: skip
    reach = KernelDecl(
        "reach",
        args=(
            Buf("marks", "i32"), *read("lengths"),
            *ints("n_sequences", "window", "k_ring", "v_ring"),
        ),
    )  # fmt: skip
    return Recipe(
        kernels=(kernel, reach),
        constants={**layout_constants(layout), "CENTRE": int(centred)},
        tables=codec_tables(layout),
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
            *read("q", ctype="f32"), *planes(const=True),
            *read("table", "lengths", "ids", "marks"),
            *read("k_slots", "v_slots", "centre", ctype="f16"),
            *read("own_k", "own_v", ctype="f32"),
            Buf("partial", "f32"), Buf("sums", "f32"), Buf("errors", "i32"),
            *GEOMETRY, *RINGS,
            *ints("n_tokens", "n_splits", "n_ids", "per_query", "has_ids", "ids_per_query"),
            *ints("has_state", "has_own", "window", "limit", "first_row", "first", "stop"),
            Val("scale", "f32"), Val("softcap", "f32"),
        ),
        locals=(
            Local("place", "i64", 4 * shape.tile),
            Local("tile", "f32", (shape.tile + 1) * widest),
            Local("weights", "f32", shape.heads * shape.tile),
            Local("shrinks", "f32", shape.heads),
            Local("tops", "f32", shape.heads),
            Local("totals", "f32", shape.heads),
            Local("where", "i32", 2 * shape.tile),
        ),
    )  # fmt: skip
    merge = KernelDecl(
        "merge",
        args=(
            *read("partial", "sums", ctype="f32"), Buf("out", "f32"), Buf("lse", "f32"),
            *ints("n_splits", "n_queries"),
        ),
    )  # fmt: skip
    return Recipe(
        kernels=(split, merge),
        constants={
            **layout_constants(layout),
            "CENTRE": int(centred),
            "GROUP_HEADS": group_heads,
            "HEADS": shape.heads,
            "N_CHUNKS": shape.chunks,
            "TILE": shape.tile,
            "SPLIT": SPLIT,
            "N_ACC": -(-shape.heads * layout.head_dim_v // LANES),
        },
        tables=codec_tables(layout),
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
                    *read("origin", ctype="u8"), Buf("target", "u8"),
                    *read("from_units", "to_units"), Val("unit_bytes", "i64"), *ints("n_chunks"),
                ),
            ),
        ),
        "ring_table": (
            KernelDecl("ring_table", args=(Buf("slots", "i32"), *ints("n_blocks", "n_slots",
                                                                      "unit"))),
        ),
        "resolve": (
            KernelDecl(
                "resolve",
                args=(
                    *(Buf(n, "i32") for n in ("table", "slot_unit", "slot_stamp", "slot_ref",
                                              "ctl")),
                    *read("ids"), Buf("missing", "i32"), Buf("moves", "i32"),
                    Buf("errors", "i32"),
                    *ints("n_queries", "n_ids", "n_units", "n_slots", "unit_cells"),
                ),
                lanes=1,
            ),
        ),
        "select": (
            KernelDecl(
                "scores",
                args=(
                    *read("keys", "dead", "q", ctype="f32"), *read("lengths"),
                    Buf("out", "f32"), Buf("errors", "i32"),
                    *ints("n_blocks", "n_keys", "n_heads", "dim", "block_cells", "n_chunks"),
                ),
            ),
            KernelDecl(
                "choose",
                args=(
                    *read("out", ctype="f32"), *read("lengths"), Buf("chosen", "i32"),
                    *ints("n_blocks", "n_keys", "width", "block_cells"),
                ),
                locals=(Local("above", "i32", 64), Local("ties", "i32", 64)),
            ),
        ),
    }[name]  # fmt: skip
    return Recipe(kernels=kernels, constants={}, tables={}, path=OPS / f"{name}.c")


@cache
def cast_recipe() -> Recipe:
    """Return what packs callers' arrays."""
    shape = (*ints("n", "n1", "n2", "n3", "kind"), *(Val(f"s{i}", "i64") for i in range(4)))
    kernels = tuple(
        KernelDecl(f"to_{ctype}", args=(Buf("x", "u8", const=True), Buf("y", ctype), *shape))
        for ctype in ("f32", "i32")
    )
    return Recipe(kernels=kernels, constants={}, tables={}, path=CAST)
