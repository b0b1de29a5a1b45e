"""kvcore report: everything the lab measures of one model, on one page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

import kvcore
from kvcore.cli import live, show
from kvcore.cli.lab_options import GgufFile, ModelName, check_outputs, load_model, require_lab
from kvcore.cli.options import BackendName, Json

NAME = "report"
EXAMPLE = "kvcore report --model smollm2 --quick --out report"


def run(
    model: ModelName = "smollm2",
    gguf: GgufFile = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="A folder; report-MODEL by default.")
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Fewer texts, cells and arms: minutes, not hours.")
    ] = False,
    section: Annotated[
        list[str] | None,
        typer.Option("--section", help="Only this: decode_kl, attention_error, sweeps, ..."),
    ] = None,
    backend: BackendName = None,
    json: Json = False,
) -> int:
    """Measure formats on a real model and write report.html, report.md and the pictures.

    Results are kept in the folder as they come: run it again to continue after a stop. A page
    there that holds more than the new one would is kept, and the command refused.
    """
    require_lab("report")
    from kvcore.lab.report import check_sections, make_report

    folder = out or Path(f"report-{model if gguf is None else gguf.stem}")
    check_sections(section or ())
    check_outputs("report", folder=folder)
    source = ("--model", model) if gguf is None else ("--gguf", gguf.name)
    with live.progress() as report:
        files = make_report(
            load_model(model, gguf, report),
            kvcore.get_backend(backend),
            folder,
            source=source,
            quick=quick,
            progress=report,
            only=section or (),
        )
    if json:
        show.as_json({name: str(path) for name, path in files.items()})
    else:
        for path in files.values():
            print(path)
    return 0
