"""OpenCL C: for dpctl (SYCL queues and USM) and for pyopencl. Pure data."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from kvcore.compiler.target import Target

OPENCL = Target(
    name="opencl",
    language="OpenCL C 1.2",
    prelude=Path(__file__).with_name("prelude.h"),
    suffix=".cl",
    flags=("-cl-std=CL1.2", "-cl-fp32-correctly-rounded-divide-sqrt"),
    function="static inline void",
    entry="__kernel __attribute__((reqd_work_group_size({lanes}, 1, 1)))\n"
    "void {symbol}(\n    {params})",
    buffer="__global {const}{ctype} *{restrict}{name}",
    binding="",
    values="const {struct} kc_values",
    builtins="",
    ids=(
        "(i32)get_local_id(0)",
        "(i32)get_group_id(0)",
        "(i32)get_group_id(1)",
        "(i32)get_group_id(2)",
    ),
    local="__local {ctype} {name}[{size}];",
    local_pointer="__local {ctype} *{name}",
    table="__constant u32 {name}[{size}] = {{{words}}};",
    restrict="restrict ",
    offsets=True,
)
"""pyopencl: a ``cl_mem`` has no offset, so each buffer's offset travels with the values."""

SYCL = replace(OPENCL, name="sycl", offsets=False)
"""dpctl: USM pointers already point at the view's first byte."""
