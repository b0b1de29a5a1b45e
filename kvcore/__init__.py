"""kvcore: store an LLM's KV cache in 2 to 8 bits and attend over it, on any hardware.

Start with ``be = kvcore.get_backend()``, ``cache = be.cache(kvcore.CacheSpec(...), capacity)``.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvcore.errors import (
    BackendUnavailable,
    BuildError,
    FormatError,
    KvcoreError,
    LinkError,
    OutOfPages,
    RangeError,
    ShapeError,
    UnsupportedError,
)
from kvcore.formats import get as format
from kvcore.formats import names as formats

if TYPE_CHECKING:
    from kvcore import interop
    from kvcore.backend import Availability, Backend
    from kvcore.cache import KVCache
    from kvcore.cache_spec import CacheSpec
    from kvcore.conformance import check
    from kvcore.dispatch import backends, explain, fallback_counts, get_backend
    from kvcore.layout import Layout, StateLayout
    from kvcore.memory_plan import plan
    from kvcore.pool import Pool, State
    from kvcore.spec import Codec, Format, Recipe, Scale

__version__ = "0.1.0"

# A bare checkout keeps the backends beside this package; an installed one keeps them inside it.
_beside = Path(__file__).resolve().parent.parent
if (
    not (Path(__file__).resolve().parent / "backends").is_dir()
    and (_beside / "backends" / "__init__.py").is_file()
):
    __path__.append(str(_beside))

# Public names that are loaded when first used, so that importing kvcore stays cheap.
_LAZY = {
    "Availability": "kvcore.backend",
    "Backend": "kvcore.backend",
    "CacheSpec": "kvcore.cache_spec",
    "Codec": "kvcore.spec",
    "Format": "kvcore.spec",
    "KVCache": "kvcore.cache",
    "Layout": "kvcore.layout",
    "Pool": "kvcore.pool",
    "Recipe": "kvcore.spec",
    "Scale": "kvcore.spec",
    "State": "kvcore.pool",
    "StateLayout": "kvcore.layout",
    "backends": "kvcore.dispatch",
    "check": "kvcore.conformance",
    "explain": "kvcore.dispatch",
    "fallback_counts": "kvcore.dispatch",
    "get_backend": "kvcore.dispatch",
    "plan": "kvcore.memory_plan",
}

__all__ = [
    "Availability",
    "Backend",
    "BackendUnavailable",
    "BuildError",
    "CacheSpec",
    "Codec",
    "Format",
    "FormatError",
    "KVCache",
    "KvcoreError",
    "Layout",
    "LinkError",
    "OutOfPages",
    "Pool",
    "RangeError",
    "Recipe",
    "Scale",
    "ShapeError",
    "State",
    "StateLayout",
    "UnsupportedError",
    "backends",
    "check",
    "explain",
    "fallback_counts",
    "format",
    "formats",
    "get_backend",
    "interop",
    "plan",
]


def __getattr__(name: str) -> Any:
    if name == "interop":  # a module of functions, not one name
        return importlib.import_module("kvcore.interop")
    home = _LAZY.get(name)
    if home is None:
        raise AttributeError(f"module 'kvcore' has no attribute {name!r}")
    module = importlib.import_module(home)
    value = getattr(module, name)
    globals()[name] = value
    return value
