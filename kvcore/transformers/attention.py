"""The attention function that transformers calls by the name "kvcore"."""

from __future__ import annotations

from typing import Any

import torch

from kvcore.errors import UnsupportedError, message
from kvcore.transformers.cache import OWNER, waiting_cache
from kvcore.transformers.layer import HANDLE, KVCoreLayer
from kvcore.transformers.mask import Bools, padding_mask, read_mask
from kvcore.transformers.refused import ANOTHER, changed, no_cache, shown, unsupported

NAME = "kvcore"

_REFUSED = {
    "s_aux": "learned attention sinks",
    "position_bias": "a position bias",
    "head_mask": "a head mask",
    "output_attentions": "attention weights as output",
}


def attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    softcap: float | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Store the new cells and attend over the packed cache.

    Parameters
    ----------
    module : Module
        Its ``sliding_window`` must be that of the mask.
    query : Tensor [B, Q, T, D]
    key : Tensor [B, H, T, D]
        The new keys as :meth:`KVCoreCache.update` returned them.
    value : Tensor
        Likewise.
    attention_mask : Tensor [B, columns] or None
        As :func:`~kvcore.transformers.mask.padding_mask` made it; the window is taken from it.
    scaling, softcap : float, optional
    dropout : float
        Must be 0.

    Returns
    -------
    out : Tensor [B, T, Q, D]
        0 at padding.
    weights : None

    Raises
    ------
    UnsupportedError, ShapeError, RangeError
        No KVCoreCache, something that packed caches do not serve, or no room. All layers are left
        as they were before the model was called.
    """
    layer = getattr(key, HANDLE, None)
    owner = getattr(key, OWNER, None) or waiting_cache()
    try:
        if not isinstance(layer, KVCoreLayer):
            if owner is None:
                raise no_cache(module)
            raise changed(module, "other keys, computed from the cache's")
        if not layer.waits:
            raise changed(module, "a second call")
        if not layer.is_pending(value):
            raise changed(module, "other values")
        _check_options(module, dropout, kwargs)
        valid, window = _check_mask(module, layer, attention_mask, key.shape[2], kwargs)
        if torch.is_grad_enabled() and any(x.requires_grad for x in (query, key, value)):
            raise unsupported("keys or queries with gradients", "run under torch.no_grad()")
        out = layer.attend(query, valid, scale=scaling, window=window, softcap=softcap)
    except BaseException:
        if owner is not None:
            owner.undo()
        raise
    return out, None


def _check_options(module: torch.nn.Module, dropout: float, kwargs: dict[str, Any]) -> None:
    for name, what in _REFUSED.items():
        if kwargs.get(name) is not None and kwargs[name] is not False:
            raise unsupported(what)
    if dropout:
        raise unsupported(f"dropout {dropout}")
    if not getattr(module, "is_causal", True):
        raise unsupported("attention that is not causal")


def _check_mask(
    module: torch.nn.Module,
    layer: KVCoreLayer,
    mask: torch.Tensor | None,
    count: int,
    kwargs: dict[str, Any],
) -> tuple[Bools, int | None]:
    """Return which new columns are tokens, and the window."""
    columns, width = read_mask(mask, layer.seen, count)
    declared = kwargs.get("sliding_window", getattr(module, "sliding_window", None)) or None
    if declared is not None:
        # A window that the text has not outgrown yet does not show in the mask.
        shows = declared if declared < columns.shape[1] else None
        if shows != width:
            raise UnsupportedError(
                message(
                    "attention", f"window of {type(module).__name__}", got=shown(declared),
                    expected=f"{shown(width)} as in its mask", fix=ANOTHER,
                )
            )  # fmt: skip
    cuts = declared is not None or width is not None
    if cuts and (columns[:, :-1] & ~columns[:, 1:]).any():
        raise unsupported("a sliding window with padding after tokens", "pad on the left")
    return columns[:, columns.shape[1] - count :], width


__all__ = ["NAME", "attention", "padding_mask"]
