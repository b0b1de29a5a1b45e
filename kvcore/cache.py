"""KVCache: one sequence's cache in one layer, in the model's basis."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from kvcore import marks as rules
from kvcore.errors import RangeError, ShapeError, message
from kvcore.held import Held
from kvcore.layout import CENTRED, EVERYTHING
from kvcore.numerics import F32
from kvcore.pages import checked_cells
from kvcore.spec import MAX_DRAFT

if TYPE_CHECKING:
    from kvcore.snapshot import Incremental


class KVCache(Held):
    """One sequence's K and V in one layer. Made by ``backend.cache(spec, capacity)``.

    Takes and returns values of the model's own basis: rotation and centring stay inside.
    One thread may write while others read: a reader waits for the writer, and the writer for the
    readers before it. Forks may be used from different threads; their writes take turns.

    Parameters
    ----------
    backend : Backend
    spec : CacheSpec
    capacity : int
        Cells; rounded up to whole units of pages.
    reserve : int, optional
        Cells whose pages are taken at once, the rest when they are written: all of them by
        default.

    Attributes
    ----------
    capacity : int
        Cells that fit.
    """

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
        k, v = self._basis.chunk("append", k, v)
        steps = int(k.shape[0])
        with self._lock.writing():
            start = len(self)
            self._check_room(start + steps)
            self._check_draft(steps, draft)
            if steps == 0:
                return
            k, v = self._basis.stored(k, v)
            self._write(start, k, v, self.committed if draft else start + steps)

    def _check_room(self, end: int) -> None:
        if end > self.capacity:
            raise RangeError(
                message(
                    "append",
                    "the cache is full",
                    got=end,
                    expected=f"at most {self.capacity} cells",
                    fix="make it with a larger capacity",
                )
            )

    def _check_draft(self, steps: int, draft: bool) -> None:
        if not isinstance(draft, bool | np.bool_):
            raise ShapeError(message("append", "draft", got=draft, expected="True or False"))
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

    def _write(self, start: int, k: Any, v: Any, committed: int) -> None:
        """Append checked values of the stored basis and commit."""
        steps = int(k.shape[0])
        end = start + steps
        row = rules.append(self._row, self.spec.state_layout, steps, committed)
        first = min(start, *(self._row[m] for m in rules.FRONTIER.values()))
        with self._pages.lock:
            pool, table = self._open(first, end)
            self.backend.append(
                pool,
                table,
                np.arange(start, end, dtype=np.int32),
                k,
                v,
                state=self._state,
                draft=committed < end,
                commit=None if steps else np.array([committed], np.int32),
            )
            self._row = row
            self._close(first, end)

    def commit(self, n: int) -> None:
        """Make drafts up to cell `n` final; later drafts stay drafts.

        Raises
        ------
        RangeError
            Unless committed <= n <= len.
        """
        with self._lock.writing():
            n = checked_cells("commit", "n", n, self.committed, len(self))
            if n > self.committed:
                self._write(len(self), *self._basis.empty(), n)

    def truncate(self, n: int) -> int:
        """Drop every cell from `n` on, drafts included.

        Parameters
        ----------
        n : int
            0 <= n <= len.

        Returns
        -------
        int
            Live cells that an undisturbed cache would read exactly and this one now reads from
            the quantized bulk: 0 means that nothing was lost. (A float16 or float32 bulk is exact.)

        Raises
        ------
        RangeError
            If `n` is out of range; nothing is changed.
        """
        with self._lock.writing():
            n = checked_cells("truncate", "n", n, 0, len(self))
            return 0 if n == len(self) else self._truncate(n)

    def _truncate(self, n: int) -> int:
        cut = rules.truncate(self._row, self.spec.state_layout, n)
        refixed = self._row[CENTRED] and not cut.row[CENTRED]
        self._saved = (self._saved[0], 0 if refixed else min(self._saved[1], n))
        self._set_row(cut.row)
        self._release(n)
        known = self._faithful if self._faithful < n else EVERYTHING
        self._trust(min(known, cut.faithful), self._refilled if n else 0)
        return cut.inexact

    # -- moving on ------------------------------------------------------------------------

    @property
    def can_shift(self) -> bool:
        """True if :meth:`shift` works for this cache's format."""
        from kvcore.shift import refusal

        return refusal(self) == ""

    def shift(self, keep: int, drop: int, rope: Any) -> int:
        """Drop cells [keep, keep + drop) and move the later ones down; see :mod:`kvcore.shift`.

        Parameters
        ----------
        keep, drop : int
        rope : callable or f32[pairs]
            Turns K to its new positions: ``rope(k, old, new)`` with k f32[n, H, Dk] and positions
            i64[n] returns k; or the angle by which each NEOX pair (i, i + pairs) of the first
            2 * pairs dims turns (that is ``-drop * inverse_frequency``).

        Returns
        -------
        int
            Moved cells that are read as exact but came from the quantized bulk.

        Raises
        ------
        UnsupportedError
            If :attr:`can_shift` is False; nothing is changed.
        RangeError, ShapeError
        """
        from kvcore.shift import shift

        return shift(self, keep, drop, rope)

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
        q = self._basis.query(q)
        with self._lock.reading():
            if k is not None or v is not None:
                k, v = self._own_chunk(q, k, v)
            if ids is not None:
                ids = self.backend.arrays.asarray(ids, "int", "attend", "ids")
                ids = ids.reshape(1, *ids.shape)
            options = {"scale": scale, "softcap": softcap, "window": window, "k": k, "v": v}
            out = self._attend(q, ids, options, return_lse)
        out, lse = out if return_lse else (out, None)
        out = self._basis.output(out)
        return (out, lse) if return_lse else out

    def _attend(self, q: Any, ids: Any, options: dict[str, Any], return_lse: bool) -> Any:
        length = np.array([len(self)], np.int32)
        return self.backend.attention(
            q,
            self.pool,
            self._table,
            length,
            ids=ids,
            state=self._state,
            return_lse=return_lse,
            **options,
        )

    def _own_chunk(self, q: Any, k: Any, v: Any) -> tuple[Any, Any]:
        if k is None or v is None:
            raise ShapeError("[attend] k and v come together: got one of them")
        k, v = self._basis.chunk("attend", k, v)
        if k.shape[0] != q.shape[0] or k.shape[0] > len(self):
            raise ShapeError(
                message(
                    "attend",
                    "k and v are not the last cells of the queries",
                    got=int(k.shape[0]),
                    expected=f"T={int(q.shape[0])}, stored before",
                )
            )
        return self._basis.stored(k, v)

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

        with self._lock.reading():
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

    def snapshot_since(self, base: bytes) -> Incremental:
        """Return the same bytes as :meth:`snapshot`, reusing those of an earlier one."""
        from kvcore.snapshot import save_incremental

        return save_incremental(self, base)

    def load(self, snapshot: bytes) -> None:
        """Replace the contents by those of a snapshot of the same spec.

        Raises
        ------
        ValueError
            Naming the field that is wrong; nothing is changed.
        """
        from kvcore.snapshot import load_into

        load_into(self, snapshot)
