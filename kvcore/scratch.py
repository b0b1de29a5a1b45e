"""Memory that ops keep between calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class Scratch:
    """Named arrays that grow when asked for more and are otherwise reused.

    Parameters
    ----------
    allocate : callable
        (shape, dtype) -> array.
    """

    __slots__ = ("_allocate", "_arrays")

    def __init__(self, allocate: Callable[[tuple[int, ...], str], Any]) -> None:
        self._allocate = allocate
        self._arrays: dict[str, Any] = {}

    def take(self, name: str, n_values: int, dtype: str) -> Any:
        """Return an array of at least `n_values` values; its content is whatever was there."""
        array = self._arrays.get(name)
        if array is None or int(array.shape[0]) < n_values:
            array = self._allocate((n_values,), dtype)
            self._arrays[name] = array
        return array
