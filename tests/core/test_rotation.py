"""The Hadamard rotation against an explicit matrix, and its properties."""

from __future__ import annotations

import numpy as np
import pytest
from caches import D, H, fill, make, spec_of, tokens
from hypothesis import given
from hypothesis import strategies as st

from kvcore.bounds import gamma
from kvcore.errors import FormatError, ShapeError
from kvcore.ops.rotate import rotate
from kvcore.spec import rotation_block
from tests.strategies import arrays_of

DIMS = (32, 64, 96, 128, 160, 192, 256, 320, 512, 576)


def sylvester(n: int) -> np.ndarray:
    m = np.ones((1, 1))
    while len(m) < n:
        m = np.block([[m, m], [m, -m]])
    return m / np.sqrt(n)


def matrix(dim: int) -> np.ndarray:
    block = rotation_block(dim)
    return np.kron(np.eye(dim // block), sylvester(block))


def limit(x: np.ndarray) -> np.ndarray:
    """Each value of a block is a sum of log2(block) stages: gamma(log2 block + 2) of its norm_1."""
    block = rotation_block(x.shape[-1])
    size = np.abs(x.astype(np.float64)).reshape(*x.shape[:-1], -1, block).sum(-1) / np.sqrt(block)
    return np.repeat(size, block, axis=-1) * gamma(np.log2(block) + 2)


@pytest.mark.parametrize("dim", DIMS)
def test_it_is_the_sylvester_matrix_over_the_largest_power_of_two(dim):
    x = np.random.default_rng(dim).normal(size=(20, dim)).astype(np.float32)
    expected = x.astype(np.float64) @ matrix(dim).T
    assert (np.abs(rotate(x) - expected) <= limit(x)).all()


@pytest.mark.parametrize("dim", DIMS)
def test_kb_16_it_keeps_norms_and_products_and_undoes_itself(dim):
    rng = np.random.default_rng(dim)
    q, k = (rng.normal(size=(10, dim)).astype(np.float32) for _ in range(2))
    hq, hk = rotate(q), rotate(k)
    twice = np.abs(rotate(hq) - q)
    assert (twice <= 2 * np.sqrt(rotation_block(dim)) * limit(q).max()).all()
    off = np.abs((hq.astype(np.float64) * hk).sum(-1) - (q.astype(np.float64) * k).sum(-1))
    norms = np.linalg.norm(q, axis=-1) * np.linalg.norm(k, axis=-1)
    assert (off <= norms * np.sqrt(rotation_block(dim)) * gamma(2 * np.log2(dim) + 4)).all()


@pytest.mark.parametrize("dim", [80, 100, 112, 16, 31, 8, 1])
def test_kb_16_a_size_without_a_block_of_32_is_refused_with_the_next_that_works(dim):
    words = rf"no Hadamard block of 32 or more: got D={dim} .*next D that works is"
    with pytest.raises(FormatError, match=f"{words} {dim // 32 * 32 + 32}"):
        rotate(np.ones((3, dim), np.float32))


def test_a_scalar_and_ints_are_refused():
    with pytest.raises(ShapeError, match="x has no axis"):
        rotate(np.float32(1))
    with pytest.raises(ShapeError, match="x has the wrong dtype: got int64"):
        rotate(np.ones((2, 32), np.int64))


def test_stages_ascend_and_each_rounds():
    """Values on a grid stay exact; the first stage pairs neighbours."""
    x = np.zeros((1, 64), np.float32)
    x[0, 1] = 8.0
    assert rotate(x)[0, :4].tolist() == [1.0, -1.0, 1.0, -1.0]
    x = np.zeros((1, 64), np.float32)
    x[0, 32] = 8.0
    assert rotate(x)[0, [0, 31, 32, 63]].tolist() == [1.0, 1.0, -1.0, -1.0]


@given(x=arrays_of((4, 256)))
def test_it_equals_a_butterfly_written_with_scalars(x):
    y = [[np.float32(v) * np.float32(1 / 16) for v in row] for row in x]
    step = 1
    with np.errstate(over="ignore", invalid="ignore"):
        while step < 256:
            for row in y:
                for i in range(256):
                    if not i & step:
                        u, v = row[i], row[i + step]
                        row[i], row[i + step] = u + v, u - v
            step *= 2
        np.testing.assert_array_equal(rotate(x), np.asarray(y, np.float32))


def test_no_rows_give_no_rows_and_the_input_is_left_alone():
    assert rotate(np.ones((0, 64), np.float32)).shape == (0, 64)
    x = np.ones((2, 64), np.float32)
    rotate(x)
    assert (x == 1).all()


@given(scale=st.sampled_from([1.0, 2.0**-130, 2.0**120]))
def test_powers_of_two_commute_with_it_unless_they_leave_the_range(scale):
    x = (np.random.default_rng(0).integers(-8, 9, (3, 64)) * 8).astype(np.float32)
    np.testing.assert_array_equal(rotate(x * np.float32(scale)), rotate(x) * np.float32(scale))


def test_kb_01_a_constant_row_has_7_of_8_blocks_of_zeros_and_reads_back_exactly():
    x = np.full((1, H, 256), 3.0, np.float32)
    rotated = rotate(x)
    assert (rotated[..., 0] == 48).all()
    assert not rotated[..., 1:].any()
    spec = spec_of("q4_0", head_dim=256, recipe=None)
    cache = fill(make(spec, 32), x, x, [1])
    k, v = cache.read()
    np.testing.assert_array_equal(k, x)
    np.testing.assert_array_equal(v, x)
    scales = cache.pool.planes["k_scales"][0, :, 0]
    assert (scales[:, 0] == -6).all()


def test_v_alone_is_rotated_in_k8v4():
    k, v = tokens(8)
    cache = fill(make(spec_of("k8v4")), k, v, [8])
    got, _ = cache.backend.gather(cache.pool, cache.table, np.arange(8))
    step = np.abs(k).reshape(8, H, -1, 64).max(-1) / 127
    assert (np.abs(got - k) <= np.repeat(step, 64, axis=-1) * 0.63 + np.abs(k) * 2.0**-10).all()
    assert D == 64
