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
    """Return whole numbers from a text such as 0,3,29; None if the option is not given.

    Raises
    ------
    typer.BadParameter
        Nothing in it, no number, or one of them twice.
    """
    if text is None:
        return None
    try:
        found = [int(part) for part in listed(option, text, "whole numbers such as 0,3,29")]
    except ValueError:
        raise typer.BadParameter(
            f"{option}: got {text!r}, expected whole numbers such as 0,3,29"
        ) from None
    return found


def listed(option: str, text: str, expected: str) -> list[str]:
    """Return the parts of a comma-separated text.

    Raises
    ------
    typer.BadParameter
        There are none, or one comes twice.
    """
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not parts:
        raise typer.BadParameter(f"{option}: got {text!r}, expected {expected}")
    twice = sorted({part for part in parts if parts.count(part) > 1})
    if twice:
        raise typer.BadParameter(f"{option}: got {', '.join(twice)} twice, expected each once")
    return parts


def decimals(option: str, text: str | None) -> list[float]:
    """Return numbers from a text such as 1.03,1.1; none if the option is not given.

    Raises
    ------
    typer.BadParameter
        Nothing in it, no number, or one of them twice.
    """
    if text is None:
        return []
    try:
        return [float(part) for part in listed(option, text, "numbers such as 1.03,1.1")]
    except ValueError:
        raise typer.BadParameter(
            f"{option}: got {text!r}, expected numbers such as 1.03,1.1"
        ) from None


def check_outputs(op: str, *, file: Path | None = None, folder: Path | None = None) -> None:
    """Refuse outputs that could not be written, before anything runs.

    Raises
    ------
    SettingError
    """
    from kvcore.lab.outputs import check_file, check_folder

    if file is not None:
        check_file(op, file)
    if folder is not None:
        check_folder(op, folder)


def print_section(section: Section) -> None:
    """Print the tables of a section, then what they say."""
    for table in section.tables:
        print(f"\n{table.title}\n")
        show.table(table.columns, table.rows, right=table.columns[1:], whole=True)
        if table.note:
            print(f"\n{table.note}")
    if section.findings:
        print()
        for text in section.findings:
            print(f"* {text}")


def facts(section: Section) -> dict[str, Any]:
    """Return a section as plain data."""
    return {"title": section.title, "findings": section.findings, **section.data}
