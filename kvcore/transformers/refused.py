"""The errors of this package: what packed caches do not serve, and calls that went wrong."""

from __future__ import annotations

from typing import Any, NoReturn

from kvcore.errors import ShapeError, UnsupportedError, message

ANOTHER = "use another attention implementation"
PREPARE = "call kvcore.transformers.prepare(model) before"


def unsupported(what: str, fix: str = ANOTHER) -> UnsupportedError:
    """Return the error for an option that packed caches do not serve."""
    return UnsupportedError(
        message("attention", "not served by packed caches", got=what, expected="none", fix=fix)
    )


def wrong_attention() -> UnsupportedError:
    """Return the error for a model whose attention does not read packed caches."""
    return UnsupportedError(
        message(
            "KVCoreCache",
            "the model's attention does not read packed caches",
            got="another attention implementation",
            expected="'kvcore'",
            fix=PREPARE,
        )
    )


def no_cache(module: object) -> UnsupportedError:
    """Return the error for a prepared model that was called without a KVCoreCache."""
    return UnsupportedError(
        message(
            "attention",
            f"the cache of {type(module).__name__}",
            got="no cache, or another one",
            expected="a KVCoreCache",
            fix="pass one as the model's cache, or set another attention implementation",
        )
    )


def changed(module: object, got: str) -> UnsupportedError:
    """Return the error for a model that attends over something else than its cache returned."""
    return UnsupportedError(
        message(
            "attention",
            f"{type(module).__name__} does not attend once over what its KVCoreCache returned",
            got=got,
            expected="one call with the cache's keys and values",
            fix=f"the model does not fit packed caches: {ANOTHER} and cache",
        )
    )


def unfinished(lengths: list[int], left: int) -> ShapeError:
    """Return the error for a cache whose last call ended in the middle of the model."""
    return ShapeError(
        message(
            "KVCoreCache",
            "the last call did not end, or its attention was not 'kvcore'",
            got=f"layers with {' and '.join(map(str, lengths))} columns",
            expected="the same in all, attended over",
            fix=f"{left} columns are left in each; {PREPARE}, then repeat the call, or reset() "
            "the cache",
        )
    )


def other_columns(layer: int, got: int, expected: int) -> ShapeError:
    """Return the error for a layer that has not seen what the others have."""
    return ShapeError(
        message(
            "KVCoreCache",
            f"columns of layer {layer}",
            got=got,
            expected=f"{expected} as in the others",
            fix="a first call that did not end, or a cache of another model: reset() it",
        )
    )


def no_pickle(name: str) -> NoReturn:
    """Raise what pickle and its kin get: the memory belongs to a backend."""
    raise TypeError(
        message(
            "pickle",
            f"{name} holds memory of a backend",
            got="pickle",
            expected="a fork or snapshots",
            fix="copy it by cache.fork(); save it by row.snapshot() for the rows of every layer",
        )
    )


def shown(value: Any) -> str:
    """Return a window for a message."""
    return "all cells" if value is None else f"{value} cells"
