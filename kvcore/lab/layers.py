"""The arithmetic of one layer, in float32; the attention itself is the cache's.

Axes: T new tokens, E width, F feed-forward width, D head size. Every function returns a new array
and leaves its arguments alone.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]

_ONE = np.float32(1.0)
_HALF = np.float32(0.5)
_GELU_SCALE = np.float32(0.7978845608028654)  # sqrt(2 / pi)
_GELU_CUBIC = np.float32(0.044715)


def linear(x: Floats, weight: Floats, bias: Floats | None = None) -> Floats:
    """Return ``x @ weight.T + bias`` for x [T, in] and weight [out, in]."""
    out: Floats = x @ weight.T
    if bias is not None:
        out += bias
    return out


def rms_norm(x: Floats, weight: Floats, eps: float) -> Floats:
    """Divide each last-axis vector by its root mean square and scale by `weight`."""
    mean_square = np.mean(np.square(x), axis=-1, keepdims=True)
    out: Floats = x * (_ONE / np.sqrt(mean_square + np.float32(eps)))
    out *= weight
    return out


def silu(x: Floats) -> Floats:
    """Return ``x * sigmoid(x)``."""
    with np.errstate(over="ignore"):  # exp(-x) = inf gives the right limit, -0
        out: Floats = x / (_ONE + np.exp(-x))
    return out


def gelu_tanh(x: Floats) -> Floats:
    """Return the tanh form of GELU, the one Gemma is trained with."""
    inner = _GELU_SCALE * (x + _GELU_CUBIC * x * x * x)
    out: Floats = _HALF * x * (_ONE + np.tanh(inner))
    return out


def gated(x: Floats, gate_up: Floats, *, gelu: bool) -> Floats:
    """Return ``act(x @ gate.T) * (x @ up.T)`` for the stacked matrix gate_up [2F, E]."""
    both = linear(x, gate_up)
    half = both.shape[-1] // 2
    gate, up = both[..., :half], both[..., half:]
    out = gelu_tanh(gate) if gelu else silu(gate)
    out *= up
    return out


@dataclass(frozen=True, slots=True, kw_only=True)
class Rotation:
    """Rotary angles of T consecutive positions: cos and sin, float32[T, 1, D / 2]."""

    cos: Floats
    sin: Floats


def rotation(
    start: int,
    count: int,
    *,
    head_dim: int,
    theta: float,
    factor: float = 1.0,
    divisors: Floats | None = None,
) -> Rotation:
    """Rotary angles of positions ``start .. start + count - 1``.

    Pair i of position p turns by ``p / factor / divisors[i] * theta ** (-2 i / head_dim)``;
    angles are made in float64, because a float32 angle of position 8000 is off by 5e-4.
    """
    pairs = np.arange(head_dim // 2, dtype=np.float64)
    frequency = theta ** (-2.0 * pairs / head_dim) / factor
    if divisors is not None:
        frequency = frequency / divisors
    angle = np.arange(start, start + count, dtype=np.float64)[:, None, None] * frequency
    return Rotation(cos=np.cos(angle).astype(np.float32), sin=np.sin(angle).astype(np.float32))


def rotate(x: Floats, by: Rotation) -> Floats:
    """Turn the pairs (i, i + D / 2) of x [T, heads, D]."""
    half = x.shape[-1] // 2
    first, second = x[..., :half], x[..., half:]
    out = np.empty_like(x)
    out[..., :half] = first * by.cos - second * by.sin
    out[..., half:] = second * by.cos + first * by.sin
    return out
