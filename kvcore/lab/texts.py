"""The texts that formats are measured on: nine of them, of three kinds, on every machine.

The conversations are part of kvcore; documents and code are Python's own, from the standard
library that runs. A text is known by its hash, because another Python brings other files.
"""

from __future__ import annotations

import hashlib
import re
import sysconfig
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from kvcore.errors import UnsupportedError, message
from kvcore.lab.chat import has_chat
from kvcore.lab.errors import SettingError

KINDS = ("chat", "document", "code")

CALIBRATION = "calibration"
"""A document apart from the nine, where calibrated arms take their centres from."""

Turns = tuple[tuple[str, str], ...]

_DOCUMENTS = {
    "doc-objects": ("objects", "execmodel", "naming", "exceptions", "import"),
    "doc-strings": ("strings", "formatstrings", "string-methods"),
    "doc-statements": ("compound", "function", "class", "with", "async"),
}
_CALIBRATION = ("specialnames", "typesmapping", "debugger")
_CODE = {"code-argparse": "argparse.py", "code-difflib": "difflib.py", "code-tarfile": "tarfile.py"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Text:
    """One text.

    Attributes
    ----------
    name : str
    kind : {"chat", "document", "code", "file"}
    body : str
    sha256 : str
        Of the body in UTF-8.
    """

    name: str
    kind: str
    body: str

    @property
    def sha256(self) -> str:
        """Hash of the body."""
        return hashlib.sha256(self.body.encode()).hexdigest()


def names() -> tuple[str, ...]:
    """Return the names of all texts, kinds in turn, so that any prefix mixes them."""
    chats = tuple(_conversations())
    return tuple(n for row in zip(chats, _DOCUMENTS, _CODE, strict=True) for n in row)


def text(name: str, metadata: Mapping[str, Any] | None = None) -> Text:
    """Return a text by name, or a file by path.

    Parameters
    ----------
    name : str
        One of :func:`names`, or the path of a text file.
    metadata : mapping, optional
        Of the model file: conversations are written in its dialect, or as plain turns if it has
        none that is known.

    Raises
    ------
    SettingError
        There is no such text and no such file.
    UnsupportedError
        This Python came without the file.
    """
    if name in _DOCUMENTS:
        return Text(name=name, kind="document", body=_topics(_DOCUMENTS[name]))
    if name == CALIBRATION:
        return Text(name=name, kind="document", body=_topics(_CALIBRATION))
    if name in _CODE:
        return Text(name=name, kind="code", body=_source(_CODE[name]))
    chats = _conversations()
    if name in chats:
        chatml = metadata is not None and has_chat(metadata)
        return Text(name=name, kind="chat", body=_written(chats[name], chatml=chatml))
    if Path(name).is_file():
        body = Path(name).read_text(encoding="utf-8", errors="replace")
        return Text(name=Path(name).stem, kind="file", body=body)
    expected = ", ".join(names()) + " or a file"
    raise SettingError(message("texts", "unknown text", got=name, expected=expected))


def _written(turns: Turns, *, chatml: bool) -> str:
    if chatml:
        return "".join(f"<|im_start|>{role}\n{said}<|im_end|>\n" for role, said in turns)
    return "\n\n".join(f"{role.capitalize()}: {said}" for role, said in turns)


def _conversations() -> dict[str, Turns]:
    """Read the conversations: a title line each, then turns under the speaker's name."""
    book = resources.files("kvcore.lab").joinpath("chats.md").read_text(encoding="utf-8")
    out = {}
    for chapter in re.split(r"^# ", book, flags=re.MULTILINE)[1:]:
        title, _, rest = chapter.partition("\n")
        parts = re.split(r"^## (\w+)\n", rest, flags=re.MULTILINE)[1:]
        out[title.strip()] = tuple(
            (role, said.strip()) for role, said in zip(parts[::2], parts[1::2], strict=True)
        )
    return out


def _topics(wanted: Sequence[str]) -> str:
    try:
        from pydoc_data import topics
    except ImportError as error:
        raise _absent("pydoc_data", error) from error
    missing = [t for t in wanted if t not in topics.topics]
    if missing:
        raise _absent("pydoc_data", f"no topic {', '.join(missing)}")
    return "\n\n".join(str(topics.topics[t]).strip() for t in wanted)


def _source(file: str) -> str:
    path = Path(sysconfig.get_paths()["stdlib"]) / file
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise _absent(file, error) from error


def _absent(name: str, got: object) -> UnsupportedError:
    fix = "give a file of your own, or use a Python with its standard library"
    return UnsupportedError(
        message("texts", f"{name} is not here", got=got, expected="Python's own file", fix=fix)
    )
