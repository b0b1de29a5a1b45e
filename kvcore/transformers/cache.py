"""KVCoreCache: transformers' Cache over kvcore's packed stores."""

from __future__ import annotations

import threading
import weakref
from typing import Any, NoReturn

import numpy as np
import torch
from transformers.cache_utils import Cache

import kvcore
from kvcore.errors import RangeError, message
from kvcore.transformers.layer import KVCoreLayer
from kvcore.transformers.refused import no_pickle, other_columns, unfinished, wrong_attention

OWNER = "_kvcore_cache"

_latest = threading.local()  # the cache that this thread's model updated last


class KVCoreCache(Cache):  # type: ignore[misc]
    """The cache argument of ``model(...)`` and ``model.generate(...)``.

    A call that raises leaves it as it was before.

    Parameters
    ----------
    spec : CacheSpec, Format or str
        What every layer holds. A format's name brings its recipe and takes heads and head size
        from the model; a CacheSpec fixes everything.
    backend : str or Backend, optional
        The CPU by default; it must take tensors of the model's device.
    capacity : int, optional
        Cells a sequence, allocated at once: memory is then what ``kvcore.plan`` says. Without it
        memory grows with the text.

    Attributes
    ----------
    nbytes : int
        Bytes of all layers and sequences.

    Raises
    ------
    RangeError
        If the capacity is not a positive integer.
    """

    layers: list[KVCoreLayer]

    def __init__(
        self, spec: Any = "q4_0", backend: Any = "cpu", capacity: int | None = None
    ) -> None:
        self._spec, self._capacity = spec, _checked_capacity(capacity)
        self._backend = kvcore.get_backend(backend) if isinstance(backend, str) else backend
        self._records = False
        self._start(0)
        super().__init__(layers=[])

    def _start(self, columns: int) -> None:
        """Note that a forward pass begins (or none is under way) with this many columns."""
        self._before = columns
        self._served: set[int] = set()

    def _make(self) -> KVCoreLayer:
        layer = KVCoreLayer(self._spec, self._backend, self._capacity)
        if self._records:
            layer.activate_past_recording()
        return layer

    def update(
        self,
        key_states: torch.Tensor,
        value_states: torch.Tensor,
        layer_idx: int,
        *args: Any,
        **kwargs: Any,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Take a layer's new keys and values; see :meth:`KVCoreLayer.update`."""
        _latest.cache = weakref.ref(self)
        try:
            while len(self.layers) <= layer_idx:
                self.layers.append(self._make())
            layer = self.layers[layer_idx]
            if not self._served or layer_idx in self._served:
                self._begin(layer)
            elif self.waits:
                raise wrong_attention()
            if layer.get_seq_length() != self._before:
                raise other_columns(layer_idx, layer.get_seq_length(), self._before)
            key, value = layer.update(key_states, value_states, *args, **kwargs)
        except BaseException:
            self.undo()
            raise
        self._served.add(layer_idx)
        setattr(key, OWNER, self)
        return key, value

    def _begin(self, layer: KVCoreLayer) -> None:
        """Start a forward pass, unless the last one ended between two layers."""
        made = [x for x in self.layers if x.is_initialized]
        lengths = [x.get_seq_length() for x in made] or [0]
        self._start(self.get_seq_length())
        if len(made) > 1:  # then an attention that reads no pending keys meets the next layer's
            layer.drop_pending()
        if self.waits or len(set(lengths)) > 1 or not all(x.is_intact for x in made):
            raise unfinished(lengths, self._before)

    def undo(self) -> None:
        """Take back what the forward pass under way has stored."""
        for layer in self.layers:
            layer.undo(self._before)
        while self.layers and not self.layers[-1].is_initialized:
            self.layers.pop()
        self._start(self._before)

    @property
    def waits(self) -> bool:
        """True if a layer took keys and the attention function was never called on them."""
        return any(layer.waits for layer in self.layers)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Return the columns that all layers have seen, padding included.

        One number for all: after a call that ended in the middle of the model it is that from
        before, so that masks for the next call fit.
        """
        return min((x.get_seq_length() for x in self.layers if x.is_initialized), default=0)

    def get_mask_sizes(
        self, query_length: int | torch.Tensor, layer_idx: int = 0
    ) -> tuple[int, int]:
        """Return the columns of a mask, and the first one's position."""
        count = len(query_length) if isinstance(query_length, torch.Tensor) else query_length
        return self.get_seq_length() + count, 0

    def activate_past_recording(self) -> None:
        """Make speculative tokens leave no trace when they are cropped."""
        self._records = True
        for layer in self.layers:
            layer.activate_past_recording()

    def get_max_length(self, layer_idx: int | None = None) -> int:
        """Return the capacity, or -1 if it grows; layers are made when keys arrive."""
        return self._capacity or -1

    def get_max_cache_shape(self, layer_idx: int = 0) -> int:
        """Return the same: its name before transformers 5.15."""
        return self.get_max_length()

    @property
    def is_croppable(self) -> bool:
        """True: drafts are dropped without a trace."""
        return True

    @property
    def nbytes(self) -> int:
        """Bytes of all layers and sequences."""
        return sum(layer.nbytes for layer in self.layers)

    def fork(self) -> KVCoreCache:
        """Return a copy that shares full pages: the way to reuse a prefix."""
        twin = object.__new__(KVCoreCache)
        twin.__dict__.update(self.__dict__)
        twin.layers = [layer.fork() for layer in self.layers]
        twin._served = set(self._served)
        return twin

    def __copy__(self) -> KVCoreCache:
        return self.fork()

    def __deepcopy__(self, memo: dict[int, Any]) -> KVCoreCache:
        return self.fork()

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        no_pickle(type(self).__name__)


def waiting_cache() -> KVCoreCache | None:
    """Return this thread's last cache if keys wait in it: then a model attends without them."""
    cache: KVCoreCache | None = getattr(_latest, "cache", lambda: None)()
    return cache if cache is not None and cache.waits else None


def _checked_capacity(given: Any) -> int | None:
    if given is None:
        return None
    if isinstance(given, (int, np.integer)) and not isinstance(given, bool) and given > 0:
        return int(given)
    raise RangeError(
        message(
            "KVCoreCache", "capacity", got=repr(given), expected="a positive integer of cells",
            fix="leave it out for a cache that grows",
        )
    )  # fmt: skip
