"""2-bit K per channel, 4-bit V: 3.5 bits a value."""

from __future__ import annotations

from kvcore.codecs.q2c import CODEC as Q2C
from kvcore.codecs.q4_0 import CODEC as Q4_0
from kvcore.spec import Format, Recipe

FORMAT = Format(
    name="q2k",
    k=Q2C,
    v=Q4_0,
    rotate="kv",
    recipe=Recipe(window=128, sinks=8, k_center="auto"),
    note="on models whose mean K drifts, calibrate k_center or take k4v2c",
    source="the public engine's published arms",
)
