"""kvcore caches for the layers of a model."""

from __future__ import annotations

from typing import Any

import numpy as np

import kvcore
from kvcore.errors import ShapeError, message
from kvcore.lab.config import ModelConfig
from kvcore.lab.engine import CacheFactory, LayerCache
from kvcore.lab.weights import Floats


def spec_for(config: ModelConfig, format: Any, **overrides: Any) -> kvcore.CacheSpec:
    """Return the cache specification of one layer of a model.

    Parameters
    ----------
    config : ModelConfig
        Gives the heads and their size.
    format : str or Format
    **overrides
        Other fields of `CacheSpec`, such as ``window=0`` or ``recipe=None``.

    Raises
    ------
    FormatError
        The format cannot hold heads of this size, or a field is not usable.
    """
    return kvcore.CacheSpec(
        format=format, n_kv_heads=config.n_kv_heads, head_dim=config.head_dim, **overrides
    )


class HostCache:
    """A kvcore cache whose answers come back as NumPy arrays, whatever device it is on."""

    def __init__(self, cache: kvcore.KVCache) -> None:
        self.cache = cache

    def append(self, k: Floats, v: Floats) -> None:
        """Store the next T cells."""
        self.cache.append(k, v)

    def attend(
        self,
        q: Floats,
        *,
        k: Floats | None = None,
        v: Floats | None = None,
        scale: float | None = None,
        window: int | None = None,
    ) -> Floats:
        """Attend from the last T positions; see `kvcore.KVCache.attend`."""
        out = self.cache.attend(q, k=k, v=v, scale=scale, window=window)
        return np.asarray(self.cache.backend.to_host(out), np.float32)

    def truncate(self, n: int) -> int:
        """Drop the cells from n on; returns how many live ones became inexact."""
        return self.cache.truncate(n)

    def __len__(self) -> int:
        return len(self.cache)

    @property
    def nbytes(self) -> int:
        """Bytes of pages, exact cells and bookkeeping."""
        return self.cache.nbytes


def cache_factory(
    config: ModelConfig, spec: kvcore.CacheSpec, backend: Any, capacity: int
) -> CacheFactory:
    """Return what makes the kvcore cache of each layer.

    Parameters
    ----------
    config : ModelConfig
    spec : CacheSpec
        The same for every layer.
    backend : Backend
        As `kvcore.get_backend` returns it.
    capacity : int
        Cells per layer.

    Raises
    ------
    ShapeError
        The specification is for other heads than the model has.
    """
    got = (spec.n_kv_heads, spec.head_dim, spec.head_dim_v)
    expected = (config.n_kv_heads, config.head_dim, config.head_dim)
    if got != expected:
        what, fix = f"KV heads and head sizes for {config.name}", "make the spec with spec_for"
        raise ShapeError(message("caches", what, got=got, expected=expected, fix=fix))

    def make(layer: int, n_kv_heads: int, head_dim: int) -> LayerCache:
        return HostCache(backend.cache(spec, capacity=capacity))

    return make
