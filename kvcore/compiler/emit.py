"""The exact text that is compiled for an op, a format and a target. Needs no device. Pure."""

from __future__ import annotations

from typing import Any

from kvcore import ops
from kvcore.cache_spec import CacheSpec
from kvcore.compiler.render import Source
from kvcore.errors import FormatError, UnsupportedError, message
from kvcore.portable import programs
from kvcore.portable.recipe import Recipe
from kvcore.spec import Format, rotation_block

QUERY_HEADS_EACH = 4


def emit(
    op: str,
    format: str | Format = "q2k",
    target: str = "opencl",
    *,
    n_kv_heads: int = 2,
    head_dim: int = 256,
    query_heads: int | None = None,
    stateless: bool = False,
    **spec: Any,
) -> str:
    """Return the source text of an op.

    Parameters
    ----------
    op : str
        A declared op that has a portable body.
    format : str or Format
        How K and V are stored; ops that touch no store ignore it.
    target : str
        "cuda", "metal", "opencl" or "sycl".
    n_kv_heads, head_dim : int
    query_heads : int, optional
        Four per KV head unless given.
    stateless : bool
        Without a state: the variant that ``be.append`` and ``be.attention`` run on a bare pool.
    **spec
        Further fields of :class:`kvcore.CacheSpec`.

    Raises
    ------
    FormatError
        An unknown op or format, sizes that the format cannot have.
    UnsupportedError
        An unknown target, or an op without a portable body.
    """
    made = CacheSpec(format=format, n_kv_heads=n_kv_heads, head_dim=head_dim, **spec)
    heads = QUERY_HEADS_EACH * n_kv_heads if query_heads is None else query_heads
    return source_of(op, made, target, heads, stateless=stateless).text


def source_of(
    op: str, spec: CacheSpec, target: str, query_heads: int, *, stateless: bool = False
) -> Source:
    """Return the source of an op for a spec; see :func:`emit`."""
    return recipe_of(op, spec, query_heads, stateless=stateless).render(target)


def recipe_of(op: str, spec: CacheSpec, query_heads: int, *, stateless: bool = False) -> Recipe:
    """Return what an op's source is rendered from; see :func:`emit`."""
    if op not in ops.declared():
        known = ", ".join(sorted(ops.declared()))
        raise FormatError(message("emit", "unknown op", got=repr(op), expected=known))
    if query_heads < 1 or query_heads % spec.n_kv_heads:
        expected = f"a multiple of {spec.n_kv_heads}"
        raise FormatError(message("emit", "query heads", got=query_heads, expected=expected))
    layout, state = spec.layout, spec.state_layout
    centred = state.centred and not stateless
    if op == "rotate":
        return programs.rotate_recipe(rotation_block(spec.head_dim))
    if op == "append":
        return programs.append_recipe(layout, None if stateless else state)
    if op == "gather":
        return programs.gather_recipe(layout)
    if op == "restore":
        return programs.restore_recipe(layout, state.centred)
    if op == "attention":
        return programs.attention_recipe(layout, centred, query_heads // spec.n_kv_heads)
    if op in programs.PLAIN:
        return programs.plain_recipe(op)
    raise UnsupportedError(f"[emit] {op} has no portable body: got an op declared at run time")
