"""The formats: one data file each, found by listing this folder.

A format added at run time (:func:`register`) is a full citizen until the process ends.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator
from functools import cache

from kvcore.errors import FormatError, message
from kvcore.spec import Format

_registered: dict[str, Format] = {}


@cache
def _files() -> dict[str, Format]:
    found = {}
    for module in pkgutil.iter_modules(__path__):
        fmt: Format = importlib.import_module(f"{__name__}.{module.name}").FORMAT
        found[fmt.name] = fmt
    return found


def names() -> Iterator[str]:
    """Iterate the formats' names, most bytes first."""
    every = {**_files(), **_registered}
    return iter(sorted(every, key=lambda n: (-_cost(every[n]), n)))


def _cost(fmt: Format) -> float:
    d = 256
    return sum(c.row_bytes(d) + c.scale_bytes(d) for c in (fmt.k, fmt.v))


def get(name: str) -> Format:
    """Return the format called `name`.

    Raises
    ------
    FormatError
        If there is none; the message lists those there are.
    """
    fmt = _registered.get(name) or _files().get(name)
    if fmt is None:
        raise FormatError(
            message(
                "format",
                "unknown format",
                got=repr(name),
                expected=", ".join(names()),
                fix="or build one with kvcore.Format(k=..., v=..., rotate=...)",
            )
        )
    return fmt


def register(fmt: Format) -> Format:
    """Make `fmt` known by its name.

    Raises
    ------
    FormatError
        If another format has that name.
    """
    known = _registered.get(fmt.name) or _files().get(fmt.name)
    if known is not None and known != fmt:
        raise FormatError(f"[format] the name {fmt.name!r} is taken by another format")
    _registered[fmt.name] = fmt
    return fmt


def unregister(name: str) -> None:
    """Forget a format added by :func:`register`."""
    _registered.pop(name, None)
