"""generate: pieces, summary and refusals, on a tiny model over an exact stand-in backend."""

from __future__ import annotations

import pytest
from exact_cache import ExactCache
from tiny_gguf import CONTEXT, HEAD_DIM, KV_HEADS, N_LAYERS

from kvcore.errors import ShapeError, UnsupportedError
from kvcore.lab.caches import spec_for
from kvcore.lab.chat import chat_prompt
from kvcore.lab.engine import Session
from kvcore.lab.errors import SettingError
from kvcore.lab.generate import GREEDY, Summary, generate
from kvcore.lab.load import load
from kvcore.lab.sampling import Sampler, Sampling


class ExactBackend:
    """Hands out exact caches and remembers what it was asked for."""

    name = "exact"

    def __init__(self):
        self.asked = []

    def to_host(self, array):
        return array

    def cache(self, spec, capacity):
        self.asked.append((spec, capacity))
        cache = ExactCache(0, spec.n_kv_heads, spec.head_dim, capacity)
        cache.backend = self
        return cache


@pytest.fixture
def tiny(tiny_file):
    return load(gguf=tiny_file(seed=3))


def run(*args, **how):
    *pieces, summary = generate(*args, backend=ExactBackend(), **how)
    assert all(isinstance(piece, str) for piece in pieces)
    assert isinstance(summary, Summary)
    return pieces, summary


def tokens_of(loaded, prompt, n, how=GREEDY):
    """What the model says over exact caches, without `generate`."""
    session, sampler, out = Session(loaded.model, ExactCache), Sampler(how), []
    scores = session.prefill(loaded.tokenizer.encode(prompt))
    for _ in range(n):
        out.append(sampler.pick(scores))
        scores = session.step(out[-1])
    return out


def test_pieces_join_to_the_greedy_text(tiny):
    pieces, summary = run("hello", tiny, "f32", max_tokens=12, ignore_stop=True)
    tokens = tokens_of(tiny, "hello", 12)
    assert "".join(pieces) == tiny.tokenizer.decode(tokens, special=True)
    assert (summary.tokens, summary.decode_steps, summary.stopped) == (12, 11, False)


def test_the_summary_counts_cells_bytes_and_tokens(tiny):
    spec = spec_for(tiny.model.config, "f32")
    _, summary = run("hello hello", tiny, spec, max_tokens=5, ignore_stop=True)
    n_prompt = len(tiny.tokenizer.encode("hello hello"))
    cells = (n_prompt + 5) * N_LAYERS
    assert summary.prompt_tokens == n_prompt
    assert summary.capacity == n_prompt + 5
    assert summary.cache_bytes == cells * 2 * KV_HEADS * HEAD_DIM * 4
    assert summary.f16_bytes == cells * 2 * KV_HEADS * HEAD_DIM * 2
    assert summary.share_of_f16 == 2
    assert summary.bytes_per_cell == spec.bytes_per_cell == 2 * KV_HEADS * HEAD_DIM * 4
    assert (summary.backend, summary.format, summary.n_layers) == ("exact", "f32", N_LAYERS)
    assert summary.prefill_seconds > 0
    assert summary.prefill_rate == pytest.approx(n_prompt / summary.prefill_seconds)
    assert summary.decode_rate == pytest.approx(4 / summary.decode_seconds)


def test_a_stop_token_ends_the_text_and_is_not_shown(tiny):
    how = Sampling(temperature=3.0, seed=1)
    tokens = tokens_of(tiny, "hello", 12, how)
    at = next(i for i in range(4, 12) if tokens[i] not in tokens[:i])
    tiny.tokenizer.stop_ids = frozenset([tokens[at]])
    pieces, summary = run("hello", tiny, "f32", max_tokens=12, sampling=how)
    assert "".join(pieces) == tiny.tokenizer.decode(tokens[:at])
    assert (summary.tokens, summary.decode_steps, summary.stopped) == (at, at, True)


def test_every_layer_gets_a_cache_of_the_spec_that_was_asked_for(tiny):
    backend = ExactBackend()
    list(generate("hello", tiny, "f16", backend=backend, max_tokens=2))
    assert len(backend.asked) == N_LAYERS
    assert {spec.format.name for spec, _ in backend.asked} == {"f16"}


def test_the_seed_decides_what_is_drawn(tiny):
    def drawn(seed):
        how = Sampling(temperature=2.0, top_k=100, seed=seed)
        return run("hello", tiny, "f32", max_tokens=20, sampling=how, ignore_stop=True)[0]

    assert drawn(1) == drawn(1)
    assert drawn(1) != drawn(2)


def test_chat_asks_in_the_models_dialect(tiny):
    written = chat_prompt(tiny.metadata, "a", system="b")
    asked = generate("a", tiny, "f32", backend=ExactBackend(), chat=True, system="b", max_tokens=1)
    assert list(asked)[-1].prompt_tokens == len(tiny.tokenizer.encode(written))


def test_progress_is_told_in_prompt_tokens(tiny):
    told = []
    run("h e l l", tiny, "f32", max_tokens=1, chunk=3, progress=lambda *e: told.append(e))
    assert told == [("reading the prompt", n, 7) for n in (3, 6, 7)]


@pytest.mark.parametrize(
    ("prompt", "how", "says"),
    [
        ("", {}, "the prompt: got no tokens"),
        ("hello", {"max_tokens": 0}, "max_tokens: got 0"),
        ("hello", {"max_tokens": CONTEXT}, f"got 1 \\+ {CONTEXT}, expected <= {CONTEXT}"),
    ],
)
def test_what_cannot_be_run_is_refused_before_a_cache_is_made(tiny, prompt, how, says):
    backend = ExactBackend()
    with pytest.raises(SettingError, match=says):
        generate(prompt, tiny, "f32", backend=backend, **how)
    assert backend.asked == []


def test_a_spec_for_other_heads_and_chat_with_a_base_model_are_refused(tiny, tiny_file):
    other = spec_for(tiny.model.config, "f32").replace(n_kv_heads=1)
    with pytest.raises(ShapeError, match="KV heads and head sizes"):
        generate("hello", tiny, other, backend=ExactBackend(), max_tokens=1)
    base = load(gguf=tiny_file(arch="gemma3"))
    with pytest.raises(UnsupportedError, match="a base model"):
        generate("hello", base, "f32", backend=ExactBackend(), chat=True, max_tokens=1)


@pytest.mark.parametrize("arch", ["llama", "gemma3"])
def test_kvcores_f32_cache_gives_the_tokens_of_the_exact_one(tiny_file, arch):
    loaded = load(gguf=tiny_file(arch=arch))
    spec = spec_for(loaded.model.config, "f32")
    *pieces, _ = generate(
        "hello", loaded, spec, backend="reference", max_tokens=30, ignore_stop=True
    )
    expected = loaded.tokenizer.decode(tokens_of(loaded, "hello", 30), special=True)
    assert "".join(pieces) == expected
