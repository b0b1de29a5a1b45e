"""ggml's 8-bit blocks."""

from __future__ import annotations

from kvcore.codecs.q8_0 import CODEC as Q8_0
from kvcore.spec import Format

FORMAT = Format(
    name="q8_0",
    k=Q8_0,
    v=Q8_0,
    source="ggml",
)
