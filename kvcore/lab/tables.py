"""Tables and sections of a measurement, as text that a terminal, Markdown and HTML can show."""

from __future__ import annotations

import html
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """One table; every cell is text already.

    Attributes
    ----------
    title : str
    columns : list of str
    rows : list of list of str
    note : str
        What the numbers are, under the table.
    """

    title: str
    columns: list[str]
    rows: list[list[str]]
    note: str = ""

    def markdown(self) -> str:
        """Return the table in Markdown, its title in bold above it."""
        lines = [f"**{self.title}**", ""]
        lines.append("| " + " | ".join(_escaped(c) for c in self.columns) + " |")
        lines.append("|" + "---|" * len(self.columns))
        lines += ["| " + " | ".join(_escaped(c) for c in row) + " |" for row in self.rows]
        return "\n".join([*lines, "", *([self.note, ""] if self.note else [])])

    def html(self) -> str:
        """Return the table in HTML; cells of numbers are set to the right."""
        head = "".join(f"<th>{html.escape(c)}</th>" for c in self.columns)
        body = "".join(
            "<tr>" + "".join(_cell(c, first=i == 0) for i, c in enumerate(row)) + "</tr>\n"
            for row in self.rows
        )
        note = f"<p class=note>{html.escape(self.note)}</p>" if self.note else ""
        return (
            f"<figure class=table><figcaption>{html.escape(self.title)}</figcaption>"
            f"<div class=scroll><table><thead><tr>{head}</tr></thead><tbody>\n{body}</tbody>"
            f"</table></div>{note}</figure>\n"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """A plot as SVG text.

    Attributes
    ----------
    name : str
        Of its file.
    title : str
    svg : str
    """

    name: str
    title: str
    svg: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """One part of a report.

    Attributes
    ----------
    title : str
    findings : list of str
        Sentences made from the results.
    commands : list of str
        What measures the numbers again, each line in a shell.
    tables : list of Table
    pictures : list of Picture
    data : mapping
        The numbers behind it, for ``--json``.
    """

    title: str
    findings: list[str] = field(default_factory=list)
    commands: list[str] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)
    pictures: list[Picture] = field(default_factory=list)
    data: dict[str, Any] = field(default_factory=dict)


def _escaped(text: str) -> str:
    return text.replace("|", "\\|")


def _cell(text: str, *, first: bool) -> str:
    number = not first and text.strip("+-−.0123456789%/ eE,") == ""
    return f"<td{' class=n' if number else ''}>{html.escape(text)}</td>"


def percent(x: float, digits: int = 2) -> str:
    """Return a share in per cent, without the sign."""
    return f"{100 * x:.{digits}f}"


def signed(x: float, digits: int = 1) -> str:
    """Return a relative change in per cent, with its sign."""
    return f"{100 * x:+.{digits}f} %"


def figure(x: float, digits: int = 3) -> str:
    """Return a number with so many significant digits, small ones with an exponent."""
    if x == 0:
        return "0"
    if abs(x) < 1e-4:
        return f"{x:.{digits - 1}e}"
    return f"{x:#.{digits}g}".rstrip(".")


def ordered(values: dict[str, float]) -> str:
    """Return names by ascending value, as a < b < c; equal ones are joined by =."""
    names = sorted(values, key=lambda n: values[n])
    out = names[0] if names else ""
    for a, b in itertools.pairwise(names):
        out += (" = " if values[a] == values[b] else " < ") + b
    return out


def join_sections(sections: Sequence[Section]) -> dict[str, Any]:
    """Return all sections' data by title."""
    return {s.title: s.data for s in sections}
