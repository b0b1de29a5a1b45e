"""Twelve faults that engines shipped, planted one at a time; the state machine must find each."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from kvcore import marks, pages, quantize, snapshot, streaming
from kvcore.addressing import exact_slot
from kvcore.cache import KVCache
from kvcore.layout import COMMITTED, LENGTH
from kvcore.numerics import to_f16
from kvcore.ops import append as append_op
from kvcore.ops import attention as attention_op
from kvcore.reference import Reference

Plant = Callable[[pytest.MonkeyPatch], None]


def rollback_moves_length_only(patch: pytest.MonkeyPatch) -> None:
    def truncate(row: list[int], sl: Any, n: int) -> marks.Truncated:
        new = list(row)
        new[LENGTH], new[COMMITTED] = n, min(row[COMMITTED], n)
        return marks.Truncated(row=new, inexact=0)

    patch.setattr(marks, "truncate", truncate)


def fork_without_copy(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(pages.Pages, "own", lambda self, units: units)


def snapshot_without_scales(patch: pytest.MonkeyPatch) -> None:
    write = snapshot.write

    def without(image: snapshot.Image) -> bytes:
        planes = {
            n: np.zeros_like(a) if n.endswith("scales") else a for n, a in image.planes.items()
        }
        return write(replace(image, planes=planes))

    patch.setattr(snapshot, "write", without)


def padding_slot_clamped(patch: pytest.MonkeyPatch) -> None:
    append = Reference.append

    def clamped(self: Any, pool: Any, table: Any, positions: Any, *rest: Any, **more: Any) -> None:
        append(self, pool, table, np.maximum(positions, 0), *rest, **more)

    patch.setattr(Reference, "append", clamped)


def ring_off_by_one(patch: pytest.MonkeyPatch) -> None:
    ring_table = Reference.ring_table

    def short(self: Any, n_blocks: int, n_slots: int, unit: int = 1) -> Any:
        return ring_table(self, n_blocks, n_slots - unit, unit)

    patch.setattr(Reference, "ring_table", short)


def stale_residency_after_restore(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(streaming.StreamedCache, "_adopt", KVCache._adopt)


def overlay_slot_race(patch: pytest.MonkeyPatch) -> None:
    def race(self: Any, store: str, row: list[int]) -> None:
        if self.state.layout.ring(store) and self.cells.size:
            target = getattr(self.state, store)[self.b]
            for cell in self.cells[::-1]:  # an earlier cell of the chunk wins its slot
                where = exact_slot(self.state, store, np.array([cell]))
                target[where] = to_f16(self.new[store][[cell - self.cells[0]]])

    patch.setattr(append_op._Sequence, "_write_exact", race)


def gain_applied_twice(patch: pytest.MonkeyPatch) -> None:
    once = quantize.apply_gain
    patch.setattr(quantize, "apply_gain", lambda scale, gain: once(once(scale, gain), gain))


def tail_not_saved(patch: pytest.MonkeyPatch) -> None:
    write = snapshot.write

    def without(image: snapshot.Image) -> bytes:
        return write(
            replace(
                image, exact_k=np.zeros_like(image.exact_k), exact_v=np.zeros_like(image.exact_v)
            )
        )

    patch.setattr(snapshot, "write", without)


def commit_ignored(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(KVCache, "commit", lambda self, n: None)


def allocator_double_free(patch: pytest.MonkeyPatch) -> None:
    drop = pages.Pages.drop

    def twice(self: pages.Pages, units: Any) -> None:
        drop(self, units)
        for unit in units[self.users[units] == 0].tolist():
            heapq.heappush(self._free, unit)

    patch.setattr(pages.Pages, "drop", twice)


def table_tail_read(patch: pytest.MonkeyPatch) -> None:
    visible = attention_op.visible

    def all_of_the_table(call: Any, pool: Any, b: int, t: int) -> Any:
        cells = visible(call, pool, b, t)
        n = call.table.shape[1] * pool.layout.page_size
        beyond = np.arange(int(call.lengths[b, t]), n)
        return cells if call.ids is not None else np.concatenate([cells, beyond])

    patch.setattr(attention_op, "visible", all_of_the_table)


FAULTS: dict[str, Plant] = {
    f.__name__: f
    for f in (
        rollback_moves_length_only,
        fork_without_copy,
        snapshot_without_scales,
        padding_slot_clamped,
        ring_off_by_one,
        stale_residency_after_restore,
        overlay_slot_race,
        gain_applied_twice,
        tail_not_saved,
        commit_ignored,
        allocator_double_free,
        table_tail_read,
    )
}
"""By name; the ring one shortens S by a unit, the least that a ring of units can be off by."""
