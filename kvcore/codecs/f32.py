"""32-bit floats, stored as they are."""

from __future__ import annotations

from kvcore.spec import Codec

CODEC = Codec(
    name="f32",
    bits=32,
    float_type="f32",
    source="IEEE 754 binary32",
)
