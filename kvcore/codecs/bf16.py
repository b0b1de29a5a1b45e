"""bfloat16: the upper half of a float32, rounded to nearest even."""

from __future__ import annotations

from kvcore.spec import Codec

CODEC = Codec(
    name="bf16",
    bits=16,
    float_type="bf16",
    source="bfloat16 as in ml_dtypes",
)
