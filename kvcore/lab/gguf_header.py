"""Parse the head of a GGUF file: its metadata and where each tensor lies.

The `gguf` package's reader makes several NumPy views per array element: 2 s for a vocabulary of
49 thousand tokens, 11 s for one of 262 thousand. This parser takes whole arrays at once (0.1 s and
0.6 s), checks every length against the file before it reads, and leaves dequantization to the
package. Refused: big-endian files, versions other than 2 and 3.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFValueType

from kvcore.errors import UnsupportedError, message
from kvcore.lab.errors import ModelFileError

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_MAX_RANK = 4
_SCALARS: dict[GGUFValueType, str] = {
    GGUFValueType.UINT8: "B",
    GGUFValueType.INT8: "b",
    GGUFValueType.UINT16: "H",
    GGUFValueType.INT16: "h",
    GGUFValueType.UINT32: "I",
    GGUFValueType.INT32: "i",
    GGUFValueType.FLOAT32: "f",
    GGUFValueType.BOOL: "?",
    GGUFValueType.UINT64: "Q",
    GGUFValueType.INT64: "q",
    GGUFValueType.FLOAT64: "d",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorInfo:
    """One tensor of the file: shape with the rows first, block type, byte range."""

    name: str
    shape: tuple[int, ...]
    block: GGMLQuantizationType
    start: int
    n_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """Metadata by key (str, int, float, bool, list of str or NumPy array), tensors by name."""

    metadata: dict[str, Any]
    tensors: dict[str, TensorInfo]


class _Cursor:
    """A position in the file's bytes that cannot run past their end."""

    def __init__(self, path: Path, data: npt.NDArray[np.uint8]) -> None:
        self.path = path
        self.view = data.data
        self.at = 0

    def fail(self, what: str, *, got: object, expected: object) -> NoReturn:
        """Raise for damage at the current position."""
        what = f"{self.path.name} is damaged at byte {self.at}: {what}"
        fix = "fetch or convert the file again"
        raise ModelFileError(message("gguf", what, got=got, expected=expected, fix=fix))

    def skip(self, n_bytes: int) -> int:
        """Step over `n_bytes` and return where they start."""
        start = self.at
        if n_bytes > len(self.view) - start:
            end = start + n_bytes
            self.fail("truncated", got=f"{len(self.view)} bytes", expected=f"at least {end}")
        self.at += n_bytes
        return start

    def number(self, code: str) -> Any:
        """Read one little-endian scalar of `struct` type `code`."""
        item = "<" + code
        return struct.unpack_from(item, self.view, self.skip(struct.calcsize(item)))[0]

    def text(self) -> str:
        """Read a length-prefixed UTF-8 string."""
        n_bytes = self.number("Q")
        start = self.skip(n_bytes)
        try:
            return str(self.view[start : start + n_bytes], "utf-8")
        except UnicodeDecodeError:
            self.fail("a string", got="other bytes", expected="UTF-8")

    def kind(self) -> GGUFValueType:
        """Read the tag of a metadata value."""
        tag = self.number("I")
        try:
            return GGUFValueType(tag)
        except ValueError:
            self.fail("the type of a value", got=tag, expected="0 to 12")

    def value(self, kind: GGUFValueType) -> Any:
        """Read one metadata value."""
        if kind is GGUFValueType.STRING:
            return self.text()
        if kind is not GGUFValueType.ARRAY:
            return self.number(_SCALARS[kind])
        item, count = self.kind(), self.number("Q")
        if item in _SCALARS:
            dtype = np.dtype("<" + _SCALARS[item])
            start = self.skip(count * dtype.itemsize)
            return np.frombuffer(self.view, dtype=dtype, count=count, offset=start)
        if item is GGUFValueType.ARRAY:
            self.fail("an array", got="arrays inside", expected="scalars or strings")
        return [self.text() for _ in range(count)]


def read_header(path: Path, data: npt.NDArray[np.uint8]) -> Header:
    """Parse the header of a GGUF file.

    Parameters
    ----------
    path : Path
        Names the file in error messages.
    data : u8[n_bytes]
        The whole file, usually a memory map.

    Raises
    ------
    ModelFileError
        Not a GGUF file, truncated, or a tensor reaches past the end of the file.
    UnsupportedError
        A GGUF version or byte order that is not read here.
    """
    cursor = _Cursor(path, data)
    start = cursor.skip(len(_MAGIC))
    magic = bytes(cursor.view[start : cursor.at])
    if magic != _MAGIC:
        what, fix = f"{path.name} is not a GGUF file", "give the path of a .gguf file"
        raise ModelFileError(message("gguf", what, got=magic, expected=_MAGIC, fix=fix))
    version = cursor.number("I")
    if version not in _VERSIONS:
        what, fix = f"{path.name} has a version or byte order not read here", "convert the file"
        got, expected = f"version {version:#x}", f"one of {_VERSIONS}"
        raise UnsupportedError(message("gguf", what, got=got, expected=expected, fix=fix))
    n_tensors, n_values = cursor.number("Q"), cursor.number("Q")
    metadata: dict[str, Any] = {}
    for _ in range(n_values):
        key = cursor.text()
        metadata[key] = cursor.value(cursor.kind())
    return Header(metadata=metadata, tensors=_tensors(cursor, n_tensors, metadata))


def _tensors(cursor: _Cursor, count: int, metadata: dict[str, Any]) -> dict[str, TensorInfo]:
    """Read the tensor table and place each tensor in the file."""
    entries = [_entry(cursor) for _ in range(count)]
    align = metadata.get("general.alignment", 32)
    if not isinstance(align, int) or align <= 0:
        cursor.fail("the alignment", got=align, expected="a positive number")
    base = -(-cursor.at // align) * align
    tensors: dict[str, TensorInfo] = {}
    for name, shape, block, offset in entries:
        items, block_bytes = GGML_QUANT_SIZES[block]
        if name in tensors:
            cursor.fail("tensor names", got=f"{name} twice", expected="each once")
        if shape[-1] % items:
            cursor.fail(f"rows of {name}", got=shape[-1], expected=f"a multiple of {items}")
        cursor.at = base + offset
        start = cursor.skip(math.prod(shape) // items * block_bytes)
        tensors[name] = TensorInfo(
            name=name, shape=shape, block=block, start=start, n_bytes=cursor.at - start
        )
    return tensors


def _entry(cursor: _Cursor) -> tuple[str, tuple[int, ...], GGMLQuantizationType, int]:
    """Read one row of the tensor table: name, shape (rows first), block type, offset."""
    name, rank = cursor.text(), cursor.number("I")
    if not 1 <= rank <= _MAX_RANK:
        cursor.fail(f"rank of {name}", got=rank, expected=f"1 to {_MAX_RANK}")
    shape = tuple(cursor.number("Q") for _ in range(rank))[::-1]
    tag = cursor.number("I")
    try:
        block = GGMLQuantizationType(tag)
    except ValueError:
        cursor.fail(f"block type of {name}", got=tag, expected="a type of the gguf package")
    return name, shape, block, cursor.number("Q")
