"""The launches of one attention: splits of the context, then their ordered merge."""

from __future__ import annotations

from typing import Any

from kvcore import operands
from kvcore.pool import Pool, State
from kvcore.portable import programs
from kvcore.portable.arrays import DeviceArray
from kvcore.portable.engine import Engine, rings_of
from kvcore.portable.programs import SPLIT


def attend(
    engine: Engine,
    pool: Pool,
    call: operands.AttentionCall,
    state: State | None,
    out: DeviceArray,
    scratch: Any,
) -> DeviceArray:
    """Write the output; return the LSE, f32[B, T, Q].

    Parameters
    ----------
    engine : Engine
    pool : Pool
    call : AttentionCall
        Checked operands.
    state : State or None
    out : f32[B, T, Q, Dv]
    scratch : Scratch or None
    """
    layout = pool.layout
    batch, steps, heads = call.q.shape[:3]
    group_heads = heads // layout.n_kv_heads
    centred = state is not None and state.layout.centred
    shape = programs.attention_shape(layout, group_heads)
    program = engine.program(programs.attention_recipe, layout, centred, group_heads)
    splits = max(1, -(-_listed(pool, call) // SPLIT))
    rows = batch * steps
    lse = engine.work(scratch, "lse", (batch, steps, heads), "f4")
    partial = engine.work(scratch, "partial", (rows, splits, heads, layout.head_dim_v), "f4")
    sums = engine.work(scratch, "sums", (rows, splits, heads, 2), "f4")
    ids = None if call.ids is None else engine.ints(call.ids)
    table, lengths = engine.ints(call.table), engine.ints(call.lengths)
    own = [None if a is None else a.buffer for a in (call.k, call.v)]
    args = [
        call.q.buffer, *engine.planes(pool), table.buffer, lengths.buffer,
        None if ids is None else ids.buffer, *engine.state(state), *own,
        partial.buffer, sums.buffer, engine.errors.buffer,
        layout.n_kv_heads, layout.page_size, call.table.shape[1], pool.n_pages, *rings_of(state),
        steps, splits, 0 if ids is None else ids.shape[-1], int(len(lengths.shape) == 2),
        int(ids is not None), int(ids is not None and len(ids.shape) == 3),
        int(state is not None), int(call.k is not None),
        0 if state is None else state.layout.window, call.window, call.scale, call.softcap,
    ]  # fmt: skip
    groups = (rows * layout.n_kv_heads * shape.chunks, splits, 1)
    engine.launch(program, "split", groups, args)
    engine.launch(
        program, "merge", (rows * heads, 1, 1),
        [partial.buffer, sums.buffer, out.buffer, lse.buffer, splits, heads],
    )  # fmt: skip
    return lse


def _listed(pool: Pool, call: operands.AttentionCall) -> int:
    """Return the most cells that a query goes through, as far as the host knows."""
    if call.ids is not None:
        return int(call.ids.shape[-1])
    if operands.is_host(call.lengths):
        return int(call.lengths.max(initial=0))
    return int(call.table.shape[1]) * pool.layout.page_size
