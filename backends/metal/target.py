"""Metal Shading Language. Pure data."""

from __future__ import annotations

from pathlib import Path

from kvcore.compiler.target import Target

METAL = Target(
    name="metal",
    language="Metal Shading Language",
    prelude=Path(__file__).with_name("prelude.h"),
    suffix=".metal",
    flags=("math_mode=safe",),
    function="static inline void",
    entry="[[max_total_threads_per_threadgroup({lanes})]]\nkernel void {symbol}(\n    {params})",
    buffer="device {const}{ctype} *{name}",
    binding=" [[buffer({index})]]",
    values="constant {struct} &kc_values [[buffer({index})]]",
    builtins="uint3 kc_lane [[thread_position_in_threadgroup]],\n"
    "    uint3 kc_group [[threadgroup_position_in_grid]]",
    ids=("(i32)kc_lane.x", "(i32)kc_group.x", "(i32)kc_group.y", "(i32)kc_group.z"),
    local="threadgroup {ctype} {name}[{size}];",
    local_pointer="threadgroup {ctype} *{name}",
    table="constant u32 {name}[{size}] = {{{words}}};",
)
