"""Read cells back in the model's basis, each from where a query would read it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from kvcore import marks as rules
from kvcore.addressing import exact_slot, read_bulk
from kvcore.errors import RangeError, message
from kvcore.numerics import F32, Array
from kvcore.operands import HOST
from kvcore.ops.rotate import rotate
from kvcore.pool import Pool, State

if TYPE_CHECKING:
    from kvcore.cache import KVCache


def read_cells(cache: KVCache, ids: Any) -> tuple[F32, F32]:
    """Return K f32[N, H, Dk] and V f32[N, H, Dv] of cells; see :meth:`KVCache.read`."""
    n = len(cache)
    cells = np.arange(n) if ids is None else HOST.asarray(ids, "int", "read", "ids").reshape(-1)
    if cells.size and (int(cells.max()) >= n or int(cells.min()) < 0):
        bad = int(cells.max()) if int(cells.max()) >= n else int(cells.min())
        raise RangeError(message("read", "an id is out of range", got=bad, expected=f"0 to {n}"))
    be, fmt = cache.backend, cache.spec.format
    pool, state = host_pool(be, cache.pool), host_state(be, cache.state)
    out = []
    for store, turned in (("k", fmt.rotate_k), ("v", fmt.rotate_v)):
        x = _stored(pool, state, cache.table, store, cells, n)
        out.append(rotate(x) if turned else x)
    return out[0], out[1]


def host_pool(backend: Any, pool: Pool) -> Pool:
    """Return a pool of NumPy planes with the same bytes."""
    planes = {name: backend.to_host(a) for name, a in pool.planes.items()}
    return Pool(layout=pool.layout, n_pages=pool.n_pages, planes=planes, backend="reference")


def host_state(backend: Any, state: State) -> State:
    """Return a state of NumPy arrays with the same bytes."""
    arrays = {n: backend.to_host(getattr(state, n)) for n in ("k", "v", "centre", "marks")}
    return State(layout=state.layout, batch=state.batch, backend="reference", **arrays)


def _stored(pool: Pool, state: State, table: Array, store: str, cells: Array, length: int) -> F32:
    sl, row = state.layout, state.marks[0].tolist()
    exact = np.array([rules.reads_exact(row, sl, store, int(c), length) for c in cells], bool)
    layout = pool.layout
    x = np.empty((len(cells), layout.n_kv_heads, layout.head_dim(store)), np.float32)
    if exact.any():
        x[exact] = getattr(state, store)[0, exact_slot(state, store, cells[exact])]
    x[~exact] = read_bulk(pool, store, table, cells[~exact])
    if store == "k" and sl.centred:
        x[~exact] += state.centre[0].astype(np.float32)
    return x
