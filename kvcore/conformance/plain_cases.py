"""rotate, ring_table, resolve and select: results equal the reference's, bit for bit."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np

from kvcore.conformance.case import Case
from kvcore.conformance.twin import Bench, byte_differences, layout_of, value_differences
from kvcore.conformance.values import KINDS, ordinary
from kvcore.formats import get as get_format
from kvcore.residency import EPOCH

RESIDENCY_ARRAYS = ("table", "slot_unit", "slot_stamp", "slot_ref", "ctl")


def _rotate(values: str, bench: Bench) -> Iterator[str]:
    for dim in (32, 64, 96, 128, 256, 320, 576):
        x = KINDS[values](bench.rng, (3, 5, dim))
        x[0, 0] = -0.0
        for name, a in (("", x), (" strided", x[:, ::2]), (" no rows", x[:0])):
            got = bench.host(bench.be.rotate(a))
            yield from value_differences(f"D={dim}{name}", got, bench.ref.rotate(a))
        expected = bench.ref.rotate(x)
        out = bench.be.allocate(x.shape, "f4")
        bench.be.rotate(bench.floats(x), out=out)
        yield from value_differences(f"D={dim} with out=", bench.host(out), expected)
        place = bench.floats(x.copy())
        bench.be.rotate(place, out=place)
        yield from value_differences(f"D={dim} in place", bench.host(place), expected)


def _ring_table(bench: Bench) -> Iterator[str]:
    for unit in (1, 2, 8):
        for slots in (unit, unit + 1, 5 * unit, 5 * unit + 3):
            for blocks in (0, 1, 7, 8, 41, 1000):
                got = bench.host(bench.be.ring_table(blocks, slots, unit))
                expected = bench.ref.ring_table(blocks, slots, unit)
                yield from byte_differences(
                    f"{blocks} blocks, {slots} slots, {unit}", got, expected
                )
    got = bench.host(bench.be.ring_table(9, 4))
    yield from byte_differences("unit left out", got, bench.ref.ring_table(9, 4, 1))


def _resolve(calls: int, n_slots: int, bench: Bench) -> Iterator[str]:
    layout = layout_of(get_format("q2k"), page_size=4)
    mine, theirs = (side.residency(layout, 40, n_slots) for side in (bench.ref, bench.be))
    for call in range(calls):
        if call == calls // 2:  # the epoch is about to wrap
            mine.ctl[EPOCH] = np.iinfo(np.int32).max
            bench.be.write(theirs.ctl, mine.ctl)
        queries = int(bench.rng.integers(1, 4))
        ids = np.sort(bench.rng.integers(-1, 40 * 32, (queries, 1 + call % 9)), axis=1)
        if call % 3 == 0:
            ids = np.sort(ids // 64, axis=1)
        ids[bench.rng.random(ids.shape) < 0.1] = -1
        expected = bench.ref.resolve(mine, ids)
        got = bench.host(bench.be.resolve(theirs, ids))
        bench.be.synchronize()
        wrong = list(byte_differences("placed", got, expected))
        for name in RESIDENCY_ARRAYS:
            wrong += byte_differences(name, bench.host(getattr(theirs, name)), getattr(mine, name))
        yield from (f"call {call}: {w}" for w in wrong)
        if wrong:
            return


def _select(bench: Bench) -> Iterator[str]:
    rng = bench.rng
    for block, width, blocks, size in (
        (4, 16, 20, 32),
        (4, 2051, 12, 16),
        (8, 13, 30, 7),
        (1, 5, 9, 1),
    ):
        keys, dead = ordinary(rng, (blocks, size)), ordinary(rng, (size,))
        q = ordinary(rng, (5, 3, size))
        keys[1::3] = keys[0]
        keys[2] = 0.0
        keys[5, 0] = np.nan
        q[1] = 0.0
        q[2] = -np.abs(q[2])
        top = blocks * block + block - 1
        lengths = np.asarray([top, top // 2, width, blocks * block, 0], np.int32)
        lengths = np.minimum(lengths, top)
        expected = bench.ref.select(keys, dead, q, lengths, width, block)
        for name, lens in (("", lengths), (" device", bench.ints(lengths))):
            got = bench.be.select(
                bench.floats(keys), bench.floats(dead), bench.floats(q), lens, width, block
            )
            what = f"block {block}, width {width}{name}"
            yield from byte_differences(f"ids, {what}", bench.host(got[0]), expected[0])
            yield from value_differences(f"scores, {what}", bench.host(got[1]), expected[1])


def plain_cases() -> Iterator[Case]:
    """Yield the cases of ops that do not depend on how a store is encoded."""
    for values in KINDS:
        run = partial(_rotate, values)
        yield Case(op="rotate", title=f"{values} values", run=run, quick=values == "ordinary")
    yield Case(op="ring_table", title="sizes and units", run=_ring_table, quick=True)
    for n_slots in (1, 12, 64):
        run = partial(_resolve, 60, n_slots)
        yield Case(op="resolve", title=f"{n_slots} slots", run=run, quick=n_slots == 12)
    yield Case(op="select", title="ties, NaN and cuts", run=_select, quick=True)
