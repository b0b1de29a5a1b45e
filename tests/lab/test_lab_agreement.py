"""Agreement: zero for the same cache, the textbook KL, and larger for coarser caches."""

from __future__ import annotations

import math

import numpy as np
import pytest
from exact_cache import ExactCache

from kvcore.lab.agreement import agreement, kl_divergence, log_softmax
from kvcore.lab.engine import Session
from kvcore.lab.errors import SettingError
from kvcore.lab.load import load

N_PROMPT, N_STEPS = 12, 10


def rounded(step):
    """An exact cache but for K and V rounded to multiples of `step` once they are stored."""

    class Rounded(ExactCache):
        def append(self, k, v):
            super().append(np.round(k / step) * step, np.round(v / step) * step)

    return Rounded


@pytest.fixture
def tiny(tiny_file):
    loaded = load(gguf=tiny_file())
    n_vocab = loaded.model.config.n_vocab
    ids = np.random.default_rng(0).integers(0, n_vocab, N_PROMPT + N_STEPS + 1).tolist()
    return loaded.model, ids


def test_kl_is_the_sum_over_p_of_the_log_ratio():
    p, q = np.array([0.5, 0.25, 0.25]), np.array([0.25, 0.25, 0.5])
    expected = sum(a * math.log(a / b) for a, b in zip(p, q, strict=True))
    assert kl_divergence(np.log(p), np.log(q)) == pytest.approx(expected, rel=1e-14)
    assert kl_divergence(np.log(p), np.log(p)) == 0


def test_log_softmax_shifts_large_scores_and_sums_to_one():
    out = log_softmax(np.array([1e4, 1e4 - 1, -1e4], np.float32))
    assert np.exp(out).sum() == pytest.approx(1, rel=1e-14)
    assert out[0] - out[1] == pytest.approx(1, rel=1e-12)


def test_the_same_cache_agrees_with_itself(tiny):
    model, ids = tiny
    told = []
    result = agreement(
        model,
        ids,
        ExactCache,
        ExactCache,
        n_prompt=N_PROMPT,
        chunk=5,
        progress=lambda done, total: told.append((done, total)),
    )
    assert (result.n_prompt, result.n_steps, result.top1) == (N_PROMPT, N_STEPS, 1.0)
    assert told == [(i + 1, N_STEPS) for i in range(N_STEPS)]
    # One pass and single steps differ by float32 rounding of the scores, and KL by its square.
    assert 0 <= result.mean_kl <= result.max_kl <= 1e-8
    assert result.nll == pytest.approx(result.nll_reference, abs=1e-4)


def test_nll_is_that_of_the_texts_own_next_token(tiny):
    model, ids = tiny
    result = agreement(model, ids, ExactCache, ExactCache, n_prompt=N_PROMPT)
    session = Session(model, ExactCache)
    hidden = session.extend(ids[:-1])[N_PROMPT:]
    rows = [log_softmax(row) for row in model.logits(hidden)]
    expected = -np.mean([row[t] for row, t in zip(rows, ids[N_PROMPT + 1 :], strict=True)])
    assert result.nll_reference == pytest.approx(expected, abs=1e-4)


def test_a_coarser_cache_agrees_less(tiny):
    model, ids = tiny
    kl = [
        agreement(model, ids, rounded(step), ExactCache, n_prompt=N_PROMPT).mean_kl
        for step in (1e-3, 0.1, 2.0)
    ]
    assert 0 < kl[0] < kl[1] < kl[2]


@pytest.mark.parametrize(("n_prompt", "n"), [(0, 9), (8, 9), (9, 9)])
def test_a_text_too_short_is_refused(tiny, n_prompt, n):
    model, ids = tiny
    with pytest.raises(SettingError, match=rf"got {n} tokens, {n_prompt} of them prompt"):
        agreement(model, ids[:n], ExactCache, ExactCache, n_prompt=n_prompt)
