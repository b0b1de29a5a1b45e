"""The operands of append."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from kvcore.errors import FormatError, RangeError, ShapeError, message
from kvcore.layout import LENGTH, Layout
from kvcore.operands.arrays import Arrays, is_host, rank4, shape_of
from kvcore.operands.tables import check_state, table
from kvcore.pool import Pool, State
from kvcore.spec import MAX_DRAFT


@dataclass(frozen=True, kw_only=True, eq=False)
class AppendCall:
    """Checked operands of append.

    Attributes
    ----------
    table : i32[B, blocks]
    positions : i32[B, T]
    k : f32[B, T, H, Dk]
    v : f32[B, T, H, Dv]
    commit : i32[B] or None
    """

    table: Any
    positions: Any
    k: Any
    v: Any
    commit: Any


def append(
    arrays: Arrays,
    pool: Pool,
    table_: Any,
    positions: Any,
    k: Any,
    v: Any,
    state: State | None,
    draft: Any,
    commit: Any,
) -> AppendCall:
    """Check the operands of append; see :mod:`kvcore.ops.append`."""
    op, layout = "append", pool.layout
    h, dk, dv = layout.n_kv_heads, layout.head_dim_k, layout.head_dim_v
    k4 = rank4(arrays.asarray(k, "float", op, "k"), op, "k", "[B, T, H, Dk]", h, dk)
    v4 = rank4(arrays.asarray(v, "float", op, "v"), op, "v", "[B, T, H, Dv]", h, dv)
    batch, steps = k4.shape[:2]
    if tuple(v4.shape[:2]) != (batch, steps):
        raise ShapeError(
            message(op, "v has the wrong shape", got=tuple(v4.shape[:2]), expected=(batch, steps))
        )
    pos = arrays.asarray(positions, "int", op, "positions")
    if len(pos.shape) == 1:
        pos = pos.reshape(1, pos.shape[0])
    shape_of(pos, op, "positions", f"[{batch}, {steps}]", (batch, steps))
    t = table(arrays, op, pool, table_, batch)
    done = None if commit is None else arrays.asarray(commit, "int", op, "commit")
    if done is not None:
        done = done.reshape(-1)
        shape_of(done, op, "commit", f"[{batch}]", (batch,))
    eager = state is None or not state.layout.deferred
    if eager and layout.k_gain == "unbiased" and layout.k.per_channel:
        raise FormatError(
            f"[{op}] k_gain='unbiased' needs whole groups: got eager grouping, expected a state "
            "with deferred grouping"
        )
    if state is not None:
        check_state(op, pool, state, batch)
    elif draft or done is not None:
        raise ShapeError(
            f"[{op}] draft and commit need a state that keeps them: got no state, expected one; "
            "make it with backend.state(spec.state_layout)"
        )
    if is_host(pos):
        _check_positions(op, layout, t, pos, state)
        if state is not None and is_host(state.marks):
            _check_drafts(op, pos, state, bool(draft), done)
    return AppendCall(table=t, positions=pos, k=k4, v=v4, commit=done)


def _check_positions(op: str, layout: Layout, t: Any, pos: Any, state: State | None) -> None:
    if pos.size == 0:
        return
    cells = t.shape[1] * layout.page_size
    if int(pos.max()) >= cells or int(pos.min()) < -1:
        bad = int(pos.max()) if int(pos.max()) >= cells else int(pos.min())
        raise RangeError(
            message(op, "a position is out of range", got=bad, expected=f"-1 <= cell < {cells}")
        )
    for b in range(pos.shape[0]):
        cell = pos[b][pos[b] >= 0]
        if is_host(t) and (t[b][cell // layout.page_size] < 0).any():
            first = int(cell[t[b][cell // layout.page_size] < 0][0])
            raise RangeError(
                message(
                    op,
                    "a cell has no page",
                    got=f"cell {first}, page -1",
                    expected="a resident page",
                )
            )
        run = layout.per_channel or state is not None
        if run and cell.size and (np.diff(cell) != 1).any():
            raise ShapeError(
                message(
                    op,
                    "positions of one sequence are not a run",
                    got=cell.tolist()[:8],
                    expected="consecutive cells, as per-channel groups and states need",
                )
            )
        if state is not None and is_host(state.marks) and cell.size:
            length = int(state.marks[b, LENGTH])
            if int(cell[0]) != length:
                raise RangeError(
                    message(
                        op,
                        "the run does not continue the sequence",
                        got=int(cell[0]),
                        expected=f"cell {length}",
                        fix="truncate first to overwrite",
                    )
                )


def _check_drafts(op: str, pos: Any, state: State, draft: bool, commit: Any) -> None:
    for b in range(pos.shape[0]):
        committed, length = (int(x) for x in state.marks[b, :2])
        n = int((pos[b] >= 0).sum())
        if commit is not None:
            if not committed <= int(commit[b]) <= length + n:
                raise RangeError(
                    message(
                        "commit",
                        "cannot commit to that length",
                        got=int(commit[b]),
                        expected=f"{committed} <= n <= {length + n}",
                    )
                )
        elif n and not draft and length > committed:
            raise ShapeError(
                f"[{op}] {length - committed} drafts are open: got an append without draft=True; "
                "commit or truncate them first"
            )
        final = committed if draft else length + n
        final = int(commit[b]) if commit is not None else final
        if length + n - final > MAX_DRAFT:
            raise RangeError(
                message(op, "too many drafts", got=length + n - final, expected=f"<= {MAX_DRAFT}")
            )
