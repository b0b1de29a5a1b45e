"""2-bit K per channel, 1-bit V per cell."""

from __future__ import annotations

from kvcore.codecs.q1t import CODEC as Q1T
from kvcore.codecs.q2c import CODEC as Q2C
from kvcore.spec import Format, Recipe

FORMAT = Format(
    name="k2cv1t",
    k=Q2C,
    v=Q1T,
    rotate="kv",
    recipe=Recipe(window=128, sinks=8, k_center="auto"),
    source="the public engine's published arms",
)
