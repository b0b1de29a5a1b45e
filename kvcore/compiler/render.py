"""Declarations, constants, tables and a body become one source text for one target. Pure.

Source = the target's prelude + the portable ``common.h`` + a generated header (constants, tables,
signatures) + ``#line`` + the body, verbatim. Each entry is a thin kernel that declares the group
memory, reads its ids and calls the body as a plain function, so a body sees the same names and
types on every target.
"""

from __future__ import annotations

import hashlib
import re
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from kvcore.compiler.body import Body, flatten
from kvcore.compiler.kernel import RESERVED, KernelDecl, struct_fields
from kvcore.compiler.target import Target, read_text
from kvcore.errors import FormatError, message

Constant = int | float | str
"""A constant: an int, a float (emitted by its f32 bits) or a C identifier."""

_COMMON = Path(__file__).with_name("common.h")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A text to compile and the entries it defines.

    Parameters
    ----------
    text : str
    target : Target
    kernels : tuple of KernelDecl
    label : str
        The body's name in diagnostics.
    key : str
        sha256 of the text, hexadecimal.
    """

    text: str
    target: Target
    kernels: tuple[KernelDecl, ...]
    label: str
    key: str

    @property
    def entries(self) -> tuple[str, ...]:
        """The symbols that the compiled program must define."""
        return tuple(kernel.symbol for kernel in self.kernels)


def render(
    kernels: Sequence[KernelDecl],
    constants: Mapping[str, Constant],
    tables: Mapping[str, Sequence[int]],
    body: Body,
    target: Target,
) -> Source:
    """Return the source of a body for a target.

    Parameters
    ----------
    kernels : sequence of KernelDecl
        The entries that the body defines with ``KC_ENTRY(name)``.
    constants : mapping
        Name to int, float or identifier, visible to the body as macros.
    tables : mapping
        Name to 32-bit words, the bit patterns of f32 values; the body reads ``name(i)``.
    body : Body
    target : Target

    Returns
    -------
    Source

    Raises
    ------
    FormatError
        Names that are no identifiers, empty tables, words beyond 32 bits, no or repeated entries,
        an entry that the body does not define.
    """
    names = [kernel.name for kernel in kernels]
    if not names or len(set(names)) != len(names):
        raise FormatError(message("render", "entries", got=names, expected="distinct names"))
    for name in names:
        if not re.search(rf"\bKC_ENTRY\({name}\)", body.text):
            raise FormatError(
                message("render", f"{body.label} lacks an entry", got="none", expected=name)
            )
    parts = [
        *_marked(f"kvcore/backends/{target.name}/prelude.h", read_text(target.prelude)),
        *_marked("kvcore/compiler/common.h", read_text(_COMMON)),
        f'#line 1 "generated:{body.label}"\n',
        *(_constant(name, value) for name, value in sorted(constants.items())),
        *(_table(target, name, words) for name, words in sorted(tables.items())),
        *(_signature(target, kernel) for kernel in kernels),
        flatten(body),
    ]
    text = "".join(parts)
    key = hashlib.sha256(text.encode()).hexdigest()
    return Source(text=text, target=target, kernels=tuple(kernels), label=body.label, key=key)


def float_bits(value: float) -> int:
    """Return the bits of a number rounded to f32, as tables take them."""
    return int(struct.unpack("<I", struct.pack("<f", value))[0])


def _marked(label: str, text: str) -> tuple[str, str]:
    return f'#line 1 "{label}"\n', text if text.endswith("\n") else text + "\n"


def _identifier(name: str) -> str:
    if not _NAME.match(name) or name in RESERVED:
        raise FormatError(message("render", "name", got=name, expected="a free C identifier"))
    return name


def _constant(name: str, value: Constant) -> str:
    if isinstance(value, float):
        spelled = f"kc_as_f32(0x{float_bits(value):08x}u)"
    elif isinstance(value, str):
        spelled = _identifier(value)
    elif not -(2**31) < int(value) < 2**32:
        raise FormatError(message("render", name, got=value, expected="32 bits"))
    else:
        spelled = f"({int(value)})" if value < 2**31 else f"({int(value)}u)"
    return f"#define {_identifier(name)} {spelled}\n"


def _table(target: Target, name: str, words: Sequence[int]) -> str:
    if not words or not all(0 <= word < 2**32 for word in words):
        raise FormatError(message("render", f"table {name}", got=list(words), expected="u32 words"))
    bits = f"kc_bits_{_identifier(name)}"
    listed = ", ".join(f"0x{word:08x}u" for word in words)
    array = target.table.format(name=bits, size=len(words), words=listed)
    return f"{array}\nKC_FN f32 {name}(i32 i) {{ return kc_as_f32({bits}[i]); }}\n"


def _signature(target: Target, kernel: KernelDecl) -> str:
    """Return struct, forward declaration, entry and the KC_ENTRY_<name> macro of one kernel."""
    fields = struct_fields(kernel, offsets=target.offsets)
    struct_name = f"{kernel.symbol}_values"
    params, bound, passed = [], [], []
    for index, item in enumerate(kernel.buffers):
        spelled = target.buffer.format(
            const="const " if item.const else "",
            ctype=item.ctype,
            restrict="" if item.alias else target.restrict,
            name=item.name,
        )
        params.append(spelled)
        bound.append(spelled + target.binding.format(index=index))
        passed.append(_pointer(target, kernel, item.name))
    for value in kernel.values:
        params.append(f"const {value.ctype} {value.name}")
        passed.append(f"kc_values.{value.name}")
    for local in kernel.locals:
        params.append(target.local_pointer.format(ctype=local.ctype, name=local.name))
        passed.append(local.name)
    params += [f"const i32 {name}" for name in ("lane", "gx", "gy", "gz")]
    passed += list(target.ids)
    if fields:
        bound.append(target.values.format(struct=struct_name, index=len(kernel.buffers)))
    if target.builtins:
        bound.append(target.builtins)
    members = " ".join(f"{ctype} {name};" for ctype, name in fields)
    head = f"{target.function} {kernel.symbol}_body({', '.join(params)})"
    entry = target.entry.format(
        lanes=kernel.lanes, symbol=kernel.symbol, params=",\n    ".join(bound)
    )
    arrays = "".join(
        "    " + target.local.format(ctype=x.ctype, name=x.name, size=x.size) + "\n"
        for x in kernel.locals
    )
    call = f"    {kernel.symbol}_body({', '.join(passed)});\n"
    lines = f"typedef struct {{ {members} }} {struct_name};\n" if fields else ""
    return f"{lines}{head};\n{entry}\n{{\n{arrays}{call}}}\n#define KC_ENTRY_{kernel.name} {head}\n"


def _pointer(target: Target, kernel: KernelDecl, name: str) -> str:
    if not target.offsets:
        return name
    item = next(buffer for buffer in kernel.buffers if buffer.name == name)
    const = "const " if item.const else ""
    return f"(KC_GLOBAL {const}{item.ctype} *)((KC_GLOBAL {const}u8 *){name} + kc_values.{name}_at)"
