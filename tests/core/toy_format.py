"""A 4-bit codebook at normal quantiles: what a user adds, in one data file."""

from __future__ import annotations

from kvcore.spec import Axis, Codec, Format, Packing, Rounding, Rule, Scale

NF4 = Codec(
    name="nf4",
    bits=4,
    levels=(
        -1.0, -0.6961928, -0.52507305, -0.39491749, -0.28444138, -0.18477343, -0.09105004, 0.0,
        0.0795803, 0.1609302, 0.2461123, 0.33791524, 0.44070983, 0.562617, 0.72295684, 1.0,
    ),
    scale=Scale(axis=Axis.DIM, group=64, rule=Rule.ABSMAX),
    rounding=Rounding.NEAREST_LEVEL,
    packing=Packing.SEQUENTIAL,
    source="Dettmers et al. 2023 (QLoRA), the NF4 value table",
)  # fmt: skip

FORMAT = Format(name="nf4", k=NF4, v=NF4, source="a test")
