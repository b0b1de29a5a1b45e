"""Full precision."""

from __future__ import annotations

from kvcore.codecs.f32 import CODEC as F32
from kvcore.spec import Format

FORMAT = Format(
    name="f32",
    k=F32,
    v=F32,
    source="IEEE 754",
)
