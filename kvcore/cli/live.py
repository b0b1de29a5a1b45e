"""Progress on stderr, and a token stream with a progress line under it."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console, Group
from rich.live import Live
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)
from rich.text import Text

from kvcore.cli import show

Report = Callable[[str, int, int], None]
"""Told (what, done, total)."""

PATIENCE_SECONDS = 2.0
"""Work that may take longer than this is announced."""


@contextmanager
def progress() -> Iterator[Report]:
    """Give a function to report to; a bar on a terminal, else a line per stage on stderr.

    Without a terminal a stage is announced once it has run for two seconds.
    """
    console = show.err()
    if console.is_terminal:
        with _bars(console) as bars:
            yield _on_bars(bars)
    else:
        yield _in_lines()


def _bars(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f} %"),
        TimeElapsedColumn(),
        console=console,
        transient=True,
    )


def _on_bars(bars: Progress) -> Report:
    tasks: dict[str, TaskID] = {}

    def report(what: str, done: int, total: int) -> None:
        if what not in tasks:
            tasks[what] = bars.add_task(what, total=total)
        bars.update(tasks[what], completed=done, total=total)

    return report


def _in_lines() -> Report:
    started: dict[str, float] = {}
    announced: set[str] = set()

    def report(what: str, done: int, total: int) -> None:
        now = time.monotonic()
        late = now - started.setdefault(what, now) > PATIENCE_SECONDS
        if late and what not in announced:
            announced.add(what)
            print(f"{what}: {done} of {total}", file=sys.stderr, flush=True)

    return report


class TokenStream:
    """Prints pieces of text as they come, with a progress line below on a terminal.

    Finished lines are printed for good; only the line being written is redrawn, so that a long
    text scrolls as it would without the progress line.

    Parameters
    ----------
    total : int
        Pieces at most.
    """

    def __init__(self, total: int) -> None:
        self._console = show.out()
        self._fancy = self._console.is_terminal
        self._line = ""
        self._bar = Progress(
            TextColumn("[dim]generating"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("[dim]{task.fields[rate]}"),
            console=self._console,
        )
        self._task = self._bar.add_task("", total=total, rate="")
        self._live = Live(console=self._console, auto_refresh=False, transient=True)
        self._start = 0.0
        self._count = 0

    def __enter__(self) -> TokenStream:
        if self._fancy:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._fancy:
            self._live.update(Text(""), refresh=True)
            self._live.stop()
            self._console.print(Text(self._line))
        else:
            print(flush=True)

    def feed(self, piece: str) -> None:
        """Print one more piece."""
        if not self._fancy:
            sys.stdout.write(piece)
            sys.stdout.flush()
            return
        now = time.monotonic()
        self._start = self._start or now
        rate = self._count / (now - self._start) if self._count > 1 else 0.0
        self._count += 1
        self._line += piece
        self._print_finished()
        self._bar.update(self._task, completed=self._count, rate=f"{rate:.1f} tokens/s")
        self._live.update(Group(Text(self._line), self._bar), refresh=True)

    def _print_finished(self) -> None:
        width = self._console.width
        while "\n" in self._line or len(self._line) > width:
            head, newline, rest = self._line.partition("\n")
            if not newline or len(head) > width:
                cut = head.rfind(" ", 1, width) if len(head) > width else -1
                cut = width if cut < 1 else cut
                head, rest = self._line[:cut], self._line[cut:].removeprefix(" ")
            self._console.print(Text(head))
            self._line = rest
