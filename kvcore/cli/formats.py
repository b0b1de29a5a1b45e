"""kvcore formats: the formats, their sizes and recipes, and the head sizes each codec takes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any

import typer

import kvcore
from kvcore import codecs
from kvcore.cli import show
from kvcore.cli.options import Json
from kvcore.errors import FormatError
from kvcore.spec import Codec, Format, rotation_block

NAME = "formats"
EXAMPLE = "kvcore formats --dims"

HEADS, HEAD_DIM = 2, 256
"""The geometry of the sizes shown."""

DIMS = (32, 64, 80, 96, 112, 128, 160, 192, 256, 512)
COLUMNS = ("format", "bytes/cell", "bits", "K", "V", "rotated", "recipe", "note")


def run(
    name: Annotated[str | None, typer.Argument(help="Show one format in full.")] = None,
    dims: Annotated[
        bool, typer.Option("--dims", help="Which head sizes each codec takes.")
    ] = False,
    markdown: Annotated[
        bool, typer.Option("--markdown", help="Print the table as the README shows it.")
    ] = False,
    json: Json = False,
) -> int:
    """List the formats: bytes per cell, bits a value, rotation, recipe.

    Bytes are K + V with scales of one cell at 2 KV heads x 256; bits are those bytes per value.
    """
    if name is not None:
        fmt = kvcore.format(name)
        show.as_json(facts(fmt)) if json else print(fmt)
    elif dims:
        _dims(json)
    elif json:
        show.as_json([facts(kvcore.format(n)) for n in kvcore.formats()])
    elif markdown:
        print(markdown_table())
    else:
        found = list(rows())
        show.table(COLUMNS[:-1], (row[:-1] for row in found), right=("bytes/cell", "bits"))
        notes = [f"{row[0]}: {row[-1]}" for row in found if row[-1]]
        print("\n" + "\n".join(notes))
    return 0


def facts(fmt: Format) -> dict[str, Any]:
    """Return a format as plain data."""
    n_bytes = fmt.bytes_per_cell(HEADS, HEAD_DIM)
    return {
        "name": fmt.name,
        "bytes_per_cell": n_bytes,
        "at": {"n_kv_heads": HEADS, "head_dim": HEAD_DIM},
        "bits_per_value": n_bytes * 8 / (2 * HEADS * HEAD_DIM),
        "k": fmt.k.name,
        "v": fmt.v.name,
        "rotate": fmt.rotate,
        "recipe": {
            "sinks": fmt.recipe.sinks,
            "window": fmt.recipe.window,
            "k_center": fmt.recipe.k_center,
            "grouping": fmt.recipe.grouping,
        },
        "note": fmt.note,
        "source": fmt.source,
    }


def rows() -> Iterable[tuple[object, ...]]:
    """Yield the rows of the table of formats."""
    for name in kvcore.formats():
        fmt = kvcore.format(name)
        f = facts(fmt)
        bits = f"{f['bits_per_value']:g}"
        rotated = {"none": "-", "v": "V", "kv": "K, V"}[fmt.rotate]
        yield (
            name,
            f["bytes_per_cell"],
            bits,
            fmt.k.name,
            fmt.v.name,
            rotated,
            show.recipe(fmt.recipe),
            fmt.note,
        )


def markdown_table() -> str:
    """Return the table of formats in Markdown."""
    lines = ["| " + " | ".join(COLUMNS) + " |", "|---|--:|--:|---|---|---|---|---|"]
    lines += ["| " + " | ".join(str(cell) for cell in row) + " |" for row in rows()]
    return "\n".join(lines)


def fits_dim(codec: Codec, head_dim: int) -> str:
    """Return "" if a codec takes a head size, else an arrow to the next that it takes."""
    try:
        codec.check_dim(head_dim)
    except FormatError:
        step = codec.dim_multiple
        return f"→ {-(-head_dim // step) * step}"
    return ""


def _rotates(head_dim: int) -> str:
    try:
        return f"x{rotation_block(head_dim)}"
    except FormatError:
        return "no"


def _dims(json: bool) -> None:
    every = sorted(codecs.all_codecs().values(), key=lambda c: (-c.bits, c.name))
    if json:
        show.as_json(
            {
                "codecs": {c.name: {d: not fits_dim(c, d) for d in DIMS} for c in every},
                "multiple_of": {c.name: c.dim_multiple for c in every},
                "rotation": {d: _rotates(d) for d in DIMS},
            }
        )
        return
    body: list[tuple[str, ...]] = [
        (c.name, *(fits_dim(c, d) or "yes" for d in DIMS), str(c.dim_multiple)) for c in every
    ]
    body.append(("rotation", *(_rotates(d) for d in DIMS), "32"))
    show.table(("D =", *(str(d) for d in DIMS), "step"), body)
    print("\nyes, or the next D that works; rotation: values a Hadamard block mixes")
