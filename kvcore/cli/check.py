"""kvcore check: the conformance kit on this machine."""

from __future__ import annotations

from typing import Annotated

import typer

import kvcore
from kvcore.cli import live, show
from kvcore.cli.options import BackendName, Json
from kvcore.conformance import Report, Status, check
from kvcore.dispatch import NEVER_CHOSEN
from kvcore.errors import BackendUnavailable

NAME = "check"
EXAMPLE = "kvcore check --backend cpu --quick"


def run(
    backend: BackendName = None,
    op: Annotated[
        list[str] | None, typer.Option("--op", help="Only this op; may be given several times.")
    ] = None,
    format: Annotated[
        list[str] | None,
        typer.Option("--format", "-f", help="Only this format; may be given several times."),
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Fewer cases; still every op and codec.")
    ] = False,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Of all random values.")] = 0,
    json: Json = False,
) -> int:
    """Compare backends with the reference on this machine: every op, codec and refusal.

    All available ones unless one is named; also those that other packages bring. Exits with 1 on
    any mismatch.
    """
    names = [backend] if backend is not None else _available()
    reports: list[Report] = []
    with live.progress() as told:
        for name in names:
            be = kvcore.get_backend(name)

            def progress(done: int, total: int, what: str, name: str = name) -> None:
                told(f"checking {name}", done, total)

            reports.append(
                check(be, ops=op, formats=format, progress=progress, seed=seed, quick=quick)
            )
    if json:
        show.as_json([report.as_dict() for report in reports])
    else:
        for report in reports:
            _print(report)
    return 0 if all(report.ok for report in reports) else 1


def _available() -> list[str]:
    found = [b.name for b in kvcore.backends() if b.available and b.name not in NEVER_CHOSEN]
    if not found:
        raise BackendUnavailable(
            "[check] no backend is available here: got none, expected one; see kvcore backends"
        )
    return found


def _print(report: Report) -> None:
    state = "ok" if report.ok else "NOT ok"
    print(f"{report.backend} ({report.device}): {state}, seed {report.seed}\n")
    show.table(
        ("op", "codec", "pass", "mismatch", "error", "gap", "gap at odds"),
        (
            (
                op,
                codec,
                *(n[s.value] for s in (Status.PASS, Status.MISMATCH, Status.ERROR, Status.GAP)),
                n[Status.GAP_WORKS.value] + n[Status.GAP_SILENT.value],
            )
            for (op, codec), n in sorted(report.counts().items())
        ),
        right=("pass", "mismatch", "error", "gap", "gap at odds"),
    )
    for failure in report.failures:
        print(f"\n{failure}")
    print(f"\n{len(report.outcomes)} cases, {len(report.failures)} failures\n")
