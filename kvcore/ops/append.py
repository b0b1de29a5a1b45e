"""append: store the K and V of new cells, exactly and in the cache's format."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from kvcore import marks as rules
from kvcore import operands
from kvcore.addressing import exact_slot, locate, scale_place
from kvcore.eager import append_eager
from kvcore.layout import CENTRED, COMMITTED, LENGTH, Layout, StateLayout
from kvcore.numerics import F16, F32, Array, sequential_sum, to_f16
from kvcore.ops import Arg, Direction, Op
from kvcore.pool import Pool, State
from kvcore.quantize import choose_codes, encode_group, encode_rows, pack, remove_gain
from kvcore.spec import GROUP_CELLS


def append(
    pool: Pool,
    table: Any,
    positions: Any,
    k: Any,
    v: Any,
    state: State | None = None,
    draft: bool = False,
    commit: Any = None,
    scratch: Any = None,
) -> None:
    """Store new cells of B sequences, in the stored basis (the caller has rotated them).

    Parameters
    ----------
    pool : Pool
        Written.
    table : i32[B, blocks]
        Page of each block of cells; -1 = not resident.
    positions : i32[B, T]
        Cell of each new token; -1 = padding, skipped. With a per-channel codec or a state the
        cells of a sequence are a run; otherwise any order, and of two equal ones the last wins.
    k : f32[B, T, H, Dk]
    v : f32[B, T, H, Dv]
        After RoPE; any float dtype. Rank 3 means B = 1.
    state : State, optional
        Exact cells, centre and marks; written. Without it per-channel groups are quantized at
        once by the layout's rule (eager) and nothing is kept exact.
    draft : bool
        The new cells are a speculative window: not final until they are committed.
    commit : i32[B], optional
        The committed length after the call; by default every cell of a call that is not a draft.
    scratch : Scratch, optional
        Memory from ``backend.scratch()`` that the call may use instead of allocating.

    Raises
    ------
    ShapeError, RangeError
        Before anything is written.

    Notes
    -----
    Rounding: a store whose cells wait (per-channel groups, a centred K) is encoded from the
    float16 value its exact slots hold, minus the centre in float32; any other store from the
    float32 value. A per-channel group is encoded once, when complete and committed.
    """
    call = operands.append(operands.HOST, pool, table, positions, k, v, state, draft, commit)
    for b in range(call.positions.shape[0]):
        real = call.positions[b] >= 0
        cells = call.positions[b][real].astype(np.int64)
        new = {"k": call.k[b][real], "v": call.v[b][real]}
        if state is None:
            for store in ("k", "v"):
                _append_plain(pool, call.table[b], store, cells, new[store])
        else:
            done = None if call.commit is None else int(call.commit[b])
            _Sequence(pool, call.table[b], state, b, cells, new).append(bool(draft), done)


def _append_plain(pool: Pool, table: Array, store: str, cells: Array, x: F32) -> None:
    layout = pool.layout
    if layout.codec(store).per_channel:
        append_eager(pool, table, store, cells, x)
    else:
        write_rows(pool, table, store, cells, x)


def write_rows(pool: Pool, table: Array, store: str, cells: Array, x: F32) -> None:
    """Encode and write cells of a store whose cells stand alone."""
    layout = pool.layout
    codes, scales = encode_rows(layout.codec(store), x, _gain(layout, store))
    page, slot = locate(layout, table, cells)
    pool.planes[f"{store}_codes"][page, :, slot] = codes
    if scales is not None:
        pool.planes[f"{store}_scales"][page, :, slot] = scales


def _gain(layout: Layout, store: str) -> Any:
    return layout.k_gain if store == "k" else 1.0


@dataclass(kw_only=False)
class _Sequence:
    """One sequence during one append."""

    pool: Pool
    table: Array
    state: State
    b: int
    cells: Array
    new: dict[str, F32]

    def append(self, draft: bool, commit: int | None) -> None:
        sl, old = self.state.layout, self.state.marks[self.b].tolist()
        committed = old[COMMITTED] if draft else old[LENGTH] + len(self.cells)
        row = rules.append(old, sl, len(self.cells), committed if commit is None else commit)
        if row[CENTRED] and not old[CENTRED]:
            self.state.centre[self.b] = self._fix_centre(sl)
        for store in ("k", "v"):
            if sl.layout.codec(store).per_channel:
                self._store_groups(store, old, row)
            else:
                self._store_rows(store, old, row)
        for store in ("k", "v"):
            self._write_exact(store, row)
        self.state.marks[self.b] = row

    def _f16(self, store: str, cells: Array) -> F16:
        """Return the exact float16 values of cells, from this call or from the slots."""
        start = self.state.marks[self.b, LENGTH]
        slots = getattr(self.state, store)[self.b]
        old = cells < start
        out = np.empty((len(cells), *slots.shape[1:]), np.float16)
        out[old] = slots[exact_slot(self.state, store, cells[old])]
        out[~old] = to_f16(self.new[store][cells[~old] - start])
        return out

    def _fix_centre(self, sl: StateLayout) -> F16:
        cells = np.arange(sl.sinks, sl.center_cells)
        total = sequential_sum(self._f16("k", cells).astype(np.float32))
        mean = total / np.float32(len(cells))
        return to_f16(np.where(np.isfinite(mean), mean, np.float32(0)))

    def _values(self, store: str, cells: Array) -> F32:
        """Return the values that the bulk encodes."""
        sl = self.state.layout
        if not sl.delayed(store):
            fresh: F32 = self.new[store][cells - self.state.marks[self.b, LENGTH]]
            return fresh
        x = self._f16(store, cells).astype(np.float32)
        if store == "k" and sl.centred:
            with np.errstate(invalid="ignore"):
                x = x - self.state.centre[self.b].astype(np.float32)
        return x

    def _store_rows(self, store: str, old: list[int], row: list[int]) -> None:
        mark = rules.FRONTIER[store]
        start = old[LENGTH] if old[mark] else 0
        if row[mark] and start < row[LENGTH]:
            cells = np.arange(start, row[LENGTH])
            write_rows(self.pool, self.table, store, cells, self._values(store, cells))

    def _store_groups(self, store: str, old: list[int], row: list[int]) -> None:
        sl, mark = self.state.layout, rules.FRONTIER[store]
        if not sl.deferred:
            x = self._values(store, self.cells)
            append_eager(self.pool, self.table, store, self.cells, x)
            return
        frozen = np.arange(old[LENGTH], min(row[LENGTH], old[mark]))
        if frozen.size:
            self._write_frozen(store, frozen)
        for first in range(old[mark], row[mark], GROUP_CELLS):
            self._write_group(store, first)

    def _write_group(self, store: str, first: int) -> None:
        layout, sinks = self.pool.layout, self.state.layout.sinks
        cells = np.arange(first, first + GROUP_CELLS)
        codes, scale = encode_group(
            layout.codec(store), self._values(store, cells), cells >= sinks, _gain(layout, store)
        )
        page, slot = locate(layout, self.table, cells)
        unit, line = scale_place(layout, page[:1], slot[:1])
        self.pool.planes[f"{store}_codes"][page, :, slot] = codes
        self.pool.planes[f"{store}_scales"][unit, :, line] = scale

    def _write_frozen(self, store: str, cells: Array) -> None:
        """Write cells into a group whose scale stays: the group was cut and could not reopen."""
        layout = self.pool.layout
        codec = layout.codec(store)
        page, slot = locate(layout, self.table, cells)
        unit, line = scale_place(layout, page[:1], slot[:1])
        stored = self.pool.planes[f"{store}_scales"][unit[0], :, line[0]]
        gain = _gain(layout, store)
        against = stored if gain == "unbiased" else remove_gain(stored, float(gain))
        x = self._values(store, cells)
        x = np.where(np.isfinite(x), x, np.float32(0))
        codes = choose_codes(codec, x, against.astype(np.float32))
        self.pool.planes[f"{store}_codes"][page, :, slot] = pack(codec, codes)

    def _write_exact(self, store: str, row: list[int]) -> None:
        sl = self.state.layout
        ring = sl.ring(store)
        if not ring or not self.cells.size:
            return
        keep = (self.cells < sl.sinks) | (self.cells >= row[LENGTH] - ring)
        slots = exact_slot(self.state, store, self.cells[keep])
        getattr(self.state, store)[self.b, slots] = to_f16(self.new[store][keep])


OP = Op(
    name="append",
    version=1,
    args=(
        Arg(name="pool", what="Pool", direction=Direction.INOUT),
        Arg(name="table", what="i32[B, blocks]"),
        Arg(name="positions", what="i32[B, T]"),
        Arg(name="k", what="f32[B, T, H, Dk]"),
        Arg(name="v", what="f32[B, T, H, Dv]"),
        Arg(name="state", what="State", direction=Direction.INOUT, default=None),
        Arg(name="draft", what="bool", default=False),
        Arg(name="commit", what="i32[B]", default=None),
        Arg(name="scratch", what="Scratch", direction=Direction.INOUT, default=None),
    ),
    returns="None",
    reference=append,
    per_codec=True,
)
