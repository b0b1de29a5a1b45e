"""One layer of a KVCoreCache: a kvcore cache per sequence, attended where it lies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt
import torch
from transformers.cache_utils import CacheLayerMixin

import kvcore
from kvcore.cache import KVCache
from kvcore.errors import RangeError, ShapeError, message
from kvcore.spec import MAX_DRAFT
from kvcore.torch import as_array, as_tensor
from kvcore.transformers.refused import no_pickle

Bools = npt.NDArray[np.bool_]
HANDLE = "_kvcore_layer"

_GROWS_TO = 1 << 24
_SAYS_WHEN_TO_RECORD = hasattr(CacheLayerMixin, "activate_past_recording")  # from 5.15 on


class KVCoreLayer(CacheLayerMixin):  # type: ignore[misc]
    """The caches of one layer, one per sequence of the batch.

    Parameters
    ----------
    spec : CacheSpec, Format or str
        A format takes heads and head size from the first keys.
    backend : Backend
    capacity : int, optional
        Cells a sequence, taken at once; without it pages are taken as cells arrive.
    """

    is_compileable = False
    is_croppable = True
    is_sliding = False

    def __init__(self, spec: Any, backend: Any, capacity: int | None = None) -> None:
        super().__init__()
        self._spec, self._backend, self._capacity = spec, backend, capacity
        self.rows: list[KVCache] = []
        self.record_past = not _SAYS_WHEN_TO_RECORD
        self._seen: Bools = np.zeros((0, 0), np.bool_)  # never written: forks share it
        self._pending: tuple[torch.Tensor, torch.Tensor] | None = None

    @property
    def batch_size(self) -> int:
        """Sequences; -1 before the first keys."""
        return len(self.rows) or -1

    @property
    def waits(self) -> bool:
        """True if keys came in and the attention function was never called on them."""
        return self._pending is not None

    @property
    def seen(self) -> Bools:
        """Which columns of the calls before were tokens: bool[B, columns]."""
        return self._seen

    @property
    def is_intact(self) -> bool:
        """True if every sequence holds the tokens that were seen."""
        return np.array_equal([len(row) for row in self.rows], self._seen.sum(1))

    def is_pending(self, value: torch.Tensor) -> bool:
        """Return whether these are the values that :meth:`update` returned."""
        if self._pending is None:
            return False
        own = self._pending[1]
        return value is own or bool(
            value.data_ptr() == own.data_ptr()
            and value.shape == own.shape
            and value.stride() == own.stride()
        )

    @property
    def nbytes(self) -> int:
        """Bytes of all sequences (pages that beams share are counted for each)."""
        return sum(row.nbytes for row in self.rows)

    # -- what transformers calls ------------------------------------------------------------

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Make the caches from the first keys [B, H, T, D]."""
        batch, heads, _, dim = key_states.shape
        spec = self._spec
        if not isinstance(spec, kvcore.CacheSpec):
            spec = kvcore.CacheSpec(
                format=spec, n_kv_heads=heads, head_dim=dim, head_dim_v=value_states.shape[-1]
            )
        self._check(spec, key_states, value_states)
        self._backend.require(spec)
        capacity = self._capacity or _GROWS_TO
        reserve = None if self._capacity else 0
        self.rows = [KVCache(self._backend, spec, capacity, reserve=reserve) for _ in range(batch)]
        self._seen = np.zeros((batch, 0), np.bool_)
        self.dtype, self.device = key_states.dtype, key_states.device
        self.is_initialized = True

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Take new keys and values [B, H, T, D]; the attention function stores and reads them."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        spec = self.rows[0].spec
        self._check(spec, key_states, value_states)
        if key_states.shape[0] != len(self.rows):
            raise ShapeError(
                message("cache", "batch", got=key_states.shape[0], expected=len(self.rows))
            )
        self._pending = (key_states, value_states)
        handle = key_states.view_as(key_states)  # a tensor of our own to hang the layer on
        setattr(handle, HANDLE, self)
        return handle, value_states

    def get_mask_sizes(self, query_length: int | torch.Tensor) -> tuple[int, int]:
        """Return the columns of a mask, and the first one's position.

        Before transformers 5.4 the argument is the positions of the queries.
        """
        count = len(query_length) if isinstance(query_length, torch.Tensor) else query_length
        return self.get_seq_length() + count, 0

    def get_seq_length(self) -> int:
        """Return the columns seen, padding included."""
        return int(self._seen.shape[1])

    def get_max_length(self) -> int:
        """Return the capacity, or -1 if it grows."""
        return self._capacity or -1

    def get_max_cache_shape(self) -> int:
        """Return the same: its name before transformers 5.15."""
        return self.get_max_length()

    def activate_past_recording(self) -> None:
        """Keep short appends as drafts until the next :meth:`crop`, so that they leave no trace.

        Before transformers 5.15 nobody calls this, and short appends always are drafts.
        """
        self.record_past = True

    def crop(self, tokens_to_remove: int) -> None:
        """Drop the last ``-tokens_to_remove`` columns and make the rest final.

        A positive number is the length to keep, as transformers before 5.15 gives it.
        """
        given, length = int(tokens_to_remove), self.get_seq_length()
        n = max(length - given, 0) if given > 0 else -given
        if n > length:
            expected = f"{-length} to 0, the negative number of tokens to drop"
            raise RangeError(message("crop", "tokens_to_remove", got=given, expected=expected))
        self._pending = None
        self._cut(length - n)
        self._settle()

    def drop_pending(self) -> None:
        """Forget keys that came in and were not attended: nothing of them is stored."""
        self._pending = None

    def undo(self, columns: int) -> None:
        """Go back to the columns before a call that failed, whatever is stored of it.

        Without any, the heads, head sizes and sequences of that call are forgotten too.
        """
        self._pending = None
        if columns:
            self._cut(columns)
        else:
            self.reset()

    def _cut(self, columns: int) -> None:
        self._seen = self._seen[:, :columns]
        for row, count in zip(self.rows, self._seen.sum(1).tolist(), strict=True):
            row.truncate(min(len(row), count))

    def reset(self) -> None:
        """Forget everything."""
        self.rows, self._pending = [], None
        self._seen = np.zeros((0, 0), np.bool_)
        self.is_initialized = False

    def reorder_cache(self, beam_idx: torch.LongTensor) -> None:
        """Continue each beam from the one it came from; beams of one parent share its pages."""
        self._select(beam_idx.tolist())

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Repeat every sequence."""
        self._select([i for i in range(len(self.rows)) for _ in range(repeats)])

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        """Keep some sequences; a mask of booleans selects as well.

        Raises
        ------
        RangeError
            If an index is out of range or none is given; nothing is changed.
        """
        chosen = indices
        if indices.dtype == torch.bool:
            if self.rows and indices.shape != (len(self.rows),):
                expected = f"({len(self.rows)},)"
                raise RangeError(
                    message(
                        "cache", "mask of sequences", got=tuple(indices.shape), expected=expected
                    )
                )
            chosen = indices.nonzero().flatten()
        self._select(chosen.flatten().tolist())

    def fork(self) -> KVCoreLayer:
        """Return a copy that shares full pages until either is written."""
        twin = KVCoreLayer(self._spec, self._backend, self._capacity)
        twin.__dict__.update(self.__dict__)
        twin._pending = None
        self._settle()
        twin.rows = [row.fork() for row in self.rows]
        return twin

    def __copy__(self) -> KVCoreLayer:
        return self.fork()

    def __deepcopy__(self, memo: dict[int, Any]) -> KVCoreLayer:
        return self.fork()

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        no_pickle(type(self).__name__)

    # -- what the attention function calls ----------------------------------------------------

    def attend(
        self,
        query: torch.Tensor,
        valid: Bools | None,
        *,
        scale: float | None,
        window: int | None,
        softcap: float | None,
    ) -> torch.Tensor:
        """Store the pending cells and attend from query [B, Q, T, D]; returns [B, T, Q, Dv].

        Parameters
        ----------
        query : Tensor
        valid : bool[B, T] or None
            Which of the new columns are tokens; None: all. Padding is not stored.
        scale, softcap : float, optional
        window : int, optional
            Of a sliding-window layer, in cells.

        Raises
        ------
        RangeError
            If a sequence has no room; then nothing is stored. After any other error
            :meth:`undo` takes back the sequences that were.
        """
        if self._pending is None:
            raise ShapeError("[attention] no keys are pending: got a second call, expected one")
        keys, values = self._pending
        batch, _, count, _ = keys.shape
        if valid is None:
            valid = np.ones((batch, count), np.bool_)
        self._check_room(valid)
        out = torch.zeros(
            (batch, count, query.shape[1], values.shape[-1]), dtype=query.dtype, device=self.device
        )
        options = {"scale": scale, "window": window, "softcap": softcap}
        for b, row in enumerate(self.rows):
            k, v, q = (x[b].transpose(0, 1) for x in (keys, values, query))
            if not valid[b].all():
                here = torch.from_numpy(valid[b]).to(self.device)
                k, v, q = k[here], v[here], q[here]
                if len(k):
                    out[b, here] = self._row(row, k, v, q, options)
            else:
                out[b] = self._row(row, k, v, q, options)
        self._seen, self._pending = np.concatenate([self._seen, valid], 1), None
        return out

    def _check_room(self, valid: Bools) -> None:
        """Look at all sequences before one stores; the layers after hold the same counts."""
        for row, new in zip(self.rows, valid.sum(1).tolist(), strict=True):
            if len(row) + new > row.capacity:
                raise RangeError(
                    message(
                        "attention",
                        "the cache is full",
                        got=len(row) + new,
                        expected=f"at most {row.capacity} cells",
                        fix="make it with a larger capacity, or crop() it",
                    )
                )

    def _row(
        self,
        row: KVCache,
        k: torch.Tensor,
        v: torch.Tensor,
        q: torch.Tensor,
        options: dict[str, Any],
    ) -> torch.Tensor:
        """Store and attend for one sequence: [T, Q, Dv]."""
        count, past = len(k), len(row)
        keys, values = as_array(k), as_array(v)
        drafts = self.record_past and past > 0 and count <= MAX_DRAFT
        if len(row) > row.committed and (
            not drafts or len(row) - row.committed + count > MAX_DRAFT
        ):
            row.commit(len(row))
        row.append(keys, values, draft=drafts)
        # A prompt reads its own cells exactly; decode steps and short verify windows read what
        # is stored, so that speculation gives the tokens of plain decoding.
        own = {"k": keys, "v": values} if count > MAX_DRAFT or not past else {}
        return as_tensor(row.attend(as_array(q), **own, **options)).to(q.dtype)

    def _select(self, indices: Sequence[int]) -> None:
        count = len(self.rows)
        if not count:  # no keys yet: the first ones bring their own number of sequences
            return
        if not indices or not all(-count <= i < count for i in indices):
            expected = f"one or more of {-count} to {count - 1}"
            raise RangeError(message("cache", "sequences", got=list(indices), expected=expected))
        self._settle()
        used: set[int] = set()
        rows = []
        for i in (i % count for i in indices):
            rows.append(self.rows[i].fork() if i in used else self.rows[i])
            used.add(i)
        self.rows = rows
        self._seen = self._seen[list(indices)]

    def _settle(self) -> None:
        for row in self.rows:
            row.commit(len(row))

    def _check(self, spec: kvcore.CacheSpec, k: torch.Tensor, v: torch.Tensor) -> None:
        got = (k.shape[1], k.shape[-1], v.shape[-1])
        expected = (spec.n_kv_heads, spec.head_dim, spec.head_dim_v)
        if got != expected:
            what = "the model's KV heads and head sizes"
            raise ShapeError(message("cache", what, got=got, expected=expected))
