"""Centring: attention is what it was, the vector follows a rule, and it is fixed once."""

from __future__ import annotations

import numpy as np
import pytest
from caches import D, H, assert_same, fill, make, spec_of, tokens

import kvcore
from kvcore import codecs
from kvcore.bounds import attention_bound
from kvcore.errors import FormatError
from kvcore.layout import CENTRED
from kvcore.ops.rotate import rotate
from kvcore.quantize import decode_rows, encode_group, encode_rows

Q = 4


def softmax_attention(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
    """Plain float64 attention of q [Q, D] over k, v [N, H, D]."""
    grouped = q.astype(np.float64).reshape(H, Q // H, D)
    scores = np.einsum("hgd,nhd->hgn", grouped, k.astype(np.float64)) / np.sqrt(D)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    return np.einsum("hgn,nhd->hgd", weights, v.astype(np.float64)).reshape(Q, D)


def rounding(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> float:
    """A bound of what rotating q and the output, and reading in float32, may change.

    Rotation keeps norms and each of its log2 D stages rounds once, so that its error is at most
    gamma(log2 D + 2) of a norm; the attention bound covers as much at every use.
    """
    bound = attention_bound(q, k, v, float(np.float32(1 / np.sqrt(D))))
    norms = np.linalg.norm(v, axis=-1).max() + np.abs(bound.out).max()
    return float(np.sqrt(D) * bound.out.max() + norms * (np.log2(D) + 2) * 2.0**-23)


@pytest.mark.parametrize("name", ["q2k", "k4v2c", "q4_0", "int8", "k8v4"])
@pytest.mark.parametrize("n", [20, 31, 32, 64, 130, 170])
@pytest.mark.parametrize("centre", ["auto", "calibrated"])
def test_attend_equals_attention_over_what_read_gives(name, n, centre):
    k, v = tokens(n)
    vector = k.mean(axis=0) if centre == "calibrated" else "auto"
    cache = fill(make(spec_of(name, k_center=vector, sinks=2, window=8)), k, v, [n])
    q = np.random.default_rng(1).normal(size=(1, Q, D)).astype(np.float32)
    keys, values = cache.read()
    expected = softmax_attention(q[0], keys, values)
    assert np.abs(cache.attend(q)[0] - expected).max() <= rounding(q[0], keys, values)


@pytest.mark.parametrize("name", ["f32"])
def test_attend_without_quantization_equals_uncentred_attention(name):
    k, v = tokens(100)
    cache = fill(make(spec_of(name)), k, v, [100])
    q = np.random.default_rng(1).normal(size=(3, Q, D)).astype(np.float32)
    out = cache.attend(q)
    for t in range(3):
        expected = softmax_attention(q[t], k[: 98 + t], v[: 98 + t])
        assert np.abs(out[t] - expected).max() <= rounding(q[t], k, v)


@pytest.mark.parametrize("name", ["q2k", "q4_0", "int8"])
def test_a_constant_in_every_key_changes_no_output_when_it_is_centred(name):
    """All of a channel's mean goes to the centre: scores shift by the same amount."""
    k, v = tokens(130)
    shift = 4 * np.round(np.random.default_rng(2).normal(size=(H, D)) * 8)
    spec = spec_of(name, k_center=np.zeros((H, D)), sinks=0, window=0)
    moved = spec_of(name, k_center=shift, sinks=0, window=0)
    grid = (np.round(k * 4) / 4).astype(np.float32)
    plain = fill(make(spec), grid, v, [130])
    other = fill(make(moved), grid + shift.astype(np.float32), v, [130])
    if kvcore.format(name).rotate_k:
        # Rotation rounds; the codes agree unless a value lies on a threshold by chance.
        same = plain.pool.planes["k_codes"] == other.pool.planes["k_codes"]
        assert same.mean() > 0.9
        return
    np.testing.assert_array_equal(plain.pool.planes["k_codes"], other.pool.planes["k_codes"])
    np.testing.assert_array_equal(plain.pool.planes["k_scales"], other.pool.planes["k_scales"])


@pytest.mark.parametrize("sinks", [0, 5, 8])
def test_the_automatic_centre_is_the_sequential_mean_of_the_first_cells(sinks):
    cache = fill(make(spec_of("q2k", sinks=sinks, window=8)), *tokens(200), [200])
    first = 128 if sinks else 96
    assert cache.spec.center_cells == first
    k = rotate(tokens(200)[0]).astype(np.float16).astype(np.float32)
    total = np.zeros((H, D), np.float32)
    for cell in k[sinks:first]:
        total = total + cell
    expected = (total / np.float32(first - sinks)).astype(np.float16)
    np.testing.assert_array_equal(cache.state.centre[0], expected)


@pytest.mark.parametrize("name", ["q2k", "q4_0", "int8"])
def test_keys_stay_exact_until_the_centre_is_fixed_and_v_of_row_codecs_does_not_wait(name):
    cache = make(spec_of(name, k_center="auto", sinks=8, window=0))
    k, v = tokens(200)
    fill(cache, k, v, [127])
    assert cache.state.marks[0, CENTRED] == 0
    assert not cache.pool.planes["k_codes"].any()
    assert cache.pool.planes["v_codes"].any()
    got, _ = cache.read()
    # one rounding to float16 of a value, or of its rotation, whose size is at most the norm
    assert (
        np.abs(got - k[:127]) <= np.linalg.norm(k[:127], axis=-1, keepdims=True) * 2.0**-9
    ).all()
    fill(cache, k, v, [1])
    assert cache.state.marks[0, CENTRED] == 1
    assert cache.pool.planes["k_codes"].any()


def test_the_centre_is_fixed_by_committed_cells_only():
    cache = make(spec_of("q2k", sinks=8, window=8))
    k, v = tokens(200)
    fill(cache, k, v, [120])
    cache.append(k[120:136], v[120:136], draft=True)
    assert cache.state.marks[0, CENTRED] == 0
    cache.commit(128)
    assert cache.state.marks[0, CENTRED] == 1
    cache.commit(136)
    assert_same(cache, fill(make(cache.spec), k, v, [136]))


def test_a_rollback_under_the_first_cells_unfixes_the_centre_while_they_are_exact():
    spec = spec_of("q2k", sinks=8, window=8, center_cells=32)
    k, v = tokens(200)
    other = tokens(200, seed=3)
    near = fill(make(spec), k, v, [40])
    assert near.truncate(20) == 0
    assert near.state.marks[0, CENTRED] == 0
    far = fill(make(spec), k, v, [200])
    centre = far.state.centre.copy()
    far.truncate(20)
    assert far.state.marks[0, CENTRED] == 1
    np.testing.assert_array_equal(far.state.centre, centre)
    fill(near, np.concatenate([k[:20], other[0]]), np.concatenate([v[:20], other[1]]), [100])
    fresh = fill(
        make(spec), np.concatenate([k[:20], other[0]]), np.concatenate([v[:20], other[1]]), [120]
    )
    assert_same(near, fresh)
    far.truncate(0)
    assert far.state.marks[0, CENTRED] == 0
    assert_same(fill(far, *other, [150]), fill(make(spec), *other, [150]))


def test_centring_helps_where_keys_have_a_mean():
    k, v = tokens(300)
    q = np.random.default_rng(4).normal(size=(1, Q, D)).astype(np.float32)
    exact = softmax_attention(q[0], k, v)
    errors = {}
    for centre in ("none", "auto"):
        spec = spec_of("q2k", k_center=centre, sinks=0, window=0)
        out = fill(make(spec), k, v, [300]).attend(q)[0]
        errors[centre] = float(np.square(out - exact).mean())
    assert errors["auto"] < errors["none"]


def test_lse_is_that_of_uncentred_scores():
    """With K constant and exact in the centre, every score is <q, c> * scale."""
    vector = np.full((H, D), 0.5, np.float32)
    spec = spec_of("int8", k_center=vector, sinks=0, window=0)
    n = 50
    k = np.broadcast_to(vector, (n, H, D))
    cache = fill(make(spec), k, k, [n])
    q = np.random.default_rng(5).normal(size=(1, Q, D)).astype(np.float32)
    _, lse = cache.attend(q, return_lse=True)
    expected = q[0].astype(np.float64).sum(-1) * 0.5 / np.sqrt(D) + np.log(n)
    bound = attention_bound(q[0], k, k, 1 / np.sqrt(D))
    assert (np.abs(lse[0] - expected) <= bound.lse + 2.0**-23 * np.abs(expected)).all()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"format": "f16", "k_center": "auto"}, "k_center has no use for a K stored as f16"),
        ({"k_center": "auto", "grouping": "eager"}, "an automatic centre needs its cells kept"),
        ({"k_center": np.zeros(3)}, r"k_center is not usable: got shape \(3,\)"),
        ({"k_center": np.full((H, D), np.nan)}, "k_center holds non-finite values"),
        ({"k_center": "mean"}, "k_center is not usable: got 'mean'"),
        ({"center_cells": 40}, "center_cells is not usable: got 40"),
        ({"center_cells": 32, "sinks": 32}, "center_cells is not usable"),
        ({"k_gain": 0}, "k_gain is not usable"),
        ({"format": "q4_0", "k_gain": 1.1}, "a numeric k_gain is for per-channel K codecs"),
        ({"format": "f16", "k_gain": "unbiased"}, "'unbiased' needs a quantized K"),
        ({"k_gain": "unbiased", "grouping": "eager", "k_center": "none"}, "needs whole groups"),
        ({"window": -1}, "window is not usable"),
        ({"sinks": 1.5}, "sinks is not usable"),
        ({"grouping": "lazy"}, "unknown grouping"),
        ({"rule": "mean"}, "unknown rule"),
        ({"recipe": "best"}, "unknown recipe"),
    ],
)
def test_s2_a_spec_that_cannot_be_is_refused_when_it_is_made(changes, words):
    with pytest.raises(FormatError, match=words):
        spec_of(changes.pop("format", "q2k"), **changes)


def test_an_unbiased_gain_makes_the_product_of_a_group_with_itself_exact():
    """<x, x^> = <x, x> up to the rounding of one float16 scale: 2^-11 relative."""
    rng = np.random.default_rng(6)
    x = rng.normal(size=(32, 1, 128)).astype(np.float32)
    for codec in codecs.all_codecs().values():
        if codec.scale is None:
            continue
        if codec.per_channel:
            codes, scale = encode_group(codec, x, np.ones(32, bool), "unbiased")
            got = decode_rows(codec, codes, np.broadcast_to(scale, x.shape), 128)
            shape, axis = (32, 128), 0
        else:
            codes, scales = encode_rows(codec, x, "unbiased")
            got = decode_rows(codec, codes, scales, 128)
            shape, axis = (32, -1, codec.scale.group), -1
        own = (x.astype(np.float64) ** 2).reshape(shape).sum(axis)
        cross = (x * got.astype(np.float64)).reshape(shape).sum(axis)
        # the scale rounds to float16, both float32 sums to gamma(G)
        limit = 2.0**-11 + 3 * codec.scale.group * 2.0**-23
        assert (np.abs(cross / own - 1) <= limit).all(), codec.name
