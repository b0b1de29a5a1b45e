"""KVCache: one sequence's cache in one layer, in the model's basis."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from kvcore import marks as rules
from kvcore.cache_spec import CacheSpec
from kvcore.errors import RangeError, ShapeError, message
from kvcore.layout import COMMITTED, LENGTH
from kvcore.numerics import F32, Array
from kvcore.pool import Pool, State
from kvcore.spec import MAX_DRAFT

if TYPE_CHECKING:
    from kvcore.backend import Backend


@dataclass(kw_only=True, slots=True)
class Pages:
    """The pool a family of forks shares, and how many caches use each of its units."""

    pool: Pool
    users: Array  # i64[units]

    def free(self) -> Array:
        """Return the units that nobody uses, ascending."""
        return np.flatnonzero(self.users == 0)


class KVCache:
    """One sequence's K and V in one layer. Made by ``backend.cache(spec, capacity)``.

    Takes and returns values of the model's own basis: rotation and centring stay inside.

    Parameters
    ----------
    backend : Backend
    spec : CacheSpec
    capacity : int
        Cells; rounded up to whole units of pages.

    Attributes
    ----------
    capacity : int
        Cells that fit.
    """

    def __init__(self, backend: Backend, spec: CacheSpec, capacity: int) -> None:
        if isinstance(capacity, bool) or not isinstance(capacity, int | np.integer) or capacity < 1:
            raise ShapeError(
                message("cache", "capacity is not usable", got=capacity, expected="an integer >= 1")
            )
        self.backend, self.spec = backend, spec
        layout = spec.layout
        n_pages = layout.pages_for(int(capacity))
        pool = backend.pool(layout, n_pages)
        units = n_pages // layout.unit_pages
        self._pages = Pages(pool=pool, users=np.ones(units, np.int64))
        self._units = np.arange(units)
        self._state = backend.state(spec.state_layout, 1, self._stored_centre())
        self._row = rules.fresh(spec.state_layout)
        self.capacity = n_pages * layout.page_size

    # -- facts ----------------------------------------------------------------------------

    def __len__(self) -> int:
        """Return the cells held, drafts included."""
        return self._row[LENGTH]

    @property
    def committed(self) -> int:
        """Cells that are final."""
        return self._row[COMMITTED]

    @property
    def pool(self) -> Pool:
        """The pool under it, shared with its forks."""
        return self._pages.pool

    @property
    def state(self) -> State:
        """Exact cells, centre and marks."""
        return self._state

    @property
    def nbytes(self) -> int:
        """Bytes of its pages, exact cells, centre and marks (shared pages counted in full)."""
        return self.spec.layout.nbytes(self._n_pages()) + self._state.nbytes

    @property
    def table(self) -> Array:
        """Page table, i32[blocks]."""
        u = self.spec.layout.unit_pages
        pages = self._units[:, None] * u + np.arange(u)
        return pages.reshape(-1).astype(np.int32)

    def _n_pages(self) -> int:
        return len(self._units) * self.spec.layout.unit_pages

    def _stored_centre(self) -> F32 | None:
        if isinstance(self.spec.k_center, str):
            return None
        centre = self.spec.k_center
        if self.spec.format.rotate_k:
            centre = self.backend.to_host(self.backend.rotate(self._asarray(centre, "k_center")))
        return np.asarray(centre, np.float32)

    def _asarray(self, x: Any, name: str) -> Any:
        return self.backend.arrays.asarray(x, "float", "cache", name)

    # -- writing --------------------------------------------------------------------------

    def append(self, k: Any, v: Any, draft: bool = False) -> None:
        """Store the next T cells.

        Parameters
        ----------
        k : float[T, H, Dk]
            After RoPE. Any array with DLPack or the array interfaces.
        v : float[T, H, Dv]
        draft : bool
            The cells are speculative: at most 17 may lie beyond :meth:`commit`.

        Raises
        ------
        ShapeError, RangeError
            Before anything is written; RangeError if the capacity is exceeded.
        """
        k, v = self._chunk(k, v)
        steps = int(k.shape[0])
        start = len(self)
        if start + steps > self.capacity:
            raise RangeError(
                message(
                    "append",
                    "the cache is full",
                    got=start + steps,
                    expected=f"at most {self.capacity} cells",
                    fix="make it with a larger capacity",
                )
            )
        self._check_draft(steps, draft)
        if steps == 0:
            return
        fmt = self.spec.format
        k = self.backend.rotate(k) if fmt.rotate_k else k
        v = self.backend.rotate(v) if fmt.rotate_v else v
        committed = self.committed if draft else start + steps
        row = rules.append(self._row, self.spec.state_layout, steps, committed)
        self._own_units(start, start + steps, row)
        positions = np.arange(start, start + steps, dtype=np.int32)
        self.backend.append(self.pool, self.table, positions, k, v, state=self._state, draft=draft)
        self._row = row

    def _chunk(self, k: Any, v: Any) -> tuple[Any, Any]:
        k, v = self._asarray(k, "k"), self._asarray(v, "v")
        spec = self.spec
        for a, name, d in ((k, "k", spec.head_dim), (v, "v", spec.head_dim_v)):
            shape = tuple(a.shape)
            if len(shape) != 3 or shape[1:] != (spec.n_kv_heads, d):
                raise ShapeError(
                    message(
                        "append",
                        f"{name} has the wrong shape",
                        got=shape,
                        expected=f"[T, {spec.n_kv_heads}, {d}]",
                    )
                )
        if k.shape[0] != v.shape[0]:
            raise ShapeError(
                message(
                    "append",
                    "k and v differ in tokens",
                    got=int(v.shape[0]),
                    expected=int(k.shape[0]),
                )
            )
        return k, v

    def _check_draft(self, steps: int, draft: bool) -> None:
        opened = len(self) - self.committed
        if steps and not draft and opened:
            raise ShapeError(
                f"[append] {opened} drafts are open: got an append without draft=True; "
                "commit or truncate them first"
            )
        if draft and opened + steps > MAX_DRAFT:
            raise RangeError(
                message(
                    "append",
                    "too many drafts",
                    got=opened + steps,
                    expected=f"at most {MAX_DRAFT} beyond the commit",
                )
            )

    def commit(self, n: int) -> None:
        """Make drafts up to cell `n` final; later drafts stay drafts.

        Raises
        ------
        RangeError
            Unless committed <= n <= len.
        """
        if not self._is_whole(n) or not self.committed <= n <= len(self):
            raise RangeError(
                message(
                    "commit",
                    "cannot commit to that length",
                    got=n,
                    expected=f"{self.committed} <= n <= {len(self)}",
                )
            )
        row = rules.append(self._row, self.spec.state_layout, 0, int(n))
        self._own_units(len(self), len(self), row)
        spec = self.spec
        empty = [
            self._asarray(np.zeros((0, spec.n_kv_heads, d), np.float32), "k")
            for d in (spec.head_dim, spec.head_dim_v)
        ]
        none = np.zeros(0, np.int32)
        self.backend.append(
            self.pool, self.table, none, *empty, state=self._state, commit=np.array([n], np.int32)
        )
        self._row = row

    @staticmethod
    def _is_whole(n: Any) -> bool:
        return isinstance(n, int | np.integer) and not isinstance(n, bool)

    def truncate(self, n: int) -> int:
        """Drop every cell from `n` on, drafts included.

        Parameters
        ----------
        n : int
            0 <= n <= len.

        Returns
        -------
        int
            Live cells that were exact before or would be in an undisturbed cache, and are now
            read from the quantized bulk: 0 means that nothing was lost.

        Raises
        ------
        RangeError
            If `n` is out of range; nothing is changed.
        """
        if not self._is_whole(n) or not 0 <= n <= len(self):
            raise RangeError(
                message(
                    "truncate",
                    "cannot keep that many cells",
                    got=n,
                    expected=f"0 <= n <= {len(self)}",
                )
            )
        if n == len(self):
            return 0
        cut = rules.truncate(self._row, self.spec.state_layout, int(n))
        self._set_row(cut.row)
        return cut.inexact

    def _set_row(self, row: list[int]) -> None:
        self._row = row
        self.backend.write(self._state.marks, np.asarray([row], np.int32))

    # -- sharing --------------------------------------------------------------------------

    def fork(self) -> KVCache:
        """Return a second cache that continues from the same cells.

        Full units are shared; a unit that one of them writes is copied first. The fork needs
        free units for what it writes: the pool grows by as many as it lacks.

        Raises
        ------
        ShapeError
            If drafts are open.
        """
        if len(self) != self.committed:
            raise ShapeError(
                f"[fork] {len(self) - self.committed} drafts are open: commit or truncate first"
            )
        twin = object.__new__(KVCache)
        twin.backend, twin.spec, twin.capacity = self.backend, self.spec, self.capacity
        twin._pages = self._pages
        twin._units = self._units.copy()
        self._pages.users[self._units] += 1
        twin._row = list(self._row)
        twin._state = self._copy_state()
        return twin

    def _copy_state(self) -> State:
        be, old = self.backend, self._state
        fresh = be.state(self.spec.state_layout, 1, self._stored_centre())
        for name in ("k", "v", "centre", "marks"):
            be.write(getattr(fresh, name), be.to_host(getattr(old, name)))
        return fresh

    def _own_units(self, start: int, end: int, row: list[int]) -> None:
        """Copy every shared unit that an append over [start, end) will write."""
        first = min(start, *(self._row[m] for m in rules.FRONTIER.values()))
        touched = np.arange(
            first // self.spec.layout.unit_cells, -(-end // self.spec.layout.unit_cells)
        )
        shared = touched[self._pages.users[self._units[touched]] > 1]
        if not shared.size:
            return
        free = self._pages.free()
        if free.size < shared.size:
            self._grow(shared.size - free.size)
            free = self._pages.free()
        new = free[: shared.size]
        self.backend.move(
            self.pool, self._page_list(self._units[shared]), self.pool, self._page_list(new)
        )
        self._pages.users[self._units[shared]] -= 1
        self._pages.users[new] += 1
        self._units[shared] = new

    def _page_list(self, units: Array) -> Array:
        u = self.spec.layout.unit_pages
        return (units[:, None] * u + np.arange(u)).reshape(-1).astype(np.int32)

    def _grow(self, at_least: int) -> None:
        """Give the family's pool more units: at least half as many again."""
        layout, be, old = self.spec.layout, self.backend, self.pool
        units = len(self._pages.users)
        more = max(at_least, units // 2)
        grown = be.pool(layout, (units + more) * layout.unit_pages)
        every = np.arange(old.n_pages, dtype=np.int32)
        be.move(old, every, grown, every)
        self._pages.pool = grown
        self._pages.users = np.concatenate([self._pages.users, np.zeros(more, np.int64)])

    def free(self) -> None:
        """Give its pages back to its forks; the cache is empty and unusable afterwards."""
        self._pages.users[self._units] -= 1
        self._units = self._units[:0]
        self.capacity = 0
        self._set_row(rules.fresh(self.spec.state_layout))

    # -- reading --------------------------------------------------------------------------

    def attend(
        self,
        q: Any,
        k: Any = None,
        v: Any = None,
        scale: Any = None,
        ids: Any = None,
        window: Any = None,
        softcap: Any = None,
        return_lse: bool = False,
    ) -> Any:
        """Attend over the stored cells, causally: query t of T sees all but the last T - 1 - t.

        Parameters
        ----------
        q : float[T, Q, Dk]
            After RoPE, at the positions of the last T cells.
        k, v : float[T, H, D], optional
            The call's own chunk, read exactly; the past is read from the store. For a prompt:
            append, then attend with the same k and v.
        scale : float, optional
            1 / sqrt(Dk) unless given.
        ids : i32[N] or i32[T, N], optional
            Cells to attend over; -1 is skipped.
        window : int, optional
            Sliding-window limit in cells, the query's own included.
        softcap : float, optional
        return_lse : bool

        Returns
        -------
        out : f32[T, Q, Dv]
        lse : f32[T, Q]
            Only if asked for.

        Raises
        ------
        ShapeError, RangeError
        """
        fmt, be = self.spec.format, self.backend
        q = self._asarray(q, "q")
        if len(q.shape) != 3:
            raise ShapeError(
                message(
                    "attend",
                    "q has the wrong shape",
                    got=tuple(q.shape),
                    expected=f"[T, Q, {self.spec.head_dim}]",
                )
            )
        if k is not None or v is not None:
            k, v = self._own_chunk(q, k, v)
        if ids is not None:
            ids = be.arrays.asarray(ids, "int", "attend", "ids")
            ids = ids.reshape(1, *ids.shape)
        out = be.attention(
            be.rotate(q) if fmt.rotate_k and q.shape[-1] == self.spec.head_dim else q,
            self.pool,
            self.table,
            np.array([len(self)], np.int32),
            ids=ids,
            state=self._state,
            scale=scale,
            softcap=softcap,
            window=window,
            k=k,
            v=v,
            return_lse=return_lse,
        )
        out, lse = out if return_lse else (out, None)
        out = be.rotate(out) if fmt.rotate_v else out
        return (out, lse) if return_lse else out

    def _own_chunk(self, q: Any, k: Any, v: Any) -> tuple[Any, Any]:
        if k is None or v is None:
            raise ShapeError("[attend] k and v come together: got one of them")
        k, v = self._chunk(k, v)
        if k.shape[0] != q.shape[0] or k.shape[0] > len(self):
            raise ShapeError(
                message(
                    "attend",
                    "k and v are not the last cells of the queries",
                    got=int(k.shape[0]),
                    expected=f"T={int(q.shape[0])}, stored before",
                )
            )
        fmt, be = self.spec.format, self.backend
        return (
            be.rotate(k) if fmt.rotate_k else k,
            be.rotate(v) if fmt.rotate_v else v,
        )

    def read(self, ids: Any = None) -> tuple[F32, F32]:
        """Return K and V of cells as the next query would read them, for inspection.

        Parameters
        ----------
        ids : i32[N], optional
            Cells; all of them unless given.

        Returns
        -------
        k : f32[N, H, Dk]
            In the model's basis: rotation and centring undone. NumPy.
        v : f32[N, H, Dv]

        Raises
        ------
        RangeError
            If an id is not a live cell.
        """
        from kvcore.read import read_cells

        return read_cells(self, ids)

    # -- saving ---------------------------------------------------------------------------

    def snapshot(self) -> bytes:
        """Return the cache as bytes that load on every backend; see :mod:`kvcore.snapshot`.

        Raises
        ------
        ShapeError
            If drafts are open.
        """
        from kvcore.snapshot import save

        return save(self)

    def load(self, snapshot: bytes) -> None:
        """Replace the contents by those of a snapshot of the same spec.

        Raises
        ------
        ValueError
            Naming the field that is wrong; nothing is changed.
        """
        from kvcore.snapshot import load_into

        load_into(self, snapshot)
