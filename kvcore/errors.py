"""The errors kvcore raises, and the one way their messages are written.

Every message reads ``[op] what is wrong: got X, expected Y; what to do``.
"""

from __future__ import annotations


class KvcoreError(Exception):
    """Base of every error that kvcore raises on purpose."""


class FormatError(KvcoreError, ValueError):
    """A format, codec, recipe or geometry that cannot exist."""


class ShapeError(KvcoreError, ValueError):
    """An operand of the wrong shape, stride, dtype or device."""


class RangeError(ShapeError, IndexError):
    """A position, id, page or length outside its range."""


class UnsupportedError(KvcoreError, NotImplementedError):
    """A declared gap: the combination is refused before anything runs."""


class OutOfPages(KvcoreError, RuntimeError):
    """The pool has too few free pages; nothing was changed."""


class BackendUnavailable(KvcoreError, RuntimeError):
    """The backend cannot run on this machine; the message says why."""


class LinkError(KvcoreError, RuntimeError):
    """A backend's table differs from the declared ops."""


class BuildError(KvcoreError, RuntimeError):
    """A kernel did not compile.

    Attributes
    ----------
    log : str
        The compiler's output; lines name ``kvcore/ops/<op>.c:<line>``.
    source : str
        The text that was compiled.
    """

    def __init__(self, message: str, *, log: str = "", source: str = "") -> None:
        super().__init__(f"{message}\n{log}" if log else message)
        self.log = log
        self.source = source


def message(op: str, what: str, *, got: object, expected: object, fix: str = "") -> str:
    """Return ``[op] what: got X, expected Y; fix``."""
    tail = f"; {fix}" if fix else ""
    return f"[{op}] {what}: got {got}, expected {expected}{tail}"
