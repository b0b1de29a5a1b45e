"""kvcore caches for the layers of a model."""

from __future__ import annotations

from typing import Any

import kvcore
from kvcore.errors import ShapeError, message
from kvcore.lab.config import ModelConfig
from kvcore.lab.engine import CacheFactory, LayerCache


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
        cache: LayerCache = backend.cache(spec, capacity=capacity)
        return cache

    return make
