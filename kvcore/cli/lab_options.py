"""Options and steps that the commands of the lab share."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kvcore.cli import show
from kvcore.errors import UnsupportedError, message

if TYPE_CHECKING:
    from kvcore.cli.live import Report
    from kvcore.lab.load import LoadedModel
    from kvcore.lab.tables import Section

ModelName = Annotated[
    str, typer.Option("--model", "-m", help="smollm2 or gemma3; fetched on first use.")
]
GgufFile = Annotated[
    Path | None, typer.Option("--gguf", help="Run this GGUF file instead of a named model.")
]
Resume = Annotated[
    Path | None,
    typer.Option("--resume", help="A file of results: what is in it is not measured again."),
]
Arms = Annotated[
    list[str] | None,
    typer.Option(
        "--arm",
        "-a",
        help="FORMAT[:bare,window=128,...], K+V/rotate, or sim:NAME; several times.",
    ),
]


def require_lab(command: str) -> None:
    """Raise UnsupportedError unless the packages of the lab are here."""
    try:
        import gguf  # noqa: F401
        import tokenizers  # noqa: F401
    except ImportError as error:
        raise UnsupportedError(
            message(
                command,
                "running a model needs more packages",
                got=error,
                expected="gguf and tokenizers",
                fix="pip install 'kvcore[lab]'",
            )
        ) from error


def load_model(name: str, gguf: Path | None, report: Report) -> LoadedModel:
    """Load a model with progress, its licence printed before a download."""
    from kvcore.lab.load import load

    def notice(text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    return load(name, gguf=gguf, progress=report, notice=notice)


def numbers(option: str, text: str | None) -> list[int] | None:
    """Return whole numbers from a text such as 0,3,29.

    Raises
    ------
    typer.BadParameter
    """
    if text is None:
        return None
    try:
        return [int(part) for part in text.split(",") if part.strip()]
    except ValueError:
        raise typer.BadParameter(
            f"{option}: got {text!r}, expected whole numbers such as 0,3,29"
        ) from None


def decimals(option: str, text: str | None) -> list[float]:
    """Return numbers from a text such as 1.03,1.1; none if there is no text.

    Raises
    ------
    typer.BadParameter
    """
    try:
        return [float(part) for part in (text or "").split(",") if part.strip()]
    except ValueError:
        raise typer.BadParameter(
            f"{option}: got {text!r}, expected numbers such as 1.03,1.1"
        ) from None


def print_section(section: Section) -> None:
    """Print the tables of a section, then what they say."""
    for table in section.tables:
        print(f"\n{table.title}\n")
        show.table(table.columns, table.rows, right=table.columns[1:])
        if table.note:
            print(f"\n{table.note}")
    if section.findings:
        print()
        for text in section.findings:
            print(f"* {text}")


def facts(section: Section) -> dict[str, Any]:
    """Return a section as plain data."""
    return {"title": section.title, "findings": section.findings, **section.data}
