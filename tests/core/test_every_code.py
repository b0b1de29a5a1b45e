"""S4: every code of every codec, extremes included, is stored and read back; errors in bound."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvcore import codecs
from kvcore.bounds import codec_bound
from kvcore.conformance.values import hard, ordinary
from kvcore.layout import Layout
from kvcore.quantize import (
    _statistic,
    choose_codes,
    decode_rows,
    encode_group,
    encode_rows,
    level_table,
    pack,
    rms,
    unpack,
)
from kvcore.reference import Reference
from kvcore.spec import Rule
from tests.strategies import random_table

CODED = [name for name, c in codecs.all_codecs().items() if c.scale is not None]
EVERY = list(codecs.all_codecs())


def store_of(name: str, dim: int, page_size: int = 4) -> Layout:
    codec = codecs.get(name)
    return Layout(
        k=codec, v=codec, n_kv_heads=1, head_dim_k=dim, head_dim_v=dim, page_size=page_size
    )


@pytest.mark.parametrize("name", CODED)
def test_every_code_packs_alone_and_beside_every_other(name):
    codec = codecs.get(name)
    dim = 256
    rng = np.random.default_rng(0)
    codes = rng.integers(0, 2**codec.bits, (300, dim)).astype(np.uint8)
    codes[: 2**codec.bits] = np.arange(2**codec.bits, dtype=np.uint8)[:, None]
    packed = pack(codec, codes)
    assert packed.shape == (300, codec.row_bytes(dim))
    np.testing.assert_array_equal(unpack(codec, packed, dim), codes)


@pytest.mark.parametrize("name", CODED)
def test_fields_lie_where_the_layout_says(name):
    codec = codecs.get(name)
    dim, g = 128, codec.scale.group
    for d in range(dim):
        codes = np.zeros(dim, np.uint8)
        codes[d] = 2**codec.bits - 1
        packed = pack(codec, codes)
        if codec.bits == 8:
            byte, shift = d, 0
        elif codec.bits == 4:
            byte, shift = d // g * (g // 2) + d % (g // 2), 4 * (d % g // (g // 2))
        else:
            per = 8 // codec.bits
            byte, shift = d // per, codec.bits * (d % per)
        expected = np.zeros(codec.row_bytes(dim), np.uint8)
        expected[byte] = codes[d] << shift
        np.testing.assert_array_equal(packed, expected)


@pytest.mark.parametrize("name", CODED)
def test_every_level_is_stored_gathered_and_attended_exactly(name):
    """Each group holds every level the codec writes, at a scale of a power of two."""
    codec = codecs.get(name)
    layout = store_of(name, 256)
    be = Reference()
    n = 32
    table, n_pages = random_table(5, layout, n)
    pool = be.pool(layout, n_pages)
    written = sorted({int(c) for c in choose_codes(codec, np.asarray(codec.levels), 1.0)})
    assert written == sorted(int(c) for c in range(2**codec.bits) if not codec.signed or c != 128)
    levels = level_table(codec)
    rng = np.random.default_rng(1)
    chosen = rng.choice(written, (n, 1, 256)).astype(np.uint8)
    chosen[0] = written[0]
    chosen[1] = written[-1]
    plane = pool.planes["k_codes"]
    pages = table[0][np.arange(n) // 4]
    plane[pages, :, np.arange(n) % 4] = pack(codec, chosen)
    pool.planes["k_scales"][...] = np.float16(0.25)
    k, _ = be.gather(pool, table, np.arange(n))
    expected = (levels[chosen] * np.float32(0.25)).astype(np.float16)
    np.testing.assert_array_equal(k, expected)
    q = rng.normal(size=(1, 1, 256)).astype(np.float32)
    _, lse = be.attention(q, pool, table, [n], return_lse=True, scale=1.0)
    scores = (q[0, 0].astype(np.float64) * levels[chosen[:, 0]] * 0.25).sum(axis=1)
    expected_lse = np.log(np.exp(scores - scores.max()).sum()) + scores.max()
    assert lse[0, 0] == np.float32(expected_lse)


@pytest.mark.parametrize("name", CODED)
def test_a_signed_minus_128_is_never_written(name):
    codec = codecs.get(name)
    if not codec.signed:
        return
    x = hard(np.random.default_rng(3), (400, 1, 128))
    codes, _ = encode_rows(codec, x)
    assert not (codes.view(np.int8) == -128).any()


def decoded(name: str, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return x^ and the exact scale of each value, for x f32[32, 1, D]."""
    codec = codecs.get(name)
    dim = x.shape[-1]
    if codec.scale is None:
        return decode_rows(codec, encode_rows(codec, x)[0], None, dim), np.zeros(1)
    if codec.per_channel:
        codes, scale = encode_group(codec, x, np.ones(len(x), bool))
        return decode_rows(codec, codes, np.broadcast_to(scale, x.shape), dim), rms(x, axis=0)
    codes, scales = encode_rows(codec, x)
    groups = x.reshape(*x.shape[:-1], -1, codec.scale.group)
    exact = np.repeat(_statistic(codec, groups), codec.scale.group, axis=-1)
    return decode_rows(codec, codes, scales, dim), exact


@pytest.mark.parametrize("name", EVERY)
@given(seed=st.integers(0, 2**32 - 1), power=st.integers(-40, 30))
def test_errors_lie_within_the_derived_bound(name, seed, power):
    rng = np.random.default_rng(seed)
    x = (ordinary(rng, (32, 1, 128)) * np.float32(2.0**power)).astype(np.float32)
    got, scale = decoded(name, x)
    off = np.abs(got.astype(np.float64) - x)
    assert (off <= codec_bound(codecs.get(name)).at(x, scale)).all()


@pytest.mark.parametrize("name", EVERY)
def test_hard_values_lie_within_the_bound_or_saturate_to_finite_ones(name):
    x = hard(np.random.default_rng(9), (32, 1, 256))
    got, scale = decoded(name, x)
    assert np.isfinite(got).all()
    off = np.abs(got.astype(np.float64) - x)
    assert (off <= codec_bound(codecs.get(name)).at(x, scale)).all()


@pytest.mark.parametrize("name", CODED)
def test_the_bound_is_not_slack(name):
    """One value alone in its group reaches at least half of what an RMS codec may lose."""
    codec = codecs.get(name)
    if codec.scale.rule is Rule.RMS:
        x = np.zeros((32, 1, 128), np.float32)
        x[0] = 1.0
        if not codec.per_channel:
            x = np.moveaxis(x, 0, -1).repeat(4, axis=-1)[:32, :, :128] * 0
            x[..., 0::32] = 1.0
    else:
        x = np.random.default_rng(4).uniform(-1, 1, (32, 1, 128)).astype(np.float32)
    got, scale = decoded(name, x)
    off = np.abs(got.astype(np.float64) - x)
    assert (off / codec_bound(codec).at(x, scale)).max() > 0.5


@pytest.mark.parametrize("name", CODED)
@pytest.mark.parametrize("values", [(1e-3, 1e3), (2.0**-24, 6e4)])
def test_s5_scales_of_any_size_live_side_by_side(name, values):
    layout = store_of(name, 128)
    be = Reference()
    table, n_pages = random_table(2, layout, 64)
    pool = be.pool(layout, n_pages)
    x = np.ones((64, 1, 128), np.float32)
    x[:32] *= np.float32(values[0])
    x[32:] *= np.float32(values[1])
    be.append(pool, table, np.arange(64), x, x)
    k, v = (a.astype(np.float64) for a in be.gather(pool, table, np.arange(64)))
    codec = codecs.get(name)
    rule = codec.scale.rule
    divisor = 1.0 if rule is Rule.RMS else abs(codec.scale.divisor)
    bound = codec_bound(codec).at(x, x / divisor) + np.abs(x) * 2.0**-10 + 2.0**-25
    for got in (k, v):
        assert (np.abs(got - x) <= bound).all()


@pytest.mark.parametrize("name", EVERY)
def test_kb_01_zero_groups_read_as_zero_and_touch_no_other(name):
    layout = store_of(name, 128, page_size=32)
    be = Reference()
    table, n_pages = random_table(2, layout, 32)
    x = ordinary(np.random.default_rng(6), (32, 1, 128))
    for zero in (0.0, -0.0):
        holed = x.copy()
        holed[..., 64:] = np.float32(zero)
        pools = [be.pool(layout, n_pages) for _ in range(2)]
        for pool, values in zip(pools, (x, holed), strict=True):
            be.append(pool, table, np.arange(32), values, values)
        full, part = (be.gather(p, table, np.arange(32))[0] for p in pools)
        np.testing.assert_array_equal(part[..., 64:], np.zeros((32, 1, 64), np.float16))
        np.testing.assert_array_equal(part[..., :64], full[..., :64])


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_kb_02_a_non_finite_value_spoils_its_own_group_only(name, bad):
    codec = codecs.get(name)
    layout = store_of(name, 128, page_size=32)
    be = Reference()
    table, n_pages = random_table(2, layout, 64)
    x = ordinary(np.random.default_rng(6), (64, 1, 128))
    spoilt = x.copy()
    spoilt[40, 0, 70] = bad
    pools = [be.pool(layout, n_pages) for _ in range(2)]
    for pool, values in zip(pools, (x, spoilt), strict=True):
        be.append(pool, table, np.arange(64), values, values)
    clean, dirty = (be.gather(p, table, np.arange(64))[0] for p in pools)
    hit = np.zeros(x.shape, bool)
    if codec.scale is None:
        hit[40, 0, 70] = True
    elif codec.per_channel:
        hit[32:, 0, 70] = True
    else:
        g = codec.scale.group
        hit[40, 0, 70 // g * g : 70 // g * g + g] = True
    np.testing.assert_array_equal(dirty[~hit], clean[~hit])
    if codec.scale is None:
        np.testing.assert_array_equal(dirty[hit], np.asarray([bad], np.float16))
    else:
        assert np.isnan(dirty[hit]).all()
        assert (pools[1].planes["k_scales"].view(np.uint16) == 0x7E00).sum() == 1


@pytest.mark.parametrize("name", EVERY)
def test_kb_02_finite_values_never_become_infinite_in_anything_stored(name):
    x = np.full((32, 1, 128), 3e38, np.float32)
    x[::2] = -3e38
    codec = codecs.get(name)
    for gain in ("unbiased", 1.0):
        if codec.scale is None:
            stored = decode_rows(codec, encode_rows(codec, x)[0], None, 128)
        elif codec.per_channel:
            stored = encode_group(codec, x, np.ones(32, bool), gain)[1]
        else:
            stored = encode_rows(codec, x, gain)[1]
        assert np.isfinite(stored).all()


@pytest.mark.parametrize("name", [n for n in CODED if codecs.get(n).per_channel])
def test_kb_02_squares_beyond_float16_give_a_finite_scale(name):
    _, scale = encode_group(
        codecs.get(name), np.full((32, 1, 32), 300, np.float32), np.ones(32, bool)
    )
    np.testing.assert_array_equal(scale, np.float16(300))
