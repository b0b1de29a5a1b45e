"""Compiled kernels: one signature each, kept on disk, announced when the compiler has to run.

A kernel takes a codec as data, so that one compilation serves every format.
"""

from __future__ import annotations

import functools
import hashlib
import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

import numba
import numpy as np

log = logging.getLogger("kvcore.cpu")

PATIENCE = 1.0
"""Seconds of compiling before a line says so."""

_COMMON: dict[str, Any] = {"nogil": True, "error_model": "numpy", "no_cfunc_wrapper": True}
"""Wrappers that nobody calls cost a tenth of the compile time."""

F = TypeVar("F", bound=Callable[..., Any])
_told = threading.Event()

compiled_kernels: dict[str, Any] = {}
"""numba's dispatchers by name: each should ever have one signature."""


@functools.cache
def fingerprint() -> str:
    """Return the hash of every source of this folder: a kernel's cache entry is keyed by it."""
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def inner(*, fast: bool = False, always: bool = False) -> Callable[[F], F]:
    """Mark a function that kernels call.

    Parameters
    ----------
    fast : bool
        Sums may be reordered and fused: only where the result is never stored.
    always : bool
        Inline it whatever its size.
    """
    options: dict[str, Any] = {**_COMMON, "no_cpython_wrapper": True, "forceinline": always}
    if fast:
        options["fastmath"] = {"reassoc", "contract", "nsz"}
    made: Callable[[F], F] = numba.njit(**options)
    return made


def kernel(function: F) -> F:
    """Mark a function that Python calls: compiled once per machine, without the GIL."""
    if getattr(numba.config, "DISABLE_JIT", False):
        quiet: F = np.errstate(all="ignore")(function)
        return quiet
    compiled: Any = numba.njit(**_COMMON)(function)
    compiled_kernels[function.__name__] = compiled
    try:
        compiled.enable_caching()
        # numba looks at the kernel's own file only; what it calls lies in other files.
        stamp = compiled._cache._cache_file
        stamp._source_stamp = (*stamp._source_stamp, fingerprint())
    except RuntimeError as error:  # neither this folder nor the user's cache folder is writable
        log.warning("kvcore: CPU kernels are compiled in every process: %s", error)

    called = False  # numba's own list of signatures costs a tenth of a millisecond to ask for

    @functools.wraps(function)
    def call(*args: Any) -> Any:
        nonlocal called
        if called:
            return compiled(*args)
        out = _first(compiled, args)
        called = True
        return out

    return cast("F", call)


def _first(compiled: Any, args: tuple[Any, ...]) -> Any:
    """Make a kernel's first call; say so if the compiler takes long."""
    done = threading.Event()

    def announce() -> None:
        if not done.wait(PATIENCE) and not _told.is_set():
            _told.set()
            log.warning("kvcore: compiling the CPU kernels (once on this machine, about 15 s) ...")

    threading.Thread(target=announce, daemon=True).start()
    start = time.perf_counter()
    try:
        return compiled(*args)
    finally:
        done.set()
        log.info("%s ready in %.2f s", compiled.__name__, time.perf_counter() - start)
