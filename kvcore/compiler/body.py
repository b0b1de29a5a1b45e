"""Kernel bodies on disk: read verbatim, with their helper headers resolved.

A body may ``#include "name.h"`` from its own folder. Run-time compilers see no file system, so the
include line is replaced by the header's text (once), between ``#line`` marks: every compiler then
reports the true file and line.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

from kvcore.errors import FormatError, message

_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]+"([^"]+)"[ \t]*$')


@dataclass(frozen=True, slots=True, kw_only=True)
class Body:
    """A kernel body and the headers it may include.

    Parameters
    ----------
    label : str
        How diagnostics name the file, ``kvcore/ops/append.c``.
    text : str
        The file as it is on disk.
    headers : dict of str to (str, str)
        Header name to its (label, text).
    """

    label: str
    text: str
    headers: dict[str, tuple[str, str]] = field(default_factory=dict)


def read_body(path: Path, label: str | None = None) -> Body:
    """Read a body and every header of its folder.

    Parameters
    ----------
    path : Path
    label : str, optional
        Default: the path from the last folder named ``kvcore`` or ``tests`` on.
    """
    text = path.read_text(encoding="utf-8")
    headers = {
        header.name: (_label(header), header.read_text(encoding="utf-8"))
        for header in sorted(path.parent.glob("*.h"))
    }
    return Body(label=label or _label(path), text=text, headers=headers)


def _label(path: Path) -> str:
    parts = path.parts
    for i in range(len(parts) - 2, -1, -1):
        if parts[i] in {"kvcore", "tests"}:
            return "/".join(parts[i:])
    return path.name


def flatten(body: Body) -> str:
    """Return the body's text with ``#line`` marks and its includes put in place.

    Raises
    ------
    FormatError
        An include that is not in the body's folder.
    """
    return "".join(_flatten(body, body.label, body.text, set()))


def _flatten(body: Body, label: str, text: str, done: set[str]) -> list[str]:
    out = [f'#line 1 "{label}"\n']
    for number, line in enumerate(text.splitlines(keepends=True), start=1):
        found = _INCLUDE.match(line.rstrip("\r\n"))
        if not found:
            out.append(line)
            continue
        name = found.group(1)
        if name not in body.headers:
            known = ", ".join(sorted(body.headers)) or "no headers"
            raise FormatError(
                message("render", f"{label}:{number} includes", got=name, expected=known)
            )
        if name not in done:
            done.add(name)
            out += _flatten(body, *body.headers[name], done)
        out.append(f'#line {number + 1} "{label}"\n')
    if not out[-1].endswith("\n"):
        out.append("\n")
    return out
