"""The engine against a float64 model written again, and what it keeps in its caches."""

from __future__ import annotations

import numpy as np
import pytest
from exact_cache import ExactCache
from naive_model import NaiveModel, float32_bound
from tiny_gguf import CONTEXT, HEAD_DIM, KV_HEADS, N_LAYERS

from kvcore.errors import RangeError, ShapeError
from kvcore.lab.engine import Session
from kvcore.lab.errors import SettingError
from kvcore.lab.load import load

KINDS = [
    {"arch": "llama"},
    {"arch": "llama", "extra_tensor": "rope_freqs.weight"},
    {
        "arch": "llama",
        "extra": {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 8.0},
    },
    {"arch": "qwen2", "pre": "qwen2"},
    {"arch": "gemma3"},
    {
        "arch": "gemma3",
        "extra": {"gemma3.rope.scaling.type": "linear", "gemma3.rope.scaling.factor": 8.0},
    },
]
N_IDS = 24


@pytest.fixture(params=KINDS, ids=lambda k: "-".join([k["arch"], *k.get("extra", {}), *k.keys()]))
def tiny(request, tiny_file):
    return load(gguf=tiny_file(**request.param))


def some_ids(loaded, n=N_IDS, seed=5):
    return np.random.default_rng(seed).integers(0, loaded.model.config.n_vocab, n).tolist()


def all_logits(session, ids, chunks):
    """Logits of every position, read in the given chunks; a chunk of 0 is a decode step."""
    rows, at = [], 0
    for chunk in chunks:
        hidden = session.extend(ids[at : at + max(chunk, 1)], as_stored=chunk == 0)
        rows.append(session.model.logits(hidden))
        at += max(chunk, 1)
    assert at == len(ids)
    return np.concatenate(rows)


@pytest.mark.parametrize("chunks", [(24,), (7, 1, 16), (0,) * 24, (10, *(0,) * 14)])
def test_logits_equal_the_float64_model_however_the_text_is_cut(tiny, chunks):
    ids = some_ids(tiny)
    expected = NaiveModel(tiny.path).logits(ids)
    got = all_logits(Session(tiny.model, ExactCache), ids, chunks)
    assert got.dtype == np.float32
    assert np.abs(got - expected).max() <= float32_bound(expected)


def test_the_kinds_differ_so_the_parity_test_can_see_what_it_tests(tiny_file):
    seen = {}
    for kind in KINDS:
        loaded = load(gguf=tiny_file(**kind))
        logits = NaiveModel(loaded.path).logits(some_ids(loaded))
        for other in seen.values():
            if other.shape == logits.shape:
                assert np.abs(other - logits).max() > 100 * float32_bound(logits)
        seen[str(kind)] = logits


def test_prefill_and_step_return_the_next_tokens_scores(tiny):
    ids = some_ids(tiny)
    expected = NaiveModel(tiny.path).logits(ids)
    session, told = Session(tiny.model, ExactCache), []
    first = session.prefill(
        ids[:20], chunk=8, progress=lambda done, total: told.append((done, total))
    )
    second = session.step(ids[20])
    assert told == [(8, 20), (16, 20), (20, 20)]
    assert first.shape == (tiny.model.config.n_vocab,)
    assert np.abs(first - expected[19]).max() <= float32_bound(expected)
    assert np.abs(second - expected[20]).max() <= float32_bound(expected)


def test_truncating_and_reading_again_is_as_if_nothing_had_happened(tiny):
    ids = some_ids(tiny)
    session = Session(tiny.model, ExactCache)
    session.prefill(ids[:10])
    kept = session.step(ids[10])
    session.extend(some_ids(tiny, 9, seed=6))
    session.truncate(10)
    assert len(session) == 10
    assert np.array_equal(session.step(ids[10]), kept)


def test_kv_is_kept_in_the_given_caches_only_one_per_layer(tiny_file):
    loaded = load(gguf=tiny_file())
    made = []

    def factory(layer, n_kv_heads, head_dim):
        made.append((layer, n_kv_heads, head_dim))
        return ExactCache(layer, n_kv_heads, head_dim, capacity=CONTEXT)

    session = Session(loaded.model, factory)
    session.prefill(some_ids(loaded, 6))
    assert made == [(i, KV_HEADS, HEAD_DIM) for i in range(N_LAYERS)]
    assert [len(cache) for cache in session.caches] == [6] * N_LAYERS
    for cache in session.caches:
        cache.k[:6] = 0
        cache.v[:6] = 0
    zeroed = session.step(3)
    other = Session(loaded.model, factory)
    other.prefill(some_ids(loaded, 6))
    assert not np.array_equal(zeroed, other.step(3))


def test_prompt_chunks_offer_their_own_cells_and_steps_do_not(tiny_file):
    loaded = load(gguf=tiny_file())
    calls = []

    class Spy(ExactCache):
        def attend(self, q, k=None, v=None, scale=None, window=None):
            calls.append((len(q), k is not None, v is not None))
            return super().attend(q, scale=scale, window=window)

    session = Session(loaded.model, Spy)
    session.prefill(some_ids(loaded, 5), chunk=4)
    session.step(1)
    expected = [(4, True, True), (1, True, True), (1, False, False)]
    assert calls == [call for call in expected for _ in range(N_LAYERS)]


@pytest.mark.parametrize(
    ("ids", "error"),
    [([], ShapeError), ([[1, 2]], ShapeError), ([-1], RangeError), ([1, 10**6], RangeError)],
)
def test_bad_tokens_are_refused_before_anything_is_appended(tiny_file, ids, error):
    session = Session(load(gguf=tiny_file()).model, ExactCache)
    with pytest.raises(error, match=r"\[extend\] tokens"):
        session.extend(ids)
    assert [len(cache) for cache in session.caches] == [0] * N_LAYERS


def test_caches_of_different_lengths_are_refused_until_truncated(tiny_file):
    loaded = load(gguf=tiny_file())
    session = Session(loaded.model, ExactCache)
    session.prefill(some_ids(loaded, 4))
    session.caches[1].truncate(3)
    with pytest.raises(ShapeError, match=r"3 to 4 cells, expected one length; call truncate\(3\)"):
        session.step(1)
    session.truncate(3)
    session.step(1)
    assert len(session) == 4


def test_a_chunk_below_one_and_an_empty_prompt_are_refused(tiny_file):
    session = Session(load(gguf=tiny_file()).model, ExactCache)
    with pytest.raises(SettingError, match="chunk: got 0"):
        session.prefill([1], chunk=0)
    with pytest.raises(ShapeError, match="tokens"):
        session.prefill([])
