"""2-bit K per channel, 2-bit V per cell (the KIVI placement)."""

from __future__ import annotations

from kvcore.codecs.q2c import CODEC as Q2C
from kvcore.codecs.q2t import CODEC as Q2T
from kvcore.spec import Format, Recipe

FORMAT = Format(
    name="k2cv2t",
    k=Q2C,
    v=Q2T,
    rotate="kv",
    recipe=Recipe(window=128, sinks=8, k_center="auto"),
    source="the public engine's published arms",
)
