"""1-bit Lloyd-Max levels, one RMS scale per 32 values of a cell."""

from __future__ import annotations

from kvcore.spec import Axis, Codec, Packing, Rounding, Rule, Scale

CODEC = Codec(
    name="q1t",
    bits=1,
    levels=(-0.797884560803, 0.797884560803),
    scale=Scale(axis=Axis.DIM, group=32, rule=Rule.RMS),
    rounding=Rounding.NEAREST_LEVEL,
    packing=Packing.SEQUENTIAL,
    source="Lloyd-Max quantizer of a unit normal (Max 1960), levels from theory",
)
