"""Refuse a place that nothing can be written to before hours of measuring, not after."""

from __future__ import annotations

from pathlib import Path
from typing import NoReturn

from kvcore.errors import message
from kvcore.lab.errors import SettingError


def check_file(op: str, path: Path, suffix: str = "") -> None:
    """Check that a file can be written; nothing is left behind and no folder is made.

    Parameters
    ----------
    op : str
        Named in the message.
    path : Path
    suffix : str
        What its name must end with, such as ``.svg``.

    Raises
    ------
    SettingError
        Its folder is not there, it is a folder itself, its name ends otherwise, or the system
        refuses.
    """
    if path.is_dir():
        _refuse(op, "the file to write", got=f"the folder {path}", expected="a file's name")
    if suffix and path.suffix.lower() != suffix:
        _refuse(op, "the file to write", got=path.name, expected=f"a name in {suffix}")
    _check_parent(op, path)
    new = not path.exists()
    if not new and not path.is_file():
        return  # a pipe or a device: opening it here would already be use
    try:
        with path.open("ab"):
            pass
        if new:
            path.unlink()
    except OSError as error:
        _refuse(op, f"{path} cannot be written", got=error.strerror, expected="a writable place")


def check_folder(op: str, path: Path) -> None:
    """Check that files can be written in a folder, which may be new in one that is there.

    Parameters
    ----------
    op : str
        Named in the message.
    path : Path

    Raises
    ------
    SettingError
        It is a file, the folder it would lie in is not there, or the system refuses.
    """
    if path.exists() and not path.is_dir():
        _refuse(op, "the folder to write", got=f"the file {path}", expected="a folder's name")
    _check_parent(op, path)
    new = not path.exists()
    try:
        path.mkdir(exist_ok=True)
        check_file(op, path / ".kvcore")
        if new:
            path.rmdir()
    except OSError as error:
        _refuse(op, f"{path} cannot be made", got=error.strerror, expected="a writable place")


def _check_parent(op: str, path: Path) -> None:
    if not path.parent.is_dir():
        _refuse(
            op,
            f"no folder for {path.name}",
            got=path.parent,
            expected="a folder that is there",
            fix="make it first",
        )


def _refuse(op: str, what: str, *, got: object, expected: object, fix: str = "") -> NoReturn:
    raise SettingError(message(op, what, got=got, expected=expected, fix=fix))
