"""kvcore emit: the exact source that is compiled for an op, a format and a target."""

from __future__ import annotations

from typing import Annotated

import typer

from kvcore.cli import show
from kvcore.cli.options import Bare, FormatName, Json, Sinks, Window, make_spec
from kvcore.compiler.emit import QUERY_HEADS_EACH, source_of
from kvcore.compiler.target import target_names

NAME = "emit"
EXAMPLE = "kvcore emit --op append --format q2k --target metal"


def run(
    op: Annotated[str, typer.Option("--op", help="An op that [bold]kvcore explain[/] lists.")],
    target: Annotated[
        str, typer.Option("--target", "-t", help="cuda, metal, opencl or sycl.")
    ] = "opencl",
    format: FormatName = "q2k",
    heads: Annotated[int, typer.Option("--heads", min=1, help="KV heads of one layer.")] = 2,
    q_heads: Annotated[
        int | None, typer.Option("--q-heads", min=1, help="Query heads; 4 a KV head if unset.")
    ] = None,
    head_dim: Annotated[int, typer.Option("--head-dim", min=1, help="Head size D.")] = 128,
    stateless: Annotated[
        bool, typer.Option("--stateless", help="As run on a bare pool, without exact cells.")
    ] = False,
    bare: Bare = False,
    window: Window = None,
    sinks: Sinks = None,
    json: Json = False,
) -> int:
    """Print the source of an op as a target's compiler gets it; needs no device.

    Prelude, constants and signatures, then the body of kvcore/ops verbatim, with #line marks.
    """
    if target not in target_names():
        known = ", ".join(target_names())
        raise typer.BadParameter(f"unknown target: got {target!r}, expected one of {known}")
    spec = make_spec(format, heads, head_dim, bare=bare, window=window, sinks=sinks)
    query_heads = q_heads or QUERY_HEADS_EACH * heads
    source = source_of(op, spec, target, query_heads, stateless=stateless)
    if json:
        show.as_json(
            {
                "op": op,
                "format": spec.format.name,
                "target": target,
                "language": source.target.language,
                "flags": list(source.target.flags),
                "entries": list(source.entries),
                "sha256": source.key,
                "text": source.text,
            }
        )
    else:
        print(source.text, end="")
    return 0
