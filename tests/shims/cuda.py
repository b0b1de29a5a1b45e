"""CUDA C text to C++-for-OpenCL text.

Kernel pointers become global, every other pointer is generic, ``__shared__`` is local memory, and
the two inline PTX conversions of the prelude become the runtime's own.
"""

from __future__ import annotations

import re
from pathlib import Path

from tests.shims.clike import match, split, strip_comments

_KERNEL = re.compile(
    r'extern\s+"C"\s+__global__\s+void\s+(?:__launch_bounds__\s*\(\s*(\d+)[^)]*\)\s*)?(\w+)\s*\('
)
_PTX = {
    r'asm\(\s*"cvt\.f32\.f16 %0, %1;"[^;]*"=f"\((\w+)\)[^;]*"h"\((\w+)\)\s*\);': (
        r"\1 = shim_h2f(\2);"
    ),
    r'asm\(\s*"cvt\.rn\.f16\.f32 %0, %1;"[^;]*"=h"\((\w+)\)[^;]*"f"\((\w+)\)\s*\);': (
        r"\1 = shim_f2h(\2);"
    ),
}


def translate(text: str) -> tuple[str, dict[str, int]]:
    """Return the text for Intel's compiler and each kernel's launch bound."""
    text = strip_comments(text)
    for pattern, replacement in _PTX.items():
        text = re.sub(pattern, replacement, text)
    text = re.sub(r"\blong\s+long\b", "long", text)
    out: list[str] = []
    bounds: dict[str, int] = {}
    at = 0
    for found in _KERNEL.finditer(text):
        open_at = found.end() - 1
        close_at = match(text, open_at)
        params = [f"__global {p}" if "*" in p else p for p in split(text[open_at + 1 : close_at])]
        lines = "\n" * text[found.start() : close_at].count("\n")
        head = f"__kernel __attribute__((intel_reqd_sub_group_size(32))) void {found.group(2)}"
        out += [text[at : found.start()], f"{head}({', '.join(params)}){lines}"]
        at = close_at + 1
        bounds[found.group(2)] = int(found.group(1) or 1024)
    out.append(text[at:])
    shim = Path(__file__).with_name("cuda_shim.h").read_text()
    return f'{shim}\n#line 1 "kernel.cu"\n{"".join(out)}', bounds
