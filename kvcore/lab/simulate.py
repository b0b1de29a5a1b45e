"""Measuring arms that are no formats of kvcore: what other papers do, on plain arrays.

Each is a function from K and V to what a cache of that kind would read back. They exist to be
measured beside kvcore's formats; nothing serves them and their bytes are counted, not stored.

Sources: KIVI (Liu et al. 2024): asymmetric min/max, K per channel over 32 cells, V per cell over
32 dims, the open group exact. SKVQ (Duanmu et al. 2024): channels reordered so that those of one
range share a group, and a clipped range per group, both fixed by a calibration.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from kvcore.lab.exact import attend
from kvcore.lab.weights import Floats

GROUP = 32
CALIBRATION_CELLS = 128
CLIPS = tuple(1.0 - 0.05 * i for i in range(11))
"""Shares of the range that the clipping search tries: 1 down to 0.5."""

Quantize = Callable[[Floats], Floats]


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulation:
    """A pair of quantizers made for one layer.

    Attributes
    ----------
    name : str
    fit : callable (k, v) -> (quantize K, quantize V)
        Looks at a calibration, float32[N, H, D] each; the quantizers take [m * 32, H, D].
    bits : float
        Per value, scales and zero points included.
    about : str
    """

    name: str
    fit: Callable[[Floats, Floats], tuple[Quantize, Quantize]]
    bits: float
    about: str

    def bytes_per_cell(self, n_kv_heads: int, head_dim: int) -> float:
        """Bytes of K and V of one cell."""
        return 2 * n_kv_heads * head_dim * self.bits / 8


def to_half(x: npt.ArrayLike) -> Floats:
    """Round to float16 and back."""
    return np.asarray(x, np.float32).astype(np.float16).astype(np.float32)


def affine(x: Floats, low: Floats, high: Floats, bits: int) -> Floats:
    """Quantize to 2**bits levels between low and high, step and zero point in float16."""
    steps = np.float32(2**bits - 1)
    step, zero = to_half((high - low) / steps), to_half(low)
    safe = np.where(step > 0, step, np.float32(1))
    codes = np.clip(np.rint((x - zero) / safe), 0, steps)
    out: Floats = np.where(step > 0, codes * step + zero, zero).astype(np.float32)
    return out


def by_channel(x: Floats) -> Floats:
    """2 bits, min/max of each channel over 32 cells."""
    groups = x.reshape(-1, GROUP, *x.shape[1:])
    low, high = groups.min(1, keepdims=True), groups.max(1, keepdims=True)
    out: Floats = affine(groups, low, high, 2).reshape(x.shape)
    return out


def by_cell(x: Floats, clip: Floats | None = None) -> Floats:
    """2 bits, min/max of each 32 values of a cell, the range shrunk by `clip` [H, D / 32, 1]."""
    groups = x.reshape(*x.shape[:-1], -1, GROUP)
    low, high = groups.min(-1, keepdims=True), groups.max(-1, keepdims=True)
    if clip is not None:
        middle, half = (high + low) / 2, (high - low) / 2 * clip
        low, high = middle - half, middle + half
    out: Floats = affine(groups, low, high, 2).reshape(x.shape)
    return out


def channel_order(x: Floats) -> npt.NDArray[np.int64]:
    """Return each head's channels by ascending RMS, int64[H, D]."""
    return np.argsort(np.sqrt(np.mean(np.square(x), axis=0)), axis=-1, kind="stable")


def clip_search(x: Floats) -> Floats:
    """Return the share of the range with the least squared error per group, [H, D / 32, 1]."""
    groups = x.reshape(*x.shape[:-1], -1, GROUP)
    errors = []
    for share in CLIPS:
        clip = np.full((1, 1, 1), share, np.float32)
        rest = by_cell(x, clip).reshape(groups.shape) - groups
        errors.append(np.square(rest).sum((0, -1)))
    best = np.argmin(np.stack(errors), axis=0)
    out: Floats = np.asarray(CLIPS, np.float32)[best][..., None]
    return out


def _kivi(k: Floats, v: Floats) -> tuple[Quantize, Quantize]:
    return by_channel, by_cell


def _token(k: Floats, v: Floats) -> tuple[Quantize, Quantize]:
    return by_cell, by_cell


def _token_clipped(k: Floats, v: Floats) -> tuple[Quantize, Quantize]:
    return _skvq_store(k, reorder=False), _skvq_store(v, reorder=False)


def _skvq(k: Floats, v: Floats) -> tuple[Quantize, Quantize]:
    return _skvq_store(k, reorder=True), _skvq_store(v, reorder=True)


def _skvq_store(calibration: Floats, *, reorder: bool) -> Quantize:
    heads, dim = calibration.shape[1:]
    order = channel_order(calibration) if reorder else np.tile(np.arange(dim), (heads, 1))
    clip = clip_search(np.take_along_axis(calibration, order[None], axis=-1))

    def quantize(x: Floats) -> Floats:
        out = np.empty_like(x)
        turned = by_cell(np.take_along_axis(x, order[None], axis=-1), clip)
        np.put_along_axis(out, np.broadcast_to(order, x.shape), turned, axis=-1)
        return out

    return quantize


SIMULATIONS = {
    s.name: s
    for s in (
        Simulation(
            name="kivi",
            fit=_kivi,
            bits=3.0,
            about="KIVI: asymmetric 2 bit, K per channel, V per cell, open group exact",
        ),
        Simulation(
            name="token2", fit=_token, bits=3.0, about="asymmetric 2 bit per 32 values of a cell"
        ),
        Simulation(
            name="token2clip",
            fit=_token_clipped,
            bits=3.0,
            about="the same with a clipping search per group",
        ),
        Simulation(
            name="skvq",
            fit=_skvq,
            bits=3.0,
            about="SKVQ: channels reordered, then clipped per group",
        ),
    )
}


class SimulatedCache:
    """A layer's cache read through a simulation; complete groups of 32 cells are quantized.

    The calibration is the first append, up to 128 cells of it.
    """

    def __init__(self, simulation: Simulation) -> None:
        self.simulation = simulation
        self._quantizers: tuple[Quantize, Quantize] | None = None
        self._stores: list[Floats] = []
        self._done = 0

    def append(self, k: Floats, v: Floats) -> None:
        """Store the next T cells and quantize the groups they complete."""
        new = [to_half(k), to_half(v)]
        if self._quantizers is None:
            first = slice(0, CALIBRATION_CELLS)
            self._quantizers = self.simulation.fit(new[0][first], new[1][first])
            self._stores = new
        else:
            self._stores = [np.concatenate(pair) for pair in zip(self._stores, new, strict=True)]
        whole = len(self) // GROUP * GROUP
        if whole > self._done:
            for store, quantize in zip(self._stores, self._quantizers, strict=True):
                store[self._done : whole] = quantize(store[self._done : whole])
            self._done = whole

    def attend(
        self,
        q: Floats,
        *,
        k: Floats | None = None,
        v: Floats | None = None,
        scale: float | None = None,
        window: int | None = None,
    ) -> Floats:
        """Attend from the last T positions; a call's own k and v are read exactly."""
        keys, values = self._stores
        if k is not None and v is not None:
            keys = np.concatenate([keys[: len(self) - len(k)], k])
            values = np.concatenate([values[: len(self) - len(v)], v])
        return attend(q, keys, values, scale=scale, window=window)

    def read(self) -> tuple[Floats, Floats]:
        """Return K and V of all cells as attention reads them."""
        return self._stores[0], self._stores[1]

    def truncate(self, n: int) -> Any:
        """Refuse: quantized groups cannot be reopened."""
        raise NotImplementedError(f"[truncate] {self.simulation.name} is a measuring arm only")

    def __len__(self) -> int:
        return len(self._stores[0]) if self._stores else 0

    @property
    def nbytes(self) -> int:
        """Bytes that a cache of this kind would take, open group in float16."""
        if not self._stores:
            return 0
        _, heads, dim = self._stores[0].shape
        packed = self.simulation.bytes_per_cell(heads, dim) * self._done
        return int(packed + 4 * heads * dim * (len(self) - self._done))
