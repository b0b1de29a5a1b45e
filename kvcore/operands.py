"""Operands of every op: brought to one batched form and checked before anything is written.

The only place where messages about operands are composed. Host values are checked for range;
values held by a device are never looked at: a bad row is skipped there and raises the state's
sticky flag.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from kvcore.errors import RangeError, ShapeError, message
from kvcore.layout import LENGTH, Layout
from kvcore.numerics import to_f32
from kvcore.pool import Pool, State
from kvcore.spec import MAX_DRAFT


class Arrays(Protocol):
    """How a backend takes in arrays; ``kind`` is "float" or "int"."""

    def asarray(self, x: Any, kind: str, op: str, name: str) -> Any:
        """Return `x` as the backend's contiguous f32 or i32 array, or raise ShapeError."""


class HostArrays:
    """Arrays of the CPU: anything NumPy, DLPack or the array interfaces give."""

    def asarray(self, x: Any, kind: str, op: str, name: str) -> Any:
        """Return a C-contiguous float32 or int32 NumPy array."""
        a = _as_numpy(x, op, name)
        if kind == "float":
            if a.dtype.kind != "f" and a.dtype.name != "bfloat16":
                raise ShapeError(
                    message(op, f"{name} has the wrong dtype", got=a.dtype, expected="floats")
                )
            return to_f32(a)
        if a.size == 0:
            return np.zeros(a.shape, np.int32)
        if a.dtype.kind not in "iu":
            raise ShapeError(
                message(op, f"{name} has the wrong dtype", got=a.dtype, expected="integers")
            )
        if a.max() > np.iinfo(np.int32).max or a.min() < np.iinfo(np.int32).min:
            raise RangeError(
                message(op, f"{name} is out of range", got=int(a.max()), expected="32-bit values")
            )
        return np.ascontiguousarray(a, np.int32)


HOST = HostArrays()


def _as_numpy(x: Any, op: str, name: str) -> np.ndarray[Any, Any]:
    if hasattr(x, "__cuda_array_interface__") or hasattr(x, "__sycl_usm_array_interface__"):
        raise ShapeError(
            message(
                op,
                f"{name} is on the wrong device",
                got=type(x).__name__,
                expected="host",
                fix="copy it to the host or use that device's backend",
            )
        )
    if isinstance(x, np.ndarray):
        return x
    if hasattr(x, "detach"):  # a torch tensor that requires grad refuses DLPack
        x = x.detach()
        if str(x.dtype) == "torch.bfloat16":  # NumPy's DLPack has no bfloat16
            x = x.float()
    try:
        if hasattr(x, "__dlpack__"):
            return np.from_dlpack(x)
        return np.asarray(x)
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        raise ShapeError(
            message(op, f"{name} is not a host array", got=type(x).__name__, expected="an array")
            + f" ({error})"
        ) from error


def put(out: Any, values: Any, op: str) -> Any:
    """Return `values`, or `out` (a NumPy array) overwritten with them.

    Raises
    ------
    ShapeError
        If `out` is not a packed float32 NumPy array of the right shape.
    """
    if out is None:
        return np.asarray(values, np.float32)
    if not isinstance(out, np.ndarray) or out.dtype != np.float32 or out.shape != values.shape:
        got = f"{type(out).__name__} {getattr(out, 'dtype', '')}{getattr(out, 'shape', '')}"
        raise ShapeError(
            message(op, "out is not usable", got=got, expected=f"float32{values.shape} NumPy")
        )
    out[...] = values
    return out


def is_host(a: Any) -> bool:
    """Return True if the values of `a` may be read here."""
    return isinstance(a, np.ndarray)


def shape_of(a: Any, op: str, name: str, expected: str, want: tuple[Any, ...]) -> None:
    """Raise ShapeError unless the shape of `a` equals `want` (None matches anything)."""
    got = tuple(a.shape)
    if len(got) != len(want) or any(
        w is not None and g != w for g, w in zip(got, want, strict=True)
    ):
        raise ShapeError(message(op, f"{name} has the wrong shape", got=got, expected=expected))


@dataclass(frozen=True, kw_only=True, eq=False)
class Table:
    """A page table [B, blocks] and what was checked of it."""

    array: Any


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
    k4 = _rank4(arrays.asarray(k, "float", op, "k"), op, "k", "[B, T, H, Dk]", h, dk)
    v4 = _rank4(arrays.asarray(v, "float", op, "v"), op, "v", "[B, T, H, Dv]", h, dv)
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
    if state is not None:
        _check_state(op, pool, state, batch)
    if is_host(pos):
        _check_positions(op, layout, t, pos, state)
        if state is not None and is_host(state.marks):
            _check_drafts(op, pos, state, bool(draft), done)
    return AppendCall(table=t, positions=pos, k=k4, v=v4, commit=done)


def _rank4(a: Any, op: str, name: str, expected: str, heads: int, dim: int) -> Any:
    if len(a.shape) == 3:
        a = a.reshape(1, *a.shape)
    shape_of(a, op, name, f"{expected} with H={heads}, D={dim}", (None, None, heads, dim))
    return a


def _check_state(op: str, pool: Pool, state: State, batch: int) -> None:
    if state.layout.layout != pool.layout:
        raise ShapeError(f"[{op}] the state was made for another layout than the pool's")
    if state.batch != batch:
        raise ShapeError(
            message(op, "the state has another batch", got=state.batch, expected=batch)
        )


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


@dataclass(frozen=True, kw_only=True, eq=False)
class GatherCall:
    """Checked operands of gather: table i32[B, blocks], ids i32[B, N], batched as given."""

    table: Any
    ids: Any
    batched: bool


def gather(arrays: Arrays, pool: Pool, table_: Any, ids: Any) -> GatherCall:
    """Check the operands of gather; see :mod:`kvcore.ops.gather`."""
    op = "gather"
    rows = arrays.asarray(ids, "int", op, "ids")
    batched = len(rows.shape) == 2
    if len(rows.shape) == 1:
        rows = rows.reshape(1, rows.shape[0])
    shape_of(rows, op, "ids", "[N] or [B, N]", (None, None))
    t = table(arrays, op, pool, table_, rows.shape[0])
    if is_host(rows) and rows.size:
        cells = t.shape[1] * pool.layout.page_size
        _check_ids(op, rows, 0, cells)
        if is_host(t):
            for b in range(rows.shape[0]):
                page = t[b][rows[b] // pool.layout.page_size]
                if (page < 0).any():
                    bad = int(rows[b][page < 0][0])
                    raise RangeError(
                        message(
                            op,
                            "a cell is not resident",
                            got=f"cell {bad}, page -1",
                            expected="resident pages",
                            fix="resolve and move it first",
                        )
                    )
    return GatherCall(table=t, ids=rows, batched=batched)


def _check_ids(op: str, ids: Any, low: int, end: int) -> None:
    if int(ids.max()) >= end or int(ids.min()) < low:
        bad = int(ids.max()) if int(ids.max()) >= end else int(ids.min())
        raise RangeError(
            message(op, "an id is out of range", got=bad, expected=f"{low} <= id < {end}")
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class AttentionCall:
    """Checked operands of attention.

    Attributes
    ----------
    q : f32[B, T, Q, Dk]
    table : i32[B, blocks]
    lengths : i32[B, T]
        Cells that each query may see; as given, [B] or [B, T], if a device holds them.
    ids : i32[B, T, N] or None
        As given, [B, N] or [B, T, N], if a device holds them.
    scale, softcap : float
        softcap 0 means none.
    window : int
        Sliding-window limit in cells; 0 means none.
    k, v : f32[B, T, H, D] or None
        The call's own chunk, read exactly.
    rank : int
        Rank of the query as given, 3 or 4.
    """

    q: Any
    table: Any
    lengths: Any
    ids: Any
    scale: float
    softcap: float
    window: int
    k: Any
    v: Any
    rank: int


def attention(
    arrays: Arrays,
    q: Any,
    pool: Pool,
    table_: Any,
    lengths: Any,
    ids: Any,
    state: State | None,
    scale: Any,
    softcap: Any,
    window: Any,
    k: Any,
    v: Any,
) -> AttentionCall:
    """Check the operands of attention; see :mod:`kvcore.ops.attention`."""
    op, layout = "attention", pool.layout
    h, dk, dv = layout.n_kv_heads, layout.head_dim_k, layout.head_dim_v
    query = arrays.asarray(q, "float", op, "q")
    rank = len(query.shape)
    if rank == 3:
        query = query.reshape(1, *query.shape)
    shape_of(query, op, "q", f"[B, T, Q, Dk] with Dk={dk}", (None, None, None, dk))
    batch, steps, heads = query.shape[:3]
    if heads < h or heads % h:
        raise ShapeError(
            message(
                op,
                "query heads do not share the KV heads evenly",
                got=f"Q={heads}, H={h}",
                expected="Q a multiple of H",
            )
        )
    t = table(arrays, op, pool, table_, batch)
    sizes = _lengths(arrays, op, lengths, batch, steps)
    if (k is None) != (v is None):
        raise ShapeError(f"[{op}] k and v come together: got one of them, expected both or none")
    own = (None, None)
    if k is not None:
        own = (
            _rank4(arrays.asarray(k, "float", op, "k"), op, "k", "[B, T, H, Dk]", h, dk),
            _rank4(arrays.asarray(v, "float", op, "v"), op, "v", "[B, T, H, Dv]", h, dv),
        )
        for a, name in zip(own, "kv", strict=True):
            shape_of(a, op, name, f"[{batch}, {steps}, ...]", (batch, steps, None, None))
    if state is not None:
        _check_state(op, pool, state, batch)
    chosen = None if ids is None else _attention_ids(arrays, ids, batch, steps, sizes)
    if is_host(sizes) and sizes.size:
        capacity = t.shape[1] * layout.page_size
        if int(sizes.min()) < 0 or int(sizes.max()) > capacity:
            bad = int(sizes.min()) if int(sizes.min()) < 0 else int(sizes.max())
            raise RangeError(
                message(op, "a length is out of range", got=bad, expected=f"0 to {capacity}")
            )
    return AttentionCall(
        q=query,
        table=t,
        lengths=sizes,
        ids=chosen,
        scale=_number(op, "scale", scale, 1.0 / math.sqrt(dk)),
        softcap=_number(op, "softcap", softcap, 0.0, least=0.0),
        window=_limit(op, window),
        k=own[0],
        v=own[1],
        rank=rank,
    )


def _lengths(arrays: Arrays, op: str, raw: Any, batch: int, steps: int) -> Any:
    """Return lengths per query; [B] counts the cells after the call's T cells."""
    sizes = arrays.asarray(np.asarray(raw) if np.isscalar(raw) else raw, "int", op, "lengths")
    if len(sizes.shape) == 0:
        sizes = sizes.reshape(1)
    if len(sizes.shape) == 2:
        shape_of(sizes, op, "lengths", f"[{batch}, {steps}]", (batch, steps))
        return sizes
    shape_of(sizes, op, "lengths", f"[{batch}] or [{batch}, {steps}]", (batch,))
    if not is_host(sizes):
        return sizes
    back = np.arange(steps, dtype=np.int32) - (steps - 1)
    return np.maximum(sizes.reshape(batch, 1) + back, 0)


def _attention_ids(arrays: Arrays, ids: Any, batch: int, steps: int, sizes: Any) -> Any:
    op = "attention"
    chosen = arrays.asarray(ids, "int", op, "ids")
    if len(chosen.shape) == 1:
        chosen = chosen.reshape(1, chosen.shape[0])
    if len(chosen.shape) == 2:
        shape_of(chosen, op, "ids", f"[{batch}, N]", (batch, None))
        if not is_host(chosen):
            return chosen
        chosen = chosen.reshape(batch, 1, chosen.shape[1]).repeat(steps, 1)
    shape_of(chosen, op, "ids", f"[{batch}, N] or [{batch}, {steps}, N]", (batch, steps, None))
    if is_host(chosen) and is_host(sizes) and chosen.size:
        if int(chosen.min()) < -1:
            _check_ids(op, chosen, -1, int(sizes.max()))
        beyond = chosen >= sizes[..., None]
        if beyond.any():
            b, s, _ = (int(x[0]) for x in np.nonzero(beyond))
            raise RangeError(
                message(
                    op,
                    "an id is out of range",
                    got=int(chosen[beyond][0]),
                    expected=f"-1 <= id < {int(sizes[b, s])} for query {s} of sequence {b}",
                )
            )
    return chosen


def _number(op: str, name: str, raw: Any, default: float, least: float | None = None) -> float:
    if raw is None:
        return float(np.float32(default))
    try:
        value = float(np.float32(np.asarray(raw).reshape(())))
    except (TypeError, ValueError) as error:
        raise ShapeError(
            message(op, f"{name} is not a number", got=raw, expected="float")
        ) from error
    if not math.isfinite(value) or (least is not None and value < least):
        raise ShapeError(message(op, f"{name} is not usable", got=raw, expected="a finite number"))
    return value


def _limit(op: str, raw: Any) -> int:
    if raw is None:
        return 0
    if not isinstance(raw, int | np.integer) or isinstance(raw, bool) or raw < 1:
        raise ShapeError(
            message(op, "window is not usable", got=raw, expected="an integer >= 1 or None")
        )
    return int(raw)


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
