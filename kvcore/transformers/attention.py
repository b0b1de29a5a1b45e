"""The attention function and the mask function that transformers calls by the name "kvcore"."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from kvcore.errors import UnsupportedError, message
from kvcore.transformers.layer import HANDLE, KVCoreLayer, wrong_attention

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
        Its ``sliding_window`` is applied.
    query : Tensor [B, Q, T, D]
    key : Tensor [B, H, T, D]
        The new keys as :meth:`KVCoreCache.update` returned them.
    value : Tensor
    attention_mask : bool[B, columns] or None
        As :func:`padding_mask` made it.
    scaling, softcap : float, optional
    dropout : float
        Must be 0.

    Returns
    -------
    out : Tensor [B, T, Q, D]
    weights : None

    Raises
    ------
    UnsupportedError
        No KVCoreCache, or an option that packed caches do not serve. Nothing is stored.
    """
    layer = getattr(key, HANDLE, None)
    if not isinstance(layer, KVCoreLayer):
        got = "no cache, or another one"
        raise UnsupportedError(
            message(
                "attention", "the cache", got=got, expected="a KVCoreCache",
                fix="pass one as the model's cache, or set another attention implementation",
            )
        )  # fmt: skip
    for name, what in _REFUSED.items():
        if kwargs.get(name) is not None and kwargs[name] is not False:
            raise _unsupported(what)
    if dropout:
        raise _unsupported(f"dropout {dropout}")
    if not getattr(module, "is_causal", True):
        raise _unsupported("attention that is not causal")
    window = kwargs.get("sliding_window", getattr(module, "sliding_window", None)) or None
    valid = None
    if attention_mask is not None:
        if attention_mask.ndim != 2:
            raise _unsupported(f"a mask of shape {tuple(attention_mask.shape)}")
        columns = attention_mask.bool()
        valid = columns[:, -key.shape[2] :].cpu().numpy()
        if window is not None and (columns[:, :-1] & ~columns[:, 1:]).any():
            raise _unsupported("a sliding window with padding after tokens")
    out = layer.attend(query, valid, scale=scaling, window=window, softcap=softcap)
    return out, None


def padding_mask(
    batch_size: int,
    q_length: int = 0,
    kv_length: int = 0,
    q_offset: int = 0,
    kv_offset: int = 0,
    mask_function: Callable[..., torch.Tensor] | None = None,
    attention_mask: torch.Tensor | None = None,
    cache_position: torch.Tensor | None = None,
    **kwargs: Any,
) -> torch.Tensor | None:
    """Return which columns are tokens, bool[B, columns]; None if all are.

    transformers passes names only; before 5.4 it is ``cache_position``, the positions of the
    queries, instead of ``q_length`` and ``q_offset``.

    Raises
    ------
    UnsupportedError
        The model's mask is neither causal nor a sliding window.
    """
    if cache_position is not None:
        q_length, q_offset = len(cache_position), int(cache_position[0])
    if mask_function is not None:
        _check_causal(mask_function, batch_size, q_length, kv_length, int(q_offset), kv_offset)
    if attention_mask is None or bool(attention_mask.all()):
        return None
    return attention_mask[:, :kv_length].bool()


def _check_causal(
    mask_function: Callable[..., torch.Tensor],
    batch: int,
    q_length: int,
    kv_length: int,
    q_offset: int,
    kv_offset: int,
) -> None:
    """Look at the first and the last query: each sees a run of cells that ends with its own."""
    b = torch.arange(batch)[:, None, None]
    q = torch.tensor([q_offset, q_offset + q_length - 1])[None, :, None]
    cells = (torch.arange(kv_length) + kv_offset)[None, None, :]
    seen = torch.as_tensor(mask_function(b, torch.zeros_like(b), q, cells))
    seen = torch.broadcast_to(seen, (batch, 2, kv_length))
    count = seen.sum(-1, keepdim=True)
    if not torch.equal(seen, (cells <= q) & (cells > q - count)):
        raise _unsupported("a mask that is neither causal nor a sliding window (packed sequences?)")


def _unsupported(what: str) -> UnsupportedError:
    fix = "use another attention implementation"
    return UnsupportedError(
        message("attention", "not served by packed caches", got=what, expected="none", fix=fix)
    )


__all__ = ["NAME", "attention", "padding_mask", "wrong_attention"]
