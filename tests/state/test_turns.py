"""How an attention over more than fits is cut: whole tiles, in order, each position once."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from kvcore.turns import PartlyResident


def _source(listing: np.ndarray, most: int) -> PartlyResident:
    return PartlyResident(None, np.zeros(0, np.int32), listing, most, lambda blocks: None)


@given(
    listing=st.lists(st.integers(-1, 9), min_size=1, max_size=60),
    tile=st.sampled_from((1, 4, 16, 32)),
    most=st.integers(1, 6),
)
def test_turns_cover_a_list(listing: list[int], tile: int, most: int) -> None:
    row = np.array(listing)
    turns = _source(row[None], most).turns(tile, 5)
    assert turns[0].first == 0
    assert turns[-1].stop == len(row)
    for turn, after in zip(turns, [*turns[1:], None], strict=True):
        assert turn.rows == range(5)
        assert turn.first % tile == 0
        needed = {int(b) for b in row[turn.first : turn.stop] if b >= 0}
        assert turn.blocks.tolist() == sorted(needed)
        assert len(needed) <= most or turn.stop - turn.first <= tile
        if after is not None:
            assert turn.stop == after.first
            more = row[turn.first : after.first + tile]
            assert len({int(b) for b in more if b >= 0}) > most  # it took all that fit


def test_each_query_with_a_list_of_its_own_has_its_own_turns() -> None:
    turns = _source(np.array([[0, 1, 2], [2, 2, -1]]), 1).turns(1, 2)
    assert [(t.rows, t.first, t.stop, t.blocks.tolist()) for t in turns] == [
        (range(1), 0, 1, [0]),
        (range(1), 1, 2, [1]),
        (range(1), 2, 3, [2]),
        (range(1, 2), 0, 3, [2]),
    ]
