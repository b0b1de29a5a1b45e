"""Sequences: many caches over one pool, written and read in batched calls."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from kvcore import marks as rules
from kvcore.errors import ShapeError, message
from kvcore.numerics import Array
from kvcore.packing import counts_of, runs, tables
from kvcore.pages import checked_cells
from kvcore.roster import Member, Roster


@dataclass(frozen=True, kw_only=True, slots=True)
class Resumed:
    """A sequence that continues from shared pages.

    Attributes
    ----------
    seq : int
    cells : int
        Leading cells it already holds; 0 if nothing matched.
    inexact : int
        Window cells that were refilled from the quantized bulk.
    """

    seq: int
    cells: int
    inexact: int


class Sequences(Roster):
    """Sequences over one pool of one layer. Made by ``backend.sequences(spec, n_pages)``.

    A sequence is a number; ``sequences[seq]`` is it as a :class:`kvcore.KVCache`, with all that
    one can do (read, commit, truncate, snapshot, load, shift). One writer at a time, or many
    readers. Rows of a call are laid one after the other ("packed") and ``counts`` says how many
    belong to each sequence, so that prefill and decode mix in one call. Neighbouring sequences
    with equal counts go to the device in one launch: name sequences in ascending order.

    Parameters
    ----------
    backend : Backend
    spec : CacheSpec
    n_pages : int
        Rounded up to whole units; no call takes more (see :meth:`grow`).
    """

    # -- writing --------------------------------------------------------------------------

    def append(
        self, seqs: Sequence[int], k: Any, v: Any, counts: Any = None, draft: Any = False
    ) -> None:
        """Store new cells of several sequences.

        Parameters
        ----------
        seqs : sequence of int
            Distinct.
        k : float[N, H, Dk]
            The rows of all sequences, one after the other.
        v : float[N, H, Dv]
        counts : i32[B], optional
            Rows of each sequence, 0 allowed; N / B each by default.
        draft : bool or bool[B]

        Raises
        ------
        OutOfPages
            If the pool has too few free pages for all; nothing is changed.
        ShapeError, RangeError
            Before anything is written.
        """
        k, v = self._basis.chunk("append", k, v)
        with self._lock.writing():
            members = self._all("append", seqs)
            steps = counts_of("append", counts, len(members), int(k.shape[0]))
            drafts = _flags(draft, len(members))
            ends = [len(m) + n for m, n in zip(members, steps, strict=True)]
            for m, n, end, d in zip(members, steps, ends, drafts, strict=True):
                m._check_room(end)
                m._check_draft(n, d)
            commits = [
                m.committed if d else e for m, e, d in zip(members, ends, drafts, strict=True)
            ]
            if k.shape[0]:
                k, v = self._basis.stored(k, v)
                self._write(members, k, v, steps, commits)

    def commit(self, seqs: Sequence[int], lengths: Any) -> None:
        """Make drafts of several sequences final; see :meth:`KVCache.commit`."""
        with self._lock.writing():
            members = self._all("commit", seqs)
            n = np.asarray(lengths).reshape(-1).tolist()
            if len(n) != len(members):
                raise ShapeError(
                    message("commit", "lengths", got=len(n), expected=f"{len(members)} of them")
                )
            for m, to in zip(members, n, strict=True):
                checked_cells("commit", "n", to, m.committed, len(m))
            self._write(members, *self._basis.empty(), [0] * len(members), n)

    def _write(
        self, members: list[Member], k: Any, v: Any, steps: list[int], commits: list[int]
    ) -> None:
        spans = []
        for m, n in zip(members, steps, strict=True):
            start = len(m)
            first = min(start, *(m._row[x] for x in rules.FRONTIER.values()))
            spans.append((first, start, start + n))
        self._reserve(members, spans)
        for m, (first, _, end) in zip(members, spans, strict=True):
            m._open(first, end)
        for i, j, rows in runs(members, steps, together=not k.shape[0]):
            group, n = members[i:j], steps[i]
            starts = np.array([s for _, s, _ in spans[i:j]], np.int32)
            self.backend.append(
                self._pages.pool,
                tables(group),
                starts[:, None] + np.arange(n, dtype=np.int32),
                self._batched(k, rows, j - i, n),
                self._batched(v, rows, j - i, n),
                state=self._part(group[0]._place, group[-1]._place + 1),
                draft=True,
                commit=np.array(commits[i:j], np.int32),
            )
            for m, to in zip(group, commits[i:j], strict=True):
                m._row = rules.append(m._row, self.spec.state_layout, n, to)

    def _batched(self, packed: Any, first: int, batch: int, steps: int) -> Any:
        part = self.backend.part(packed, first, first + batch * steps)
        return part.reshape(batch, steps, *packed.shape[1:])

    def _reserve(self, members: list[Member], spans: list[tuple[int, int, int]]) -> None:
        """Make sure that every sequence of a call gets its units, or change nothing."""
        need, writers = 0, Counter[int]()
        for m, (first, _, end) in zip(members, spans, strict=True):
            added, shared = m._lacking(first, end)
            need += added
            writers.update(m._units[shared].tolist())
        for unit, n in writers.items():  # the last owner keeps the unit itself
            need += n - (int(self._pages.users[unit]) == n)
        self._prefixes.reclaim(need)
        self._pages.require(need)

    def _all(self, op: str, seqs: Sequence[int]) -> list[Member]:
        numbers = self._numbers(op, seqs)
        if len(set(numbers)) != len(numbers):
            raise ShapeError(
                message(op, "a sequence is named twice", got=numbers, expected="distinct ones")
            )
        return [self._find(op, s) for s in numbers]

    # -- reading --------------------------------------------------------------------------

    def attend(
        self,
        seqs: Sequence[int],
        q: Any,
        counts: Any = None,
        k: Any = None,
        v: Any = None,
        scale: Any = None,
        ids: Any = None,
        window: Any = None,
        softcap: Any = None,
        return_lse: bool = False,
    ) -> Any:
        """Attend over each sequence's own cells, causally; see :meth:`KVCache.attend`.

        Parameters
        ----------
        seqs : sequence of int
        q : float[N, Q, Dk]
            The queries of all sequences, one after the other, at their last positions. An empty
            sequence gives 0.
        counts : i32[B], optional
            Queries of each sequence; N / B each by default.
        k, v : float[N, H, D], optional
            The calls' own chunks, read exactly.
        ids : i32[N, n], optional
            Cells that each query reads; -1 is skipped.
        scale, window, softcap, return_lse
            As for one sequence.

        Returns
        -------
        out : f32[N, Q, Dv]
        lse : f32[N, Q]
        """
        q = self._basis.query(q)
        with self._lock.reading():
            members = self._all("attend", seqs)
            steps = counts_of("attend", counts, len(members), int(q.shape[0]))
            own = self._own_rows(q, k, v)
            if ids is not None:
                ids = self.backend.arrays.asarray(ids, "int", "attend", "ids")
                if len(ids.shape) != 2 or ids.shape[0] != q.shape[0]:
                    raise ShapeError(
                        message(
                            "attend", "ids", got=tuple(ids.shape), expected=f"[{q.shape[0]}, n]"
                        )
                    )
            extra = {"scale": scale, "window": window, "softcap": softcap}
            found = [
                self._attend(members[i:j], steps[i], rows, q, own, ids, extra)
                for i, j, rows in runs(members, steps, together=False)
                if steps[i]
            ]
        n, heads = int(q.shape[0]), int(q.shape[1])
        out, lse = (
            self.backend.join([f[x] for f in found], shape)
            for x, shape in enumerate(((n, heads, self.spec.head_dim_v), (n, heads)))
        )
        out = self._basis.output(out)
        return (out, lse) if return_lse else out

    def _own_rows(self, q: Any, k: Any, v: Any) -> tuple[Any, Any]:
        if k is None and v is None:
            return None, None
        if k is None or v is None:
            raise ShapeError("[attend] k and v come together: got one of them")
        k, v = self._basis.chunk("attend", k, v)
        if k.shape[0] != q.shape[0]:
            raise ShapeError(
                message("attend", "rows of k and v", got=k.shape[0], expected=q.shape[0])
            )
        return self._basis.stored(k, v)

    def _attend(
        self,
        group: list[Member],
        n: int,
        first: int,
        q: Any,
        own: tuple[Any, Any],
        ids: Any,
        extra: dict[str, Any],
    ) -> tuple[Any, Any]:
        batch = len(group)
        ends = np.array([len(m) for m in group], np.int32)
        back = np.arange(n, dtype=np.int32) - (n - 1)
        out, lse = self.backend.attention(
            self._batched(q, first, batch, n),
            self._pages.pool,
            tables(group),
            np.maximum(ends[:, None] + back, 0),
            ids=None if ids is None else self._batched(ids, first, batch, n),
            state=self._part(group[0]._place, group[-1]._place + 1),
            k=None if own[0] is None else self._batched(own[0], first, batch, n),
            v=None if own[1] is None else self._batched(own[1], first, batch, n),
            return_lse=True,
            **extra,
        )
        rows = batch * n
        return out.reshape(rows, *out.shape[2:]), lse.reshape(rows, lse.shape[2])

    # -- sharing prefixes -----------------------------------------------------------------

    def links(self, cells: int) -> Array:
        """Return where the links of a key chain end, for a prompt of `cells` cells, i64[n].

        The first link covers sinks and the cells of an automatic centre, every further one a
        unit of pages; key i must depend on all tokens before the i-th end.
        """
        return self._prefixes.ends(cells)

    def publish(self, seq: int, keys: Sequence[Any]) -> int:
        """Let later sequences share this one's leading pages.

        Parameters
        ----------
        seq : int
        keys : sequence of hashable
            One per link; links that are not yet final in the bulk are left out.

        Returns
        -------
        int
            Cells that are published. Fewer than the keys name if a rollback or another centre
            left bytes that an undisturbed cache would not hold; 0 for a loaded or shifted
            sequence, whose history is not known.
        """
        chain = _chain("publish", keys)
        with self._lock.writing():
            return self._prefixes.publish(self._find("publish", seq), chain)

    def resume(self, keys: Sequence[Any]) -> Resumed:
        """Return a new sequence that starts with the longest published prefix of a chain."""
        chain = _chain("resume", keys)
        with self._lock.writing():
            member = self._new()
            cells, inexact = self._prefixes.resume(member, chain)
            return Resumed(seq=self._id_of(member), cells=cells, inexact=inexact)

    def deduplicate(self) -> int:
        """Share units whose final bytes are equal, whoever wrote them.

        Returns
        -------
        int
            Pages that became free.
        """
        with self._lock.writing():
            before = self.free_pages
            self._prefixes.deduplicate(list(self._members.values()))
            return self.free_pages - before

    def forget_prefixes(self) -> None:
        """Give up every published prefix that no sequence uses any more."""
        with self._lock.writing():
            self._prefixes.forget()


def _chain(op: str, keys: Sequence[Any]) -> list[Any]:
    """Return the keys as a list, or raise ShapeError before anything is touched."""
    try:
        chain = list(keys)
        hash(tuple(chain))
    except TypeError as error:
        raise ShapeError(
            message(op, "keys", got=f"{type(keys).__name__} ({error})",
                    expected="a sequence of hashable values")
        ) from error  # fmt: skip
    return chain


def _flags(draft: Any, batch: int) -> list[bool]:
    """Return one flag per sequence, or raise ShapeError."""
    flags = np.asarray(draft)
    if flags.dtype != np.bool_ or flags.shape not in ((), (batch,)):
        raise ShapeError(
            message("append", "draft", got=flags.tolist(), expected=f"a bool or {batch} bools")
        )
    return [bool(f) for f in np.broadcast_to(flags, (batch,))]
