"""The link check: a backend's whole table against the declared ops, with no driver touched."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from kvcore import codecs, ops
from kvcore.errors import LinkError
from kvcore.ops import Op

F = TypeVar("F", bound=Callable[..., Any])
MARK = "__kvcore_op__"


def implements(name: str, *, version: int, gaps: dict[str, str] | None = None) -> Callable[[F], F]:
    """Mark a backend's method as its implementation of an op.

    Parameters
    ----------
    name : str
    version : int
        Contract version it was written against.
    gaps : dict of str to str, optional
        Codec name (or "*" for the whole op) -> why this backend does not do it.
    """

    def mark(function: F) -> F:
        setattr(function, MARK, (name, version, dict(gaps or {})))
        return function

    return mark


def table_of(backend: type) -> dict[str, Callable[..., Any]]:
    """Return the marked methods of a backend class by op name."""
    found = {}
    for _, member in inspect.getmembers(backend, callable):
        mark = getattr(member, MARK, None)
        if mark is not None:
            found[mark[0]] = member
    return found


def gaps_of(backend: type) -> dict[tuple[str, str], str]:
    """Return the declared gaps of a backend class: (op, codec or "*") -> reason."""
    out = {}
    for name, member in table_of(backend).items():
        for codec, reason in getattr(member, MARK)[2].items():
            out[name, codec] = reason
    return out


T = TypeVar("T", bound=type)


def link(backend: T) -> T:
    """Compare a backend class with the declarations; return it if they agree.

    Raises
    ------
    LinkError
        Naming every missing, extra or drifted symbol, expected and got.
    """
    faults = list(_faults(backend, ops.declared()))
    if faults:
        name = getattr(backend, "name", backend.__name__)
        lines = "\n".join(f"  - {f}" for f in faults)
        raise LinkError(f"[link] backend {name!r} does not match the declared ops:\n{lines}")
    return backend


def _faults(backend: type, declared: dict[str, Op]) -> Iterable[str]:
    table = table_of(backend)
    if not callable(getattr(backend, "probe", None)):
        yield "missing probe(): got nothing, expected a class method that says whether it can run"
    for name in sorted(declared.keys() - table.keys()):
        yield f"missing {name}{declared[name].signature}: got nothing"
    for name in sorted(table.keys() - declared.keys()):
        yield f"extra {name}{_signature(table[name])}: expected no such op"
    for name in sorted(declared.keys() & table.keys()):
        yield from _drift(declared[name], table[name])


def _drift(op: Op, function: Callable[..., Any]) -> Iterable[str]:
    _, version, gaps = getattr(function, MARK)
    if version != op.version:
        yield f"drifted {op.name}: got contract version {version}, expected {op.version}"
    got = _signature(function)
    if got != op.signature:
        yield f"drifted {op.name}: got {got}, expected {op.signature}"
    known = set(codecs.all_codecs()) if op.per_codec else set()
    for codec, reason in gaps.items():
        if codec != "*" and codec not in known:
            yield f"drifted {op.name}: a gap names {codec!r}, which is not a codec of this op"
        if not reason:
            yield f"drifted {op.name}: the gap for {codec!r} gives no reason"


def _signature(function: Callable[..., Any]) -> inspect.Signature:
    """Return names, kinds and defaults, without `self` and annotations."""
    parameters = list(inspect.signature(function).parameters.values())[1:]
    bare = [p.replace(annotation=inspect.Parameter.empty) for p in parameters]
    return inspect.Signature(bare)
