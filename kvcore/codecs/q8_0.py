"""ggml's 8-bit block of 32: codes are chosen against the unrounded scale."""

from __future__ import annotations

from kvcore.spec import Axis, Codec, Rounding, Rule, Scale

CODEC = Codec(
    name="q8_0",
    bits=8,
    levels=tuple(float(i) for i in range(-127, 128)),
    signed=True,
    scale=Scale(axis=Axis.DIM, group=32, rule=Rule.ABSMAX, divisor=127.0, stored=False),
    rounding=Rounding.RECIPROCAL_HALF_AWAY,
    source="ggml block_q8_0",
)
