"""The ops that are little more than their kernels: gather, restore, rotate, resolve, select."""

from __future__ import annotations

from typing import Any

import numpy as np

from kvcore import marks as rules
from kvcore import operands
from kvcore.layout import EVERYTHING
from kvcore.numerics import F16, F32, I32, Array
from kvcore.ops.resolve import check_resolve
from kvcore.ops.restore import check_restore, members
from kvcore.ops.rotate import check_rotate
from kvcore.ops.select import check_select
from kvcore.pool import Pool, State
from kvcore.residency import CALLS, EPOCH, LOOKUPS, MISSES, OVERFLOW, PLACED, Residency

from . import streaming
from .attention import no_rows
from .decode import narrow, read_cells
from .rotate import hadamard
from .store import HEADS, Store, open_stores, readable


def rotate(x: Any, out: Any) -> Any:
    """See :mod:`kvcore.ops.rotate`."""
    a = readable(operands.HOST.asarray(x, "float", "rotate", "x"))
    block = check_rotate(a.shape)
    direct = isinstance(out, np.ndarray) and out.dtype == np.float32 and out.shape == a.shape
    direct = direct and out.flags.c_contiguous and out.flags.aligned and out.flags.writeable
    turned = out if direct else np.empty_like(a)
    if a.size:
        scale = np.float32(1.0 / np.sqrt(block))
        hadamard(a.reshape(-1, block), block, scale, turned.reshape(-1, block))
    return turned if direct else operands.put(out, turned, "rotate")


def _bulk(store: Store, table: Array, cells: Array, dim: int) -> F32:
    """Return float32(level * scale) of cells, f32[N, H, D]."""
    heads, n = int(store.info[HEADS]), len(cells)
    out = np.empty((heads, n, dim), np.float32)
    never = EVERYTHING + 1
    for h in range(heads):
        place = np.array([0, h, never, never, never, 0], np.int64)
        read_cells(
            store, no_rows(), table, place, cells, np.zeros(n, np.uint8), out[h],
            np.empty(n, np.uint8),
        )  # fmt: skip
    return np.ascontiguousarray(out.swapaxes(0, 1))


def _halves(x: F32) -> F16:
    out = np.empty(x.shape, np.uint16)
    narrow(x.reshape(-1), out.reshape(-1))
    return out.view(np.float16)


def gather(pool: Pool, table: Any, ids: Any) -> tuple[F16, F16]:
    """See :mod:`kvcore.ops.gather`."""
    call = operands.gather(operands.HOST, pool, table, ids)
    stores = open_stores(pool, None)
    layout, n = pool.layout, call.ids.shape[1]
    found = []
    for store, dim in ((stores.k, layout.head_dim_k), (stores.v, layout.head_dim_v)):
        rows = [
            _bulk(store, readable(t), i.astype(np.int64), dim)
            for t, i in zip(call.table, call.ids, strict=True)
        ]
        x = np.stack(rows) if rows else np.zeros((0, n, layout.n_kv_heads, dim), np.float32)
        found.append(_halves(x) if call.batched else _halves(x[0]))
    return found[0], found[1]


def restore(overlay: State, pool: Pool, table: Any, n_cells: Any) -> None:
    """See :mod:`kvcore.ops.restore`."""
    t, n = check_restore(pool, overlay, table, n_cells, overlay.marks)
    sl, stores = overlay.layout, open_stores(pool, None)
    jobs = [
        (b, name, members(overlay.marks[b].tolist(), sl, name, int(n[b])))
        for b in range(overlay.batch)
        for name in ("k", "v")
        if sl.ring(name) and sl.overlay
    ]
    for b, name, cells in jobs:
        store = stores.k if name == "k" else stores.v
        x = _bulk(store, readable(t[b]), cells.astype(np.int64), pool.layout.head_dim(name))
        if name == "k" and sl.centred:
            with np.errstate(invalid="ignore"):
                x += overlay.centre[b].astype(np.float32)
        slots = np.where(cells < sl.sinks, cells, sl.sinks + cells % sl.ring(name))
        getattr(overlay, name)[b, slots] = _halves(x)
        low = rules.RING_LO[name]
        held = max(int(n[b]) - sl.window, 0)
        overlay.marks[b, low] = min(int(overlay.marks[b, low]), held)


def resolve(residency: Residency, ids: Any) -> I32:
    """See :mod:`kvcore.ops.resolve`."""
    a = readable(check_resolve(residency, ids))
    ctl, r = residency.ctl, residency
    counters = ctl.view(np.uint64)
    counters[CALLS // 2] += 1
    ctl[EPOCH] = 1 if ctl[EPOCH] == np.iinfo(np.int32).max else ctl[EPOCH] + 1
    if ctl[EPOCH] == 1:
        r.slot_stamp[:] = -1  # the epoch wrapped: no stamp may look current
    epoch = int(ctl[EPOCH])
    missing = np.empty(r.table.shape[0], np.int64)
    found, lookups = streaming.find_missing(
        r.table, r.slot_stamp, r.slot_ref, a, r.unit_cells, epoch, missing
    )
    placed = np.empty((found, 2), np.int32)
    done = streaming.place(
        r.table, r.slot_unit, r.slot_stamp, r.slot_ref, ctl, missing[:found], epoch, placed
    )
    counters[LOOKUPS // 2] += np.uint64(lookups)
    counters[MISSES // 2] += np.uint64(done)
    ctl[PLACED], ctl[OVERFLOW] = done, int(done < found)
    return placed[:done]


def select(keys: Any, dead: Any, q: Any, lengths: Any, width: int, block: int) -> tuple[I32, F32]:
    """See :mod:`kvcore.ops.select`."""
    k, d, x, n = check_select(operands.HOST, keys, dead, q, lengths, width, block)
    k, d, x = readable(k), readable(d), readable(x)
    steps, most = x.shape[0], int(n.max(initial=0))
    ids = np.full((steps, width), -1, np.int32)
    scores = np.full((steps, -(-most // block)), -np.inf, np.float32)
    for t in range(steps):
        length = int(n[t])
        whole, rest = divmod(length, block)
        if length:
            streaming.score_blocks(k, x[t], scores[t, :whole])
        if rest:
            last = scores[t, whole : whole + 1]
            streaming.score_blocks(d[None], x[t], last)
            last += np.float32(1e9)
        chosen = _choose(scores[t, : whole + bool(rest)], length, width, block)
        ids[t, : len(chosen)] = chosen
    return ids, scores


def _choose(scores: F32, length: int, width: int, block: int) -> Array:
    """Return the cells of the best blocks, ascending; the last block taken is cut."""
    if length <= width:
        return np.arange(length)
    order = np.argsort(-scores, kind="stable")  # NaN sorts last, ties stay in block order
    sizes = np.minimum(length - order * block, block)
    before = np.cumsum(sizes) - sizes
    taken = before < width
    order, sizes = order[taken], np.minimum(sizes[taken], width - before[taken])
    cells = order[:, None] * block + np.arange(block)
    return np.sort(cells[np.arange(block) < sizes[:, None]])
