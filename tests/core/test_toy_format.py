"""A format added as one data file is a full citizen: tables, caches, bounds, conformance."""

from __future__ import annotations

import numpy as np
import pytest
from toy_format import FORMAT, NF4

import kvcore
from kvcore.bounds import codec_bound
from kvcore.errors import FormatError
from kvcore.formats import register, unregister
from kvcore.quantize import decode_rows, encode_rows
from kvcore.reference import Reference


@pytest.fixture
def nf4():
    register(FORMAT)
    yield FORMAT
    unregister("nf4")


def test_it_is_listed_printed_and_sized(nf4):
    assert "nf4" in kvcore.formats()
    assert kvcore.format("nf4") is nf4
    assert nf4.bytes_per_cell(2, 256) == 2 * 2 * (128 + 8)
    assert "544 at 2 heads x 256" in str(nf4)


def test_it_passes_the_conformance_body(nf4):
    report = kvcore.check(Reference(), formats=["nf4"])
    assert report.ok, str(report)
    assert {o.op for o in report.outcomes if o.format == "nf4"} == {
        "append", "gather", "attention", "restore", "move",
    }  # fmt: skip
    assert "nf4" in {
        o.format for o in kvcore.check(Reference(), ops=["gather"], quick=True).outcomes
    }


def test_a_cache_of_it_reads_within_its_derived_bound(nf4):
    x = np.random.default_rng(0).normal(size=(50, 2, 128)).astype(np.float32)
    cache = Reference().cache(kvcore.CacheSpec(format="nf4", n_kv_heads=2, head_dim=128), 64)
    cache.append(x, x)
    k, _ = cache.read()
    scale = np.repeat(np.abs(x).reshape(50, 2, 2, 64).max(-1), 64, axis=-1)
    assert (np.abs(k - x) <= codec_bound(NF4).at(x, scale)).all()


def test_each_of_its_levels_comes_back(nf4):
    x = np.tile(np.asarray(NF4.levels, np.float32), 8)[None]
    codes, scales = encode_rows(NF4, x)
    np.testing.assert_array_equal(decode_rows(NF4, codes, scales, 128), x)


def test_a_name_is_taken_once(nf4):
    other = kvcore.Format(name="nf4", k=NF4, v=kvcore.format("f16").v)
    with pytest.raises(FormatError, match="the name 'nf4' is taken by another format"):
        register(other)
    with pytest.raises(FormatError, match="'q4_0' is taken"):
        register(kvcore.Format(name="q4_0", k=NF4, v=NF4))
    assert register(FORMAT) is FORMAT


def test_an_unnamed_pair_of_codecs_needs_no_registration():
    fmt = kvcore.Format(k=NF4, v=kvcore.format("q2").v, rotate="v")
    assert fmt.name == "nf4+q2c/v"
    x = np.random.default_rng(0).normal(size=(40, 1, 64)).astype(np.float32)
    cache = Reference().cache(kvcore.CacheSpec(format=fmt, n_kv_heads=1, head_dim=64), 64)
    cache.append(x, x)
    assert cache.attend(np.ones((1, 1, 64), np.float32)).shape == (1, 1, 64)


def test_after_it_is_gone_its_name_is_unknown():
    assert "nf4" not in list(kvcore.formats())
