"""Deferred grouping: stored bytes are a function of the accepted tokens alone."""

from __future__ import annotations

import numpy as np
import pytest
from caches import D, H, assert_same, fill, live_bytes, make, spec_of, tokens
from hypothesis import given
from hypothesis import strategies as st

import kvcore
from kvcore.errors import RangeError, ShapeError
from kvcore.layout import K_FRONTIER
from kvcore.spec import MAX_DRAFT, SLACK
from tests.strategies import arrivals

N = 201
FORMATS = ("q2k", "k4v2c", "q2", "q4_0", "k2cv1t", "int8", "f16")
RECIPES = {
    "recipe": {},
    "bare": {"recipe": None},
    "small overlay": {"window": 8, "sinks": 3, "center_cells": 32},
    "unbiased": {"k_gain": "unbiased", "window": 8, "sinks": 3},
}


def spec_for(name: str, recipe: str) -> kvcore.CacheSpec:
    more = dict(RECIPES[recipe])
    k = kvcore.format(name).k
    if k.scale is None:
        more.pop("k_gain", None)
        more.pop("center_cells", None)
    return spec_of(name, **more)


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("name", FORMATS)
def test_kb_04_every_arrival_pattern_stores_the_same_bytes(name, recipe):
    spec = spec_for(name, recipe)
    k, v = tokens(N)
    one_shot = fill(make(spec), k, v, [N])
    for calls in ([1] * N, [3] * (N // 3), [100, 100, 1], [1, 31, 33, 3, 28, N - 96]):
        assert_same(one_shot, fill(make(spec), k, v, calls))


@pytest.mark.parametrize("name", ["q2k", "q4_0"])
@given(calls=arrivals(130, most=60), seed=st.integers(0, 99))
def test_any_arrival_pattern_stores_the_same_bytes(name, calls, seed):
    spec = spec_for(name, "small overlay")
    k, v = tokens(130, seed)
    assert_same(fill(make(spec), k, v, [130]), fill(make(spec), k, v, calls))


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("name", ["q2k", "k4v2c", "q2", "q4_0", "f16"])
@pytest.mark.parametrize("window", [3, 8, MAX_DRAFT])
def test_speculation_leaves_no_trace(name, recipe, window):
    """Every step drafts `window` cells, keeps a few and rolls the rest back.

    The ring keeps what the next query needs. If nothing of 17 drafts is kept, one cell is lost to
    a query that comes before any further append, and truncate says so.
    """
    spec = spec_for(name, recipe)
    k, v = tokens(N)
    wrong = tokens(N, seed=1)
    plain = fill(make(spec), k, v, [N])
    cache, rng = make(spec), np.random.default_rng(window)
    while len(cache) < N:
        start = len(cache)
        good = min(int(rng.integers(0, window + 1)), N - start)
        n = min(window, N - start)
        draft = [np.concatenate([a[start : start + good], w[: n - good]]) for a, w in
                 zip((k, v), wrong, strict=True)]  # fmt: skip
        cache.append(*draft, draft=True)
        if rng.random() < 0.5:
            cache.commit(start + good)
        assert cache.truncate(start + good) <= max(0, n - good - SLACK)
        cache.commit(start + good)
    assert_same(plain, cache)


@pytest.mark.parametrize("name", ["q2k", "q2", "q4_0"])
@pytest.mark.parametrize("back", [1, 5, SLACK])
def test_kb_21_a_rollback_of_up_to_the_slack_is_pure(name, back):
    spec = spec_for(name, "small overlay")
    k, v = tokens(N)
    for n in (60, 63, 64, 65, 72, 80, 95, 96, 97):
        cache = fill(make(spec), *tokens(n + back, seed=2), [n + back])
        same = fill(make(spec), *tokens(n + back, seed=2), [n])
        assert cache.truncate(n) == 0
        fill(cache, k, v, [20])
        fill(same, k, v, [20])
        assert_same(cache, same, marks=False)


@pytest.mark.parametrize("name", ["q2k", "q2"])
def test_kb_06_a_deep_rollback_freezes_the_group_and_says_how_many_cells_are_inexact(name):
    spec = spec_of(name, recipe=None)
    k, v = tokens(150)
    cache = fill(make(spec), k, v, [150])
    before = live_bytes(cache)
    lost = cache.truncate(44)
    assert lost == 44 - 32
    assert cache.state.marks[0, K_FRONTIER] == 64
    after = live_bytes(cache)
    np.testing.assert_array_equal(after["k codes"][:44], before["k codes"][:44])
    np.testing.assert_array_equal(after["k scales"][:2], before["k scales"][:2])
    new = tokens(20, seed=5)
    cache.append(*new)
    grown = live_bytes(cache)
    np.testing.assert_array_equal(grown["k codes"][:44], before["k codes"][:44])
    np.testing.assert_array_equal(grown["k scales"][:2], before["k scales"][:2])
    got, _ = cache.read(np.arange(44, 64))
    far = np.abs(got - k[44:64]).mean()
    near = np.abs(got - new[0]).mean()
    assert near < far, "the new cells must read as the new data"


def test_kb_06_rollback_to_the_length_to_0_and_beyond():
    cache = fill(make(spec_of("q2k")), *tokens(70), [70])
    before = live_bytes(cache)
    assert cache.truncate(70) == 0
    for n in (71, -1, 1.0, True):
        with pytest.raises(RangeError, match=r"\[truncate\] n is not usable"):
            cache.truncate(n)
    after = live_bytes(cache)
    for name, value in before.items():
        np.testing.assert_array_equal(value, after[name])
    assert cache.truncate(0) == 0
    assert len(cache) == 0
    assert_same(fill(cache, *tokens(90, 3), [90]), fill(make(spec_of("q2k")), *tokens(90, 3), [90]))


@pytest.mark.parametrize("name", ["q2k", "q2", "k4v2c"])
def test_a_group_is_quantized_by_the_call_that_completes_it_with_committed_cells(name):
    cache = make(spec_of(name, k_center="none"))
    store = "k" if cache.pool.layout.k.per_channel else "v"
    scales = cache.pool.planes[f"{store}_scales"]
    k, v = tokens(64)
    cache.append(k[:31], v[:31])
    assert not scales.any()
    cache.append(k[31:40], v[31:40], draft=True)
    assert not scales.any()
    cache.commit(32)
    assert scales[0].any()
    assert not scales[1:].any()
    kept = scales[0].copy()
    cache.commit(40)
    np.testing.assert_array_equal(scales[0], kept)


def test_at_most_31_committed_cells_are_open():
    cache = make(spec_of("q2k", recipe=None))
    k, v = tokens(130)
    for n in range(1, 130):
        fill(cache, k, v, [1])
        assert cache.state.marks[0, K_FRONTIER] == n // 32 * 32


def test_open_cells_are_read_as_they_came():
    cache = fill(make(spec_of("q2", recipe=None)), *tokens(50), [50])
    k, v = cache.read(np.arange(32, 50))
    given_k, given_v = tokens(50)
    for got, given_ in ((k, given_k), (v, given_v)):
        # rotate, round to float16, rotate back: one rounding of the largest rotated value
        size = np.abs(given_[32:]).sum(axis=-1, keepdims=True)
        assert (np.abs(got - given_[32:]) <= size * 2.0**-10).all()


def test_sinks_stay_out_of_the_scale_of_their_group():
    spec = spec_of("q2k", sinks=8, window=0, k_center="none")
    k, v = tokens(64)
    loud = k.copy()
    loud[:8] *= 1000
    caches = [fill(make(spec), x, v, [64]) for x in (k, loud)]
    one, two = (c.pool.planes["k_scales"][0] for c in caches)
    np.testing.assert_array_equal(one, two)
    q = np.ones((1, 4, D), np.float32)
    assert not np.array_equal(caches[0].attend(q), caches[1].attend(q))


def test_a_group_of_sinks_only_uses_all_its_cells():
    spec = spec_of("q2k", sinks=40, window=0, k_center="none")
    bare = spec_of("q2k", sinks=0, window=0, k_center="none")
    k, v = tokens(64)
    one, two = (fill(make(s), k, v, [64]).pool.planes["k_scales"][0] for s in (spec, bare))
    np.testing.assert_array_equal(one, two)


def test_drafts_are_seen_by_attention_and_refused_by_fork_and_snapshot():
    cache = fill(make(spec_of("q2k")), *tokens(60), [60])
    plain = fill(make(spec_of("q2k")), *tokens(60), [60])
    k, v = tokens(5, seed=9)
    cache.append(k, v, draft=True)
    plain.append(k, v)
    q = np.random.default_rng(0).normal(size=(5, 4, D)).astype(np.float32)
    np.testing.assert_array_equal(cache.attend(q), plain.attend(q))
    for refused in (cache.fork, cache.snapshot):
        with pytest.raises(ShapeError, match="5 drafts are open: commit or truncate"):
            refused()
    with pytest.raises(ShapeError, match=r"5 drafts are open: got an append without draft"):
        cache.append(k, v)
    with pytest.raises(RangeError, match="too many drafts: got 18"):
        cache.append(*tokens(13), draft=True)
    for n in (59, 66):
        with pytest.raises(RangeError, match=rf"\[commit\] n is not usable: got {n}"):
            cache.commit(n)


def test_a_full_cache_refuses_before_anything_is_written():
    cache = fill(make(spec_of("q2k"), 64), *tokens(60), [60])
    before = live_bytes(cache)
    with pytest.raises(RangeError, match=r"the cache is full: got 65, expected at most 64"):
        cache.append(*tokens(5))
    with pytest.raises(ShapeError, match="k and v differ in tokens"):
        cache.append(tokens(2)[0], tokens(1)[1])
    with pytest.raises(ShapeError, match="k has the wrong shape"):
        cache.append(np.ones((1, H + 1, D)), np.ones((1, H, D)))
    for name, value in live_bytes(cache).items():
        np.testing.assert_array_equal(value, before[name])


@pytest.mark.parametrize("name", list(kvcore.formats()))
def test_kb_07_two_forks_that_go_on_apart_are_two_caches(name):
    spec = spec_of(name)
    prefix = tokens(37)
    parent = fill(make(spec, 128), *prefix, [37])
    a, b = parent.fork(), parent.fork()
    plus, minus = np.ones((60, H, D), np.float32), -np.ones((60, H, D), np.float32)
    for i in range(0, 60, 10):
        a.append(plus[i : i + 10], plus[i : i + 10])
        b.append(minus[i : i + 10], minus[i : i + 10])
    for cache, tail in ((a, plus), (b, minus), (parent, plus[:0])):
        k, v = (np.concatenate([p, tail]) for p in prefix)
        assert_same(cache, fill(make(spec, 128), k, v, [len(k)]))


@pytest.mark.parametrize("name", list(kvcore.formats()))
def test_kb_05_sequences_of_a_batch_do_not_mix(name):
    """Sequence B is 1000 times as loud and A is padded with 1e4: A's bytes do not change."""
    spec = spec_of(name, k_center="none", sinks=0, window=0)
    layout, be = spec.layout, make(spec).backend
    rng = np.random.default_rng(0)
    a = rng.normal(size=(40, H, D)).astype(np.float32)
    b = (1000 * rng.normal(size=(45, H, D))).astype(np.float32)
    padded = np.full((45, H, D), 1e4, np.float32)
    padded[5:] = a
    positions = np.full((2, 45), -1, np.int32)
    positions[0, 5:] = np.arange(40)
    positions[1] = np.arange(45)
    pages = layout.pages_for(64)
    table = np.arange(2 * pages, dtype=np.int32).reshape(2, pages)
    together, alone = be.pool(layout, 2 * pages), be.pool(layout, 2 * pages)
    both = np.stack([padded, b])
    be.append(together, table, positions, both, both)
    be.append(alone, table[0], np.arange(40), a, a)
    be.append(alone, table[1], np.arange(45), b, b)
    for plane in together.planes:
        np.testing.assert_array_equal(
            together.planes[plane].view(np.uint8), alone.planes[plane].view(np.uint8)
        )
