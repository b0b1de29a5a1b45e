"""The arithmetic of a layer against its formulas in float64."""

from __future__ import annotations

import math

import numpy as np
import pytest

from kvcore.lab.layers import gated, gelu_tanh, linear, rms_norm, rotate, rotation, silu

ULP = 2.0**-23


@pytest.mark.parametrize("theta", [1e4, 1e5, 1e6])
@pytest.mark.parametrize("start", [0, 1000, 8000])
def test_rotation_turns_each_pair_by_its_angle(theta, start):
    t, heads, dim = 5, 3, 64
    x = np.random.default_rng(0).standard_normal((t, heads, dim)).astype(np.float32)
    got = rotate(x, rotation(start, t, head_dim=dim, theta=theta))
    half = dim // 2
    pairs = x[..., :half].astype(np.float64) + 1j * x[..., half:]
    angle = np.arange(start, start + t)[:, None] * theta ** (-2 * np.arange(half) / dim)
    turned = pairs * np.exp(1j * angle)[:, None]
    expected = np.concatenate([turned.real, turned.imag], -1)
    # Four roundings a value: cos, sin, their products and the sum; a pair is at most |pair| long.
    assert np.abs(got - expected).max() <= 4 * ULP * np.abs(pairs).max()


def test_rotation_divides_positions_and_frequencies():
    plain = rotation(12, 3, head_dim=8, theta=1e4)
    scaled = rotation(48, 9, head_dim=8, theta=1e4, factor=4.0)
    assert np.allclose(scaled.cos[::4], plain.cos, atol=ULP)
    divided = rotation(12, 3, head_dim=8, theta=1e4, divisors=np.full(4, 4.0, np.float32))
    quarter = rotation(12, 3, head_dim=8, theta=1e4, factor=4.0)
    assert np.array_equal(divided.sin, quarter.sin)


def test_scores_depend_on_the_distance_of_two_positions_only():
    rng = np.random.default_rng(1)
    q, k = rng.standard_normal((2, 1, 1, 64)).astype(np.float32)
    scores = []
    for shift in (0, 7, 4000):
        a = rotate(q, rotation(9 + shift, 1, head_dim=64, theta=1e5))
        b = rotate(k, rotation(2 + shift, 1, head_dim=64, theta=1e5))
        scores.append(float(np.sum(a * b)))
    bound = 64 * ULP * float(np.linalg.norm(q) * np.linalg.norm(k))
    assert max(scores) - min(scores) <= bound


@pytest.mark.parametrize("size", [1e-20, 1.0, 1e15])
def test_rms_norm_equals_its_formula(size):
    rng = np.random.default_rng(2)
    x = (rng.standard_normal((7, 576)) * size).astype(np.float32)
    weight = rng.standard_normal(576).astype(np.float32)
    wide = x.astype(np.float64)
    expected = wide / np.sqrt((wide**2).mean(-1, keepdims=True) + 1e-5) * weight
    # The mean's rounding grows with log2(576) of pairwise summation; the rest is four roundings.
    bound = (4 + math.log2(576)) * ULP
    assert np.all(np.abs(rms_norm(x, weight, 1e-5) - expected) <= bound * np.abs(expected) + 1e-38)


@pytest.mark.parametrize("gelu", [False, True])
def test_gated_feed_forward_equals_its_formula(gelu):
    rng = np.random.default_rng(3)
    x = rng.standard_normal((4, 32)).astype(np.float32)
    gate, up = rng.standard_normal((2, 48, 32)).astype(np.float32)
    g, u = (x.astype(np.float64) @ m.astype(np.float64).T for m in (gate, up))
    act = 0.5 * g * (1 + np.tanh(math.sqrt(2 / math.pi) * (g + 0.044715 * g**3)))
    expected = (act if gelu else g / (1 + np.exp(-g))) * u
    got = gated(x, np.concatenate([gate, up]), gelu=gelu)
    bound = 2 * 32 * ULP * np.abs(x).max() ** 2 * np.abs(gate).max() * np.abs(up).max() * 32
    assert np.abs(got - expected).max() <= bound


@pytest.mark.parametrize("act", [silu, gelu_tanh])
def test_activations_are_finite_at_the_far_ends_and_raise_no_warning(act):
    with np.errstate(all="raise", under="ignore"):
        out = act(np.array([-1e4, -200.0, -90.0, 0.0, 90.0, 1e4], np.float32))
    assert np.all(np.isfinite(out))
    assert out[-1] == np.float32(1e4)
    assert abs(out[0]) == 0


def test_linear_adds_the_bias_and_leaves_its_arguments_alone():
    x, w, b = np.ones((2, 3), np.float32), np.eye(4, 3, dtype=np.float32), np.arange(4.0)
    bias = b.astype(np.float32)
    assert np.array_equal(linear(x, w, bias), [[1, 2, 3, 3], [1, 2, 3, 3]])
    assert np.array_equal(bias, b)
