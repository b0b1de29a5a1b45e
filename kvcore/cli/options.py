"""Options that several commands share, and the spec they describe."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from kvcore.cache_spec import CacheSpec
from kvcore.dispatch import names as backend_names
from kvcore.formats import names as format_names

FormatName = Annotated[
    str, typer.Option("--format", "-f", help="A name that [bold]kvcore formats[/] lists.")
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of text.")]
Heads = Annotated[int | None, typer.Option("--heads", min=1, help="KV heads of one layer.")]
HeadDim = Annotated[int | None, typer.Option("--head-dim", min=1, help="Head size of K.")]
HeadDimV = Annotated[
    int | None, typer.Option("--head-dim-v", min=1, help="Head size of V, if it differs.")
]
PageSize = Annotated[int, typer.Option("--page-size", min=1, help="Cells per page.")]
Bare = Annotated[
    bool, typer.Option("--bare", help="Without the format's recipe: no window, sinks or centre.")
]
Window = Annotated[
    int | None, typer.Option("--window", min=0, help="Last cells kept exact; the recipe's if unset")
]
Sinks = Annotated[
    int | None, typer.Option("--sinks", min=0, help="First cells kept exact; the recipe's if unset")
]


def check_backend(name: str | None) -> str | None:
    """Refuse a backend that nobody knows, as a mistake in the call."""
    if name is not None and name not in backend_names():
        known = ", ".join(backend_names())
        raise typer.BadParameter(f"unknown backend: got {name!r}, expected one of {known}")
    return name


BackendName = Annotated[
    str | None,
    typer.Option(
        "--backend", "--on", "-b", callback=check_backend, help="The best available by default."
    ),
]


def make_spec(
    format: str,
    heads: int,
    head_dim: int,
    head_dim_v: int | None = None,
    *,
    page_size: int = 32,
    bare: bool = False,
    window: int | None = None,
    sinks: int | None = None,
) -> CacheSpec:
    """Return the spec that the options describe.

    Raises
    ------
    FormatError
    typer.BadParameter
        There is no format of that name.
    """
    if format not in format_names():
        known = ", ".join(format_names())
        raise typer.BadParameter(f"unknown format: got {format!r}, expected one of {known}")
    return CacheSpec(
        format=format,
        n_kv_heads=heads,
        head_dim=head_dim,
        head_dim_v=head_dim_v,
        page_size=page_size,
        recipe=None if bare else "format",
        window=window,
        sinks=sinks,
    )


def spec_facts(spec: CacheSpec) -> dict[str, Any]:
    """Return a spec's fields as plain data."""
    return {
        "format": spec.format.name,
        "n_kv_heads": spec.n_kv_heads,
        "head_dim": spec.head_dim,
        "head_dim_v": spec.head_dim_v,
        "page_size": spec.page_size,
        "window": spec.window,
        "sinks": spec.sinks,
        "k_center": spec.center_key,
        "grouping": spec.grouping,
        "bytes_per_cell": spec.bytes_per_cell,
    }


ModelFile = Annotated[
    Path | None,
    typer.Option("--model-file", "-m", help="A .gguf file, a config.json, or a folder with one."),
]
