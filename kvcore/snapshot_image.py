"""The file of a snapshot: an image of a cache to bytes and back, every field checked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from kvcore import marks as rules
from kvcore import snapshot_key as keys
from kvcore.cache_spec import CacheSpec
from kvcore.container import Container, pack, unpack
from kvcore.errors import FormatError, message
from kvcore.layout import LENGTH, N_MARKS
from kvcore.numerics import Array

VERSION = 1
"""Version of the file; a newer one is refused."""

_NUMPY = {"u1": "U8", "f2": "F16"}


@dataclass(frozen=True, kw_only=True, eq=False)
class Image:
    """A cache's contents on the host.

    Attributes
    ----------
    spec : CacheSpec
    capacity : int
    row : list of int
        Marks.
    planes : dict of str to array
        Pages of the committed cells in order, rounded up to whole units; unseen bytes are 0.
    exact_k, exact_v : f16[slots, H, D]
        Sinks and ring; dead slots are 0.
    centre : f16[H, Dk]
        In the stored basis.
    """

    spec: CacheSpec
    capacity: int
    row: list[int]
    planes: dict[str, Array]
    exact_k: Array
    exact_v: Array
    centre: Array


def write(image: Image) -> bytes:
    """Return the file of an image."""
    spec = image.spec
    metadata = {
        "format": "kvcore-snapshot",
        "version": str(VERSION),
        "key": keys.to_text(keys.key_of(spec)),
        "cells": str(image.row[LENGTH]),
        "capacity": str(image.capacity),
    }
    arrays = {
        **image.planes,
        "exact_k": image.exact_k,
        "exact_v": image.exact_v,
        "centre": image.centre,
        "marks": np.asarray(image.row, np.int32),
    }
    if not isinstance(spec.k_center, str):
        arrays["k_center"] = np.asarray(spec.k_center, np.float32)
    return pack(metadata, arrays)


def read(data: bytes, spec: CacheSpec | None = None) -> Image:
    """Return the image in a file, fully checked.

    Parameters
    ----------
    data : bytes
    spec : CacheSpec, optional
        The spec it must have been saved with; by default the one the file names.

    Raises
    ------
    FormatError
        Naming the field that is wrong.
    """
    file = unpack(data)
    if file.metadata.get("format") != "kvcore-snapshot":
        raise FormatError(
            message(
                "snapshot",
                "format",
                got=file.metadata.get("format"),
                expected="kvcore-snapshot",
            )
        )
    version = _count(file.metadata, "version", 1 << 31)
    if version != VERSION:
        raise FormatError(
            message(
                "snapshot",
                "version",
                got=version,
                expected=VERSION,
                fix="it was saved by another version of the library",
            )
        )
    key = keys.parse(file.metadata.get("key", ""))
    if spec is None:
        calibrated = _k_center(file, key) if "k_center" in file.sections else None
        spec = keys.spec_of(key, calibrated)
    else:
        keys.compare(key, spec)
    return _image(file, spec)


def _k_center(file: Container, key: dict[str, Any]) -> Array:
    _expect(file, {"k_center": ("F32", (key["n_kv_heads"], key["head_dim"]))}, every=False)
    return file.view("k_center")


def _image(file: Container, spec: CacheSpec) -> Image:
    layout, sl = spec.layout, spec.state_layout
    cells = _count(file.metadata, "cells", (1 << 31) - 1)
    capacity = _count(file.metadata, "capacity", (1 << 31) - 1)
    if capacity < max(cells, 1):
        raise FormatError(
            message("snapshot", "capacity", got=capacity, expected=f"at least {max(cells, 1)}")
        )
    h = spec.n_kv_heads
    want = {p.name: (_NUMPY[p.dtype], p.shape) for p in layout.planes(layout.pages_for(cells))}
    want["exact_k"] = ("F16", (sl.slots("k"), h, spec.head_dim))
    want["exact_v"] = ("F16", (sl.slots("v"), h, spec.head_dim_v))
    want["centre"] = ("F16", (h, spec.head_dim))
    want["marks"] = ("I32", (N_MARKS,))
    if not isinstance(spec.k_center, str):
        want["k_center"] = ("F32", (h, spec.head_dim))
    _expect(file, want)
    views = {name: file.view(name) for name in want}
    row = views["marks"].tolist()
    wrong = "length" if row[LENGTH] != cells else rules.fault(row, sl)
    if wrong:
        raise FormatError(f"[snapshot] marks: {wrong} cannot be for {cells} cells of this spec")
    return Image(
        spec=spec,
        capacity=capacity,
        row=row,
        planes={p.name: views[p.name] for p in layout.planes(0)},
        exact_k=views["exact_k"],
        exact_v=views["exact_v"],
        centre=views["centre"],
    )


def _expect(
    file: Container, want: dict[str, tuple[str, tuple[int, ...]]], every: bool = True
) -> None:
    """Raise FormatError unless the sections are those, of those types and shapes."""
    if every and set(file.sections) != set(want):
        odd = sorted(set(file.sections) ^ set(want))
        raise FormatError(
            message("snapshot", "sections", got=odd, expected="neither missing nor extra")
        )
    for name, (dtype, shape) in want.items():
        s = file.sections[name]
        if (s.dtype, s.shape) != (dtype, tuple(shape)):
            raise FormatError(
                message(
                    "snapshot",
                    f"{name} shape",
                    got=f"{s.dtype}{s.shape}",
                    expected=f"{dtype}{tuple(shape)}",
                )
            )


def _count(metadata: dict[str, str], name: str, top: int) -> int:
    text = metadata.get(name, "")
    if not (text.isascii() and text.isdigit() and len(text) <= 12) or int(text) > top:
        raise FormatError(message("snapshot", name, got=repr(text[:20]), expected=f"0 to {top}"))
    return int(text)
