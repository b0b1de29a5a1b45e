"""How a command prints: a table or text for people, one JSON document with ``--json``."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

PLAIN_WIDTH = 100
"""Columns where the output is no terminal, so that it reads the same everywhere."""


_WIDEST = 1000
"""Columns for a table whose cells must not break; lines end where their text does."""

_UNITS = ("KiB", "MiB", "GiB", "TiB")


def out() -> Console:
    """Return the console of stdout."""
    return _console(stderr=False)


def err() -> Console:
    """Return the console of stderr, for progress and notices."""
    return _console(stderr=True)


def _console(*, stderr: bool) -> Console:
    console = Console(stderr=stderr, highlight=False)
    if not console.is_terminal:
        console = Console(stderr=stderr, highlight=False, width=PLAIN_WIDTH)
    return console


def as_json(data: Any) -> None:
    """Print one JSON document on stdout."""
    print(json.dumps(data, indent=2, ensure_ascii=False))


def table(
    columns: Sequence[str],
    rows: Iterable[Sequence[object]],
    *,
    right: Sequence[str] = (),
    whole: bool = False,
) -> None:
    """Print a table.

    Parameters
    ----------
    columns : sequence of str
    rows : iterable of sequences
    right : sequence of str
        Columns of numbers.
    whole : bool
        Break no cell: lines are as long as they must be, on a terminal too.
    """
    grid = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for name in columns:
        grid.add_column(
            name, justify="right" if name in right else "left", overflow="fold", no_wrap=whole
        )
    for row in rows:
        grid.add_row(*(Text(str(cell)) for cell in row))
    console = out()
    if whole:
        console = Console(highlight=False, width=_WIDEST)
    with console.capture() as captured:
        console.print(grid)
    # Trailing blanks would make the same text differ from its copy in a document.
    print("\n".join(line.rstrip() for line in captured.get().splitlines()))


def pairs(rows: Iterable[tuple[str, object]]) -> None:
    """Print names and values, one pair a line."""
    found = [(name, str(value)) for name, value in rows]
    width = max(len(name) for name, _ in found)
    for name, value in found:
        print(f"{name:<{width}}  {value}")


def size(n: float) -> str:
    """Return a number of bytes with its binary unit, four significant digits."""
    if abs(n) < 1024:
        return f"{n:.0f} B"
    power = min(int(math.log2(abs(n)) // 10), len(_UNITS))
    return f"{n / 1024**power:.4g} {_UNITS[power - 1]}"


def recipe(spec_or_recipe: Any) -> str:
    """Return a recipe in a few words."""
    r = spec_or_recipe
    if not (r.window or r.sinks) and r.k_center == "none":
        return "bare" if r.grouping == "deferred" else r.grouping
    centre = "" if isinstance(r.k_center, str) and r.k_center == "none" else ", K centred"
    return f"{r.sinks} sinks, window {r.window}{centre}"
