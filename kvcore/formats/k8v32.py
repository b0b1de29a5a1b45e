"""8-bit K, float V."""

from __future__ import annotations

from kvcore.codecs.f32 import CODEC as F32
from kvcore.codecs.int8 import CODEC as INT8
from kvcore.spec import Format

FORMAT = Format(
    name="k8v32",
    k=INT8,
    v=F32,
    source="public Strata engine, q36 path",
)
