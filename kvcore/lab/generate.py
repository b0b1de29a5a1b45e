"""Generate text with a real model over a kvcore cache, piece by piece, and say what it took."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import kvcore
from kvcore.errors import message
from kvcore.lab.caches import cache_factory, spec_for
from kvcore.lab.chat import chat_prompt
from kvcore.lab.engine import PREFILL_CHUNK, Session
from kvcore.lab.errors import SettingError
from kvcore.lab.fetch import Progress
from kvcore.lab.load import LoadedModel
from kvcore.lab.sampling import Sampler, Sampling
from kvcore.lab.tokenizer import TextStream
from kvcore.lab.weights import Floats

GREEDY = Sampling()


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """What a run did and what it held.

    Attributes
    ----------
    model, backend, format : str
        Names.
    bytes_per_cell : int
        One token in one layer: K and V with their scales.
    n_layers : int
    capacity : int
        Cells per layer that the caches were made for.
    cache_bytes : int
        All layers, with everything the caches allocate.
    f16_bytes : int
        The same cells in float16, without any overhead.
    prompt_tokens : int
    prefill_seconds : float
        Reading the prompt.
    tokens : int
        Generated, without a stop token.
    decode_steps : int
        Single-token passes; the first token comes out of the prompt's pass.
    decode_seconds : float
        Their time, with sampling, without the reader of the pieces.
    stopped : bool
        The model ended the text itself.
    """

    model: str
    backend: str
    format: str
    bytes_per_cell: int
    n_layers: int
    capacity: int
    cache_bytes: int
    f16_bytes: int
    prompt_tokens: int
    prefill_seconds: float
    tokens: int
    decode_steps: int
    decode_seconds: float
    stopped: bool

    @property
    def prefill_rate(self) -> float:
        """Prompt tokens a second."""
        return self.prompt_tokens / max(self.prefill_seconds, 1e-9)

    @property
    def decode_rate(self) -> float:
        """Decoded tokens a second; 0 if there was no decode step."""
        return self.decode_steps / max(self.decode_seconds, 1e-9)

    @property
    def share_of_f16(self) -> float:
        """`cache_bytes` over `f16_bytes`."""
        return self.cache_bytes / self.f16_bytes


def generate(
    prompt: str,
    model: LoadedModel,
    spec: Any = "q2k",
    *,
    backend: Any = None,
    max_tokens: int = 128,
    sampling: Sampling = GREEDY,
    chat: bool = False,
    system: str | None = None,
    ignore_stop: bool = False,
    chunk: int = PREFILL_CHUNK,
    progress: Progress | None = None,
) -> Iterator[str | Summary]:
    """Continue a prompt.

    Parameters
    ----------
    prompt : str
    model : LoadedModel
    spec : CacheSpec, Format or str
        What each layer's cache holds; a format brings its own recipe.
    backend : str or Backend, optional
        By default the best there is (`kvcore.get_backend`).
    max_tokens : int
        At most this many; 1 or more.
    sampling : Sampling
        Greedy by default.
    chat : bool
        Ask the prompt as a question, in the dialect of the model's chat template.
    system : str, optional
        System message for `chat`.
    ignore_stop : bool
        Go on past the tokens that end a reply, for measurements.
    chunk : int
        Prompt tokens per pass.
    progress : callable (what, done, total), optional
        Told about prompt tokens read.

    Returns
    -------
    iterator of str, then one Summary
        One piece per token, empty while a character is incomplete; the work is done as it is read.

    Raises
    ------
    SettingError
        An empty prompt, no tokens asked for, or more than the model's context.
    UnsupportedError
        `chat` with a model that has no template this engine writes.
    """
    config, tokenizer = model.model.config, model.tokenizer
    if chat:
        prompt = chat_prompt(model.metadata, prompt, system=system)
    ids = tokenizer.encode(prompt)
    capacity = _capacity(len(ids), max_tokens, config.context)
    device = kvcore.get_backend(backend) if backend is None or isinstance(backend, str) else backend
    cells = spec if isinstance(spec, kvcore.CacheSpec) else spec_for(config, spec)
    session = Session(model.model, cache_factory(config, cells, device, capacity))

    def reading(done: int, total: int) -> None:
        if progress is not None:
            progress("reading the prompt", done, total)

    def run() -> Iterator[str | Summary]:
        start = time.perf_counter()
        scores = session.prefill(ids, chunk=chunk, progress=reading)
        prefill_seconds = time.perf_counter() - start
        counts = _Counts()
        stops = frozenset[int]() if ignore_stop else tokenizer.stop_ids
        stream = tokenizer.stream(special=ignore_stop)
        yield from _decode(session, scores, Sampler(sampling), stream, stops, max_tokens, counts)
        yield Summary(
            model=config.name,
            backend=device.name,
            format=cells.format.name,
            bytes_per_cell=cells.bytes_per_cell,
            n_layers=config.n_layers,
            capacity=capacity,
            cache_bytes=sum(int(cache.nbytes) for cache in session.caches),
            f16_bytes=4 * config.n_kv_heads * config.head_dim * capacity * config.n_layers,
            prompt_tokens=len(ids),
            prefill_seconds=prefill_seconds,
            tokens=counts.tokens,
            decode_steps=counts.steps,
            decode_seconds=counts.seconds,
            stopped=counts.stopped,
        )

    return run()


@dataclass(slots=True, kw_only=True)
class _Counts:
    """What the decode loop has done so far."""

    tokens: int = 0
    steps: int = 0
    seconds: float = 0.0
    stopped: bool = False


def _decode(
    session: Session,
    scores: Floats,
    sampler: Sampler,
    stream: TextStream,
    stops: frozenset[int],
    max_tokens: int,
    counts: _Counts,
) -> Iterator[str]:
    """Yield one piece per token and keep count."""
    token = sampler.pick(scores)
    while token not in stops:
        counts.tokens += 1
        yield stream.feed(token)
        if counts.tokens == max_tokens:
            break
        start = time.perf_counter()
        token = sampler.pick(session.step(token))
        counts.seconds += time.perf_counter() - start
        counts.steps += 1
    counts.stopped = token in stops
    if rest := stream.finish():
        yield rest


def _capacity(n_prompt: int, max_tokens: int, context: int) -> int:
    """Cells that a run needs, if the model can see that far."""
    if n_prompt == 0:
        raise SettingError(
            message("generate", "the prompt", got="no tokens", expected="1 token or more")
        )
    if max_tokens < 1:
        raise SettingError(message("generate", "max_tokens", got=max_tokens, expected="1 or more"))
    if n_prompt + max_tokens > context:
        got, fix = f"{n_prompt} + {max_tokens}", "shorten the prompt or lower max_tokens"
        raise SettingError(
            message("generate", "prompt and new tokens", got=got, expected=f"<= {context}", fix=fix)
        )
    return n_prompt + max_tokens
