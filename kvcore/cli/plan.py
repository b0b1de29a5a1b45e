"""kvcore plan: bytes before anything is allocated, and what fits."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from kvcore.cli import show
from kvcore.cli.options import (
    Bare,
    FormatName,
    HeadDim,
    HeadDimV,
    Heads,
    Json,
    ModelFile,
    PageSize,
    Sinks,
    Window,
    make_spec,
    spec_facts,
)
from kvcore.memory_plan import Fit, MemoryPlan, fits, plan
from kvcore.model_geometry import ModelGeometry, read_geometry

NAME = "plan"
EXAMPLE = "kvcore plan --format q4_0 --heads 2 --head-dim 256 --layers 12 --context 262144"

_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}


def parse_size(text: str) -> int:
    """Return bytes from a text such as 8GiB, 8GB, 512M or 1000000.

    GB and the like are decimal; GiB and a bare G are binary.

    Raises
    ------
    typer.BadParameter
    """
    number = text.strip().lower()
    decimal = number.endswith("b") and not number.endswith("ib")
    number = number.removesuffix("b").removesuffix("i")
    unit = number[-1:] if number[-1:] in "kmgt" else ""
    try:
        value = float(number.removesuffix(unit)) * (1000 if decimal else 1024) ** _POWERS[unit]
    except ValueError:
        value = -1.0
    if not 0 < value < 2**63:
        raise typer.BadParameter(f"a size: got {text!r}, expected something like 8GiB or 8GB")
    return int(value)


def run(
    format: FormatName = "q2k",
    model_file: ModelFile = None,
    heads: Heads = None,
    head_dim: HeadDim = None,
    head_dim_v: HeadDimV = None,
    layers: Annotated[
        int | None, typer.Option("--layers", min=1, help="Layers that keep a cache.")
    ] = None,
    context: Annotated[
        int | None, typer.Option("--context", "-c", min=1, help="Cells of each sequence.")
    ] = None,
    batch: Annotated[int, typer.Option("--batch", min=1, help="Sequences.")] = 1,
    memory: Annotated[
        str | None,
        typer.Option(
            "--fits", help="Longest context of every format in this memory: 8GiB, or 8GB (10^9)."
        ),
    ] = None,
    page_size: PageSize = 32,
    bare: Bare = False,
    window: Window = None,
    sinks: Sinks = None,
    picture: Annotated[
        Path | None, typer.Option("--picture", help="Also draw bytes by context to this SVG file.")
    ] = None,
    json: Json = False,
) -> int:
    """Say what a cache takes in memory, by plane and part, or what fits in a given memory.

    Heads, head size and layers come from a model's file or from options; options win.
    """
    if picture is not None:
        from kvcore.lab.outputs import check_file

        check_file("plan --picture", picture, ".svg")
    size = None if memory is None else parse_size(memory)
    if size is not None and context is not None and picture is None:
        raise typer.BadParameter(
            f"--fits finds the longest context: got --context {context} beside it, expected one"
        )
    g = _geometry(model_file, heads, head_dim, head_dim_v, layers)
    cells = context or g.context or 4096
    if size is not None:
        _draw(picture, format, g, cells, batch, bare=bare)
        return _fits(g, size, batch, page_size, bare, window, sinks, json)
    spec = make_spec(
        format,
        g.n_kv_heads,
        g.head_dim,
        g.head_dim_v,
        page_size=page_size,
        bare=bare,
        window=window,
        sinks=sinks,
    )
    found = plan(spec, g.layers, cells, batch)
    _draw(picture, format, g, cells, batch, bare=bare)
    show.as_json(facts(found, g)) if json else _print(found, g)
    return 0


def _draw(
    picture: Path | None, format: str, g: ModelGeometry, cells: int, batch: int, *, bare: bool
) -> None:
    if picture is not None:
        from kvcore.cli.plan_picture import write_picture

        write_picture(picture, format, g, cells, batch, bare=bare)


def _geometry(
    file: Path | None,
    heads: int | None,
    head_dim: int | None,
    head_dim_v: int | None,
    layers: int | None,
) -> ModelGeometry:
    if file is None and (heads is None or head_dim is None):
        raise typer.BadParameter(
            "the model is not known: give --model-file, or --heads, --head-dim"
        )
    if file is not None:
        return read_geometry(
            file, layers=layers, n_kv_heads=heads, head_dim=head_dim, head_dim_v=head_dim_v
        )
    k = head_dim or 1
    return ModelGeometry(
        name="", layers=layers or 1, n_kv_heads=heads or 1, head_dim=k, head_dim_v=head_dim_v or k
    )


def facts(p: MemoryPlan, g: ModelGeometry) -> dict[str, Any]:
    """Return a plan as plain data."""
    return {
        "model": g.name,
        "spec": spec_facts(p.spec),
        "layers": p.layers,
        "context": p.context,
        "batch": p.batch,
        "cells": p.cells,
        "per_layer": {**p.parts(), "total": p.per_layer},
        "total": p.total,
        "f16_total": p.f16_total,
    }


def _print(p: MemoryPlan, g: ModelGeometry) -> None:
    v = "" if g.head_dim_v == g.head_dim else f" (V {g.head_dim_v})"
    name = f"{g.name}: " if g.name else ""
    print(f"{name}{p.layers} layers, {g.n_kv_heads} KV heads x {g.head_dim}{v}")
    print(f"{p.spec.format.name}: {show.recipe(p.spec)}, {p.spec.bytes_per_cell} bytes per cell")
    print(f"{p.batch} x {p.context} cells of context\n")
    parts = [(name, n) for name, n in p.parts().items() if n]
    parts.append(("one layer", p.per_layer))
    body = [(name, n, show.size(n), show.size(n * p.layers)) for name, n in parts]
    head = ("part", "bytes a layer", "a layer", f"{p.layers} layers")
    show.table(head, body, right=head[1:])
    share = 100 * p.total / p.f16_total
    print(f"\ntotal {p.total} bytes = {show.size(p.total)}, {share:.1f} % of float16")


def _fits(
    g: ModelGeometry,
    memory: int,
    batch: int,
    page_size: int,
    bare: bool,
    window: int | None,
    sinks: int | None,
    json: bool,
) -> int:
    found = fits(
        memory,
        n_kv_heads=g.n_kv_heads,
        head_dim=g.head_dim,
        head_dim_v=g.head_dim_v,
        layers=g.layers,
        batch=batch,
        page_size=page_size,
        recipe=None if bare else "format",
        window=window,
        sinks=sinks,
    )
    code = 0 if any(f.context for f in found) else 1
    if json:
        show.as_json([_fit_facts(f) for f in found])
        return code
    print(
        f"{show.size(memory)}, {batch} x {g.layers} layers, {g.n_kv_heads} heads x {g.head_dim}\n"
    )
    show.table(
        ("format", "bytes/cell", "longest context", "of the memory", ""),
        (
            (
                f.format,
                f.bytes_per_cell or "-",
                f.context,
                "-" if f.plan is None else f"{100 * f.plan.total / memory:.1f} %",
                f.reason.rpartition("; ")[2],
            )
            for f in found
        ),
        right=("bytes/cell", "longest context", "of the memory"),
    )
    if code:
        print("\nNothing fits: not even one page of cells in each sequence of every layer.")
    return code


def _fit_facts(f: Fit) -> dict[str, Any]:
    return {
        "format": f.format,
        "bytes_per_cell": f.bytes_per_cell,
        "context": f.context,
        "total": 0 if f.plan is None else f.plan.total,
        "reason": f.reason,
    }
