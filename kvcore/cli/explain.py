"""kvcore explain: which kernel would run for each op, and why others would not."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

import kvcore
from kvcore.cli import show
from kvcore.cli.options import (
    BackendName,
    Bare,
    FormatName,
    HeadDimV,
    Json,
    PageSize,
    Sinks,
    Window,
    make_spec,
    spec_facts,
)

NAME = "explain"
EXAMPLE = "kvcore explain --format q2k --heads 8 --head-dim 128"


def run(
    format: FormatName = "q2k",
    heads: Annotated[int, typer.Option("--heads", min=1, help="KV heads of one layer.")] = 2,
    head_dim: Annotated[int, typer.Option("--head-dim", min=1, help="Head size of K.")] = 256,
    head_dim_v: HeadDimV = None,
    page_size: PageSize = 32,
    bare: Bare = False,
    window: Window = None,
    sinks: Sinks = None,
    backend: BackendName = None,
    json: Json = False,
) -> int:
    """Say which kernel would run for each op of a spec, and why not elsewhere.

    Exits with 1 if no backend can run it here, or an op is refused.
    """
    spec = make_spec(
        format,
        heads,
        head_dim,
        head_dim_v,
        page_size=page_size,
        bare=bare,
        window=window,
        sinks=sinks,
    )
    found = kvcore.explain(spec, backend)
    if json:
        show.as_json(
            {
                "spec": spec_facts(spec),
                "backend": found.backend,
                "choices": [asdict(choice) for choice in found.choices],
                "refusals": list(found.refusals),
                "fallbacks": found.fallbacks,
            }
        )
    else:
        print(f"{spec.format.name} on {found.backend or 'no backend'}\n")
        if found.choices:
            show.table(
                ("op", "kernel", "why"),
                ((c.op, c.kernel or "refused", c.reason) for c in found.choices),
            )
        for line in found.refusals:
            print(f"not {line}")
    served = bool(found.choices) and all(choice.kernel for choice in found.choices)
    return 0 if served else 1
