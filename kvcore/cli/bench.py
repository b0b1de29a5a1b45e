"""kvcore bench: what appends and attention cost on this machine, by format."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

import kvcore
from kvcore.cli import live, show
from kvcore.cli.options import BackendName, Json, make_spec
from kvcore.timing import Timing, time_cache

NAME = "bench"
EXAMPLE = "kvcore bench --format f16 --format q2k --context 4096"


def run(
    format: Annotated[
        list[str] | None,
        typer.Option("--format", "-f", help="May be given several times; f16, int8, q4_0, q2k."),
    ] = None,
    heads: Annotated[int, typer.Option("--heads", min=1, help="KV heads of the layer.")] = 2,
    q_heads: Annotated[
        int | None, typer.Option("--q-heads", min=1, help="Query heads; 4 a KV head if unset.")
    ] = None,
    head_dim: Annotated[int, typer.Option("--head-dim", min=1, help="Head size D.")] = 128,
    context: Annotated[int, typer.Option("--context", "-c", min=1, help="Cells held.")] = 4096,
    seconds: Annotated[
        float, typer.Option("--seconds", min=0.0, help="How long each call is repeated.")
    ] = 0.5,
    backend: BackendName = None,
    json: Json = False,
) -> int:
    """Time one layer's appends and attention, with packed bytes a second.

    Medians over repeated calls; spread is the slowest over the fastest call.
    """
    be = kvcore.get_backend(backend)
    names = format or ["f16", "int8", "q4_0", "q2k"]
    specs = [make_spec(name, heads, head_dim) for name in names]
    found: list[Timing] = []
    with live.progress() as report:
        for spec in specs:

            def told(done: int, total: int, name: str = spec.format.name) -> None:
                report(f"filling {name}", done, total)

            n_q = q_heads or 4 * heads
            found += time_cache(spec, be, context, n_q, seconds=seconds, progress=told)
    if json:
        show.as_json(
            {
                "device": be.device,
                "timings": [{**asdict(t), "bytes_per_second": t.rate} for t in found],
            }
        )
        return 0
    print(f"{be.name}: {be.device}, {heads} KV heads x {head_dim}, {context} cells\n")
    head = ("format", "call", "ms", "GB/s packed", "runs", "spread")
    show.table(
        head,
        (
            (
                t.format,
                t.call,
                f"{t.seconds * 1e3:.3f}",
                f"{t.rate / 1e9:.3f}",
                t.runs,
                f"{t.spread:.2f}",
            )
            for t in found
        ),
        right=head[2:],
    )
    return 0
