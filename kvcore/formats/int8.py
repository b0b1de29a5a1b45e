"""8 bits for K and V (also called k8v8)."""

from __future__ import annotations

from kvcore.codecs.int8 import CODEC as INT8
from kvcore.spec import Format

FORMAT = Format(
    name="int8",
    k=INT8,
    v=INT8,
    source="public Strata engine",
)
