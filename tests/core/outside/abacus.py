"""A backend outside the tree: its memory is not NumPy's, its ops are the references.

The whole of what a third party writes, but for kernels: one class, one array type, ops marked with
their contract version. Registered by the entry point ``abacus = abacus:BACKEND``.
"""

from __future__ import annotations

import dataclasses
import inspect
from typing import Any

import numpy as np

from kvcore import ops
from kvcore.backend import Availability, Backend
from kvcore.operands import HOST
from kvcore.pool import Pool, State
from kvcore.registry import implements
from kvcore.residency import Residency


class Beads:
    """Memory that only this backend reads: no array interface, no DLPack."""

    __slots__ = ("rows",)

    def __init__(self, rows: np.ndarray) -> None:
        self.rows = rows

    @property
    def shape(self) -> tuple[int, ...]:
        return self.rows.shape

    @property
    def dtype(self) -> np.dtype:
        return self.rows.dtype

    def reshape(self, *shape: int) -> Beads:
        return Beads(self.rows.reshape(*shape))

    def __getitem__(self, index: Any) -> Beads:
        return Beads(self.rows[index])


class BeadArrays:
    """Takes host arrays and beads."""

    def asarray(self, x: Any, kind: str, op: str, name: str) -> Beads:
        return Beads(HOST.asarray(_open(x), kind, op, name))


def _open(x: Any) -> Any:
    """Return what the references understand: NumPy arrays and objects made of them."""
    if isinstance(x, Beads):
        return x.rows
    if isinstance(x, Pool):
        return dataclasses.replace(x, planes={n: _open(p) for n, p in x.planes.items()})
    if isinstance(x, State | Residency):
        fields = {f.name: _open(getattr(x, f.name)) for f in dataclasses.fields(x)}
        return type(x)(**fields)
    return x


def _close(x: Any) -> Any:
    if isinstance(x, tuple):
        return tuple(_close(a) for a in x)
    return Beads(x) if isinstance(x, np.ndarray) else x


def _op(op: ops.Op) -> Any:
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        once: dict[int, Any] = {}  # an object given twice stays one object

        def opened(x: Any) -> Any:
            return once.setdefault(id(x), _open(x))

        more = {name: opened(x) for name, x in kwargs.items()}
        return _close(op.reference(*(opened(a) for a in args), **more))

    first = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    method.__signature__ = inspect.Signature([first, *op.signature.parameters.values()])
    return implements(op.name, version=op.version)(method)


class Abacus(Backend):
    """Beads on rods."""

    name = "abacus"
    arrays = BeadArrays()

    @classmethod
    def probe(cls) -> Availability:
        return Availability(available=True, device="13 rods", kind="cpu", version="1")

    def allocate(self, shape: tuple[int, ...], dtype: str) -> Beads:
        return Beads(np.zeros(shape, dtype))

    def to_host(self, array: Any) -> np.ndarray:
        return np.array(_open(array))

    def write(self, array: Any, values: np.ndarray) -> None:
        array.rows[...] = values


for _declared in ops.declared().values():
    setattr(Abacus, _declared.name, _op(_declared))

BACKEND = Abacus
