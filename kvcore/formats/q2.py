"""2-bit K and V per channel."""

from __future__ import annotations

from kvcore.codecs.q2c import CODEC as Q2C
from kvcore.spec import Format, Recipe

FORMAT = Format(
    name="q2",
    k=Q2C,
    v=Q2C,
    rotate="kv",
    recipe=Recipe(window=128, sinks=8, k_center="auto"),
    source="the public engine's published arms",
)
