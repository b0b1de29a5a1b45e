"""append: which cells to quantize, freeze or keep exact; kernels do the rest."""

from __future__ import annotations

from typing import Any

import numpy as np

from kvcore import marks as rules
from kvcore import operands
from kvcore.errors import ShapeError, message
from kvcore.layout import CENTRED, COMMITTED, LENGTH, Layout
from kvcore.numerics import F16, F32, Array, sequential_sum, to_f16
from kvcore.pool import Pool, State
from kvcore.spec import GROUP_CELLS

from . import channels, encode
from .store import Store, Stores, open_stores, readable

CHUNK = 2048
"""Cells brought to float32 at a time."""

_RULES = {"shrink": channels.SHRINK, "n": channels.PER_N, "old": channels.OLD}


def append(
    pool: Pool,
    table: Any,
    positions: Any,
    k: Any,
    v: Any,
    state: State | None,
    draft: bool,
    commit: Any,
) -> None:
    """See :mod:`kvcore.ops.append`."""
    call = operands.append(operands.HOST, pool, table, positions, k, v, state, draft, commit)
    _check_writable(pool, state)
    stores = open_stores(pool, state)
    for b in range(call.positions.shape[0]):
        cells = call.positions[b]
        chosen = {"k": call.k[b], "v": call.v[b]}
        if cells.size and int(cells.min()) < 0:
            real = cells >= 0
            cells = cells[real]
            chosen = {name: x[real] for name, x in chosen.items()}
        row = readable(call.table[b])
        if state is None:
            for name in ("k", "v"):
                _append_plain(pool.layout, stores, name, row, cells.astype(np.int64), chosen[name])
        else:
            done = None if call.commit is None else int(call.commit[b])
            _Sequence(pool, stores, row, state, b, chosen).append(bool(draft), done)


def _check_writable(pool: Pool, state: State | None) -> None:
    arrays = dict(pool.planes)
    if state is not None:
        arrays.update(k=state.k, v=state.v, centre=state.centre, marks=state.marks)
    frozen = [name for name, a in arrays.items() if not a.flags.writeable]
    if frozen:
        raise ShapeError(
            message("append", "memory is read-only", got=frozen, expected="writable arrays")
        )


def _contiguous(x: F32) -> F32:
    return readable(np.ascontiguousarray(x))


def _gain(layout: Layout, name: str) -> tuple[np.float32, int]:
    """Return the factor of a store's scales, and 1 if they are unbiased instead."""
    if name == "k" and layout.k_gain == "unbiased":
        return np.float32(1), 1
    return np.float32(layout.k_gain if name == "k" else 1), 0


def _append_plain(
    layout: Layout, stores: Stores, name: str, table: Array, cells: Array, x: F32
) -> None:
    """Store cells at once, with no state: rows one by one, groups by the eager rule."""
    if not cells.size:
        return
    store: Store = getattr(stores, name)
    if layout.codec(name).per_channel:
        _write_groups(layout, store, name, table, int(cells[0]), x, channels.EAGER)
    else:
        encode.write_rows(store, _contiguous(x), table, cells, _gain(layout, name)[1])


def _write_groups(
    layout: Layout, store: Store, name: str, table: Array, first: int, x: F32, mode: int,
    sinks: int = 0,
) -> None:  # fmt: skip
    gain, unbiased = _gain(layout, name)
    channels.write_groups(
        store, _contiguous(x), table, first, sinks, mode, _RULES[layout.rule], gain, unbiased
    )


class _Sequence:
    """One sequence during one append."""

    def __init__(
        self, pool: Pool, stores: Stores, table: Array, state: State, b: int, new: dict[str, F32]
    ) -> None:
        self.layout, self.stores, self.table, self.state, self.b = (
            pool.layout, stores, table, state, b,
        )  # fmt: skip
        self.new = {name: _contiguous(x) for name, x in new.items()}
        self.old: list[int] = state.marks[b].tolist()
        self.start = self.old[LENGTH]
        self.count = len(self.new["k"])
        self.centre: F32 | None = None

    def append(self, draft: bool, commit: int | None) -> None:
        sl, old = self.state.layout, self.old
        committed = old[COMMITTED] if draft else self.start + self.count
        row = rules.append(old, sl, self.count, committed if commit is None else commit)
        if row[CENTRED] and not old[CENTRED]:
            self.state.centre[self.b] = self._fix_centre()
        for name in ("k", "v"):
            if self.layout.codec(name).per_channel:
                self._store_groups(name, row)
            else:
                self._store_rows(name, row)
        for name in ("k", "v"):
            ring = sl.ring(name)
            if ring and self.count:
                channels.write_exact(
                    self._store(name), self.new[name], self.b, self.start, row[LENGTH] - ring
                )
        self.state.marks[self.b] = row

    def _store(self, name: str) -> Store:
        return self.stores.k if name == "k" else self.stores.v

    def _fix_centre(self) -> F16:
        sl = self.state.layout
        cells = self._exact("k", sl.sinks, sl.center_cells - sl.sinks, False)
        with np.errstate(over="ignore", invalid="ignore"):
            mean = sequential_sum(cells) / np.float32(len(cells))
        return to_f16(np.where(np.isfinite(mean), mean, np.float32(0)))

    def _exact(self, name: str, first: int, n: int, subtract: bool) -> F32:
        """Return float32 of the exact float16 values of a run of cells, minus the centre."""
        x = self.new[name]
        out = np.empty((n, *x.shape[1:]), np.float32)
        centre = np.zeros(x.shape[1:], np.float32)
        if subtract:
            centre[...] = self.state.centre[self.b]
        channels.fetch(self._store(name), x, self.b, self.start, first, centre, int(subtract), out)
        return out

    def _values(self, name: str, first: int, n: int) -> F32:
        """Return the values that the bulk encodes."""
        sl = self.state.layout
        if not sl.delayed(name):
            return self.new[name][first - self.start : first - self.start + n]
        return self._exact(name, first, n, name == "k" and sl.centred)

    def _store_rows(self, name: str, row: list[int]) -> None:
        mark = rules.FRONTIER[name]
        if not row[mark]:
            return
        first = self.start if self.old[mark] else 0
        unbiased = _gain(self.layout, name)[1]
        for start in range(first, row[LENGTH], CHUNK):
            n = min(CHUNK, row[LENGTH] - start)
            cells = np.arange(start, start + n)
            x = self._values(name, start, n)
            encode.write_rows(self._store(name), x, self.table, cells, unbiased)

    def _store_groups(self, name: str, row: list[int]) -> None:
        sl, mark, store = self.state.layout, rules.FRONTIER[name], self._store(name)
        if not sl.deferred:
            if self.count:
                x = self._values(name, self.start, self.count)
                self._groups(name, store, self.start, x, channels.EAGER)
            return
        frozen = min(row[LENGTH], self.old[mark]) - self.start
        if frozen > 0:
            x = self._values(name, self.start, frozen)
            self._groups(name, store, self.start, x, channels.FROZEN)
        for first in range(self.old[mark], row[mark], CHUNK):
            x = self._values(name, first, min(CHUNK, row[mark] - first))
            self._groups(name, store, first, x, channels.DEFERRED)

    def _groups(self, name: str, store: Store, first: int, x: F32, mode: int) -> None:
        sinks = self.state.layout.sinks
        _write_groups(self.layout, store, name, self.table, first, x, mode, sinks)


assert CHUNK % GROUP_CELLS == 0
