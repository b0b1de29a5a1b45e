"""kvcore emit: the exact source that is compiled for an op, a format and a target."""

from __future__ import annotations

from typing import Annotated

import typer

from kvcore import ops
from kvcore.cache_spec import CacheSpec
from kvcore.cli import show
from kvcore.cli.options import Bare, FormatName, Json, Sinks, Window, make_spec
from kvcore.compiler.render import Source
from kvcore.compiler.target import target_names
from kvcore.errors import FormatError, message
from kvcore.portable import programs
from kvcore.spec import rotation_block

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
    source = source_of(op, spec, target, q_heads or 4 * heads)
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


def source_of(op: str, spec: CacheSpec, target: str, q_heads: int) -> Source:
    """Return the source of an op of a spec for a target.

    Raises
    ------
    FormatError
        If there is no such op, or the query heads are no multiple of the KV heads.
    """
    if op not in ops.declared():
        known = ", ".join(sorted(ops.declared()))
        raise FormatError(message("emit", "unknown op", got=repr(op), expected=known))
    if q_heads % spec.n_kv_heads:
        expected = f"a multiple of {spec.n_kv_heads}"
        raise FormatError(message("emit", "query heads", got=q_heads, expected=expected))
    layout, state = spec.layout, spec.state_layout
    if op == "rotate":
        recipe = programs.rotate_recipe(rotation_block(spec.head_dim))
    elif op == "append":
        recipe = programs.append_recipe(layout, state)
    elif op == "gather":
        recipe = programs.gather_recipe(layout)
    elif op == "restore":
        recipe = programs.restore_recipe(layout, state.centred)
    elif op == "attention":
        recipe = programs.attention_recipe(layout, state.centred, q_heads // spec.n_kv_heads)
    else:
        recipe = programs.plain_recipe(op)
    return recipe.render(target)
