"""Merge attentions over disjoint sets of cells into the attention over all of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from kvcore.backend import Backend


def merge_parts(backend: Backend, parts: list[tuple[Any, Any]]) -> tuple[Any, Any]:
    """Return (out, lse) over the union of the parts' cells.

    Parameters
    ----------
    backend : Backend
    parts : list of (f32[..., Q, Dv], f32[..., Q])
        Output and log of the softmax's sum of each part; -inf and 0 where it saw no cell.

    Notes
    -----
    lse = log sum exp(lse_i), out = sum exp(lse_i - lse) out_i, in float64 on the host.
    """
    outs = np.stack([np.asarray(backend.to_host(o), np.float64) for o, _ in parts])
    sums = np.stack([np.asarray(backend.to_host(s), np.float64) for _, s in parts])
    top = sums.max(axis=0)
    weights = np.exp(sums - np.where(np.isfinite(top), top, 0.0))
    total = weights.sum(axis=0)
    with np.errstate(divide="ignore"):
        lse = np.where(total > 0, top + np.log(total), -np.inf)
    shares = weights / np.where(total > 0, total, 1.0)
    out = (outs * shares[..., None]).sum(axis=0)
    merged = []
    for values in (out, lse):
        array = backend.allocate(values.shape, "f4")
        backend.write(array, values.astype(np.float32))
        merged.append(array)
    return merged[0], merged[1]
