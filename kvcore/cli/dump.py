"""kvcore dump: real K, V and queries of a model on a text, in one checked file."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kvcore.cli import live, show
from kvcore.cli.lab_options import (
    GgufFile,
    ModelName,
    check_outputs,
    load_model,
    numbers,
    require_lab,
)
from kvcore.cli.options import Json

if TYPE_CHECKING:
    from kvcore.lab.dump_file import DumpMeta

NAME = "dump"
EXAMPLE = "kvcore dump smollm2.safetensors --model smollm2 --text doc-objects --cells 2048"


def run(
    file: Annotated[Path, typer.Argument(help="The safetensors file to write, or to check.")],
    check: Annotated[
        bool, typer.Option("--check", help="Only check the file and say what it holds.")
    ] = False,
    model: ModelName = "smollm2",
    gguf: GgufFile = None,
    text: Annotated[
        str, typer.Option("--text", help="A text of kvcore's nine, or the path of a text file.")
    ] = "doc-objects",
    cells: Annotated[int, typer.Option("--cells", min=2, help="Tokens of the text.")] = 2048,
    queries: Annotated[
        int, typer.Option("--queries", min=1, help="Last positions whose queries are kept.")
    ] = 64,
    layers: Annotated[
        str | None, typer.Option("--layers", help="Such as 0,3,29; a spread of six if unset.")
    ] = None,
    json: Json = False,
) -> int:
    """Write K after RoPE, V and real queries of chosen layers, with hashes, positions and shape.

    With --check the file is read instead: truncated, empty or wrongly shaped files are refused
    with the field named.
    """
    require_lab("dump")
    from kvcore.lab.dump import dump
    from kvcore.lab.dump_file import read_dump
    from kvcore.lab.texts import text as find_text

    chosen = numbers("--layers", layers)
    if not check:
        check_outputs("dump", file=file)
        with live.progress() as report:
            loaded = load_model(model, gguf, report)
            dump(
                loaded,
                find_text(text, loaded.metadata),
                file,
                n_cells=cells,
                n_queries=queries,
                layers=chosen,
                progress=report,
            )
    meta = read_dump(file).meta
    if json:
        show.as_json({"file": str(file), "bytes": file.stat().st_size, **asdict(meta)})
    else:
        _print(file, meta)
    return 0


def _print(file: Path, m: DumpMeta) -> None:
    windows = ", ".join(
        f"{i} (window {w})" if w else str(i) for i, w in zip(m.layers, m.windows, strict=True)
    )
    shape = f"{m.n_heads} query and {m.n_kv_heads} KV heads x {m.head_dim}"
    rows = [
        ("file", f"{file.name}, {show.size(file.stat().st_size)}, checked"),
        ("model", f"{m.model} ({m.arch}), sha256 {m.model_sha256[:16]}..."),
        ("text", f"{m.text}, sha256 {m.text_sha256[:16]}..."),
        ("layers", f"{windows} of {m.n_layers}"),
        ("heads", shape),
        ("cells", f"{m.n_cells}, queries of the last {m.n_queries}"),
    ]
    show.table(("", ""), rows)
