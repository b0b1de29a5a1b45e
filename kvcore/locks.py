"""Many readers or one writer."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class SharedLock:
    """Readers share it, a writer has it alone; a waiting writer keeps new readers out.

    Not re-entrant: a thread that writes must not read or write again inside.
    """

    __slots__ = ("_changed", "_readers", "_waiting", "_writing")

    def __init__(self) -> None:
        self._changed = threading.Condition(threading.Lock())
        self._readers = 0
        self._waiting = 0
        self._writing = False

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Hold it with other readers."""
        with self._changed:
            self._changed.wait_for(lambda: not (self._writing or self._waiting))
            self._readers += 1
        try:
            yield
        finally:
            with self._changed:
                self._readers -= 1
                self._changed.notify_all()

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Hold it alone."""
        with self._changed:
            self._waiting += 1
            self._changed.wait_for(lambda: not (self._writing or self._readers))
            self._waiting -= 1
            self._writing = True
        try:
            yield
        finally:
            with self._changed:
                self._writing = False
                self._changed.notify_all()
