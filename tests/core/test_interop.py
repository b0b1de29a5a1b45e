"""Blocks of ggml: exported and imported bit for bit, refused with reasons."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Type
from hypothesis import given
from hypothesis import strategies as st

import kvcore
from kvcore import interop
from kvcore.conformance.values import ordinary
from kvcore.errors import FormatError, RangeError, ShapeError
from kvcore.ops.rotate import rotate
from kvcore.pool import Pool
from kvcore.reference import Reference
from tests.strategies import random_table

H, D = 2, 64
BE = Reference()


def filled(name: str, n: int, page_size: int = 4, seed: int = 0) -> tuple[Pool, np.ndarray]:
    spec = kvcore.CacheSpec(format=name, n_kv_heads=H, head_dim=D, page_size=page_size, recipe=None)
    table, n_pages = random_table(seed, spec.layout, max(n, 1))
    pool = BE.pool(spec.layout, n_pages)
    x = ordinary(np.random.default_rng(seed), (n, H, D))
    if n:
        BE.append(pool, table, np.arange(n), x, x)
    return pool, table[0]


@pytest.mark.parametrize(("name", "kind"), [("q4_0", Type.Q4_0), ("q8_0", Type.Q8_0)])
@pytest.mark.parametrize("page_size", [4, 32, 64])
def test_gguf_dequantizes_what_is_exported_to_what_is_stored(name, kind, page_size):
    pool, table = filled(name, 70, page_size)
    k, v = interop.to_ggml(pool, table, 70, name)
    assert k.shape == v.shape == (70, H, D // 32 * interop.block_bytes(name))
    assert interop.block_bytes(name) == gguf.GGML_QUANT_SIZES[kind][1]
    decoded = gguf.quants.dequantize(k.reshape(70 * H, -1), kind).reshape(70, H, D)
    with np.errstate(over="ignore"):
        stored, _ = BE.gather(pool, table, np.arange(70))
    np.testing.assert_array_equal(decoded.astype(np.float16), stored)


@pytest.mark.parametrize(("name", "kind"), [("q4_0", Type.Q4_0), ("q8_0", Type.Q8_0)])
def test_ggufs_own_blocks_are_imported_and_read_as_gguf_reads_them(name, kind):
    x = ordinary(np.random.default_rng(7), (40, H, D))
    blocks = gguf.quants.quantize(x.reshape(-1, D), kind).reshape(40, H, -1)
    pool, table = filled(name, 0)
    pool, table = filled(name, 40, seed=3)
    interop.from_ggml(pool, table, 40, name, k=blocks, v=blocks.tobytes())
    decoded = gguf.quants.dequantize(blocks.reshape(40 * H, -1), kind).reshape(40, H, D)
    for got in BE.gather(pool, table, np.arange(40)):
        np.testing.assert_array_equal(got, decoded.astype(np.float16))
    again = interop.to_ggml(pool, table, 40, name)
    np.testing.assert_array_equal(again.k, blocks)
    np.testing.assert_array_equal(again.v, blocks)


def test_a_cache_exports_its_stored_rotated_basis():
    x = np.random.default_rng(1).normal(size=(9, H, D)).astype(np.float32)
    spec = kvcore.CacheSpec(format="q4_0", n_kv_heads=H, head_dim=D, recipe=None)
    cache = BE.cache(spec, 32)
    cache.append(x, x)
    k, _ = interop.to_ggml(cache.pool, cache.table, 9, "q4_0")
    theirs = gguf.quants.quantize(rotate(x).reshape(-1, D), Type.Q4_0)
    np.testing.assert_array_equal(k.reshape(theirs.shape), theirs)
    assert "stored" in interop.to_ggml.__doc__
    assert "rotated" in interop.to_ggml.__doc__


@given(n=st.integers(0, 100), page=st.sampled_from([4, 8, 32, 64]), seed=st.integers(0, 99))
@pytest.mark.parametrize(("name", "kind"), [("q4_0", "q4_0"), ("q8_0", "q8_0"), ("q2", "q2c_0")])
def test_export_and_import_are_inverses_and_touch_nothing_else(name, kind, n, page, seed):
    pool, table = filled(name, n, page, seed)
    k, v = interop.to_ggml(pool, table, n, kind)
    other, _ = filled(name, 0, page, seed)
    other = BE.pool(pool.layout, pool.n_pages)
    for plane in other.planes.values():
        plane.view(np.uint8)[...] = 0x5A
    interop.from_ggml(other, table, n, kind, k, v)
    for store in "kv":
        one, two = (p.planes[f"{store}_codes"] for p in (pool, other))
        cells = np.arange(n)
        page_of, slot = table[cells // page], cells % page
        np.testing.assert_array_equal(one[page_of, :, slot], two[page_of, :, slot])
        two[page_of, :, slot] = 0x5A
        assert (two == 0x5A).all()
    for mine, yours in zip((k, v), interop.to_ggml(pool, table, n, kind), strict=True):
        np.testing.assert_array_equal(mine, yours)


def naive_q2c(pool: Pool, table: np.ndarray, n: int, store: str) -> np.ndarray:
    """The 10-byte blocks by the words of the specification, one field at a time."""
    layout = pool.layout
    p, u = layout.page_size, layout.unit_pages
    out = np.zeros((-(-n // 32), H, D, 10), np.uint8)
    for t in range(n):
        page, slot = int(table[t // p]), t % p
        for h in range(H):
            for d in range(D):
                byte = int(pool.planes[f"{store}_codes"][page, h, slot, d // 4])
                code = byte >> 2 * (d % 4) & 3
                c = t % 32
                out[t // 32, h, d, 2 + c // 4] |= code << 2 * (c % 4)
                if c == 0:
                    scale = pool.planes[f"{store}_scales"][page // u, h, slot // 32, d]
                    out[t // 32, h, d, :2] = np.frombuffer(scale.astype("<f2").tobytes(), np.uint8)
    return out


@pytest.mark.parametrize(("n", "page_size"), [(64, 4), (41, 8), (96, 32), (70, 64)])
def test_per_channel_blocks_hold_scale_first_then_four_cells_a_byte(n, page_size):
    pool, table = filled("q2", n, page_size)
    k, v = interop.to_ggml(pool, table, n, "q2c_0")
    np.testing.assert_array_equal(k, naive_q2c(pool, table, n, "k"))
    np.testing.assert_array_equal(v, naive_q2c(pool, table, n, "v"))


def test_a_known_block_byte_by_byte():
    pool, table = filled("q2", 32, 32)
    pool.planes["k_scales"][...] = np.float16(1.0)
    pool.planes["k_codes"][...] = 0
    for c, code in enumerate([3, 0, 1, 2, 3, 3, 0, 1]):
        pool.planes["k_codes"][table[0], 1, c, 2] = code << 2  # channel 9 is field 1 of byte 2
    k, _ = interop.to_ggml(pool, table, 32, "q2c_0")
    assert k[0, 1, 9].tolist() == [0x00, 0x3C, 0b10_01_00_11, 0b01_00_11_11, 0, 0, 0, 0, 0, 0]


def test_only_the_store_that_keeps_the_codec_is_exported():
    pool, table = filled("q2k", 32)
    as_rows = interop.to_ggml(pool, table, 32, "q4_0")
    assert as_rows.k is None
    assert as_rows.v.shape == (32, H, D // 32 * 18)
    as_groups = interop.to_ggml(pool, table, 32, "q2c_0")
    assert as_groups.v is None
    assert as_groups.k.shape == (1, H, D, 10)


@pytest.mark.parametrize(
    ("name", "kind", "words"),
    [
        ("int8", "q8_0", r"int8 \(groups of 64\).*int8 shares a scale among 64 values, q8_0 among"),
        ("q4_0", "q8_0", r"does not hold q8_0 blocks: got K as q4_0 \(groups of 32\)"),
        ("k4v4", "q4_0", r"got K as q4_64 \(groups of 64\).*expected codec q4_0"),
        ("f16", "q4_0", r"got K as f16, V as f16"),
        ("k2cv2t", "q8_0", r"V as q2t"),
        ("q4_0", "q5_1", r"unknown block type: got 'q5_1', expected \('q4_0', 'q8_0', 'q2c_0'\)"),
    ],
)
def test_what_is_not_such_blocks_is_refused_with_the_reason(name, kind, words):
    pool, table = filled(name, 8)
    with pytest.raises(FormatError, match=words):
        interop.to_ggml(pool, table, 8, kind)
    with pytest.raises(FormatError, match=words):
        interop.from_ggml(pool, table, 8, kind, k=b"")


def test_bad_sizes_are_refused_before_anything_is_written():
    pool, table = filled("q4_0", 8)
    blocks = interop.to_ggml(pool, table, 8, "q4_0")
    before = {name: p.copy() for name, p in pool.planes.items()}
    for n in (-1, 1000, 2.0):
        with pytest.raises(RangeError, match=r"\[to_ggml\] n_cells is out of range"):
            interop.to_ggml(pool, table, n, "q4_0")
    for bad in (blocks.k[:7], blocks.k.astype(np.int8), blocks.k.tobytes()[:-1]):
        with pytest.raises(ShapeError, match=r"\[from_ggml\] k is not such blocks"):
            interop.from_ggml(pool, table, 8, "q4_0", k=bad, v=blocks.v)
    with pytest.raises(ShapeError, match=r"\[from_ggml\] no blocks"):
        interop.from_ggml(pool, table, 8, "q4_0")
    gone = table.copy()
    gone[1] = -1
    with pytest.raises(RangeError, match=r"a cell is not resident: got block 1 on page -1"):
        interop.from_ggml(pool, gone, 8, "q4_0", k=blocks.k)
    groups, group_table = filled("q2k", 32)
    with pytest.raises(FormatError, match="does not hold q2c_0 blocks"):
        interop.from_ggml(groups, group_table, 32, "q2c_0", v=b"")
    for name, plane in pool.planes.items():
        np.testing.assert_array_equal(plane, before[name])


def test_nothing_exports_as_nothing():
    pool, table = filled("q4_0", 8)
    assert interop.to_ggml(pool, table, 0, "q4_0").k.shape == (0, H, D // 32 * 18)
    groups, group_table = filled("q2", 32)
    assert interop.to_ggml(groups, group_table, 0, "q2c_0").k.shape == (0, H, D, 10)
