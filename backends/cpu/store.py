"""One store (K or V) as kernels see it: a codec as numbers and tables, planes as rows."""

from __future__ import annotations

import functools
import weakref
from typing import Any, NamedTuple

import numpy as np

from kvcore.numerics import F32, U8, U16, Array
from kvcore.pool import Pool, State
from kvcore.quantize import level_table, threshold_table
from kvcore.spec import GROUP_CELLS, Codec, Packing, Rounding, Rule

KINDS = ("f32", "f16", "bf16", "bytes", "halves", "sequential")
(
    KIND,
    BITS,
    GROUP,
    PER_CHANNEL,
    ZERO,
    UNIFORM,
    RULE,
    ROUNDING,
    AGAINST_STORED,
    HEADS,
    PAGE,
    UNIT,
    LINES,
    SINKS,
    RING,
    SLOTS,
) = range(16)
"""Columns of ``Store.info``: the codec, then the geometry of pool and exact slots."""

F32_KIND, F16_KIND, BF16_KIND, BYTES_KIND, HALVES_KIND, SEQUENTIAL_KIND = range(6)
ABSMAX, SIGNED_ABSMAX, RMS = range(3)
DIVIDE_HALF_EVEN, RECIPROCAL_HALF_AWAY, RECIPROCAL_TRUNC, NEAREST_LEVEL = range(4)
_RULES = (Rule.ABSMAX, Rule.SIGNED_ABSMAX, Rule.RMS)
_ROUNDINGS = (
    Rounding.DIVIDE_HALF_EVEN,
    Rounding.RECIPROCAL_HALF_AWAY,
    Rounding.RECIPROCAL_TRUNC,
    Rounding.NEAREST_LEVEL,
)


class Store(NamedTuple):
    """What kernels read and write of one store.

    Attributes
    ----------
    info : i64[16]
    numbers : f32[4]
        Divisor of the statistic; lowest and highest code; the zero code plus a half.
    levels : f32[256]
        Value of each code, in units of the scale.
    fields : f32[256, 8]
        Values of the codes in a byte, for codes packed in sequence.
    thresholds : f32[n]
    codes : u8[rows, row_bytes]
        Row (page * H + h) * P + slot.
    scales : u16[rows, D/G] or u16[units * H * lines, D]
    exact : u16[rows, D]
        Row (b * slots + slot) * H + h.
    """

    info: Array
    numbers: F32
    levels: F32
    fields: F32
    thresholds: F32
    codes: U8
    scales: U16
    exact: U16


_NOTHING = np.zeros((1, 1), np.uint16)


@functools.lru_cache(maxsize=256)
def _codec_info(codec: Codec) -> Array:
    info = np.zeros(16, np.int64)
    scale = codec.scale
    if scale is None:
        info[KIND] = KINDS.index(str(codec.float_type))
        info[BITS] = codec.bits
        return info
    packed = (Packing.BYTES, Packing.HALVES, Packing.SEQUENTIAL).index(codec.packing)
    assert codec.rounding is not None
    grid = level_table(codec)[: len(codec.levels)]
    steps = np.arange(len(grid), dtype=np.float32) - np.float32(codec.zero)
    info[KIND] = BYTES_KIND + packed
    info[BITS], info[GROUP], info[PER_CHANNEL] = codec.bits, scale.group, codec.per_channel
    info[ZERO] = codec.zero
    info[UNIFORM] = codec.signed or bool((grid == steps).all())
    info[RULE] = _RULES.index(scale.rule)
    info[ROUNDING] = _ROUNDINGS.index(codec.rounding)
    info[AGAINST_STORED] = scale.stored
    return info


@functools.lru_cache(maxsize=256)
def _tables(codec: Codec) -> tuple[F32, F32, F32, F32]:
    """Return numbers, levels, fields and thresholds of a codec."""
    levels = np.zeros(256, np.float32)
    fields = np.zeros((256, 8), np.float32)
    numbers = np.zeros(4, np.float32)
    if codec.scale is None:
        return numbers, levels, fields, np.zeros(0, np.float32)
    table = level_table(codec)
    levels[: len(table)] = table
    ends = (codec.levels[0] + codec.zero, codec.levels[-1] + codec.zero)
    numbers[:] = (codec.scale.divisor, *ends, codec.zero + 0.5)
    if codec.packing is Packing.SEQUENTIAL:
        byte = np.arange(256)
        for i in range(8 // codec.bits):
            fields[:, i] = table[(byte >> (codec.bits * i)) & (2**codec.bits - 1)]
    return numbers, levels, fields, threshold_table(codec)


class _Alias:
    """An array's memory under another flag."""

    def __init__(self, a: Array) -> None:
        self.kept = a
        interface = dict(a.__array_interface__)
        interface["data"] = (interface["data"][0], False)
        self.__array_interface__ = interface


def readable(a: Array) -> Array:
    """Return `a`, marked writable: kernels are compiled for such arrays only.

    Only for arrays that kernels read.
    """
    return a if a.flags.writeable else np.asarray(_Alias(a))


def _rows(plane: Array, dtype: Any) -> Array:
    a: Array = readable(np.asarray(plane))
    rows: Array = a.view(dtype).reshape(-1, a.shape[-1])
    return rows


class Stores(NamedTuple):
    """K and V of a pool, and what they were opened from."""

    k: Store
    v: Store
    arrays: tuple[Any, ...]


_opened: weakref.WeakKeyDictionary[Pool | State, Stores] = weakref.WeakKeyDictionary()


def open_stores(pool: Pool, state: State | None) -> Stores:
    """Return both stores of a pool, with the exact slots of a state if there is one."""
    arrays = tuple(pool.planes.values())
    if state is not None:
        arrays += (state.k, state.v)
    key: Pool | State = pool if state is None else state
    known = _opened.get(key)
    if (
        known is not None
        and len(known.arrays) == len(arrays)
        and all(a is b for a, b in zip(arrays, known.arrays, strict=True))
    ):
        return known
    found = Stores(_open(pool, state, "k"), _open(pool, state, "v"), arrays)
    _opened[key] = found
    return found


def _open(pool: Pool, state: State | None, store: str) -> Store:
    layout = pool.layout
    codec = layout.codec(store)
    info = _codec_info(codec).copy()
    info[HEADS], info[PAGE] = layout.n_kv_heads, layout.page_size
    info[UNIT] = layout.unit_pages
    info[LINES] = max(1, layout.page_size // GROUP_CELLS)
    exact = _NOTHING
    if state is not None and state.layout.ring(store):
        info[SINKS], info[RING] = state.layout.sinks, state.layout.ring(store)
        info[SLOTS] = state.layout.slots(store)
        exact = _rows(getattr(state, store), np.uint16)
    codes = pool.planes[f"{store}_codes"]
    scales = _NOTHING if codec.scale is None else _rows(pool.planes[f"{store}_scales"], np.uint16)
    return Store(info, *_tables(codec), _rows(codes, np.uint8), scales, exact)
