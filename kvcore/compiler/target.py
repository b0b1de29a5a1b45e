"""A target: how one compiler's dialect spells a kernel signature. Pure data.

The instances live beside their preludes, in ``kvcore.backends.<name>.target``.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from kvcore.errors import UnsupportedError, message

_MODULES = {
    "opencl": "kvcore.backends.sycl.target:OPENCL",
    "sycl": "kvcore.backends.sycl.target:SYCL",
    "cuda": "kvcore.backends.cuda.target:CUDA",
    "metal": "kvcore.backends.metal.target:METAL",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The words that differ between compilers; fields are ``str.format`` patterns.

    Parameters
    ----------
    name, language : str
        ``language`` is what a person calls it ("OpenCL C 1.2").
    prelude : Path
        Text put before everything else: types and dialect words.
    suffix : str
        File suffix of the emitted source.
    flags : tuple of str
        Options that the numerics contract needs, in this compiler's spelling.
    function : str
        Qualifiers of the function that holds the body.
    entry : str
        Fields ``lanes, symbol, params``.
    buffer : str
        A pointer parameter; fields ``const, ctype, restrict, name``.
    binding : str
        Appended to a pointer parameter of the entry; field ``index``.
    values : str
        The parameter that carries the struct of values; fields ``struct, index``.
    builtins : str
        More entry parameters (Metal's thread positions).
    ids : tuple of str
        Expressions for ``lane, gx, gy, gz``.
    local : str
        Declaration of group memory; fields ``ctype, name, size``.
    local_pointer : str
        The same memory as a parameter; fields ``ctype, name``.
    table : str
        A constant array of 32-bit words; fields ``name, size, words``.
    restrict : str
        The word for a pointer that overlaps no other.
    offsets : bool
        Buffers arrive with a byte offset in the struct of values.
    """

    name: str
    language: str
    prelude: Path
    suffix: str
    flags: tuple[str, ...]
    function: str
    entry: str
    buffer: str
    binding: str
    values: str
    builtins: str
    ids: tuple[str, str, str, str]
    local: str
    local_pointer: str
    table: str
    restrict: str = ""
    offsets: bool = False


def target_names() -> tuple[str, ...]:
    """Return the names :func:`get_target` knows."""
    return tuple(_MODULES)


def get_target(name: str) -> Target:
    """Return a target by name without importing any vendor package.

    Raises
    ------
    UnsupportedError
        An unknown name.
    """
    if name not in _MODULES:
        raise UnsupportedError(
            message("target", "unknown target", got=name, expected=f"one of {sorted(_MODULES)}")
        )
    module, attribute = _MODULES[name].split(":")
    target: Target = getattr(importlib.import_module(module), attribute)
    return target


@cache
def read_text(path: Path) -> str:
    """Return a prelude's text; read once per process."""
    return path.read_text(encoding="utf-8")
