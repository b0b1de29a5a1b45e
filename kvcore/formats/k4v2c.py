"""4-bit K, 2-bit V per channel."""

from __future__ import annotations

from kvcore.codecs.q2c import CODEC as Q2C
from kvcore.codecs.q4_0 import CODEC as Q4_0
from kvcore.spec import Format, Recipe

FORMAT = Format(
    name="k4v2c",
    k=Q4_0,
    v=Q2C,
    rotate="kv",
    recipe=Recipe(window=128, sinks=8, k_center="auto"),
    note="at the bytes of q2k the safer recipe: K is the sensitive side",
    source="the public engine's published arms",
)
