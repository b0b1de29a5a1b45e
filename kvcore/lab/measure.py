"""The measures of one layer: what its queries see exactly, and what a cache makes of it.

All are defined on the readers of a dump: real queries of the last positions, causal, with the
layer's sliding window. Scores and weights are float64. ``docs/lab.md`` gives formulas and sources.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kvcore.lab.dump_file import DumpLayer
from kvcore.lab.exact import hidden
from kvcore.lab.weights import Floats

Doubles = npt.NDArray[np.float64]


def relative_rms(got: Floats, exact: Floats) -> float:
    """Return sqrt(sum (got - exact)^2 / sum exact^2)."""
    a, b = np.asarray(got, np.float64), np.asarray(exact, np.float64)
    return float(np.sqrt(np.square(a - b).sum() / np.square(b).sum()))


def spread(x: Floats) -> float:
    """Return the channels' RMS, largest over median, over all heads: float32[N, H, D]."""
    rms = channel_rms(x).ravel()
    return float(rms.max() / np.median(rms))


def channel_rms(x: Floats) -> Doubles:
    """Return each channel's RMS over cells, float64[H, D]."""
    out: Doubles = np.sqrt(np.mean(np.square(np.asarray(x, np.float64)), axis=0))
    return out


def mean_share(x: Floats) -> float:
    """Return the RMS of the channels' means over the RMS of all values."""
    values = np.asarray(x, np.float64)
    return float(np.sqrt(np.square(values.mean(0)).mean() / np.square(values).mean()))


@dataclass(frozen=True, slots=True, kw_only=True)
class Slope:
    """Least-squares slope of approximate scores on exact ones; 1 is no shrinkage.

    Attributes
    ----------
    raw : float
    centred : float
        After each query's mean over cells is taken off, which softmax ignores anyway.
    weighted : float
        The same with cells weighted by the exact attention.
    """

    raw: float
    centred: float
    weighted: float


class Readers:
    """The queries of one dumped layer and what they see exactly.

    Parameters
    ----------
    layer : DumpLayer
    """

    def __init__(self, layer: DumpLayer) -> None:
        self.layer = layer
        self._seen = ~hidden(len(layer.q), len(layer.k), layer.window)
        self._scores = self.scores(layer.k)
        self.weights = self._softmax(self._scores)

    def scores(self, k: Floats) -> Doubles:
        """Return scores of every query on cells, float64[Q, N, T], unmasked."""
        q, scale = self.layer.q, self.layer.scale
        heads, group = k.shape[1], q.shape[1] // k.shape[1]
        out = np.empty((q.shape[1], len(q), len(k)))
        for h in range(heads):
            for g in range(group):
                out[h * group + g] = q[:, h * group + g].astype(np.float64) @ k[:, h].T
        return out * scale

    def _softmax(self, scores: Doubles) -> Doubles:
        masked = np.where(self._seen, scores, -np.inf)
        weights = np.exp(masked - masked.max(-1, keepdims=True))
        out: Doubles = weights / weights.sum(-1, keepdims=True)
        return out

    @property
    def attended(self) -> float:
        """Effective number of attended cells: exp of the mean entropy of the weights."""
        p = self.weights
        entropy = -(p * np.log(np.where(p > 0, p, 1))).sum(-1)
        return float(np.exp(entropy.mean()))

    def slope(self, k: Floats) -> Slope:
        """Return how approximate K, float32[T, H, D], scales the scores."""
        seen = self._seen[None]
        exact, approx = self._scores, self.scores(k)
        uniform = np.broadcast_to(seen / seen.sum(-1, keepdims=True), exact.shape)
        return Slope(
            raw=_slope(exact, approx, np.broadcast_to(seen, exact.shape), centre=False),
            centred=_slope(exact, approx, uniform, centre=True),
            weighted=_slope(exact, approx, self.weights, centre=True),
        )

    def window_bias(self, k: Floats, *, window: int, sinks: int) -> float:
        """Return the relative change of the weight on sinks and window when they are exact.

        Parameters
        ----------
        k : float32[T, H, D]
            As the bulk reads; the cells of the overlay are taken exactly, as it holds them.
        window, sinks : int
            Last cells of each query, its own included, and first cells.
        """
        n, steps = len(k), len(self.layer.q)
        position = np.arange(n - steps, n)[:, None]
        cell = np.arange(n)[None]
        near = (cell > position - window) & (cell <= position) | (cell < sinks)
        mixed = np.where(near, self._scores, self.scores(k))
        mass = (self.weights * near).sum(-1).mean()
        return float((self._softmax(mixed) * near).sum(-1).mean() / mass - 1)


def _slope(exact: Doubles, approx: Doubles, weight: Doubles, *, centre: bool) -> float:
    if centre:
        exact = exact - (weight * exact).sum(-1, keepdims=True)
        approx = approx - (weight * approx).sum(-1, keepdims=True)
    return float((weight * exact * approx).sum() / (weight * exact * exact).sum())


def flat_queries(layer: DumpLayer, rms: float, seed: int = 0) -> DumpLayer:
    """Return the layer with seeded Gaussian queries of that RMS instead of its own."""
    rng = np.random.default_rng(seed)
    q = (rng.standard_normal(layer.q.shape) * rms).astype(np.float32)
    return DumpLayer(
        index=layer.index, k=layer.k, v=layer.v, q=q, window=layer.window, scale=layer.scale
    )
