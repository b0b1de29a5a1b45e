"""Codecs, formats and recipes, as frozen data.

Everything a kernel, a test or a table needs is derived from these fields: sizes, value tables,
thresholds, packing. Nothing here touches an array of the cache or knows a vendor.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from functools import cached_property

from kvcore.errors import FormatError, message

GROUP_CELLS = 32
"""Cells that share one scale in a per-channel codec."""

SLACK = 16
"""Ring slots beyond the window: a verify window of SLACK + 1 cells loses no live cell."""

MAX_DRAFT = SLACK + 1
"""The most cells that may lie beyond the committed length."""

F16_MAX = 65504.0


class Axis(enum.Enum):
    """The axis along which the values of one scale group lie."""

    DIM = "dim"  # G consecutive values of one cell and head
    CELL = "cell"  # one channel over 32 consecutive cells


class Rule(enum.Enum):
    """The statistic a scale is made of, before it is divided by ``Scale.divisor``."""

    ABSMAX = "absmax"
    SIGNED_ABSMAX = "signed absmax"  # the signed value of largest magnitude; a tie takes +
    RMS = "rms"


class Rounding(enum.Enum):
    """How a value becomes a code."""

    DIVIDE_HALF_EVEN = "rint(x / s)"
    RECIPROCAL_HALF_AWAY = "roundf(x * (1 / s))"
    RECIPROCAL_TRUNC = "trunc(x * (1 / s) + zero + 0.5)"
    NEAREST_LEVEL = "number of midpoints m with x > m * s"


class Packing(enum.Enum):
    """Where the codes of one row lie in its bytes."""

    BYTES = "one or more whole bytes a value, little-endian"
    HALVES = "4 bits: value j of a group in the low nibble of byte j, value j + G/2 in its high one"
    SEQUENTIAL = "value (8 / bits) * b + i in the i-th field of byte b, lowest bits first"


@dataclass(frozen=True, kw_only=True, slots=True)
class Scale:
    """One float16 scale per group of values.

    Attributes
    ----------
    axis : Axis
    group : int
        Values that share a scale.
    rule : Rule
    divisor : float
        The exact scale is ``statistic / divisor`` in float32.
    stored : bool
        True: codes are chosen against the scale as stored (rounded to float16).
        False: against the unrounded float32 scale.
    """

    axis: Axis
    group: int
    rule: Rule
    divisor: float = 1.0
    stored: bool = True


@dataclass(frozen=True, kw_only=True)
class Codec:
    """How one store, K or V, keeps its values.

    Attributes
    ----------
    name : str
    bits : int
        Bits a value.
    float_type : str or None
        "f32", "f16" or "bf16": the value itself is stored and there is no scale.
    levels : tuple of float
        Ascending values of the codes, in units of the scale; empty for a float type.
    zero : int
        The code of level 0 on a uniform grid (0 when codes are signed bytes or a codebook).
    signed : bool
        Codes are two's complement bytes.
    scale : Scale or None
    rounding : Rounding or None
    packing : Packing
    source : str
        Where the rule comes from.
    """

    name: str
    bits: int
    float_type: str | None = None
    levels: tuple[float, ...] = ()
    zero: int = 0
    signed: bool = False
    scale: Scale | None = None
    rounding: Rounding | None = None
    packing: Packing = Packing.BYTES
    source: str

    def __post_init__(self) -> None:
        bad = _codec_fault(self)
        if bad:
            raise FormatError(f"[codec] {self.name}: {bad}")

    @property
    def per_channel(self) -> bool:
        """True if a scale spans 32 cells of one channel."""
        return self.scale is not None and self.scale.axis is Axis.CELL

    @property
    def per_row(self) -> bool:
        """True if a cell is stored on its own: no other cell's values matter to its bytes."""
        return not self.per_channel

    @property
    def codebook(self) -> bool:
        """True if codes are chosen by thresholds between the levels."""
        return self.rounding is Rounding.NEAREST_LEVEL

    @cached_property
    def thresholds(self) -> tuple[float, ...]:
        """Midpoints between neighbouring levels, in units of the scale."""
        return tuple((a + b) / 2 for a, b in zip(self.levels, self.levels[1:], strict=False))

    @property
    def dim_multiple(self) -> int:
        """Head sizes must be a multiple of this."""
        along = self.scale.group if self.scale is not None and not self.per_channel else 1
        return max(along, 8 // self.bits if self.bits < 8 else 1)

    def row_bytes(self, head_dim: int) -> int:
        """Bytes of the codes of one cell and head."""
        return head_dim * self.bits // 8

    def scale_bytes(self, head_dim: int) -> float:
        """Bytes of the scales of one cell and head (a per-channel scale is shared by 32 cells)."""
        if self.scale is None:
            return 0.0
        return 2.0 * head_dim / self.scale.group

    def check_dim(self, head_dim: int) -> None:
        """Raise FormatError unless `head_dim` suits the codec; name the next that does."""
        step = self.dim_multiple
        if head_dim < 1 or head_dim % step:
            next_dim = (max(head_dim, 0) // step + 1) * step
            raise FormatError(
                message(
                    self.name,
                    "head size D does not fit the codec's groups",
                    got=f"D={head_dim}",
                    expected=f"a multiple of {step}",
                    fix=f"the next D that works is {next_dim}",
                )
            )


def _codec_fault(c: Codec) -> str:
    if c.bits not in (1, 2, 4, 8, 16, 32):
        return f"bits must be 1, 2, 4, 8, 16 or 32, got {c.bits}"
    if c.float_type is not None:
        size = {"f32": 32, "f16": 16, "bf16": 16}.get(c.float_type)
        clean = not c.levels and c.scale is None and c.rounding is None
        return "" if size == c.bits and clean else "a float type has its own width and no scale"
    if c.scale is None or c.rounding is None or not c.levels:
        return "a code needs levels, a scale and a rounding"
    if list(c.levels) != sorted(set(c.levels)) or len(c.levels) > 2**c.bits:
        return "levels must ascend strictly and fit the bits"
    if c.scale.axis is Axis.CELL and (c.scale.group != GROUP_CELLS or not c.codebook):
        return f"a per-channel scale spans {GROUP_CELLS} cells and chooses codes by level"
    if c.scale.axis is Axis.CELL and c.scale.rule is not Rule.RMS:
        return "a per-channel scale is an RMS"
    packs = {Packing.BYTES: (8,), Packing.HALVES: (4,), Packing.SEQUENTIAL: (1, 2, 4)}
    return "" if c.bits in packs[c.packing] else f"{c.packing.name} cannot pack {c.bits} bits"


ROTATE = ("none", "v", "kv")


def rotation_block(head_dim: int) -> int:
    """Return the Hadamard block: the largest power of two dividing `head_dim`.

    Raises
    ------
    FormatError
        If that is under 32.
    """
    block = head_dim & -head_dim if head_dim > 0 else 0
    if block < 32:
        raise FormatError(
            message(
                "rotate",
                "head size D has no Hadamard block of 32 or more",
                got=f"D={head_dim} (largest power of two dividing it: {block})",
                expected="a multiple of 32",
                fix=f"the next D that works is {(max(head_dim, 0) // 32 + 1) * 32}",
            )
        )
    return block


@dataclass(frozen=True, kw_only=True, slots=True)
class Recipe:
    """How a cache keeps a format beyond its bytes.

    Attributes
    ----------
    window : int
        Last cells kept exact in float16.
    sinks : int
        First cells kept exact in float16.
    k_center : str
        "none" or "auto" (one vector per head from the first cells is subtracted from K).
    grouping : str
        "deferred" or "eager".
    """

    window: int = 0
    sinks: int = 0
    k_center: str = "none"
    grouping: str = "deferred"


BARE = Recipe()


@dataclass(frozen=True, kw_only=True)
class Format:
    """A codec for K, a codec for V, a rotation and the recipe measured best.

    Parameters
    ----------
    k, v : Codec
    rotate : {"none", "v", "kv"}
        Which stores hold Hadamard-rotated values.
    name : str
        Made of the codecs' names if left out.
    recipe : Recipe
    note, source : str
    """

    k: Codec
    v: Codec
    rotate: str = "none"
    name: str = ""
    recipe: Recipe = BARE
    note: str = ""
    source: str = "ours"

    def __post_init__(self) -> None:
        if self.rotate not in ROTATE:
            raise FormatError(
                message("format", "unknown rotation", got=repr(self.rotate), expected=ROTATE)
            )
        if not self.name:
            object.__setattr__(self, "name", f"{self.k.name}+{self.v.name}/{self.rotate}")

    @property
    def per_channel(self) -> bool:
        """True if K or V has per-channel scales."""
        return self.k.per_channel or self.v.per_channel

    @property
    def rotate_k(self) -> bool:
        """True if K (and so the query) is rotated."""
        return self.rotate == "kv"

    @property
    def rotate_v(self) -> bool:
        """True if V is rotated and the output un-rotated."""
        return self.rotate in ("v", "kv")

    def check_dims(self, head_dim_k: int, head_dim_v: int) -> None:
        """Raise FormatError unless both head sizes suit codecs and rotation."""
        self.k.check_dim(head_dim_k)
        self.v.check_dim(head_dim_v)
        if self.rotate_k:
            rotation_block(head_dim_k)
        if self.rotate_v:
            rotation_block(head_dim_v)

    def bytes_per_cell(self, n_kv_heads: int, head_dim: int, head_dim_v: int | None = None) -> int:
        """Return the bytes of one cell: K and V, scales included, tail and overlay not.

        Parameters
        ----------
        n_kv_heads : int
        head_dim : int
            Head size of K, and of V unless `head_dim_v` is given.
        head_dim_v : int, optional

        Raises
        ------
        FormatError
            If a head size does not suit the format.
        """
        dv = head_dim if head_dim_v is None else head_dim_v
        self.check_dims(head_dim, dv)
        per_head = (
            self.k.row_bytes(head_dim)
            + self.k.scale_bytes(head_dim)
            + self.v.row_bytes(dv)
            + self.v.scale_bytes(dv)
        )
        # A per-channel scale is 2 * D / 32 bytes a cell: a whole number only if D % 16 == 0.
        return -int(-(n_kv_heads * per_head) // 1)

    def __str__(self) -> str:
        rows = [
            ("format", self.name),
            ("K", _codec_line(self.k)),
            ("V", _codec_line(self.v)),
            ("rotate", self.rotate),
            ("recipe", _recipe_line(self.recipe)),
            ("bytes per cell", f"{self.bytes_per_cell(2, 256)} at 2 heads x 256"),
            ("note", self.note),
            ("source", self.source),
        ]
        return "\n".join(f"{name:<15} {text}" for name, text in rows if text)


def _codec_line(c: Codec) -> str:
    if c.scale is None:
        return f"{c.name}: {c.bits} bits"
    what = "values of a cell" if c.scale.axis is Axis.DIM else "cells of a channel"
    return f"{c.name}: {c.bits} bits, f16 {c.scale.rule.value} scale per {c.scale.group} {what}"


def _recipe_line(r: Recipe) -> str:
    centre = "K centred, " if r.k_center != "none" else ""
    return f"{centre}{r.sinks} sinks, window {r.window}, {r.grouping} grouping"
