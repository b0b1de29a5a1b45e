"""The contract between the ops and a device: memory, programs, launches.

Every device folder implements :class:`Device`; nothing here imports one. Launches are asynchronous
and run in the order in which they were made; ``download`` and ``synchronize`` wait.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from kvcore.compiler.render import Source

Groups = tuple[int, int, int]
Argument = Any
"""A Buffer (or None for one that the kernel will not touch), or a number for a value."""


class Buffer(Protocol):
    """Bytes on a device, or a window of them; keeps its memory alive."""

    @property
    def nbytes(self) -> int:
        """Length in bytes."""

    def view(self, offset: int, nbytes: int) -> Buffer:
        """Return ``nbytes`` bytes from byte ``offset`` on, without a copy."""


class Program(Protocol):
    """A built source."""

    @property
    def source(self) -> Source:
        """What it was built from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tensor:
    """A caller's array as a device sees it.

    Parameters
    ----------
    buffer : Buffer
        Starts at the first element.
    shape : tuple of int
    strides : tuple of int
        Bytes between neighbours along each axis.
    dtype : str
        ``f16``, ``bf16``, ``f32``, ``i32``, ``i64``, ``u8``, ``i8``, ...
    copied : bool
        The values were uploaded; writing to the buffer does not reach the caller.
    """

    buffer: Buffer
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str
    copied: bool = False

    @property
    def contiguous(self) -> bool:
        """The elements are packed in C order."""
        return self.strides == c_strides(self.shape, itemsize(self.dtype))


class Device(Protocol):
    """One device of one runtime.

    ``name`` is the driver's name for it, ``kind`` one of ``"gpu"`` and ``"cpu"``, ``runtime`` what
    drives it (``dpctl``, ``opencl``, ``cuda``, ``metal``).
    """

    @property
    def name(self) -> str:
        """The driver's name of the device."""

    @property
    def kind(self) -> str:
        """``"gpu"`` or ``"cpu"``."""

    @property
    def runtime(self) -> str:
        """What drives it."""

    def alloc(self, nbytes: int) -> Buffer:
        """Return ``nbytes`` fresh bytes, content undefined; MemoryError if there are too few."""

    def upload(self, buffer: Buffer, array: npt.NDArray[Any], offset: int = 0) -> None:
        """Copy a host array's bytes into the buffer; the array may be reused on return."""

    def download(
        self, buffer: Buffer, nbytes: int | None = None, offset: int = 0
    ) -> npt.NDArray[np.uint8]:
        """Return a host copy of bytes of the buffer, after everything launched before."""

    def fill(self, buffer: Buffer, byte: int, nbytes: int | None = None, offset: int = 0) -> None:
        """Set bytes of the buffer, in launch order."""

    def copy(
        self, target: Buffer, source: Buffer, nbytes: int, target_at: int = 0, source_at: int = 0
    ) -> None:
        """Copy bytes between buffers of this device (not overlapping), in launch order."""

    def from_external(self, obj: object) -> Tensor:
        """Return the caller's array: without a copy if this device can reach it, else uploaded.

        Raises
        ------
        ShapeError
            An object with no known array protocol, or one on another device.
        """

    def to_external(self, tensor: Tensor) -> Any:
        """Return the runtime's own array type over the same memory, or a NumPy copy."""

    def build(self, source: Source) -> Program:
        """Compile, or take from the cache.

        Raises
        ------
        BuildError
            The compiler refused; the error carries its log.
        """

    def launch(
        self, program: Program, entry: str, groups: Groups, args: Sequence[Argument]
    ) -> None:
        """Run ``groups`` groups of the entry's lanes; arguments in the declaration's order.

        A grid with a zero is nothing to do. The lanes of a group are the declaration's.
        """

    def synchronize(self) -> None:
        """Wait for everything launched; raises what a kernel's failure reports."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """One device, or one place where devices were looked for.

    Parameters
    ----------
    runtime, name : str
    kind : str
        ``"gpu"``, ``"cpu"`` or ``""`` if nothing was found.
    reason : str
        Why it cannot be used; empty if it can.
    version : str
        Driver or runtime version.
    handle : object
        What the runtime's device class takes.
    """

    runtime: str
    name: str
    kind: str = ""
    reason: str = ""
    version: str = ""
    handle: Any = None

    @property
    def usable(self) -> bool:
        """No reason speaks against it."""
        return not self.reason


def explain(found: Sequence[Found]) -> str:
    """Return one line per candidate: what it is and why it was refused."""
    return "\n".join(
        f"{item.runtime}: {item.name}"
        + (f" ({item.kind}, {item.version})" if item.kind else "")
        + (f": {item.reason}" if item.reason else "")
        for item in found
    )


_ITEMSIZE = {
    "u8": 1, "i8": 1, "bool": 1, "u16": 2, "i16": 2, "f16": 2, "bf16": 2,
    "u32": 4, "i32": 4, "f32": 4, "u64": 8, "i64": 8, "f64": 8,
}  # fmt: skip


def itemsize(dtype: str) -> int:
    """Return the bytes of one element of a dtype name."""
    return _ITEMSIZE[dtype]


def dtype_name(dtype: npt.DTypeLike) -> str:
    """Return the short name of a NumPy dtype (``ml_dtypes.bfloat16`` is ``bf16``).

    Raises
    ------
    KeyError
        A dtype that kvcore has no name for.
    """
    dtype = np.dtype(dtype)
    if dtype.name == "bfloat16":
        return "bf16"
    kind = {"u": "u", "i": "i", "f": "f", "b": "bool"}[dtype.kind]
    name = kind if kind == "bool" else f"{kind}{dtype.itemsize * 8}"
    if name not in _ITEMSIZE:
        raise KeyError(name)
    return name


def numpy_dtype(name: str) -> np.dtype[Any]:
    """Return the NumPy dtype of a short name; ``bf16`` is seen as its 16 bits."""
    if name == "bf16":
        return np.dtype(np.uint16)
    if name == "bool":
        return np.dtype(np.bool_)
    return np.dtype(f"{name[0]}{itemsize(name)}")


def c_strides(shape: Sequence[int], size: int) -> tuple[int, ...]:
    """Return the byte strides of a packed C-order array."""
    strides = []
    for extent in reversed(shape):
        strides.append(size)
        size *= extent
    return tuple(reversed(strides))
