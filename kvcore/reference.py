"""The reference backend: every op is its declaration's NumPy function. The oracle of all tests."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from kvcore import ops
from kvcore.backend import Availability, Backend
from kvcore.registry import implements, link


def _delegate(name: str) -> Any:
    """Return a method that calls the declared reference, with the declared signature."""
    op = ops.declared()[name]

    def method(self: Backend, *args: Any, **kwargs: Any) -> Any:
        return op.reference(*args, **kwargs)

    import inspect

    self_ = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    method.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [self_, *op.signature.parameters.values()]
    )
    method.__doc__ = op.doc
    return implements(name, version=op.version)(method)


class Reference(Backend):
    """NumPy, clear before fast. Never chosen unless asked for by name."""

    name = "reference"

    @classmethod
    def probe(cls) -> Availability:
        """Return that NumPy is here."""
        return Availability(
            available=True,
            device=f"NumPy on Python {sys.version_info.major}.{sys.version_info.minor}",
            kind="cpu",
            version=np.__version__,
        )


for _name in ops.declared():
    setattr(Reference, _name, _delegate(_name))

BACKEND = link(Reference)
