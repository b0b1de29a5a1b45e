"""Error bounds, derived from the rules of codecs and ops; tests type no tolerance of their own.

Notation: ``u`` is the unit roundoff of a float type (2^-24, 2^-11, 2^-8) and
``gamma(n) = n u / (1 - n u)`` bounds the relative error of n successive float32 roundings, in
whatever order a sum is taken.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kvcore.numerics import Array
from kvcore.spec import F16_MAX, Codec, Rule

F64 = npt.NDArray[np.float64]

U32 = 2.0**-24
U16 = 2.0**-11
UBF16 = 2.0**-8

HALF_TINY16 = 2.0**-25
"""Largest rounding error of a float16 subnormal: half of its spacing 2^-24."""

TINY32 = 2.0**-126
"""Smallest normal float32: what a device that flushes subnormals loses at most."""

FUNCTION_ULPS = 5
"""Largest error, in ulp, that OpenCL, CUDA and Metal (precise) state for exp, log and tanh."""

LEAST_PARTIAL = 32
"""Cells of the smallest partial softmax that a backend may merge."""


def gamma(n: float, unit: float = U32) -> float:
    """Return n u / (1 - n u): the relative error of n roundings of unit roundoff u."""
    return n * unit / (1.0 - n * unit)


@dataclass(frozen=True, kw_only=True, slots=True)
class CodecBound:
    """How far a decoded value may lie from the value that was encoded.

    ``|x - decode(encode(x))| <= of_scale * s + of_value * |x| + absolute``, where s is the
    group's exact scale, statistic / |divisor| before it is rounded to float16.

    Attributes
    ----------
    of_scale, of_value, absolute : float
    top : float
        Largest magnitude that does not saturate: of the scale, or of the value if there is none.
    """

    of_scale: float
    of_value: float
    absolute: float
    top: float

    def at(self, x: Array, scale: Array | float = 0.0) -> F64:
        """Return the bound for values `x` of groups of exact scale `scale`; inf if saturated."""
        size, s = np.abs(np.asarray(x, np.float64)), np.abs(np.asarray(scale, np.float64))
        limit = s if self.of_scale else size
        bound = self.of_scale * s + self.of_value * size + self.absolute
        return np.where(limit > self.top, np.inf, bound)


def codec_bound(codec: Codec, gain: float = 1.0) -> CodecBound:
    """Return the error bound of one codec.

    Parameters
    ----------
    codec : Codec
    gain : float
        k_gain of a per-channel K.

    Notes
    -----
    Float types: one rounding, ``u |x|``, plus half a subnormal spacing for float16.

    Codes: let y = x / s, s^ = f16(s), |s^ - s| <= u16 s + 2^-25. A group's statistic gives
    ``|y| <= reach``: |divisor| for an absmax, sqrt(G) for an RMS (one value holds all energy).
    The nearest level is off by half the widest gap, and beyond the outer levels by what is cut:
    ``near = max(gap / 2, reach' - outermost)``.

    - codes against the stored scale: the error is near * s^ with reach' = reach / (1 - u16);
      s^ <= (1 + u16) s.
    - codes against the exact scale: near * s with reach' = reach, then the level is multiplied
      by s^ instead of s: outermost * u16 more.

    A scale in float16's subnormal range adds at most max(reach, outermost) * 2^-25: it is also
    what remains of a group whose scale underflows to 0. The choice itself is made in float32 by
    at most three roundings (reciprocal, product, sum; or threshold times scale) of numbers up to
    ``reach + zero + 1/2``, decoding rounds once, and an RMS is itself off by gamma(G):
    4 (+ G) u32 times (reach + zero + outermost + 1/2).
    A gain B multiplies the level: outermost * |B - 1| more, and one more rounding to float16.
    Values that are encoded from their exact float16 slot, or minus a centre, are bounded against
    what was encoded, not against the model's value.
    """
    if codec.scale is None:
        unit = {"f32": 0.0, "f16": U16, "bf16": UBF16}[str(codec.float_type)]
        top = {"f16": F16_MAX}.get(str(codec.float_type), float(np.finfo(np.float32).max))
        tiny = {"f16": HALF_TINY16, "bf16": 2.0**-134}.get(str(codec.float_type), 0.0)
        return CodecBound(of_scale=0.0, of_value=unit, absolute=tiny, top=top)
    rms = codec.scale.rule is Rule.RMS
    reach = math.sqrt(codec.scale.group) if rms else abs(codec.scale.divisor)
    outermost = max(abs(v) for v in codec.levels)
    edge = min(abs(codec.levels[0]), abs(codec.levels[-1]))
    gap = max(b - a for a, b in zip(codec.levels, codec.levels[1:], strict=False))
    stored = codec.scale.stored
    near = max(gap / 2, (reach / (1 - U16) if stored else reach) - edge)
    relative = near * (1 + U16) if stored else near + outermost * U16
    roundings = 4 + (codec.scale.group if rms else 0)
    relative += roundings * U32 * (reach + codec.zero + outermost + 0.5)
    if gain != 1.0:
        relative += outermost * (abs(gain - 1.0) + gain * U16) * (1 + U16)
    return CodecBound(
        of_scale=relative,
        of_value=0.0,
        absolute=max(reach, outermost) * max(gain, 1.0) * HALF_TINY16,
        top=F16_MAX / max(gain, 1.0),
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class AttentionBound:
    """Elementwise bounds of one query's attention.

    Attributes
    ----------
    out : f64[Q, Dv]
    lse : f64[Q]
    """

    out: F64
    lse: F64


def attention_bound(
    q: Array,
    k: Array,
    v: Array,
    scale: float,
    softcap: float = 0.0,
    centre: Array | None = None,
    operand_unit: float = 0.0,
) -> AttentionBound:
    """Bound a float32 attention against the float64 one over the same stored values.

    Parameters
    ----------
    q : f32[Q, Dk]
    k : f64[N, H, Dk]
        As read, centre included.
    v : f64[N, H, Dv]
    scale, softcap : float
    centre : f16[H, Dk], optional
        Added to scores as <q, centre>.
    operand_unit : float
        Unit roundoff of the type that products round their operands to (2^-11 for a float16
        matrix unit); 0 for float32 arithmetic.

    Returns
    -------
    AttentionBound

    Notes
    -----
    1. Score. A term q_d * level * s passes at most Dk - 1 additions and 6 more roundings (level
       times scale, product, softmax scale, the centre's sum, own value, final). So
       ``E_j <= ((1 + gamma(Dk + 6)) (1 + u_op)^2 - 1) * |scale| * sum_d |q_d| (|k_jd| + 2 |c_d|)``,
       since |k - c| + |c| <= |k| + 2 |c|; plus Dk 2^-126 for terms that underflow. softcap has
       slope <= 1 and adds a division, the tanh and a product.
    2. Weight. exp is taken of s_j - m, whose rounding is u |s_j - m|, once more if it is turned
       into a power of two. A maximum's own error cancels. Merging partials of at least 32 cells
       rescales a weight at most R = ceil(N / 32) + 1 times, each with an exp and a product, and
       the differences of maxima add up to at most the range of scores. So the relative error is
       ``e_j <= exp(E_j + 4 u * range + (R + 1) (2 FUNCTION_ULPS u + 2 u)) - 1``.
    3. Sums. Numerator and denominator: (1 + e_j)(1 + gamma(N + R + 3))(1 + u_op)^2 - 1 = f_j per
       term. With weights w_j summing to 1, A = sum w_j f_j |v_j| and B = sum w_j f_j:
       ``|out^ - out| <= (A + B |out|) / (1 - B)``, plus the division and both roundings of the
       results to float32, plus N 2^-126 max|v| for weights that underflow.
    4. ``lse = m + log(sum)``: -log(1 - B), the log's error and two roundings.
    """
    q64, k64, v64 = (np.asarray(a, np.float64) for a in (q, k, v))
    n, h = k64.shape[:2]
    heads = q64.shape[0]
    if not n:
        return AttentionBound(out=np.zeros((heads, v64.shape[2])), lse=np.zeros(heads))
    grouped = q64.reshape(h, heads // h, -1)
    score, error = _score(grouped, k64, scale, softcap, centre, operand_unit)
    top = score.max(axis=-1, keepdims=True)
    weight = np.exp(score - top)
    total = weight.sum(axis=-1, keepdims=True)
    weight = weight / total
    rescales = math.ceil(n / LEAST_PARTIAL) + 1
    spread = top - score.min(axis=-1, keepdims=True)
    grow = error + 4 * U32 * spread + (rescales + 1) * (2 * FUNCTION_ULPS + 2) * U32
    term = np.exp(grow) * (1 + gamma(n + rescales + 3)) * (1 + operand_unit) ** 2 - 1
    a = np.einsum("hgn,nhd->hgd", weight * term, np.abs(v64))
    b = (weight * term).sum(axis=-1, keepdims=True)
    out = np.abs(np.einsum("hgn,nhd->hgd", weight, v64))
    with np.errstate(divide="ignore", invalid="ignore"):
        bound = np.where(b < 1, (a + b * out) / (1 - b), np.inf)
        slack = np.where(b < 1, -np.log1p(-np.minimum(b, 1)), np.inf)[..., 0]
    bound = bound + 3 * U32 * (out + bound) + n * TINY32 * np.abs(v64).max(initial=0.0)
    log_total = np.log(total)[..., 0]
    sizes = np.abs(top[..., 0]) + (2 * FUNCTION_ULPS + 2) * np.abs(log_total)
    lse = slack + U32 * (sizes + 3 * np.abs(top[..., 0] + log_total)) + TINY32
    return AttentionBound(out=bound.reshape(heads, -1), lse=lse.reshape(heads))


def _score(
    grouped: F64, k: F64, scale: float, softcap: float, centre: Array | None, operand_unit: float
) -> tuple[F64, F64]:
    """Return scores f64[H, Q/H, N] and how far float32 ones may lie from them."""
    dim = k.shape[2]
    score = np.einsum("hgd,nhd->hgn", grouped, k) * scale
    reach = np.abs(k)
    if centre is not None:
        reach = reach + 2 * np.abs(np.asarray(centre, np.float64))
    size = np.einsum("hgd,nhd->hgn", np.abs(grouped), reach) * abs(scale)
    error = size * ((1 + gamma(dim + 6)) * (1 + operand_unit) ** 2 - 1) + dim * TINY32
    if softcap:
        error = error + 2 * U32 * np.abs(score)
        score = softcap * np.tanh(score / softcap)
        error = error + (2 * FUNCTION_ULPS + 2) * U32 * np.abs(score)
    return score, error
