"""Named arrays in one untrusted file: the safetensors layout, little-endian, every byte hashed.

A file is an 8-byte header length, a JSON header and the arrays, without gaps. The header's
metadata holds a sha256 per section, and the last section holds the sha256 of the header, so that
no byte of a file can change unseen. Reading allocates nothing before its size is checked against
the bytes at hand.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from kvcore.errors import FormatError, message
from kvcore.numerics import Array

DTYPES = {"F32": "<f4", "I32": "<i4", "F16": "<f2", "U8": "|u1"}
"""Types a section may have, widest first: in this order every section is aligned."""

SEAL = "header_sha256"
MAX_HEADER = 1 << 20
MAX_RANK = 4
MAX_DIM = (1 << 31) - 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Section:
    """One array of a file, checked but not yet read.

    Attributes
    ----------
    dtype : str
        Key of ``DTYPES``.
    shape : tuple of int
    start, end : int
        Its bytes, from the end of the header.
    """

    dtype: str
    shape: tuple[int, ...]
    start: int
    end: int


def pack(metadata: Mapping[str, str], arrays: Mapping[str, Array]) -> bytes:
    """Return the file of some arrays.

    Parameters
    ----------
    metadata : mapping of str to str
    arrays : mapping of str to f32, i32, f16 or u8 array
    """
    names = {np.dtype(v): k for k, v in DTYPES.items()}
    ordered = sorted(arrays, key=lambda n: (-arrays[n].dtype.itemsize, n))
    header: dict[str, Any] = {}
    parts, hashes, at = [], {}, 0
    for name in ordered:
        a = arrays[name]
        data = np.ascontiguousarray(a, DTYPES[names[a.dtype]]).tobytes()
        hashes[name] = hashlib.sha256(data).hexdigest()
        header[name] = _entry(names[a.dtype], a.shape, at, at + len(data))
        parts.append(data)
        at += len(data)
    header[SEAL] = _entry("U8", (32,), at, at + 32)
    text = _canonical({"__metadata__": {**metadata, "sha256": _canonical(hashes)}, **header})
    raw = text.encode()
    raw += b" " * (-len(raw) % 8)
    return b"".join([len(raw).to_bytes(8, "little"), raw, *parts, hashlib.sha256(raw).digest()])


def _entry(dtype: str, shape: tuple[int, ...], start: int, end: int) -> dict[str, Any]:
    return {"dtype": dtype, "shape": list(shape), "data_offsets": [start, end]}


def _canonical(value: object) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=True)


def seal_of(data: bytes) -> bytes:
    """Return the sha256 of a sound file's header: equal only for equal files."""
    return bytes(data[-32:])


@dataclass(frozen=True, kw_only=True, slots=True)
class Container:
    """A file whose header is sound; nothing of its arrays has been copied.

    Attributes
    ----------
    metadata : dict of str to str
    sections : dict of str to Section
        Without the seal.
    hashes : dict of str to str
    body : memoryview
    """

    metadata: dict[str, str]
    sections: dict[str, Section]
    hashes: dict[str, str]
    body: memoryview

    def view(self, name: str) -> Array:
        """Return one array as a read-only view of the file, its hash checked.

        Raises
        ------
        FormatError
            If the bytes are not those that were hashed.
        """
        s = self.sections[name]
        data = self.body[s.start : s.end]
        if hashlib.sha256(data).hexdigest() != self.hashes[name]:
            raise FormatError(f"[snapshot] {name}: the bytes do not match their sha256")
        return np.frombuffer(data, DTYPES[s.dtype]).reshape(s.shape)


def unpack(data: bytes) -> Container:
    """Check a file's header.

    Raises
    ------
    FormatError
        Naming what is wrong.
    """
    if not isinstance(data, bytes | bytearray | memoryview):
        raise FormatError(
            message("snapshot", "data", got=type(data).__name__, expected="bytes of a snapshot")
        )
    whole = memoryview(data).cast("B")
    if len(whole) < 8:
        raise FormatError(message("snapshot", "size", got=len(whole), expected="8 bytes or more"))
    size = int.from_bytes(whole[:8], "little")
    if size > min(len(whole) - 8, MAX_HEADER):
        raise FormatError(
            message(
                "snapshot",
                "header length",
                got=size,
                expected=f"at most {min(len(whole) - 8, MAX_HEADER)}",
                fix="the file is truncated or not a snapshot",
            )
        )
    raw, body = bytes(whole[8 : 8 + size]), whole[8 + size :]
    header = _parse(raw)
    metadata = _metadata(header.pop("__metadata__", None))
    sections = {name: _section(name, entry) for name, entry in header.items()}
    _check_extent(sections, len(body))
    seal = sections.pop(SEAL, None)
    if seal is None or (seal.dtype, seal.shape) != ("U8", (32,)):
        raise FormatError(f"[snapshot] {SEAL}: missing or of the wrong shape")
    if hashlib.sha256(raw).digest() != bytes(body[seal.start : seal.end]):
        raise FormatError(f"[snapshot] {SEAL}: the header does not match its sha256")
    hashes = _hashes(metadata.pop("sha256", ""), sections)
    return Container(metadata=metadata, sections=sections, hashes=hashes, body=body)


def strict_json(text: str, field: str) -> Any:
    """Parse JSON that has no repeated name and no NaN.

    Raises
    ------
    FormatError
        Naming `field`.
    """

    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(items)
        if len(found) != len(items):
            raise ValueError("a name is repeated")
        return found

    def constant(name: str) -> Any:
        raise ValueError(f"{name} is not a number")

    try:
        return json.loads(text, object_pairs_hook=pairs, parse_constant=constant)
    except (ValueError, RecursionError) as error:
        raise FormatError(f"[snapshot] {field}: not sound JSON ({error})") from error


def _parse(raw: bytes) -> dict[str, Any]:
    try:
        text = raw.decode("ascii")
    except UnicodeDecodeError as error:
        raise FormatError(f"[snapshot] header: not ASCII ({error.reason})") from error
    header = strict_json(text, "header")
    if not isinstance(header, dict):
        raise FormatError("[snapshot] header: not a JSON object")
    return header


def _metadata(raw: Any) -> dict[str, str]:
    if not isinstance(raw, dict) or not all(isinstance(v, str) for v in raw.values()):
        raise FormatError("[snapshot] __metadata__: missing, or not text by name")
    return dict(raw)


def _section(name: str, entry: Any) -> Section:
    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        raise FormatError(f"[snapshot] {name}: expected dtype, shape and data_offsets")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in DTYPES:
        raise FormatError(
            message("snapshot", f"{name} dtype", got=repr(dtype), expected=list(DTYPES))
        )
    if not _counts(shape) or len(shape) > MAX_RANK:
        raise FormatError(f"[snapshot] {name} shape: expected at most {MAX_RANK} counts")
    if not _counts(offsets, top=1 << 62) or len(offsets) != 2:
        raise FormatError(f"[snapshot] {name} data_offsets: expected two counts")
    start, end = offsets
    size = math.prod(shape) * np.dtype(DTYPES[dtype]).itemsize
    if end - start != size:
        raise FormatError(
            message("snapshot", f"{name} data_offsets", got=end - start, expected=f"{size} bytes")
        )
    return Section(dtype=dtype, shape=tuple(shape), start=start, end=end)


def _counts(values: Any, top: int = MAX_DIM) -> bool:
    return isinstance(values, list) and all(type(v) is int and 0 <= v <= top for v in values)


def _check_extent(sections: Mapping[str, Section], size: int) -> None:
    """Refuse gaps, overlaps and missing bytes."""
    at = 0
    for name, s in sorted(sections.items(), key=lambda item: (item[1].start, item[1].end)):
        if s.start != at:
            raise FormatError(
                message(
                    "snapshot", f"{name} data_offsets", got=s.start, expected=f"a start at {at}"
                )
            )
        at = s.end
    if at != size:
        raise FormatError(
            message("snapshot", "size", got=f"{size} bytes of data", expected=f"{at}")
        )


def _hashes(text: str, sections: Mapping[str, Section]) -> dict[str, str]:
    found = strict_json(text, "sha256")
    if not isinstance(found, dict) or set(found) != set(sections):
        raise FormatError("[snapshot] sha256: expected one hash per section")
    if not all(isinstance(h, str) for h in found.values()):
        raise FormatError("[snapshot] sha256: expected hexadecimal text")
    return found
