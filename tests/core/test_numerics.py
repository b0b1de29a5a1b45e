"""Rounding, saturation, NaN payloads and sums, bit for bit."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvcore.numerics import F32_MAX, from_bf16, sequential_sum, squares, to_bf16, to_f16, to_f32


def bits(x: float | np.float32) -> int:
    return int(np.asarray(x, np.float32).view(np.uint32))


def value(pattern: int) -> np.float32:
    return np.asarray(pattern, np.uint32).view(np.float32)[()]


@pytest.mark.parametrize(
    ("x", "half"),
    [
        (65504.0, 0x7BFF),
        (65519.996, 0x7BFF),
        (65520.0, 0x7BFF),
        (1e30, 0x7BFF),
        (-3e38, 0xFBFF),
        (np.inf, 0x7C00),
        (-np.inf, 0xFC00),
        (2.0**-24, 0x0001),
        (2.0**-25, 0x0000),
        (-(2.0**-25), 0x8000),
        (1.0000001 * 2.0**-25, 0x0001),
        (3 * 2.0**-25, 0x0002),
        (2.0**-149, 0x0000),
        (-0.0, 0x8000),
        (1 + 2.0**-11, 0x3C00),
        (1 + 3 * 2.0**-11, 0x3C02),
    ],
)
def test_to_f16_rounds_to_nearest_even_and_saturates(x, half):
    assert int(to_f16(np.float32(x)).view(np.uint16)) == half


@pytest.mark.parametrize("payload", [1, 0x1234, 0x200000, 0x3FFFFF, 0x400001, 0x7FFFFF])
@pytest.mark.parametrize("sign", [0, 1])
def test_a_nan_keeps_its_sign_and_drops_its_payload(payload, sign):
    x = value(sign << 31 | 0x7F800000 | payload)
    assert int(to_f16(x).view(np.uint16)) == sign << 15 | 0x7E00
    assert int(to_bf16(x)) == sign << 15 | 0x7FC0


@pytest.mark.parametrize(
    ("pattern", "brain"),
    [
        (0x3F808000, 0x3F80),
        (0x3F818000, 0x3F82),
        (0x3F808001, 0x3F81),
        (0x7F7FFFFF, 0x7F7F),
        (0x7F7F8000, 0x7F7F),
        (0xFF7FFFFF, 0xFF7F),
        (0x7F800000, 0x7F80),
        (0x00000001, 0x0000),
        (0x00008001, 0x0001),
        (0x80000000, 0x8000),
    ],
)
def test_to_bf16_rounds_to_nearest_even_and_saturates(pattern, brain):
    assert int(to_bf16(value(pattern))) == brain


@given(pattern=st.integers(0, 2**32 - 1))
def test_to_f16_is_the_nearest_half_for_any_float(pattern):
    x = value(pattern)
    got = to_f16(x)
    if not np.isfinite(x):
        return
    neighbours = [np.nextafter(got, np.float16(s)) for s in (-np.inf, np.inf)]
    off = abs(Fraction(float(got)) - Fraction(float(x)))
    for other in neighbours:
        if np.isfinite(other):
            assert off <= abs(Fraction(float(other)) - Fraction(float(x)))


@given(pattern=st.integers(0, 2**16 - 1))
def test_a_bf16_comes_back_from_float32_as_it_was(pattern):
    x = from_bf16(np.asarray([pattern], np.uint16))
    if np.isfinite(x[0]):
        assert int(to_bf16(x)[0]) == pattern


def test_float64_inputs_saturate_to_float32_and_keep_infinities_and_nan():
    got = to_f32(np.array([1e300, -1e300, np.inf, -np.inf, np.nan, 1e-300]))
    np.testing.assert_array_equal(got, [F32_MAX, -F32_MAX, np.inf, -np.inf, np.nan, 0])
    assert got.dtype == np.float32


def test_a_sum_is_sequential_and_not_pairwise():
    """1 followed by 2^24 halves of an ulp: in order each is lost, in pairs they add up."""
    terms = np.full(4096, 2.0**-25, np.float32)
    terms[0] = 1
    assert sequential_sum(terms) == np.float32(1)
    assert terms.sum() != np.float32(1)


@given(seed=st.integers(0, 2**32 - 1), n=st.integers(1, 40))
def test_sums_of_squares_round_after_each_operation(seed, n):
    x = np.random.default_rng(seed).normal(size=n).astype(np.float32)
    total = Fraction(0)
    for term in x:
        exact = Fraction(float(term)) ** 2
        squared = Fraction(float(np.float32(float(exact))))  # float64 holds a square exactly
        total = Fraction(float(np.float32(float(total + squared))))  # and the sum of two floats
    assert Fraction(float(sequential_sum(squares(x)))) == total


def test_squares_overflow_to_infinity_without_a_warning():
    with np.errstate(all="raise"):
        assert np.isinf(squares(np.float32(1e30)))
        assert np.isinf(sequential_sum(np.full(3, F32_MAX, np.float32)))
