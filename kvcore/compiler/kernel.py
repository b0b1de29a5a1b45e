"""What a kernel entry takes: buffers, values, group memory and lanes. Pure data.

A :class:`KernelDecl` is all that the generated signature needs; the body itself lives in a ``.c``
file. Values travel as one C struct, packed here by :class:`ArgumentPlan`, so a launch binds one
argument per buffer plus one.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from kvcore.errors import FormatError, ShapeError, message

CTYPES: dict[str, int] = {
    "u8": 1,
    "i8": 1,
    "u16": 2,
    "f16": 2,
    "u32": 4,
    "i32": 4,
    "f32": 4,
    "i64": 8,
}
"""Element types of the dialect and their bytes; ``f16`` is stored as its 16 bits."""

_VALUE_CODES = {"i32": "i", "u32": "I", "f32": "f", "i64": "q"}
_IDENTIFIER = re.compile(r"[a-z][a-z0-9_]*\Z")
_MAX_BUFFERS = 30  # Metal binds 31 buffers and one carries the values
RESERVED = frozenset({"lane", "gx", "gy", "gz"})
"""Names that every entry receives beside its own arguments."""

_Item = TypeVar("_Item")


@dataclass(frozen=True, slots=True)
class Buf:
    """A pointer to device memory.

    Parameters
    ----------
    name : str
    ctype : str
        A key of :data:`CTYPES`.
    const : bool
        The kernel only reads it.
    alias : bool
        It may overlap another buffer of the call (operations in place), so it gets no ``restrict``.
    """

    name: str
    ctype: str
    const: bool = False
    alias: bool = False


@dataclass(frozen=True, slots=True)
class Val:
    """A scalar of type ``i32``, ``u32``, ``f32`` or ``i64``, the same for every lane."""

    name: str
    ctype: str


@dataclass(frozen=True, slots=True)
class Local:
    """An array in group memory, shared by the lanes of one group and not initialised."""

    name: str
    ctype: str
    size: int


@dataclass(frozen=True, slots=True)
class KernelDecl:
    """One entry of a body file.

    Parameters
    ----------
    name : str
        The word in ``KC_ENTRY(name)``; the compiled symbol is ``kc_<name>``.
    args : tuple of Buf or Val
        In the order in which :meth:`Device.launch` takes them.
    locals : tuple of Local
    lanes : int
        Work-items of a group (threads of a CUDA block), fixed at compile time.

    Raises
    ------
    FormatError
        Names, types or sizes that no target accepts.
    """

    name: str
    args: tuple[Buf | Val, ...]
    locals: tuple[Local, ...] = ()
    lanes: int = 64

    def __post_init__(self) -> None:
        names = [self.name, *(item.name for item in (*self.args, *self.locals))]
        for name in names:
            if not _IDENTIFIER.match(name) or name in RESERVED or name.startswith("kc_"):
                raise FormatError(
                    message(self.name, "bad name", got=name, expected="a free lower-case name")
                )
        if len(set(names[1:])) != len(names) - 1:
            raise FormatError(
                message(self.name, "arguments share a name", got=names[1:], expected="all distinct")
            )
        for ctype in [x.ctype for x in self.buffers] + [x.ctype for x in self.locals]:
            _check_ctype(self.name, ctype, CTYPES)
        for value in self.values:
            _check_ctype(self.name, value.ctype, _VALUE_CODES)
        if not 1 <= self.lanes <= 1024:
            raise FormatError(message(self.name, "lanes", got=self.lanes, expected="1 to 1024"))
        if len(self.buffers) > _MAX_BUFFERS:
            raise FormatError(
                message(self.name, "buffers", got=len(self.buffers), expected=f"<= {_MAX_BUFFERS}")
            )

    @property
    def symbol(self) -> str:
        """The name of the entry in the compiled program."""
        return f"kc_{self.name}"

    @property
    def buffers(self) -> tuple[Buf, ...]:
        """The buffers, in argument order."""
        return tuple(item for item in self.args if isinstance(item, Buf))

    @property
    def values(self) -> tuple[Val, ...]:
        """The scalars, in argument order."""
        return tuple(item for item in self.args if isinstance(item, Val))

    @property
    def local_bytes(self) -> int:
        """Bytes of group memory, without the compiler's own padding."""
        return sum(item.size * CTYPES[item.ctype] for item in self.locals)


def _check_ctype(name: str, ctype: str, allowed: dict[str, int] | dict[str, str]) -> None:
    if ctype not in allowed:
        raise FormatError(message(name, "type", got=ctype, expected=f"one of {sorted(allowed)}"))


def struct_fields(decl: KernelDecl, *, offsets: bool) -> tuple[tuple[str, str], ...]:
    """Return the (ctype, name) members of the struct of values, widest first (so no padding).

    Parameters
    ----------
    decl : KernelDecl
    offsets : bool
        Add one ``i64 <buffer>_at`` per buffer: the byte at which the buffer's view starts, for
        runtimes whose memory handles carry no offset.
    """
    fields = [("i64", f"{buffer.name}_at") for buffer in decl.buffers] if offsets else []
    fields += [(value.ctype, value.name) for value in decl.values if value.ctype == "i64"]
    fields += [(value.ctype, value.name) for value in decl.values if value.ctype != "i64"]
    return tuple(fields)


class ArgumentPlan:
    """How the arguments of one entry are split into buffers and one packed struct.

    Parameters
    ----------
    decl : KernelDecl
    offsets : bool
        As in :func:`struct_fields`.
    """

    __slots__ = ("_buffers", "_n_args", "_pack", "_values", "decl", "offsets")

    def __init__(self, decl: KernelDecl, *, offsets: bool = False) -> None:
        self.decl = decl
        self.offsets = offsets
        self._n_args = len(decl.args)
        self._buffers = tuple(i for i, arg in enumerate(decl.args) if isinstance(arg, Buf))
        place = {arg.name: i for i, arg in enumerate(decl.args)}
        fields = struct_fields(decl, offsets=offsets)
        self._values = tuple(place[name] for _, name in fields if name in place)
        codes = "".join(_VALUE_CODES[ctype] for ctype, _ in fields)
        tail = "0q" if "q" in codes else ""  # C pads a struct to its widest member
        self._pack = struct.Struct(f"@{codes}{tail}").pack if codes else None

    def buffers(self, args: Sequence[_Item]) -> list[_Item]:
        """Return the buffer arguments.

        Raises
        ------
        ShapeError
            The number of arguments differs from the declaration.
        """
        if len(args) != self._n_args:
            raise ShapeError(
                message(self.decl.name, "arguments", got=len(args), expected=self._n_args)
            )
        return [args[i] for i in self._buffers]

    def values(self, args: Sequence[object], at: Sequence[int] = ()) -> bytes:
        """Return the packed struct (empty if there is none); ``at`` are the buffers' offsets.

        Raises
        ------
        ShapeError
            A value that its type cannot hold.
        """
        if self._pack is None:
            return b""
        try:
            return self._pack(*at, *[args[i] for i in self._values])
        except struct.error as error:
            got = [args[i] for i in self._values]
            types = [f"{value.ctype} {value.name}" for value in self.decl.values]
            text = message(
                self.decl.name, f"a value does not fit ({error})", got=got, expected=types
            )
            raise ShapeError(text) from error
