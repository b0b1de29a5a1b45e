"""4 bits with a scale per 64 values."""

from __future__ import annotations

from kvcore.codecs.q4_64 import CODEC as Q4_64
from kvcore.spec import Format, Recipe

FORMAT = Format(
    name="k4v4",
    k=Q4_64,
    v=Q4_64,
    rotate="kv",
    recipe=Recipe(window=128, sinks=8, k_center="auto"),
    source="ours",
)
