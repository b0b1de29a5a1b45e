"""resolve against a plain model of CLOCK with a second chance, and ring_table's formula."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import kvcore
from kvcore.errors import RangeError, ShapeError
from kvcore.layout import Layout
from kvcore.ops.ring_table import ring_table
from kvcore.reference import Reference
from kvcore.residency import CALLS, EPOCH, LOOKUPS, MISSES, OVERFLOW, PLACED, Residency

UNITS = 20


def layout_of(name: str = "q2k") -> Layout:
    return kvcore.CacheSpec(format=name, n_kv_heads=1, head_dim=32, page_size=4, recipe=None).layout


class Clock:
    """The same policy with dicts: unit -> slot, slot -> unit, and a set of second chances."""

    def __init__(self, n_slots: int) -> None:
        self.n_slots, self.hand = n_slots, 0
        self.where: dict[int, int] = {}
        self.holds: dict[int, int] = {}
        self.chance: set[int] = set()
        self.lookups = self.misses = 0

    def call(self, queries: list[list[int]]) -> tuple[list[tuple[int, int]], bool]:
        used, wanted = set(), []
        for units in queries:
            for i, unit in enumerate(units):
                if i and units[i - 1] == unit:
                    continue
                self.lookups += 1
                if unit in self.where:
                    used.add(self.where[unit])
                    self.chance.add(self.where[unit])
                elif unit not in wanted:
                    wanted.append(unit)
        placed = []
        for _ in range(3 * self.n_slots):
            if len(placed) == len(wanted):
                break
            slot, self.hand = self.hand, (self.hand + 1) % self.n_slots
            if slot in used:
                continue
            if slot in self.holds and slot in self.chance:
                self.chance.discard(slot)
                continue
            if slot in self.holds:
                del self.where[self.holds[slot]]
            unit = wanted[len(placed)]
            self.holds[slot], self.where[unit] = unit, slot
            used.add(slot)
            self.chance.add(slot)
            placed.append((unit, slot))
        self.misses += len(placed)
        return placed, len(placed) < len(wanted)


def counters(r: Residency) -> tuple[int, int, int]:
    wide = r.ctl.view(np.uint64)
    return tuple(int(wide[c // 2]) for c in (LOOKUPS, MISSES, CALLS))


def compare(r: Residency, model: Clock) -> None:
    table = np.full(UNITS, -1)
    for unit, slot in model.where.items():
        table[unit] = slot
    np.testing.assert_array_equal(r.table, table)
    for slot in range(model.n_slots):
        assert r.slot_unit[slot] == model.holds.get(slot, -1)
        if slot in model.holds:
            assert bool(r.slot_ref[slot]) == (slot in model.chance)
    resident = np.flatnonzero(r.table >= 0)
    np.testing.assert_array_equal(r.slot_unit[r.table[resident]], resident)
    assert counters(r)[:2] == (model.lookups, model.misses)


QUERIES = st.lists(
    st.lists(st.integers(0, UNITS * 32 - 1), max_size=8).map(sorted), min_size=1, max_size=3
)


@given(n_slots=st.integers(1, 24), calls=st.lists(QUERIES, min_size=1, max_size=15))
def test_it_equals_the_model_call_by_call(n_slots, calls):
    be = Reference()
    r, model = be.residency(layout_of(), UNITS, n_slots), Clock(n_slots)
    for i, queries in enumerate(calls):
        ids = np.full((len(queries), 8), -1, np.int32)
        for row, cells in zip(ids, queries, strict=True):
            row[: len(cells)] = cells
        placed = be.resolve(r, ids)
        expected, overflow = model.call([[c // 32 for c in cells] for cells in queries])
        assert [tuple(p) for p in placed.tolist()] == expected
        assert bool(r.ctl[OVERFLOW]) == overflow
        assert r.ctl[PLACED] == len(expected)
        assert counters(r)[2] == i + 1
        compare(r, model)
        for cells in queries:
            for c in cells:
                assert overflow or r.table[c // 32] >= 0, "what a call needs stays"


def test_a_streamed_pool_attends_as_a_resident_one():
    """KB-23: units move with codes and scales; every query sees what the whole pool holds."""
    be, layout = Reference(), layout_of()
    host = be.pool(layout, UNITS * layout.unit_pages)
    rng = np.random.default_rng(0)
    k, v = (rng.normal(size=(UNITS * 32, 1, 32)).astype(np.float32) for _ in range(2))
    whole = np.arange(host.n_pages, dtype=np.int32)
    be.append(host, whole, np.arange(len(k)), k, v)
    device = be.pool(layout, 6 * layout.unit_pages)
    r, u = be.residency(layout, UNITS, 6), layout.unit_pages
    for call in range(40):
        ids = np.sort(rng.choice(np.arange(call, call + 100), 5, replace=False)).astype(np.int32)
        placed = be.resolve(r, ids)
        assert not r.ctl[OVERFLOW]
        pages = (placed[:, :, None] * u + np.arange(u)).transpose(1, 0, 2).reshape(2, -1)
        be.move(host, pages[0], device, pages[1])
        table = np.where(r.table[:, None] < 0, -1, r.table[:, None] * u + np.arange(u))
        q = rng.normal(size=(1, 2, 32)).astype(np.float32)
        n = [len(k)]
        resident = be.attention(q, host, whole, n, ids=ids)
        streamed = be.attention(q, device, table.reshape(-1).astype(np.int32), n, ids=ids)
        np.testing.assert_array_equal(resident, streamed)


def test_more_units_than_slots_set_the_overflow_mark_and_stay_away():
    be = Reference()
    r = be.residency(layout_of(), UNITS, 3)
    placed = be.resolve(r, np.arange(5) * 32)
    assert placed.tolist() == [[0, 0], [1, 1], [2, 2]]
    assert r.ctl[OVERFLOW] == 1
    assert r.table[3] == r.table[4] == -1
    be.resolve(r, [0])
    assert r.ctl[OVERFLOW] == 0


def test_the_epoch_wraps_without_making_an_old_stamp_look_current():
    be = Reference()
    r = be.residency(layout_of(), UNITS, 2)
    be.resolve(r, [0])
    r.ctl[EPOCH] = np.iinfo(np.int32).max
    be.resolve(r, [32])
    assert r.ctl[EPOCH] == 1
    assert r.slot_stamp.tolist() == [-1, 1]
    be.resolve(r, [64, 96])
    assert r.ctl[OVERFLOW] == 0


def test_a_residency_of_a_row_format_goes_by_page():
    r = Reference().residency(layout_of("q4_0"), 8, 4)
    assert r.unit_cells == 4
    assert Reference().resolve(r, [0, 3, 4]).tolist() == [[0, 0], [1, 1]]


def test_bad_ids_are_refused_before_anything_is_written():
    be = Reference()
    r = be.residency(layout_of(), UNITS, 4)
    for ids, error, words in (
        ([UNITS * 32], RangeError, "an id is out of range"),
        ([-2], RangeError, "an id is out of range"),
        ([5, 3], ShapeError, "ids of a query must ascend"),
        (np.zeros((1, 1, 1), int), ShapeError, "ids has the wrong shape"),
    ):
        with pytest.raises(error, match=words):
            be.resolve(r, ids)
    assert (r.table == -1).all()
    assert not r.ctl.any()
    with pytest.raises(ShapeError, match="n_slots: got 0"):
        be.residency(layout_of(), UNITS, 0)


@given(blocks=st.integers(0, 300), unit=st.integers(1, 8), extra=st.integers(0, 40))
def test_the_ring_table_follows_its_formula_and_keeps_units_together(blocks, unit, extra):
    slots = unit + extra
    got = ring_table(blocks, slots, unit).tolist()
    turns = slots // unit
    assert got == [((b // unit) % turns) * unit + b % unit for b in range(blocks)]
    assert all(s % unit == b % unit and s < slots for b, s in enumerate(got))
    if slots % unit == 0:
        assert got == [b % slots for b in range(blocks)]
    last = got[-turns * unit :]
    assert len(set(last)) == len(last), "the last turn of the ring has slots of its own"


def test_the_ring_tables_unit_is_1_unless_given():
    np.testing.assert_array_equal(ring_table(9, 4), ring_table(9, 4, 1))
    assert ring_table(0, 4).shape == (0,)
    assert ring_table(5, 4).dtype == np.int32


@pytest.mark.parametrize(
    ("sizes", "words"),
    [
        ((5, 3, 4), "fewer slots than one unit: got 3, expected >= 4"),
        ((-1, 3, 1), "n_blocks is not usable: got -1"),
        ((5, 0, 1), "n_slots is not usable: got 0"),
        ((5, 3, 0), "unit is not usable: got 0"),
        ((5.0, 3, 1), "n_blocks is not usable: got 5.0"),
        ((5, True, 1), "n_slots is not usable: got True"),
    ],
)
def test_a_ring_that_cannot_be_is_refused(sizes, words):
    with pytest.raises(ShapeError, match=rf"\[ring_table\] {words}"):
        ring_table(*sizes)
