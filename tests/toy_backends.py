"""Backends for tests: methods with the declared signature around any body."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from kvcore import ops
from kvcore.reference import Reference
from kvcore.registry import implements


def method(op: str, body: Callable[..., Any], gaps: dict[str, str] | None = None) -> Any:
    """Return `body(be, **arguments)` as a linkable method for an op."""
    declared = ops.declared()[op]

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        bound = declared.signature.bind(*args, **kwargs)
        bound.apply_defaults()
        return body(self, **bound.arguments)

    self_ = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    call.__signature__ = inspect.Signature([self_, *declared.signature.parameters.values()])
    return implements(op, version=declared.version, gaps=gaps)(call)


def toy(name: str = "toy", gaps: dict[str, dict[str, str]] | None = None, **bodies: Any) -> type:
    """Return a whole backend in which some ops have other bodies (``op=body``)."""
    declared_gaps = gaps or {}
    made = {op: method(op, body, declared_gaps.get(op)) for op, body in bodies.items()}
    return type("Toy", (Reference,), {"name": name, **made})


def reference_of(op: str) -> Callable[..., Any]:
    """Return a body that does what the reference does."""

    def body(be: Any, **arguments: Any) -> Any:
        return ops.declared()[op].reference(**arguments)

    return body
