"""The q4_0 rule over blocks of 64: a quarter bit a value less."""

from __future__ import annotations

from kvcore.spec import Axis, Codec, Packing, Rounding, Rule, Scale

CODEC = Codec(
    name="q4_64",
    bits=4,
    levels=tuple(float(i) for i in range(-8, 8)),
    zero=8,
    scale=Scale(axis=Axis.DIM, group=64, rule=Rule.SIGNED_ABSMAX, divisor=-8.0, stored=False),
    rounding=Rounding.RECIPROCAL_TRUNC,
    packing=Packing.HALVES,
    source="ours: the q4_0 rule over blocks of 64",
)
