"""bfloat16."""

from __future__ import annotations

from kvcore.codecs.bf16 import CODEC as BF16
from kvcore.spec import Format

FORMAT = Format(
    name="bf16",
    k=BF16,
    v=BF16,
    source="bfloat16",
)
