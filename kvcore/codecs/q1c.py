"""1-bit Lloyd-Max levels, one RMS scale per channel over 32 cells."""

from __future__ import annotations

from kvcore.spec import Axis, Codec, Packing, Rounding, Rule, Scale

CODEC = Codec(
    name="q1c",
    bits=1,
    levels=(-0.797884560803, 0.797884560803),
    scale=Scale(axis=Axis.CELL, group=32, rule=Rule.RMS),
    rounding=Rounding.NEAREST_LEVEL,
    packing=Packing.SEQUENTIAL,
    source="Lloyd-Max quantizer of a unit normal (Max 1960), levels from theory",
)
