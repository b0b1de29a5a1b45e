"""Our codecs against code that we did not write: gguf, ml_dtypes, NumPy."""

from __future__ import annotations

import gguf
import ml_dtypes
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Type
from hypothesis import given
from hypothesis import strategies as st

from kvcore import codecs, interop
from kvcore.conformance.values import hard, ordinary
from kvcore.formats import get as get_format
from kvcore.layout import Layout
from kvcore.numerics import from_bf16, to_bf16, to_f16
from kvcore.quantize import decode_rows, encode_rows
from kvcore.reference import Reference
from tests.strategies import hard_floats, random_table

ALL_HALVES = np.arange(65536, dtype=np.uint32).astype(np.uint16)


def edge_floats() -> np.ndarray:
    """Every half, its float32 neighbours, and the ties between halves and between bfloat16s."""
    halves = ALL_HALVES.view(np.float16).astype(np.float32)
    halves = halves[np.isfinite(halves)]
    ordered = np.unique(halves)
    ties = (ordered[1:] + ordered[:-1]) / 2
    brain = (ALL_HALVES.astype(np.uint32) << 16).view(np.float32)
    brain_ties = ((ALL_HALVES.astype(np.uint32) << 16) | 0x8000).view(np.float32)
    points = np.concatenate([halves, ties, brain, brain_ties])
    points = points[np.isfinite(points)]
    with np.errstate(over="ignore"):
        return np.concatenate(
            [points, np.nextafter(points, np.float32(np.inf)), np.nextafter(points, -np.inf)]
        ).astype(np.float32)


def test_f16_equals_numpy_but_for_saturation_at_every_edge():
    x = edge_floats()
    with np.errstate(over="ignore"):
        expected = x.astype(np.float16)
    over = np.isinf(expected) & np.isfinite(x)
    expected = np.where(over, np.copysign(np.float16(65504), expected), expected)
    np.testing.assert_array_equal(to_f16(x).view(np.uint16), expected.view(np.uint16))
    assert over.any()
    assert not np.isinf(to_f16(x)[np.isfinite(x)]).any()


def test_bf16_equals_ml_dtypes_but_for_saturation_at_every_edge():
    x = edge_floats()
    with np.errstate(over="ignore"):
        expected = x.astype(ml_dtypes.bfloat16).view(np.uint16)
    over = ((expected & 0x7FFF) == 0x7F80) & np.isfinite(x)
    expected = np.where(over, (expected & 0x8000) | 0x7F7F, expected)
    np.testing.assert_array_equal(to_bf16(x), expected)
    assert over.any()


@pytest.mark.parametrize(
    ("codec", "dtype"), [("f16", np.float16), ("bf16", ml_dtypes.bfloat16)], ids=["f16", "bf16"]
)
def test_all_65536_halves_are_stored_and_read_back(codec, dtype):
    c = codecs.get(codec)
    x = ALL_HALVES.view(dtype).astype(np.float32).reshape(256, 256)
    codes, scales = encode_rows(c, x)
    assert scales is None
    back = decode_rows(c, codes, None, 256)
    bits = codes.view(np.uint16).reshape(-1)
    nan = np.isnan(x).reshape(-1)
    np.testing.assert_array_equal(bits[~nan], ALL_HALVES[~nan])
    np.testing.assert_array_equal(back[~np.isnan(x)], x[~np.isnan(x)])
    quiet = 0x7E00 if codec == "f16" else 0x7FC0
    np.testing.assert_array_equal(bits[nan], (ALL_HALVES[nan] & 0x8000) | quiet)


def test_widening_a_bf16_equals_ml_dtypes_on_all_65536():
    ours = from_bf16(ALL_HALVES).view(np.uint32)
    theirs = ALL_HALVES.view(ml_dtypes.bfloat16).astype(np.float32).view(np.uint32)
    np.testing.assert_array_equal(ours, theirs)


def test_f32_keeps_every_bit():
    bits = np.random.default_rng(1).integers(0, 2**32, (8, 64), np.uint32)
    codes, _ = encode_rows(codecs.get("f32"), bits.view(np.float32))
    np.testing.assert_array_equal(codes.view(np.uint32), bits)


def _comparable(x: np.ndarray, divisor: float) -> np.ndarray:
    """Blocks that gguf answers as rules say: no saturated scale, no overflowing reciprocal."""
    blocks = x.reshape(-1, 32)
    top = np.abs(blocks).max(axis=1)
    tie = (blocks == top[:, None]).any(axis=1) & (blocks == -top[:, None]).any(axis=1) & (top > 0)
    scale = top / np.float32(divisor)
    fits = (scale < 65520) & ((scale == 0) | (scale > np.float32(2.0**-126)))
    return fits & ~(tie & (divisor == 8))


def _ours(name: str, x: np.ndarray) -> np.ndarray:
    layout = Layout(
        k=codecs.get(name),
        v=codecs.get(name),
        n_kv_heads=2,
        head_dim_k=x.shape[-1],
        head_dim_v=x.shape[-1],
        page_size=4,
    )
    be, n = Reference(), len(x)
    table, n_pages = random_table(3, layout, n)
    pool = be.pool(layout, n_pages)
    be.append(pool, table, np.arange(n), x, x)
    k, v = interop.to_ggml(pool, table, n, name)
    np.testing.assert_array_equal(k, v)
    return k


@pytest.mark.parametrize(("name", "kind"), [("q4_0", Type.Q4_0), ("q8_0", Type.Q8_0)])
@pytest.mark.parametrize("values", [ordinary, hard], ids=["ordinary", "hard"])
def test_blocks_equal_ggufs_quantizer_and_dequantizer(name, kind, values):
    x = values(np.random.default_rng(11), (200, 2, 128))
    same = _comparable(x, 8 if name == "q4_0" else 127)
    with np.errstate(all="ignore"):
        theirs = gguf.quants.quantize(x.reshape(-1, 128), kind).reshape(len(same), -1)
    ours = _ours(name, x).reshape(len(same), -1)
    np.testing.assert_array_equal(ours[same], theirs[same])
    assert same.mean() > 0.5, "the filter leaves too little"
    decoded = gguf.quants.dequantize(ours.reshape(200 * 2, -1), kind).reshape(x.shape)
    codes, scales = encode_rows(codecs.get(name), x)
    np.testing.assert_array_equal(decode_rows(codecs.get(name), codes, scales, 128), decoded)


@pytest.mark.parametrize(("name", "kind"), [("q4_0", Type.Q4_0), ("q8_0", Type.Q8_0)])
@given(block=st.lists(hard_floats(), min_size=32, max_size=32))
def test_any_block_equals_ggufs(name, kind, block):
    x = np.asarray(block, np.float32).reshape(1, 32)
    if not _comparable(x, 8 if name == "q4_0" else 127)[0]:
        return
    with np.errstate(all="ignore"):
        theirs = gguf.quants.quantize(x, kind)
    codes, scales = encode_rows(codecs.get(name), x)
    ours = np.concatenate([scales.view(np.uint8).reshape(1, 2), codes], axis=1)
    np.testing.assert_array_equal(ours, theirs)


def test_q4_0_takes_the_positive_of_a_tie_where_gguf_takes_the_first():
    x = np.zeros((1, 32), np.float32)
    x[0, :3] = (-2.0, 2.0, 1.0)
    codes, scales = encode_rows(codecs.get("q4_0"), x)
    assert scales[0, 0] == np.float16(-0.25)
    assert [codes[0, j] & 15 for j in range(3)] == [15, 0, 4]
    gguf_scale = gguf.quants.quantize(x, Type.Q4_0)[0, :2].copy().view(np.float16)[0]
    assert gguf_scale == np.float16(0.25)


def test_a_q4_0_block_of_zeros_has_ggufs_negative_zero_scale():
    codes, scales = encode_rows(codecs.get("q4_0"), np.zeros((1, 32), np.float32))
    assert scales.view(np.uint16)[0, 0] == 0x8000
    assert (codes == 0x88).all()


@pytest.mark.parametrize("name", ["q4_0", "q8_0"])
def test_a_scale_beyond_float16_saturates_where_gguf_stores_infinity(name):
    x = np.full((1, 32), 3e38, np.float32)
    _, scales = encode_rows(codecs.get(name), x)
    assert abs(float(scales[0, 0])) == 65504.0


@pytest.mark.parametrize(
    ("m", "x", "code"),
    [
        ("0x1.93f934p+0", "-0x1.c67856p-1", 13),
        ("0x1.a032b4p-1", "0x1.522934p-1", 2),
        ("0x1.78a2a8p-1", "-0x1.02efd2p-1", 14),
    ],
)
def test_kb_03_q4_0_rounds_product_and_sum_separately(m, x, code):
    block = np.zeros((1, 32), np.float32)
    block[0, :2] = float.fromhex(m), float.fromhex(x)
    codes, _ = encode_rows(codecs.get("q4_0"), block)
    assert codes[0, 1] & 15 == code


def test_formats_name_the_codecs_that_gguf_knows():
    assert get_format("q4_0").k.name == "q4_0"
    assert get_format("q8_0").v.name == "q8_0"
