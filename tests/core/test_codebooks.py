"""Levels and thresholds of the codebooks: their bits, and the theory they come from."""

from __future__ import annotations

import math

import numpy as np
import pytest

from kvcore import codecs
from kvcore.errors import FormatError
from kvcore.quantize import choose_codes, level_table, threshold_table
from kvcore.spec import Axis, Codec, Packing, Rounding, Rule, Scale

CODEBOOKS = [name for name, c in codecs.all_codecs().items() if c.codebook]


def bits(values: np.ndarray) -> list[str]:
    return [f"0x{b:08X}" for b in values.astype(np.float32).view(np.uint32)]


@pytest.mark.parametrize("name", ["q2c", "q2t"])
def test_two_bit_levels_and_thresholds_have_the_specified_bits(name):
    codec = codecs.get(name)
    assert bits(level_table(codec)) == ["0xBFC1555D", "0xBEE7D2C9", "0x3EE7D2C9", "0x3FC1555D"]
    assert bits(threshold_table(codec)) == ["0xBF7B4A0F", "0x00000000", "0x3F7B4A0F"]


@pytest.mark.parametrize("name", ["q1c", "q1t"])
def test_one_bit_levels_have_the_specified_bits(name):
    codec = codecs.get(name)
    assert bits(level_table(codec)) == ["0xBF4C422A", "0x3F4C422A"]
    assert bits(threshold_table(codec)) == ["0x00000000"]


def _pdf(x: float) -> float:
    return math.exp(-x * x / 2) / math.sqrt(2 * math.pi)


def _cdf(x: float) -> float:
    return math.erf(x / math.sqrt(2)) / 2


@pytest.mark.parametrize("name", CODEBOOKS)
def test_levels_are_centroids_of_a_unit_normal_between_the_thresholds(name):
    codec = codecs.get(name)
    edges = [-40.0, *codec.thresholds, 40.0]
    for low, high, level in zip(edges, edges[1:], codec.levels, strict=False):
        mass = _cdf(high) - _cdf(low)
        centroid = (_pdf(low) - _pdf(high)) / mass
        # The levels are written with 12 decimals.
        assert abs(centroid - level) < 1e-12 + 2**-40


@pytest.mark.parametrize(("name", "mse"), [("q2c", 0.117482), ("q1c", 0.36338)])
def test_distortion_of_a_unit_normal_is_the_published_one(name, mse):
    codec = codecs.get(name)
    edges = [-40.0, *codec.thresholds, 40.0]
    explained = sum(
        (_cdf(high) - _cdf(low)) * level**2
        for low, high, level in zip(edges, edges[1:], codec.levels, strict=False)
    )
    assert round(1 - explained, 6) == pytest.approx(mse, abs=1e-6)


@pytest.mark.parametrize("name", CODEBOOKS)
def test_a_tie_takes_the_lower_code_and_the_next_value_the_upper(name):
    codec = codecs.get(name)
    for s in (np.float32(1), np.float32(0.37109375), np.float32(2.0**-24), np.float32(65504)):
        for i, t in enumerate(threshold_table(codec)):
            edge = np.float32(t * s)
            above = np.nextafter(edge, np.float32(np.inf))
            assert choose_codes(codec, edge, s) == i
            assert choose_codes(codec, above, s) == i + 1


@pytest.mark.parametrize("name", CODEBOOKS)
def test_zero_is_the_code_under_the_middle_and_a_zero_scale_gives_code_0(name):
    codec = codecs.get(name)
    middle = len(codec.levels) // 2 - 1
    for zero in (np.float32(0.0), np.float32(-0.0)):
        assert choose_codes(codec, zero, np.float32(1)) == middle
        assert choose_codes(codec, zero, np.float32(0)) == 0
    assert choose_codes(codec, np.float32(5), np.float32(0)) == 0
    assert choose_codes(codec, np.float32(np.nan), np.float32(1)) == 0


def scale(**changes: object) -> Scale:
    fields = {"axis": Axis.DIM, "group": 32, "rule": Rule.RMS} | changes
    return Scale(**fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"bits": 3}, "bits must be"),
        ({"levels": (1.0, 0.0)}, "ascend strictly"),
        ({"levels": (0.0, 1.0, 2.0, 3.0, 4.0)}, "fit the bits"),
        ({"levels": ()}, "needs levels"),
        ({"scale": scale(axis=Axis.CELL, group=16)}, "spans 32 cells"),
        ({"scale": scale(axis=Axis.CELL, rule=Rule.ABSMAX)}, "is an RMS"),
        ({"packing": Packing.HALVES}, "cannot pack"),
        ({"float_type": "f32"}, "no scale"),
    ],
)
def test_a_codec_that_cannot_be_is_refused_with_its_name(changes, words):
    fields = {
        "name": "odd",
        "bits": 2,
        "levels": (-1.0, 0.0, 1.0, 2.0),
        "scale": scale(),
        "rounding": Rounding.NEAREST_LEVEL,
        "packing": Packing.SEQUENTIAL,
        "source": "a test",
    }
    with pytest.raises(FormatError, match=f"odd.*{words}"):
        Codec(**(fields | changes))
