"""Files of named tensors (safetensors), read with every field checked and named when wrong.

A file is 8 bytes of header length, a JSON header, and the tensors' bytes. The checks here come
before a single value is read: a truncated, empty or wrongly shaped file is refused, and the
message says which field it is.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from kvcore.errors import message
from kvcore.lab.errors import DataFileError

DTYPES = {"F32": "<f4", "F16": "<f2", "I32": "<i4", "U8": "|u1"}
_MAX_HEADER = 1 << 26


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """Where one tensor lies.

    Attributes
    ----------
    dtype : str
        A NumPy dtype.
    shape : tuple of int
    start : int
        Offset in the file, in bytes.
    """

    dtype: str
    shape: tuple[int, ...]
    start: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorFile:
    """A checked file.

    Attributes
    ----------
    path : Path
    metadata : mapping of str to str
    entries : mapping of str to Entry
    """

    path: Path
    metadata: Mapping[str, str]
    entries: Mapping[str, Entry]

    def tensor(self, name: str) -> npt.NDArray[Any]:
        """Return one tensor, mapped from the file and read-only."""
        entry = self.entries.get(name)
        if entry is None:
            refuse(self.path, f"tensor {name}", got="none", expected="one")
        return np.memmap(self.path, entry.dtype, mode="r", offset=entry.start, shape=entry.shape)

    def field(self, name: str) -> Any:
        """Return one metadata field, parsed from JSON."""
        text = self.metadata.get(name)
        if text is None:
            refuse(self.path, f"metadata {name}", got="none", expected="a value")
        try:
            return json.loads(text)
        except json.JSONDecodeError:
            refuse(self.path, f"metadata {name}", got=repr(text), expected="JSON")


def refuse(
    path: Path, what: str, *, got: object, expected: object, fix: str = "make the file again"
) -> NoReturn:
    """Raise DataFileError about one field of a file."""
    name = path.name or str(path)
    raise DataFileError(message(name, what, got=got, expected=expected, fix=fix))


def header_bytes(
    tensors: Mapping[str, tuple[str, tuple[int, ...]]],
    metadata: Mapping[str, Any],
    size: int = 0,
) -> bytes:
    """Return the header of tensors that follow it in this order.

    Parameters
    ----------
    tensors : mapping of str to (dtype name of the file, shape)
    metadata : mapping
        Values are written as JSON.
    size : int
        Pad the header to this many bytes in all, so that it can be written again in place.
    """
    offset, table = 0, {}
    for name, (dtype, shape) in tensors.items():
        n = math.prod(shape) * np.dtype(DTYPES[dtype]).itemsize
        table[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [offset, offset + n]}
        offset += n
    fields = {key: json.dumps(value, ensure_ascii=False) for key, value in metadata.items()}
    text = json.dumps({"__metadata__": fields, **table}, ensure_ascii=False).encode()
    text += b" " * max(-(len(text) + 8) % 64, size - 8 - len(text))
    return len(text).to_bytes(8, "little") + text


def write(path: Path, tensors: Mapping[str, npt.NDArray[Any]], metadata: Mapping[str, Any]) -> None:
    """Write a whole file under a temporary name and rename it into place."""
    names = {np.dtype(d): name for name, d in DTYPES.items()}
    table = {key: (names[a.dtype], a.shape) for key, a in tensors.items()}
    partial = path.with_name(path.name + ".partial")
    with partial.open("wb") as out:
        out.write(header_bytes(table, metadata))
        for array in tensors.values():
            out.write(np.ascontiguousarray(array).tobytes())
    partial.replace(path)


def read(path: str | Path) -> TensorFile:
    """Check the header of a file against its body.

    Raises
    ------
    DataFileError
        Naming the field: no such file, zero size, a header that is cut or no JSON, a tensor of an
        unknown dtype, with a bad or empty shape, or a body shorter or longer than the header says.
    """
    file = Path(path).expanduser()
    if not file.is_file():
        got = "a folder" if file.is_dir() else "none"
        refuse(file, "the file", got=got, expected="a file", fix="check the path")
    size = file.stat().st_size
    with file.open("rb") as f:
        n = int.from_bytes(f.read(8), "little")
        if size < 8 or not 2 <= n <= min(size - 8, _MAX_HEADER):
            refuse(file, "header length", got=f"{n} in {size} bytes", expected="a whole header")
        text = f.read(n)
    try:
        header = json.loads(text)
        metadata = header.pop("__metadata__", {})
    except (ValueError, AttributeError):
        refuse(file, "header", got=f"{n} bytes that are no JSON object", expected="JSON")
    entries, end = {}, 0
    for name, given in header.items():
        entries[name], end = _entry(file, name, given, end, 8 + n)
    if 8 + n + end != size:
        what = "body" if size > 8 + n + end else "body is truncated"
        refuse(file, what, got=f"{size - 8 - n} bytes", expected=f"{end} bytes by the header")
    return TensorFile(path=file, metadata=metadata, entries=entries)


def _entry(file: Path, name: str, given: Any, end: int, body: int) -> tuple[Entry, int]:
    """Check one tensor's row of the header; return it and where the next one starts."""
    try:
        dtype, shape = DTYPES.get(given["dtype"]), tuple(given["shape"])
        start, stop = given["data_offsets"]
    except (TypeError, KeyError, ValueError):
        refuse(file, f"tensor {name}", got=given, expected="dtype, shape and data_offsets")
    if dtype is None:
        refuse(file, f"dtype of {name}", got=given["dtype"], expected=" or ".join(DTYPES))
    if not shape or any(not isinstance(s, int) or s < 1 for s in shape):
        refuse(file, f"shape of {name}", got=list(shape), expected="sizes of 1 or more")
    n = math.prod(shape) * np.dtype(dtype).itemsize
    if start != end or stop - start != n:
        expected = f"[{end}, {end + n}] for {given['dtype']}{list(shape)}"
        refuse(file, f"data_offsets of {name}", got=[start, stop], expected=expected)
    return Entry(dtype=dtype, shape=shape, start=body + start), stop
