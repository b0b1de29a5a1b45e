"""The ops: each declared once, with its arguments, contract version and NumPy reference.

One file an op, found by listing this folder; a file holds one ``OP``. An op added at run time
(:func:`register`) is declared for every backend until the process ends.
"""

from __future__ import annotations

import enum
import importlib
import inspect
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any


class Direction(enum.Enum):
    """What an op does with an argument."""

    IN = "in"
    OUT = "out"
    INOUT = "inout"


REQUIRED: Any = inspect.Parameter.empty


@dataclass(frozen=True, kw_only=True)
class Arg:
    """One argument of an op.

    Attributes
    ----------
    name : str
    what : str
        dtype[axes] of an array, or the class of an object.
    direction : Direction
    default : object
        ``REQUIRED`` if there is none.
    """

    name: str
    what: str
    direction: Direction = Direction.IN
    default: Any = REQUIRED


@dataclass(frozen=True, kw_only=True)
class Op:
    """The contract of one op.

    Attributes
    ----------
    name : str
    version : int
        Raised whenever meaning or arguments change.
    args : tuple of Arg
    returns : str
    reference : callable
        NumPy, clear before fast; its docstring is the op's.
    per_codec : bool
        True if its work depends on how a store is encoded, so that a backend answers per codec.
    """

    name: str
    version: int
    args: tuple[Arg, ...]
    returns: str
    reference: Callable[..., Any]
    per_codec: bool = False

    @property
    def doc(self) -> str:
        """The op's documentation."""
        return inspect.getdoc(self.reference) or ""

    @property
    def signature(self) -> inspect.Signature:
        """The Python signature every backend's callable must have (names, order, defaults)."""
        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        return inspect.Signature(
            [inspect.Parameter(a.name, kind, default=a.default) for a in self.args]
        )


_registered: dict[str, Op] = {}


@cache
def _files() -> dict[str, Op]:
    found = {}
    for module in pkgutil.iter_modules(__path__):
        op: Op = importlib.import_module(f"{__name__}.{module.name}").OP
        found[op.name] = op
    return found


def declared() -> dict[str, Op]:
    """Return every declared op by name."""
    return {**_files(), **_registered}


def register(op: Op) -> Op:
    """Declare a further op."""
    _registered[op.name] = op
    return op


def unregister(name: str) -> None:
    """Forget an op added by :func:`register`."""
    _registered.pop(name, None)
