"""A walk shows what is really stored, for every format and either store."""

from __future__ import annotations

import numpy as np
import pytest

import kvcore
from kvcore import bounds, codecs
from kvcore.errors import ShapeError
from kvcore.walk import sample, walk

# The conformance kit compares every backend; a walk only has to show what it does.
BACKENDS = ["reference", "cpu"]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("store", ["k", "v"])
@pytest.mark.parametrize("name", list(kvcore.formats()))
def test_a_walk_equals_the_reference_and_stays_within_the_codec_bound(name, store, backend):
    w = walk(name, backend, store=store)
    assert w.same_as_reference
    codec = codecs.get(w.codec)
    encoded = np.array(w.array if w.rotated is None else w.rotated, np.float64)
    if w.waits:
        encoded = encoded.astype(np.float16).astype(np.float64)
    stored = np.array(w.dequantized)
    if codec.scale is None:
        allowed = bounds.codec_bound(codec).at(encoded)
    else:
        scales = np.repeat(np.abs(w.scales), len(encoded) // len(w.scales))
        # The exact scale is within half a float16 step of the stored one.
        allowed = bounds.codec_bound(codec).at(encoded, scales * (1 + 2.0**-11) + 2.0**-25)
    assert (np.abs(stored - encoded) <= allowed).all()
    restored, array = np.array(w.restored), np.array(w.array)
    expected = np.sqrt(((restored - array) ** 2).sum() / (array**2).sum())
    assert w.relative_rms == pytest.approx(expected, rel=1e-12)


def test_codes_and_levels_give_the_dequantized_values():
    w = walk("q2k", "reference", store="k")
    levels = np.array(codecs.get("q2c").levels, np.float32)
    expected = levels[list(w.codes)] * np.float32(w.scales[0])
    np.testing.assert_array_equal(np.float32(w.dequantized), expected)
    assert (len(w.codes), w.channel, w.cells) == (32, 5, 32)
    bits = np.array(w.scale_bits, np.uint16).view(np.float16)
    np.testing.assert_array_equal(bits, np.float16(w.scales))


def test_places_are_offsets_into_the_planes():
    w = walk("q4_0", "reference", store="v")
    codes, scales = w.places
    assert (codes.plane, codes.byte, codes.nbytes) == ("v_codes", 0, 32)
    assert (scales.plane, scales.byte, scales.nbytes) == ("v_scales", 0, 4)
    packed = bytes.fromhex(codes.first)
    # Halves: value j in the low nibble of byte j, value j + 16 in its high one.
    assert [b & 15 for b in packed] == list(w.codes[:8])
    assert [b >> 4 for b in packed] == list(w.codes[16:24])


def test_own_values_and_their_shape():
    x = np.linspace(-1, 1, 64, dtype=np.float32)
    assert walk("int8", "reference", values=x).array == tuple(float(v) for v in x)
    with pytest.raises(ShapeError, match="values"):
        walk("q2k", "reference", values=x)
    with pytest.raises(ShapeError, match="store"):
        walk("int8", "reference", store="x")


def test_the_sample_is_exact_in_float16():
    x = sample(32, 256)
    np.testing.assert_array_equal(x.astype(np.float16).astype(np.float32), x)


def test_walk_command_reads_a_file_and_prints_json(kvcore_command, tmp_path):
    file = tmp_path / "x.npy"
    np.save(file, np.ones(64, np.float32))
    args = ("walk", "-f", "int8", "--on", "reference", "--values", file)
    both = kvcore_command(*args, "--json").json()
    assert [w["store"] for w in both] == ["k", "v"]
    assert both[0]["array"] == [1.0] * 64
    text = kvcore_command(*args).out
    assert "int8 on reference: store K" in text
    assert max(len(line) for line in text.splitlines()) <= 100
