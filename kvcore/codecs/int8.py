"""8-bit integers, one f16 scale per 64 values of a head, codes against the stored scale."""

from __future__ import annotations

from kvcore.spec import Axis, Codec, Rounding, Rule, Scale

CODEC = Codec(
    name="int8",
    bits=8,
    levels=tuple(float(i) for i in range(-127, 128)),
    signed=True,
    scale=Scale(axis=Axis.DIM, group=64, rule=Rule.ABSMAX, divisor=127.0),
    rounding=Rounding.DIVIDE_HALF_EVEN,
    source="the int8 cache of the public Strata engine",
)
