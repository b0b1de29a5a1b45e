"""select against a naive implementation, ties and cuts included."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvcore.errors import RangeError, ShapeError
from kvcore.ops.select import select


def naive(keys, dead, q, length, width, block):
    """One query, in plain Python: list the cells by (score, block, cell), best first."""
    scores = []
    for b in range(-(-length // block)):
        whole = (b + 1) * block <= length
        key = keys[b] if whole else dead
        total = np.float32(0)
        for head in q:
            dot = np.float32(0)
            for x, y in zip(key, head, strict=True):
                dot = np.float32(dot + np.float32(x * y))
            total = np.float32(total + (np.float32(0) if dot < 0 else dot))
        scores.append(total if whole else np.float32(total + np.float32(1e9)))
    if length <= width:
        return list(range(length)), scores
    order = sorted(
        range(len(scores)),
        key=lambda b: (math.isnan(scores[b]), 0 if math.isnan(scores[b]) else -scores[b] + 0.0, b),
    )
    cells = [c for b in order for c in range(b * block, min((b + 1) * block, length))]
    return sorted(cells[:width]), scores


def check(keys, dead, q, lengths, width, block):
    ids, scores = select(keys, dead, q, np.asarray(lengths, np.int32), width, block)
    assert ids.dtype == np.int32
    assert ids.shape == (len(q), width)
    for t, length in enumerate(lengths):
        with np.errstate(all="ignore"):
            expected, wanted = naive(keys, dead, q[t], length, width, block)
        assert ids[t].tolist() == expected + [-1] * (width - len(expected))
        n = len(wanted)
        np.testing.assert_array_equal(scores[t, :n], np.asarray(wanted, np.float32))
        assert (scores[t, n:] == -np.inf).all()


@given(
    seed=st.integers(0, 2**32 - 1),
    blocks=st.integers(1, 12),
    block=st.integers(1, 6),
    width=st.integers(1, 40),
    heads=st.integers(1, 3),
    data=st.data(),
)
def test_it_equals_the_naive_selection(seed, blocks, block, width, heads, data):
    rng = np.random.default_rng(seed)
    keys = rng.integers(-2, 3, (blocks, 5)).astype(np.float32)  # few values: many ties
    dead = rng.integers(-2, 3, 5).astype(np.float32)
    q = rng.integers(-2, 3, (3, heads, 5)).astype(np.float32)
    top = blocks * block + block - 1
    lengths = data.draw(st.lists(st.integers(0, top), min_size=3, max_size=3), label="lengths")
    check(keys, dead, q, lengths, width, block)


def test_negative_zero_ties_with_zero_and_nan_comes_last():
    keys = np.zeros((6, 1), np.float32)
    keys[:, 0] = [np.nan, -1.0, 0.0, 2.0, np.nan, 2.0]
    q = np.ones((1, 1, 1), np.float32)
    check(keys, np.zeros(1, np.float32), q, [24], 12, 4)
    check(keys, np.zeros(1, np.float32), q, [24], 23, 4)
    ids, _ = select(keys, np.zeros(1, np.float32), q, [24], 12, 4)
    assert ids[0].tolist() == [4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23]


def test_the_unfinished_block_is_always_kept_and_the_last_block_is_cut_at_its_lowest_cells():
    keys = np.arange(5, dtype=np.float32)[:, None]
    ids, scores = select(keys, np.zeros(1, np.float32), np.ones((1, 1, 1)), [22], 7, 4)
    assert ids[0].tolist() == [12, 16, 17, 18, 19, 20, 21]
    assert scores[0, 5] == np.float32(1e9)


@pytest.mark.parametrize("length", [0, 1, 15, 16])
def test_all_cells_are_chosen_when_there_are_no_more_than_the_width(length):
    keys = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)
    ids, _ = select(keys, keys[0], np.ones((1, 2, 3)), [length], 16, 4)
    assert ids[0].tolist() == list(range(length)) + [-1] * (16 - length)


def test_overflowing_scores_rank_without_a_warning():
    keys = np.full((3, 2), 3e38, np.float32)
    keys[1] = 1
    with np.errstate(all="raise"):
        ids, _ = select(keys, keys[1], np.full((1, 1, 2), 3e38, np.float32), [12], 4, 4)
    assert ids[0].tolist() == [0, 1, 2, 3]


def test_bad_operands_are_named():
    keys, dead, q = np.ones((4, 3)), np.ones(3), np.ones((2, 1, 3))
    with pytest.raises(ShapeError, match=r"\[select\] keys has the wrong shape"):
        select(keys[0], dead, q, [1, 1], 4)
    with pytest.raises(ShapeError, match=r"\[select\] dead has the wrong shape"):
        select(keys, dead[:2], q, [1, 1], 4)
    with pytest.raises(ShapeError, match=r"\[select\] q has the wrong shape"):
        select(keys, dead, q[..., :2], [1, 1], 4)
    with pytest.raises(ShapeError, match=r"\[select\] lengths has the wrong shape"):
        select(keys, dead, q, [1], 4)
    for width in (0, 1.5, True):
        with pytest.raises(ShapeError, match="width is not usable"):
            select(keys, dead, q, [1, 1], width)
    with pytest.raises(RangeError, match="a length is out of range"):
        select(keys, dead, q, [1, 20], 4)
    with pytest.raises(RangeError, match="a length is out of range: got -1"):
        select(keys, dead, q, [1, -1], 4)
