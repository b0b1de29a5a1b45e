"""Half precision: what engines store today."""

from __future__ import annotations

from kvcore.codecs.f16 import CODEC as F16
from kvcore.spec import Format

FORMAT = Format(
    name="f16",
    k=F16,
    v=F16,
    source="IEEE 754",
)
