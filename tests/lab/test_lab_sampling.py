"""Sampling: the same seed draws the same tokens, and the limits hold."""

from __future__ import annotations

import math

import numpy as np
import pytest

from kvcore.lab.errors import SettingError
from kvcore.lab.sampling import Sampler, Sampling

SCORES = np.random.default_rng(0).standard_normal(500).astype(np.float32)


def draws(n=200, scores=SCORES, **how):
    sampler = Sampler(Sampling(**how))
    return [sampler.pick(scores) for _ in range(n)]


def test_greedy_is_the_default_and_ties_go_to_the_lower_id():
    assert set(draws(5)) == {int(SCORES.argmax())}
    assert draws(1, np.array([0, 2, 2, 1], np.float32)) == [1]
    assert draws(1, np.array([0, 2, 2, 1], np.float32), temperature=1.0, top_k=1) == [1]


def test_the_same_seed_draws_the_same_tokens_and_another_does_not():
    how = {"temperature": 0.9, "top_k": 50, "top_p": 0.95}
    assert draws(**how, seed=7) == draws(**how, seed=7)
    assert draws(**how, seed=7) != draws(**how, seed=8)


def test_top_k_draws_among_the_k_best_only():
    best = set(np.argsort(-SCORES)[:5].tolist())
    assert set(draws(500, temperature=2.0, top_k=5)) == best


def test_top_p_draws_among_the_fewest_that_reach_it():
    share = np.array([0.5, 0.3, 0.15, 0.05])
    scores = np.log(share).astype(np.float32)
    assert set(draws(500, scores, temperature=1.0, top_p=0.79)) == {0, 1}
    assert set(draws(500, scores, temperature=1.0, top_p=0.81)) == {0, 1, 2}
    assert set(draws(50, scores, temperature=1.0, top_p=0.01)) == {0}


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_frequencies_follow_the_tempered_softmax(temperature):
    scores = np.array([0.0, 1.0, -1.0, 0.5], np.float32)
    expected = np.exp(scores / temperature) / np.exp(scores / temperature).sum()
    n = 20_000
    counts = np.bincount(draws(n, scores, temperature=temperature, seed=3), minlength=4)
    for count, p in zip(counts, expected, strict=True):
        assert abs(count - n * p) <= 5 * math.sqrt(n * p * (1 - p))


def test_extreme_scores_do_not_overflow():
    scores = np.array([-3e38, 3e38, 0.0], np.float32)
    assert set(draws(20, scores, temperature=1e-3)) == {1}


@pytest.mark.parametrize(
    "bad",
    [
        {"temperature": -1.0},
        {"temperature": math.inf},
        {"temperature": math.nan},
        {"top_k": -1},
        {"top_p": 0.0},
        {"top_p": 1.1},
        {"seed": -1},
    ],
    ids=str,
)
def test_settings_out_of_range_are_refused_by_name(bad):
    with pytest.raises(SettingError, match=next(iter(bad))):
        Sampling(**bad)
