"""2-bit K and 1-bit V, both per channel."""

from __future__ import annotations

from kvcore.codecs.q1c import CODEC as Q1C
from kvcore.codecs.q2c import CODEC as Q2C
from kvcore.spec import Format, Recipe

FORMAT = Format(
    name="k2cv1c",
    k=Q2C,
    v=Q1C,
    rotate="kv",
    recipe=Recipe(window=128, sinks=8, k_center="auto"),
    source="the public engine's published arms",
)
