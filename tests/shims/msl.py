"""MSL text to C++-for-OpenCL text, with what its kernels bind.

Refuses what MSL refuses and OpenCL would let pass: parameters without an attribute, buffers
outside device or constant, reads of attributes that do not exist.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from tests.shims.clike import match, split, strip_comments

SIMD_WIDTH = 32
_POSITIONS = {
    "thread_position_in_grid": "get_global_id",
    "thread_position_in_threadgroup": "get_local_id",
    "threadgroup_position_in_grid": "get_group_id",
    "threads_per_threadgroup": "get_local_size",
    "threadgroups_per_grid": "get_num_groups",
}
_SCALARS = {
    "thread_index_in_simdgroup": "get_sub_group_local_id()",
    "simdgroup_index_in_threadgroup": "get_sub_group_id()",
    "threads_per_simdgroup": "get_sub_group_size()",
    "simdgroups_per_threadgroup": "get_num_sub_groups()",
    "thread_index_in_threadgroup": "get_local_linear_id()",
}
_KERNEL = re.compile(
    r"(?:\[\[\s*max_total_threads_per_threadgroup\s*\(\s*(\d+)\s*\)\s*\]\]\s*)?"
    r"\bkernel\s+void\s+(\w+)\s*\("
)
_ATTRIBUTE = re.compile(r"\[\[\s*(\w+)\s*(?:\(\s*(\w+)\s*\))?\s*\]\]\s*$")


@dataclass(frozen=True)
class Entry:
    """A kernel's bindings: ("buffer" or "threadgroup", index) per parameter, in order."""

    bindings: tuple[tuple[str, int], ...]
    max_threads: int


def translate(text: str) -> tuple[str, dict[str, Entry]]:
    """Return the text for Intel's compiler and each kernel's bindings."""
    text = strip_comments(text)
    out: list[str] = []
    entries: dict[str, Entry] = {}
    at = 0
    for found in _KERNEL.finditer(text):
        name = found.group(2)
        open_at = found.end() - 1
        close_at = match(text, open_at)
        brace = text.index("{", close_at)
        params, declared, bindings = _parameters(name, text[open_at + 1 : close_at])
        lines = "\n" * text[found.start() : brace].count("\n")
        head = f"__kernel __attribute__((intel_reqd_sub_group_size({SIMD_WIDTH}))) void {name}"
        out += [text[at : found.start()], f"{head}({', '.join(params)}) {{{lines} {declared}"]
        at = brace + 1
        entries[name] = Entry(tuple(bindings), int(found.group(1) or 1024))
    out.append(text[at:])
    body = re.sub(r"#include\s*<(metal_\w+|simd/simd\.h)>|#pragma\s+METAL[^\n]*", "", "".join(out))
    shim = Path(__file__).with_name("msl_shim.h").read_text()
    return f'{shim}\n#line 1 "kernel.metal"\n{body}', entries


def _parameters(name: str, text: str) -> tuple[list[str], str, list[tuple[str, int]]]:
    params: list[str] = []
    declared: list[str] = []
    bindings: list[tuple[str, int]] = []
    for item in split(text):
        found = _ATTRIBUTE.search(item)
        if not found:
            raise SyntaxError(f"{name}: parameter without an attribute: {item}")
        attribute, index = found.groups()
        spelled = item[: found.start()].strip()
        if attribute == "buffer":
            param, extra = _buffer(name, spelled)
            params.append(param)
            declared += extra
            bindings.append(("buffer", int(index)))
        elif attribute == "threadgroup":
            params.append(spelled)
            bindings.append(("threadgroup", int(index)))
        elif attribute in _POSITIONS:
            declared.append(_position(spelled, _POSITIONS[attribute]))
        elif attribute in _SCALARS:
            ctype, variable = spelled.rsplit(None, 1)
            declared.append(f"const {ctype} {variable} = ({ctype}){_SCALARS[attribute]};")
        else:
            raise SyntaxError(f"{name}: no such attribute [[{attribute}]]")
    return params, " ".join(declared), bindings


def _buffer(name: str, spelled: str) -> tuple[str, list[str]]:
    reference = re.match(r"(constant|device)\s+(.*?)\s*&\s*(\w+)$", spelled)
    if reference:
        space, ctype, variable = reference.groups()
        pointer = f"shim_{variable}"
        return f"{space} {ctype} *{pointer}", [f"{space} {ctype} &{variable} = *{pointer};"]
    if not re.match(r"(const\s+)?(device|constant)\b", spelled):
        raise SyntaxError(f"{name}: [[buffer]] needs device or constant: {spelled}")
    return spelled, []


def _position(spelled: str, function: str) -> str:
    ctype, variable = spelled.rsplit(None, 1)
    width = int(ctype[-1]) if ctype[-1].isdigit() else 1
    base = ctype.rstrip("23")
    parts = ", ".join(f"({base}){function}({i})" for i in range(width))
    return f"const {ctype} {variable} = " + (f"{parts};" if width == 1 else f"({ctype})({parts});")
