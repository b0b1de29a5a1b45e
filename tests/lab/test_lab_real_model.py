"""A real model: SmolLM2, fetched once, against what transformers computes in float32."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from exact_cache import ExactCache

import kvcore
from kvcore.lab.agreement import agreement
from kvcore.lab.caches import cache_factory, spec_for
from kvcore.lab.chat import chat_prompt
from kvcore.lab.engine import Session
from kvcore.lab.generate import generate
from kvcore.lab.load import load
from kvcore.lab.models import MODELS

pytestmark = pytest.mark.model

ORACLE = json.loads((Path(__file__).parent / "expected_ids.json").read_text(encoding="utf-8"))
RUNS = [pytest.param(r, id=f"{r['kind']}-{i}") for i, r in enumerate(ORACLE["runs"])]
N_TOKENS = 48


@pytest.fixture(scope="module")
def smollm2():
    return load("smollm2")


def greedy(model, prompt_ids, factory):
    session, out = Session(model, factory), []
    scores = session.prefill(prompt_ids)
    for _ in range(N_TOKENS):
        out.append(int(scores.argmax()))
        scores = session.step(out[-1])
    return out


def test_the_oracle_was_made_from_the_pinned_file():
    assert ORACLE["gguf_sha256"] == MODELS["smollm2"].sha256
    assert sum(run["kind"] == "raw" for run in ORACLE["runs"]) >= 3
    assert all(len(run["expected_ids"]) == N_TOKENS for run in ORACLE["runs"])


@pytest.mark.parametrize("run", RUNS)
def test_the_tokenizer_gives_transformers_ids_and_text(smollm2, run):
    assert smollm2.tokenizer.encode(run["text"]) == run["prompt_ids"]
    decoded = smollm2.tokenizer.decode(run["expected_ids"], special=True)
    assert decoded == run["expected_text"]


def test_the_chat_prompt_is_what_transformers_template_writes(smollm2):
    run = next(run for run in ORACLE["runs"] if run["kind"] == "chat")
    assert chat_prompt(smollm2.metadata, run["user"]) == run["text"]


@pytest.mark.parametrize("run", RUNS)
def test_greedy_tokens_over_an_exact_cache_equal_transformers(smollm2, run):
    assert greedy(smollm2.model, run["prompt_ids"], ExactCache) == run["expected_ids"]


@pytest.mark.parametrize("run", RUNS)
def test_greedy_tokens_over_kvcores_f32_cache_equal_transformers(smollm2, run):
    config = smollm2.model.config
    capacity = len(run["prompt_ids"]) + N_TOKENS
    backend = kvcore.get_backend("cpu")
    factory = cache_factory(config, spec_for(config, "f32"), backend, capacity)
    assert greedy(smollm2.model, run["prompt_ids"], factory) == run["expected_ids"]


def test_generate_streams_the_same_text_and_its_bytes_are_the_planned_ones(smollm2):
    run = ORACLE["runs"][1]
    *pieces, summary = generate(
        run["text"], smollm2, "f32", backend="cpu", max_tokens=N_TOKENS, ignore_stop=True
    )
    assert "".join(pieces) == run["expected_text"]
    config = smollm2.model.config
    spec = spec_for(config, "f32")
    planned = kvcore.plan(spec, layers=config.n_layers, context=summary.capacity)
    assert summary.cache_bytes == planned.total


# The text was not used to choose any recipe. Over 96 positions one flip is 0.010, so a format
# whose true rate is the aim may come out three standard errors below it.
@pytest.mark.parametrize(("format", "aim"), [("int8", 0.98), ("q4_0", 0.90), ("q2k", 0.85)])
def test_quantized_caches_agree_with_f32_on_an_unseen_text(smollm2, format, aim):
    text = (Path(__file__).parent / "unseen_text.txt").read_text(encoding="utf-8")
    ids = smollm2.tokenizer.encode(text)[: 512 + 96 + 1]
    config = smollm2.model.config
    backend = kvcore.get_backend("cpu")
    result = agreement(
        smollm2.model,
        ids,
        cache_factory(config, spec_for(config, format), backend, len(ids)),
        ExactCache,
        n_prompt=512,
    )
    assert result.n_steps == 96
    print(f"{format}: top-1 {result.top1:.4f}, mean KL {result.mean_kl:.3g}")
    assert result.top1 >= aim - 3 * (aim * (1 - aim) / result.n_steps) ** 0.5
