"""CUDA C through NVRTC. Pure data."""

from __future__ import annotations

from pathlib import Path

from kvcore.compiler.target import Target

CUDA = Target(
    name="cuda",
    language="CUDA C",
    prelude=Path(__file__).with_name("prelude.h"),
    suffix=".cu",
    flags=("--std=c++17", "-fmad=false", "-prec-div=true", "-prec-sqrt=true", "-ftz=false"),
    function="static __device__ __forceinline__ void",
    # Asking for 4 resident groups keeps the compiler from saving registers by spilling some.
    entry='extern "C" __global__ void __launch_bounds__({lanes}, 4) {symbol}(\n    {params})',
    buffer="{const}{ctype} *{restrict}{name}",
    binding="",
    values="const {struct} kc_values",
    builtins="",
    ids=("(i32)threadIdx.x", "(i32)blockIdx.x", "(i32)blockIdx.y", "(i32)blockIdx.z"),
    local="__shared__ {ctype} {name}[{size}];",
    local_pointer="{ctype} *{name}",
    table="static __device__ const u32 {name}[{size}] = {{{words}}};",
    restrict="__restrict__ ",
)
