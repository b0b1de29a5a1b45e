"""Page tables, page lists, ids and states: checked against a pool."""

from __future__ import annotations

from typing import Any

import numpy as np

from kvcore.errors import RangeError, ShapeError, message
from kvcore.layout import Layout
from kvcore.operands.arrays import HOST, Arrays, is_host, shape_of
from kvcore.pool import Pool, State


def table(arrays: Arrays, op: str, pool: Pool, raw: Any, batch: int | None) -> Any:
    """Return the page table as i32[B, blocks], checked if it is on the host."""
    t = arrays.asarray(raw, "int", op, "table")
    if len(t.shape) == 1:
        t = t.reshape(1, t.shape[0])
    shape_of(t, op, "table", "[B, blocks]", (batch, None))
    if is_host(t) and t.size:
        _check_table(op, pool.layout, pool.n_pages, t)
    return t


def _check_table(op: str, layout: Layout, n_pages: int, t: Any) -> None:
    if int(t.max()) >= n_pages or int(t.min()) < -1:
        bad = int(t.max()) if int(t.max()) >= n_pages else int(t.min())
        raise RangeError(
            message(op, "a page is out of range", got=bad, expected=f"-1 <= page < {n_pages}")
        )
    u = layout.unit_pages
    if u == 1:
        return
    block = np.arange(t.shape[1])
    pad = -t.shape[1] % u
    aligned = (t < 0) | (t % u == block % u)
    units = np.pad(t, ((0, 0), (0, pad)), constant_values=-1).reshape(t.shape[0], -1, u)
    same = np.where(units < 0, -1, units // u)
    top = same.max(axis=-1, keepdims=True)
    if not aligned.all() or ((same != top) & (same >= 0)).any():
        raise ShapeError(
            message(
                op,
                "the table splits a unit of a per-channel codec",
                got="pages out of step",
                expected=f"table[b] % {u} == b % {u}, {u} pages of a unit together",
                fix="permute whole units, not pages",
            )
        )


def pages(op: str, name: str, raw: Any, pool: Pool) -> Any:
    """Return a host list of pages as i64, whole units, in range, or raise."""
    p = HOST.asarray(raw, "int", op, name).reshape(-1)
    if p.size and (int(p.max()) >= pool.n_pages or int(p.min()) < 0):
        bad = int(p.max()) if int(p.max()) >= pool.n_pages else int(p.min())
        raise RangeError(
            message(op, f"{name} is out of range", got=bad, expected=f"0 <= page < {pool.n_pages}")
        )
    u = pool.layout.unit_pages
    whole = p.size % u == 0 and bool((p.reshape(-1, u) == p[::u, None] + np.arange(u)).all())
    if not whole or (p[::u] % u).any():
        raise ShapeError(
            message(
                op,
                f"{name} are not whole units",
                got=p.tolist()[:8],
                expected=f"runs of {u} pages that start at multiples of {u}",
            )
        )
    return p.astype(np.int64)


def check_ids(op: str, ids: Any, low: int, end: int) -> None:
    """Raise RangeError unless low <= id < end for every id."""
    if int(ids.max()) >= end or int(ids.min()) < low:
        bad = int(ids.max()) if int(ids.max()) >= end else int(ids.min())
        raise RangeError(
            message(op, "an id is out of range", got=bad, expected=f"{low} <= id < {end}")
        )


def check_state(op: str, pool: Pool, state: State, batch: int) -> None:
    """Raise ShapeError unless the state was made for this layout and batch."""
    if state.layout.layout != pool.layout:
        raise ShapeError(f"[{op}] the state was made for another layout than the pool's")
    if state.batch != batch:
        raise ShapeError(
            message(op, "the state has another batch", got=state.batch, expected=batch)
        )
