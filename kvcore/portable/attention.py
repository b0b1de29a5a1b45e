"""The launches of one attention: splits of the context, then their ordered merge."""

from __future__ import annotations

from typing import Any

from kvcore import operands
from kvcore.pool import Pool, State
from kvcore.portable import programs
from kvcore.portable.arrays import DeviceArray
from kvcore.portable.engine import Engine, rings_of
from kvcore.portable.programs import SPLIT


class Attention:
    """Sums over splits of the listed cells, in one turn or several, and their merge.

    Parameters
    ----------
    engine : Engine
    pool : Pool
        Where the cells lie, or those of the first turn.
    call : AttentionCall
        Checked operands.
    state : State or None
    scratch : Scratch or None
    """

    def __init__(
        self,
        engine: Engine,
        pool: Pool,
        call: operands.AttentionCall,
        state: State | None,
        scratch: Any,
    ) -> None:
        self._engine, self._call, self._state, self._scratch = engine, call, state, scratch
        self.layout = layout = pool.layout
        batch, steps, heads = call.q.shape[:3]
        self.rows, self.listed = batch * steps, _listed(pool, call)
        self._splits = max(1, -(-self.listed // SPLIT))
        group_heads = heads // layout.n_kv_heads
        centred = state is not None and state.layout.centred
        self.shape = programs.attention_shape(layout, group_heads)
        self._program = engine.program(programs.attention_recipe, layout, centred, group_heads)
        shape = (self.rows, self._splits, heads)
        self._partial = engine.work(scratch, "partial", (*shape, layout.head_dim_v), "f4")
        self._sums = engine.work(scratch, "sums", (*shape, 2), "f4")

    def add(self, pool: Pool, table: Any, rows: range, first: int, stop: int) -> None:
        """Add the listed positions [first, stop) of some queries to their splits' sums.

        Parameters
        ----------
        pool : Pool
        table : i32[B, blocks]
            Only the pages of these positions' cells are read.
        rows : range
            Queries, B * T in all.
        first, stop : int
            Multiples of ``shape.tile``, or the ends of the list; every row's positions come once,
            in ascending order.
        """
        engine, call, state, layout = self._engine, self._call, self._state, self.layout
        ids = None if call.ids is None else engine.ints(call.ids)
        pages, lengths = engine.ints(table), engine.ints(call.lengths)
        own = [None if a is None else a.buffer for a in (call.k, call.v)]
        args = [
            call.q.buffer, *engine.planes(pool), pages.buffer, lengths.buffer,
            None if ids is None else ids.buffer, *engine.state(state), *own,
            self._partial.buffer, self._sums.buffer, engine.errors.buffer,
            layout.n_kv_heads, layout.page_size, table.shape[1], pool.n_pages, *rings_of(state),
            call.q.shape[1], self._splits, 0 if ids is None else ids.shape[-1],
            int(len(lengths.shape) == 2),
            int(ids is not None), int(ids is not None and len(ids.shape) == 3),
            int(state is not None), int(call.k is not None),
            0 if state is None else state.layout.window, call.window, rows.start, first, stop,
            call.scale, call.softcap,
        ]  # fmt: skip
        splits = max(1, -(-stop // SPLIT) - first // SPLIT)
        groups = (len(rows) * layout.n_kv_heads * self.shape.chunks, splits, 1)
        engine.launch(self._program, "split", groups, args)

    def merge(self, out: DeviceArray) -> DeviceArray:
        """Write the output, f32[B, T, Q, Dv]; return the LSE, f32[B, T, Q]."""
        engine, (batch, steps, heads) = self._engine, self._call.q.shape[:3]
        lse = engine.work(self._scratch, "lse", (batch, steps, heads), "f4")
        engine.launch(
            self._program, "merge", (self.rows * heads, 1, 1),
            [self._partial.buffer, self._sums.buffer, out.buffer, lse.buffer, self._splits, heads],
        )  # fmt: skip
        return lse


def _listed(pool: Pool, call: operands.AttentionCall) -> int:
    """Return the most cells that a query goes through, as far as the host knows."""
    if call.ids is not None:
        return int(call.ids.shape[-1])
    if operands.is_host(call.lengths):
        return int(call.lengths.max(initial=0))
    return int(call.table.shape[1]) * pool.layout.page_size
