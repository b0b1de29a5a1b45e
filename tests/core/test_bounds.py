"""The derived bounds hold for float32 attentions of several orders, and still catch faults."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvcore import codecs
from kvcore.bounds import U16, U32, attention_bound, codec_bound, gamma
from kvcore.spec import F16_MAX

F = np.float32


def exact(q, k, v, scale, cap=0.0):
    grouped = q.astype(np.float64).reshape(k.shape[1], -1, q.shape[-1])
    s = np.einsum("hgd,nhd->hgn", grouped, k.astype(np.float64)) * scale
    s = cap * np.tanh(s / cap) if cap else s
    top = s.max(-1, keepdims=True)
    w = np.exp(s - top)
    out = np.einsum("hgn,nhd->hgd", w / w.sum(-1, keepdims=True), v.astype(np.float64))
    lse = (top + np.log(w.sum(-1, keepdims=True)))[..., 0]
    return out.reshape(q.shape[0], -1), lse.reshape(-1)


def online(q, k, v, scale, chunk, cap=0.0):
    """A float32 attention: partial softmaxes of `chunk` cells merged in ascending order."""
    h = k.shape[1]
    grouped = (q * F(scale)).reshape(h, -1, q.shape[-1])
    m = np.full(grouped.shape[:2], -np.inf, F)
    total, acc = np.zeros(m.shape, F), np.zeros((*m.shape, v.shape[-1]), F)
    for i in range(0, len(k), chunk):
        s = np.einsum("hgd,nhd->hgn", grouped, k[i : i + chunk], dtype=F)
        s = F(cap) * np.tanh(s / F(cap)) if cap else s
        new = np.maximum(m, s.max(-1))
        keep = np.exp(m - new)
        p = np.exp(s - new[..., None])
        total = total * keep + p.sum(-1, dtype=F)
        acc = acc * keep[..., None] + np.einsum("hgn,nhd->hgd", p, v[i : i + chunk], dtype=F)
        m = new
    out = acc / total[..., None]
    return out.reshape(q.shape[0], -1), (m + np.log(total)).reshape(-1)


def case(seed: int, n: int, dim: int = 64, loud: float = 1.0):
    rng = np.random.default_rng(seed)
    q = (rng.normal(size=(4, dim)) * loud).astype(F)
    k = (rng.normal(size=(n, 2, dim)) + 2 * rng.normal(size=(2, dim))).astype(F)
    return q, k, rng.normal(size=(n, 2, dim)).astype(F)


@pytest.mark.parametrize("cap", [0.0, 5.0])
@given(
    seed=st.integers(0, 2**31),
    n=st.integers(1, 300),
    chunk=st.sampled_from([32, 64, 1000]),
    loud=st.sampled_from([0.01, 1.0, 20.0]),
)
def test_float32_attention_of_any_split_lies_within_the_bound(cap, seed, n, chunk, loud):
    q, k, v = case(seed, n, loud=loud)
    scale = float(F(1 / 8))
    out, lse = online(q, k, v, scale, chunk, cap)
    true_out, true_lse = exact(q, k, v, scale, cap)
    bound = attention_bound(q, k, v, scale, cap)
    assert (np.abs(out - true_out) <= bound.out).all()
    assert (np.abs(lse - true_lse) <= bound.lse).all()


@pytest.mark.parametrize("n", [3, 65, 500])
def test_each_small_fault_lies_beyond_the_bound(n):
    q, k, v = case(5, n)
    scale = float(F(1 / 8))
    good, good_lse = exact(q, k, v, scale)
    bound = attention_bound(q, k, v, scale)

    def caught(out, lse):
        return (np.abs(out - good) > bound.out).any() or (np.abs(lse - good_lse) > bound.lse).any()

    assert caught(*exact(q, k[1:], v[1:], scale)), "a cell left out"
    assert caught(*exact(q, np.roll(k, 1, axis=0), v, scale)), "keys off by one"
    assert caught(*exact(q, k, v, scale * 1.001)), "a scale one per mille off"
    assert caught(*exact(q.astype(np.float16), k, v, scale)), "a query rounded to float16"
    if n < 100:  # over many cells rounding errors of values average out, their bound does not
        assert caught(*exact(q, k, v.astype(np.float16), scale)), "values rounded to float16"
    assert caught(*exact(q[::-1], k, v, scale)), "heads swapped"


@pytest.mark.parametrize("n", [3, 65, 500])
def test_the_bound_of_a_float16_matrix_unit_covers_rounded_operands(n):
    q, k, v = case(5, n)
    scale = float(F(1 / 8))
    good, good_lse = exact(q, k, v, scale)
    bound = attention_bound(q, k, v, scale, operand_unit=U16)
    out, lse = exact(q.astype(np.float16), k.astype(np.float16), v.astype(np.float16), scale)
    assert (np.abs(out - good) <= bound.out).all()
    assert (np.abs(lse - good_lse) <= bound.lse).all()


def test_no_cells_bound_nothing():
    bound = attention_bound(np.ones((4, 8), F), np.ones((0, 2, 8)), np.ones((0, 2, 8)), 1.0)
    assert not bound.out.any()
    assert not bound.lse.any()


def test_the_bound_grows_with_what_is_summed():
    small, large = (attention_bound(*case(1, n), 0.125).out.max() for n in (40, 400))
    assert small < large
    q, k, v = case(1, 40)
    centred = attention_bound(q, k, v, 0.125, centre=np.full((2, 64), 10.0))
    assert (centred.out > attention_bound(q, k, v, 0.125).out).all()


def test_gamma_bounds_repeated_rounding():
    x = F(1.0)
    for _ in range(100):
        x = np.nextafter(x, F(2)) * F(1)
    assert float(x) - 1 <= 2 * gamma(100)
    assert gamma(1) == U32 / (1 - U32)


@pytest.mark.parametrize(
    ("name", "least", "most"),
    [("int8", 0.5, 0.51), ("q8_0", 0.5, 0.57), ("q4_0", 1.0, 1.01), ("q4_64", 1.0, 1.01)],
)
def test_uniform_codecs_lose_half_a_step_or_what_the_grid_cuts_off(name, least, most):
    assert least <= codec_bound(codecs.get(name)).of_scale <= most


@pytest.mark.parametrize("name", ["q2c", "q2t", "q1c", "q1t"])
def test_a_codebook_loses_at_most_what_a_lone_value_does(name):
    codec = codecs.get(name)
    lone = np.sqrt(32) - codec.levels[-1]
    # thresholds are rounded to the stored scale, which is off by U16
    assert lone <= codec_bound(codec).of_scale <= lone * (1 + 4 * U16)


def test_float_codecs_lose_one_rounding_of_the_value_and_saturation_is_no_bound():
    f16, bf16, f32 = (codec_bound(codecs.get(n)) for n in ("f16", "bf16", "f32"))
    assert (f16.of_value, bf16.of_value, f32.of_value) == (2.0**-11, 2.0**-8, 0.0)
    assert f16.at(np.float32(7e4)) == np.inf
    assert f16.at(np.float32(6e4)) < np.inf
    assert codec_bound(codecs.get("int8")).at(1.0, F16_MAX * 1.01) == np.inf


def test_a_gain_adds_what_it_stretches():
    plain, gained = (codec_bound(codecs.get("q2c"), g).of_scale for g in (1.0, 1.1))
    outer = codecs.get("q2c").levels[-1]
    assert gained - plain == pytest.approx(0.1 * outer, rel=0.02)
