"""Float K, 8-bit V."""

from __future__ import annotations

from kvcore.codecs.f32 import CODEC as F32
from kvcore.codecs.int8 import CODEC as INT8
from kvcore.spec import Format

FORMAT = Format(
    name="k32v8",
    k=F32,
    v=INT8,
    source="public Strata engine, q36 path",
)
