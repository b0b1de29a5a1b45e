"""8-bit K, 4-bit rotated V."""

from __future__ import annotations

from kvcore.codecs.int8 import CODEC as INT8
from kvcore.codecs.q4_0 import CODEC as Q4_0
from kvcore.spec import Format

FORMAT = Format(
    name="k8v4",
    k=INT8,
    v=Q4_0,
    rotate="v",
    source="public Strata engine",
)
