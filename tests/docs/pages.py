"""The pages that run: their code blocks, their shown output, and their generated tables.

``python tests/docs/pages.py`` rewrites what is generated, after a change that was meant.
"""

from __future__ import annotations

import contextlib
import io
import re
import shlex
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from kvcore import codecs, dispatch
from kvcore.cli.app import run
from kvcore.cli.formats import markdown_table
from kvcore.formats import get as get_format
from kvcore.formats import names as format_names
from kvcore.ops import declared
from kvcore.quantize import encode_rows, zero_code
from kvcore.registry import gaps_of
from kvcore.spec import GROUP_CELLS, Codec

REPO = Path(__file__).resolve().parents[2]
PAGES = [REPO / "README.md", REPO / "CONTRIBUTING.md", *sorted((REPO / "docs").rglob("*.md"))]
_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True, kw_only=True)
class Block:
    language: str
    text: str
    line: int


def blocks(page: str) -> Iterator[Block]:
    for found in _FENCE.finditer(page):
        line = page.count("\n", 0, found.start()) + 2
        yield Block(language=found[1], text=found[2], line=line)


def said_by(command: str) -> str:
    """Return what a ``kvcore`` command prints on stdout, without trailing blanks."""
    words = shlex.split(command)
    if words[0] != "kvcore":
        raise ValueError(f"a console block runs kvcore only: got {command!r}")
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        code = run(words[1:])
    if code:
        raise RuntimeError(f"{command} ended with {code}")
    return "\n".join(line.rstrip() for line in out.getvalue().rstrip().splitlines())


def console(text: str) -> str:
    """Return a console block with the output its commands print now."""
    commands = [line for line in text.splitlines() if line.startswith("$ ")]
    return "".join(f"{c}\n{said_by(c[2:])}\n" for c in commands)


def nonfinite_table() -> str:
    """Return what each codec stores for a group that holds a NaN or an infinity."""
    lines = ["| codec | of | NaN | +inf | -inf | reads as |", "|---|---|---|---|---|---|"]
    for codec in sorted(codecs.all_codecs().values(), key=lambda c: (-c.bits, c.name)):
        lines.append("| " + " | ".join(_nonfinite_row(codec)) + " |")
    return "\n".join(lines)


def _nonfinite_row(codec: Codec) -> list[str]:
    if codec.scale is None:
        row = np.zeros(8, np.float32)
        cells = []
        for value in (np.nan, np.inf, -np.inf):
            row[0] = value
            codes, _ = encode_rows(codec, row)
            cells.append("0x" + codes[: codec.bits // 8][::-1].tobytes().hex())
        return [codec.name, "one value", *cells, "the value"]
    what = f"{GROUP_CELLS} cells" if codec.per_channel else f"{codec.scale.group} values"
    stored = f"scale 0x7e00, codes {zero_code(codec)}"
    return [codec.name, what, *[stored] * 3, "NaN"]


def support_table() -> str:
    """Return which backend has which op, with the reason of every declared gap."""
    names = list(dispatch.IN_TREE)
    lines = ["| op | " + " | ".join(names) + " |", "|---|" + "---|" * len(names)]
    notes = []
    for op in sorted(declared()):
        cells = []
        for name in names:
            gaps = gaps_of(dispatch.backend_class(name))
            missing = {c: why for (o, c), why in gaps.items() if o == op}
            cells.append("gap" if "*" in missing else "but for some codecs" if missing else "yes")
            notes += [f"- {op} on {name}, {c}: {why}" for c, why in sorted(missing.items())]
        lines.append(f"| {op} | " + " | ".join(cells) + " |")
    return "\n".join([*lines, *([""] if notes else []), *notes])


def formats_table() -> str:
    """Return how many of the declared ops each backend has for each format, gaps taken off."""
    names = list(dispatch.IN_TREE)
    lines = ["| format | " + " | ".join(names) + " |", "|---|" + "---|" * len(names)]
    for name in format_names():
        fmt = get_format(name)
        used = {"*", fmt.k.name, fmt.v.name}
        cells = []
        for backend in names:
            gaps = gaps_of(dispatch.backend_class(backend))
            missing = {op for op, codec in gaps if codec in used}
            cells.append(f"{len(declared()) - len(missing)} of {len(declared())} ops")
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


GENERATED = {
    "support": support_table,
    "supported": formats_table,
    "formats": markdown_table,
    "nonfinite": nonfinite_table,
}


def refreshed(page: str) -> str:
    """Return a page with its generated parts as they are now."""
    for name, make in GENERATED.items():
        marks = rf"(<!-- {name}:begin[^\n]*-->\n).*?(<!-- {name}:end -->)"
        page = re.sub(marks, lambda m, make=make: f"{m[1]}{make()}\n{m[2]}", page, flags=re.DOTALL)
    return _FENCE.sub(
        lambda m: f"```console\n{console(m[2])}```" if m[1] == "console" else m[0], page
    )


if __name__ == "__main__":
    for path in PAGES:
        old = path.read_text(encoding="utf-8")
        new = refreshed(old)
        if new != old:
            path.write_text(new, encoding="utf-8")
            print(f"rewrote {path.relative_to(REPO)}", file=sys.stderr)
