"""ggml's 4-bit block of 32: signed scale, codes chosen against the unrounded scale."""

from __future__ import annotations

from kvcore.spec import Axis, Codec, Packing, Rounding, Rule, Scale

CODEC = Codec(
    name="q4_0",
    bits=4,
    levels=tuple(float(i) for i in range(-8, 8)),
    zero=8,
    scale=Scale(axis=Axis.DIM, group=32, rule=Rule.SIGNED_ABSMAX, divisor=-8.0, stored=False),
    rounding=Rounding.RECIPROCAL_TRUNC,
    packing=Packing.HALVES,
    source="ggml block_q4_0; a tie of +a and -a takes the positive",
)
