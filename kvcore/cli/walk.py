"""kvcore walk: one row of values through the system."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from kvcore import walk as walks
from kvcore.cli import show
from kvcore.cli.options import BackendName, FormatName, Json

NAME = "walk"
EXAMPLE = "kvcore walk --format q2k --on cpu"


def run(
    format: FormatName = "q2k",
    backend: BackendName = None,
    store: Annotated[
        str, typer.Option("--store", help="k, v, or kv for one after the other.")
    ] = "kv",
    head_dim: Annotated[int, typer.Option("--head-dim", min=1, help="Head size D.")] = 64,
    channel: Annotated[
        int, typer.Option("--channel", min=0, help="The channel shown of a per-channel codec.")
    ] = 5,
    values: Annotated[
        Path | None,
        typer.Option("--values", help="An .npy file, float[D] (float[32, D] for per-channel)."),
    ] = None,
    json: Json = False,
) -> int:
    """Take one row of values through array, rotation, scale, codes, planes, and back.

    For a per-channel codec the row is one channel of 32 cells. Exits with 1 if the bytes differ
    from the reference's.
    """
    if store not in ("k", "v", "kv"):
        raise typer.BadParameter(f"unknown store: got {store!r}, expected k, v or kv")
    data = None if values is None else _load(values)
    found = [
        walks.walk(format, backend, store=s, head_dim=head_dim, channel=channel, values=data)
        for s in store
    ]
    if json:
        show.as_json([one.to_dict() for one in found])
    else:
        print("\n\n".join(str(one) for one in found))
    return 0 if all(one.same_as_reference for one in found) else 1


def _load(path: Path) -> Any:
    try:
        return np.load(path, allow_pickle=False)
    except (OSError, ValueError) as error:
        raise typer.BadParameter(f"--values: got {error}, expected an .npy file") from error
