"""The mask function of "kvcore", and what the attention function reads from its masks.

Where no window cuts, a mask is bool[B, columns], or None if all columns are tokens. Where a window
cuts it is i32[B, columns] with minus the window's width at tokens and 0 at padding: some models
have their window in the mask only, and transformers hands each layer the mask of its kind.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from kvcore.errors import ShapeError, message
from kvcore.transformers.refused import unsupported

Bools = npt.NDArray[np.bool_]

_LOOKED_AT = 1 << 22  # entries of a mask function that one call evaluates


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
    """Return which columns are tokens and how far a query sees, as the module says.

    transformers passes names only; before 5.4 it is ``cache_position``, the positions of the
    queries, instead of ``q_length`` and ``q_offset``.

    Raises
    ------
    UnsupportedError
        The model's mask is neither causal nor a sliding window.
    ShapeError
        The mask has other columns than the cache's and the call's.
    """
    if cache_position is not None:
        q_length, q_offset = len(cache_position), int(cache_position[0])
    width = None
    if mask_function is not None:
        width = _width(mask_function, batch_size, q_length, kv_length, int(q_offset), kv_offset)
    if attention_mask is not None:
        _check_shape(tuple(attention_mask.shape), (batch_size, kv_length))
        attention_mask = attention_mask.bool()
    if width is not None:
        if attention_mask is None:
            attention_mask = torch.ones((batch_size, kv_length), dtype=torch.bool)
        return attention_mask.to(torch.int32) * -width
    if attention_mask is None or bool(attention_mask.all()):
        return None
    return attention_mask


def read_mask(mask: torch.Tensor | None, seen: Bools, count: int) -> tuple[Bools, int | None]:
    """Return the columns that are tokens and the mask's window; None if it does not cut.

    Parameters
    ----------
    mask : Tensor or None
        As :func:`padding_mask` made it.
    seen : bool[B, past]
        The tokens among the columns before.
    count : int
        New columns.

    Raises
    ------
    UnsupportedError
        The mask hides what is stored or shows what is not, or the last column is padding.
    ShapeError
    """
    batch, past = seen.shape
    width = None
    if mask is None:
        columns = np.ones((batch, past + count), np.bool_)
    else:
        if mask.ndim != 2 or mask.is_floating_point():
            raise unsupported(f"a mask of shape {tuple(mask.shape)} and {mask.dtype}")
        _check_shape(tuple(mask.shape), (batch, past + count))
        host = mask.cpu().numpy()
        columns = host != 0
        width = -int(host.min()) if mask.dtype != torch.bool and host.min() < 0 else None
    if not np.array_equal(columns[:, :past], seen):
        raise unsupported(
            "a mask whose earlier columns are not those of the calls before",
            "give the same padding in every call; crop() drops tokens from the end",
        )
    if count and not columns[:, -1].all():
        rows = np.flatnonzero(~columns[:, -1]).tolist()
        raise unsupported(f"padding in the last column (of rows {rows})", "pad on the left")
    return columns, width


def _check_shape(got: tuple[int, ...], expected: tuple[int, int]) -> None:
    if got != expected:
        raise ShapeError(
            message(
                "attention",
                "shape of the mask",
                got=got,
                expected=f"{expected}: sequences, and columns of the cache and the call",
                fix="let the mask cover the earlier tokens too",
            )
        )


def _width(
    mask_function: Callable[..., torch.Tensor],
    batch: int,
    q_length: int,
    kv_length: int,
    q_offset: int,
    kv_offset: int,
) -> int | None:
    """Return the window, None if the last query sees all: each query sees a run up to its cell.

    Looked at are all queries, in long prompts a spread of them, and always the last two: there a
    chunk's runs differ in length and a window's do not.
    """
    last = q_offset + q_length - 1
    step = max(1, batch * q_length * kv_length // _LOOKED_AT)
    positions = {*range(q_offset, last + 1, step), max(last - 1, 0), last}
    q = torch.tensor(sorted(positions))[None, :, None]
    b = torch.arange(batch)[:, None, None]
    cells = (torch.arange(kv_length) + kv_offset)[None, None, :]
    seen = torch.as_tensor(mask_function(b, torch.zeros_like(b), q, cells))
    seen = torch.broadcast_tensors(seen, cells <= q)[0]
    width = int(seen[0, -1].sum())
    if not width or bool((seen != ((cells <= q) & (cells > q - width))).any()):
        raise unsupported("a mask that is neither causal nor a sliding window (packed sequences?)")
    return width if width < kv_length else None
