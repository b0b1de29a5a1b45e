"""The codecs: one data file each, found by listing this folder."""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache

from kvcore.errors import FormatError, message
from kvcore.spec import Codec


@cache
def all_codecs() -> dict[str, Codec]:
    """Return every codec of this folder by name."""
    found = {}
    for module in pkgutil.iter_modules(__path__):
        codec: Codec = importlib.import_module(f"{__name__}.{module.name}").CODEC
        found[codec.name] = codec
    return found


def get(name: str) -> Codec:
    """Return the codec called `name`.

    Raises
    ------
    FormatError
        If there is none; the message lists those there are.
    """
    codec = all_codecs().get(name)
    if codec is None:
        raise FormatError(
            message("codec", "unknown codec", got=repr(name), expected=", ".join(all_codecs()))
        )
    return codec
