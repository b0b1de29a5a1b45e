"""KVCoreCache: transformers' Cache over kvcore's packed stores."""

from __future__ import annotations

from typing import Any

import torch
from transformers.cache_utils import Cache

import kvcore
from kvcore.transformers.layer import KVCoreLayer, wrong_attention


class KVCoreCache(Cache):  # type: ignore[misc]
    """The cache argument of ``model(...)`` and ``model.generate(...)``.

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
    """

    layers: list[KVCoreLayer]

    def __init__(
        self, spec: Any = "q4_0", backend: Any = "cpu", capacity: int | None = None
    ) -> None:
        be = kvcore.get_backend(backend) if isinstance(backend, str) else backend

        def make() -> KVCoreLayer:
            return KVCoreLayer(spec, be, capacity)

        self._make, self._capacity = make, capacity
        super().__init__(layers=[])

    def update(
        self,
        key_states: torch.Tensor,
        value_states: torch.Tensor,
        layer_idx: int,
        *args: Any,
        **kwargs: Any,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Take a layer's new keys and values; see :meth:`KVCoreLayer.update`."""
        while len(self.layers) <= layer_idx:
            self.layers.append(self._make())
        if any(layer.waits for layer in self.layers):
            raise wrong_attention()
        return self.layers[layer_idx].update(key_states, value_states, *args, **kwargs)

    def activate_past_recording(self) -> None:
        """Make speculative tokens leave no trace when they are cropped."""
        make = self._make

        def recording() -> KVCoreLayer:
            layer = make()
            layer.activate_past_recording()
            return layer

        self._make = recording
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
        return twin

    def __deepcopy__(self, memo: dict[int, Any]) -> KVCoreCache:
        return self.fork()
