"""kvcore backends: what can run here, and why the rest cannot."""

from __future__ import annotations

from dataclasses import asdict

import kvcore
from kvcore.cli import show
from kvcore.cli.options import Json
from kvcore.dispatch import NEVER_CHOSEN, BackendInfo
from kvcore.errors import BackendUnavailable

NAME = "backends"
EXAMPLE = "kvcore backends --json"


def run(json: Json = False) -> int:
    """List every known backend: available or not, its device, or the reason it is not.

    The first line that serves your device is what get_backend() takes; GPUs come before the CPU.
    """
    rows = kvcore.backends()
    chosen = _chosen()
    if json:
        show.as_json({"chosen": chosen, "backends": [asdict(row) for row in rows]})
    else:
        _print(rows, chosen)
    return 0 if chosen else 1


def _print(rows: list[BackendInfo], chosen: str) -> None:
    show.table(
        ("backend", "here", "device", "version"),
        (
            (
                row.name + (" *" if row.name == chosen else ""),
                "yes" if row.available else "no",
                row.device or "-",
                row.version or "-",
            )
            for row in rows
        ),
    )
    print(f"\n* what get_backend() takes here. Never taken unasked: {', '.join(NEVER_CHOSEN)}.")
    for row in rows:
        if not row.available:
            print(f"no {row.name}: {row.reason.removeprefix(f'{row.name}: ')}")


def _chosen() -> str:
    """Return the name get_backend() would take; "" if none."""
    try:
        return kvcore.get_backend().name
    except BackendUnavailable:
        return ""
