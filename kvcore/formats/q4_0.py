"""4 bits with a scale per 32 values, rotated."""

from __future__ import annotations

from kvcore.codecs.q4_0 import CODEC as Q4_0
from kvcore.spec import Format, Recipe

FORMAT = Format(
    name="q4_0",
    k=Q4_0,
    v=Q4_0,
    rotate="kv",
    recipe=Recipe(window=128, sinks=8, k_center="auto"),
    source="ggml block_q4_0 with a Hadamard rotation",
)
