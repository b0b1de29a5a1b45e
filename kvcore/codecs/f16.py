"""Half floats: round to nearest even, finite values saturate at 65504."""

from __future__ import annotations

from kvcore.spec import Codec

CODEC = Codec(
    name="f16",
    bits=16,
    float_type="f16",
    source="IEEE 754 binary16",
)
