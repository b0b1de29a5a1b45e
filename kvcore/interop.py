"""Exchange of stored cells with ggml's blocks, bit for bit.

What is exported is what the pool holds: the *stored* basis, that is rotated if the format rotates
and with the centre subtracted if K is centred. No value is decoded or encoded again. Blocks are
``block_q4_0`` (18 bytes: float16 scale, 16 bytes of codes), ``block_q8_0`` (34 bytes: scale, 32
signed codes) and the 10-byte per-channel block ``block_q2c_0`` (scale of one channel over 32
cells, then the cells' 2-bit codes: cell c in byte 2 + c // 4 at bits 2 * (c % 4)).

A block holds what the ``gguf`` package's own quantizer makes of the same values, but for two rules
of ours: a q4_0 block in which +a and -a tie takes the positive (gguf takes the first), and a scale
beyond 65504 saturates (gguf stores infinity).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from kvcore.addressing import locate, scale_place
from kvcore.backend import Backend
from kvcore.errors import FormatError, RangeError, ShapeError, message
from kvcore.numerics import U8, Array
from kvcore.operands import HOST, is_host
from kvcore.operands import table as checked_table
from kvcore.pool import Pool
from kvcore.quantize import pack, unpack
from kvcore.spec import GROUP_CELLS, Codec

CODECS = {"q4_0": "q4_0", "q8_0": "q8_0", "q2c_0": "q2c"}
"""ggml-style type name -> the codec whose bytes it holds."""

STORES = ("k", "v")


class Blocks(NamedTuple):
    """Blocks of both stores; None for a store that another codec keeps.

    Attributes
    ----------
    k, v : u8[n_cells, H, D/32 * block bytes] or None
        For ``q2c_0``: u8[ceil(n_cells / 32), H, D, 10].
    """

    k: U8 | None
    v: U8 | None


def block_bytes(type_name: str) -> int:
    """Return the bytes of one block: 18, 34 or 10."""
    return {"q4_0": 18, "q8_0": 34, "q2c_0": 10}[_known(type_name)]


def to_ggml(
    pool: Pool, table: Any, n_cells: int, type_name: str, backend: Backend | None = None
) -> Blocks:
    """Return the first cells of one sequence as blocks, in the stored (rotated) basis.

    Parameters
    ----------
    pool : Pool
    table : i32[blocks]
        Page table of the sequence.
    n_cells : int
    type_name : {"q4_0", "q8_0", "q2c_0"}
    backend : Backend, optional
        Whose arrays the planes are; found by the pool's backend name if left out.

    Returns
    -------
    Blocks
        Of the stores whose codec has this block. Codes of cells beyond `n_cells` in the last
        per-channel group are 0.

    Raises
    ------
    FormatError
        If the type is unknown or neither store keeps it (int8 with groups of 64 is no q8_0).
    RangeError
        If a cell lies beyond the table or on a page that is not resident.

    Notes
    -----
    Cells that only the exact slots of a state hold (the tail of an unfinished deferred group) are
    not in the pool and so not exported.
    """
    stores = _stores(pool, type_name)
    row = _row("to_ggml", pool, table, n_cells)
    planes = _Planes(pool, backend)
    found: dict[str, U8 | None] = {"k": None, "v": None}
    for store in stores:
        read = _read_groups if type_name == "q2c_0" else _read_rows
        found[store] = read(planes, store, row, int(n_cells))
    return Blocks(k=found["k"], v=found["v"])


def from_ggml(
    pool: Pool,
    table: Any,
    n_cells: int,
    type_name: str,
    k: Any = None,
    v: Any = None,
    backend: Backend | None = None,
) -> None:
    """Write blocks into the first cells of one sequence; the inverse of :func:`to_ggml`.

    Parameters
    ----------
    pool : Pool
        Written.
    table : i32[blocks]
    n_cells : int
    type_name : {"q4_0", "q8_0", "q2c_0"}
    k, v : u8 array or bytes, optional
        Blocks in the stored basis, shaped as :func:`to_ggml` returns them or flat; a store left
        out is not touched.
    backend : Backend, optional

    Raises
    ------
    FormatError
        If the type is unknown, or blocks are given for a store that another codec keeps.
    ShapeError, RangeError
        On blocks of the wrong size or cells that have no page. Nothing is written then.
    """
    _known(type_name)
    given = {store: raw for store, raw in zip(STORES, (k, v), strict=True) if raw is not None}
    if not given:
        raise ShapeError("[from_ggml] no blocks: got neither k nor v, expected one of them")
    _stores(pool, type_name, tuple(given))
    row = _row("from_ggml", pool, table, n_cells)
    blocks = {
        store: _as_blocks(pool, store, raw, int(n_cells), type_name) for store, raw in given.items()
    }
    planes = _Planes(pool, backend)
    for store, b in blocks.items():
        write = _write_groups if type_name == "q2c_0" else _write_rows
        write(planes, store, row, b, int(n_cells))


def _known(type_name: str) -> str:
    if type_name not in CODECS:
        raise FormatError(
            message("interop", "unknown block type", got=repr(type_name), expected=tuple(CODECS))
        )
    return type_name


def _stores(pool: Pool, type_name: str, asked: tuple[str, ...] = ()) -> tuple[str, ...]:
    """Return the stores that keep a block type; raise if none, or one that is asked for, does."""
    wanted = CODECS[_known(type_name)]
    layout = pool.layout
    able = tuple(s for s in STORES if layout.codec(s).name == wanted)
    if not able or set(asked) - set(able):
        kept = ", ".join(f"{s.upper()} as {_describe(layout.codec(s))}" for s in STORES)
        near = [s for s in STORES if layout.codec(s).name == "int8" and wanted == "q8_0"]
        why = "int8 shares a scale among 64 values, q8_0 among 32; " if near else ""
        raise FormatError(
            message(
                "interop",
                f"the pool does not hold {type_name} blocks",
                got=kept,
                expected=f"codec {wanted}",
                fix=f"{why}store with a format whose codec is {wanted}",
            )
        )
    return able


def _describe(codec: Codec) -> str:
    return codec.name if codec.scale is None else f"{codec.name} (groups of {codec.scale.group})"


def _row(op: str, pool: Pool, table: Any, n_cells: Any) -> Array:
    """Return the page table as i32[blocks]; raise unless the first `n_cells` have pages."""
    whole = isinstance(n_cells, int | np.integer) and not isinstance(n_cells, bool)
    t = np.asarray(checked_table(HOST, op, pool, table, 1)[0])
    capacity = t.size * pool.layout.page_size
    if not whole or not 0 <= n_cells <= capacity:
        raise RangeError(
            message(op, "n_cells is out of range", got=n_cells, expected=f"0 to {capacity}")
        )
    missing = np.flatnonzero(t[: -(-int(n_cells) // pool.layout.page_size)] < 0)
    if missing.size:
        raise RangeError(
            message(
                op,
                "a cell is not resident",
                got=f"block {int(missing[0])} on page -1",
                expected="resident pages",
                fix="resolve and move it first",
            )
        )
    return t


class _Planes:
    """The planes of a pool on the host, and how to write one back."""

    def __init__(self, pool: Pool, backend: Backend | None) -> None:
        self.pool = pool
        if backend is None and not all(is_host(p) for p in pool.planes.values()):
            from kvcore.dispatch import get_backend

            backend = get_backend(pool.backend)
        self.backend = backend

    def read(self, name: str) -> Array:
        plane = self.pool.planes[name]
        return np.asarray(plane if self.backend is None else self.backend.to_host(plane))

    def write(self, name: str, index: tuple[Any, ...], values: Array) -> None:
        plane = self.pool.planes[name]
        if self.backend is None:
            plane[index] = values
            return
        host = np.array(self.backend.to_host(plane))
        host[index] = values
        self.backend.write(plane, host)


def _read_rows(planes: _Planes, store: str, table: Array, n: int) -> U8:
    codec, page, slot, heads, blocks = _place_rows(planes.pool, store, table, n)
    scales = planes.read(f"{store}_scales")[page, :, slot]
    width = codec.row_bytes(GROUP_CELLS)
    codes = planes.read(f"{store}_codes")[page, :, slot].reshape(n, heads, blocks, width)
    little = np.ascontiguousarray(scales.astype("<f2", copy=False)).view(np.uint8)
    joined = np.concatenate([little.reshape(n, heads, blocks, 2), codes], axis=-1)
    return joined.reshape(n, heads, blocks * (2 + width))


def _write_rows(planes: _Planes, store: str, table: Array, blocks: U8, n: int) -> None:
    codec, page, slot, heads, count = _place_rows(planes.pool, store, table, n)
    width = codec.row_bytes(GROUP_CELLS)
    split = blocks.reshape(n, heads, count, 2 + width)
    scales = np.ascontiguousarray(split[..., :2]).view("<f2")[..., 0].astype(np.float16)
    codes = split[..., 2:].reshape(n, heads, count * width)
    planes.write(f"{store}_scales", (page, slice(None), slot), scales)
    planes.write(f"{store}_codes", (page, slice(None), slot), codes)


def _place_rows(
    pool: Pool, store: str, table: Array, n: int
) -> tuple[Codec, Array, Array, int, int]:
    """Return codec, pages and slots of the first n cells, heads, and blocks of one row."""
    layout = pool.layout
    codec = layout.codec(store)
    page, slot = locate(layout, table, np.arange(n))
    return codec, page, slot, layout.n_kv_heads, layout.head_dim(store) // GROUP_CELLS


def _place_groups(pool: Pool, table: Array, n: int) -> tuple[Array, Array, Array, Array]:
    """Return page and slot of the first n cells, unit and line of their groups' scales."""
    layout = pool.layout
    page, slot = locate(layout, table, np.arange(n))
    unit, line = scale_place(layout, page[::GROUP_CELLS], slot[::GROUP_CELLS])
    return page, slot, unit, line


def _read_groups(planes: _Planes, store: str, table: Array, n: int) -> U8:
    layout = planes.pool.layout
    dim, groups = layout.head_dim(store), -(-n // GROUP_CELLS)
    page, slot, unit, line = _place_groups(planes.pool, table, n)
    scales = planes.read(f"{store}_scales")[unit, :, line].astype("<f2", copy=False)
    rows = planes.read(f"{store}_codes")[page, :, slot]
    codes = np.zeros((groups * GROUP_CELLS, layout.n_kv_heads, dim), np.uint8)
    codes[:n] = unpack(layout.codec(store), rows, dim)
    by_channel = codes.reshape(groups, GROUP_CELLS, layout.n_kv_heads, dim).transpose(0, 2, 3, 1)
    out = np.empty((groups, layout.n_kv_heads, dim, 10), np.uint8)
    out[..., :2] = np.ascontiguousarray(scales)[..., None].view(np.uint8)
    out[..., 2:] = pack(layout.codec(store), np.ascontiguousarray(by_channel))
    return out


def _write_groups(planes: _Planes, store: str, table: Array, blocks: U8, n: int) -> None:
    layout = planes.pool.layout
    codec = layout.codec(store)
    page, slot, unit, line = _place_groups(planes.pool, table, n)
    scales = np.ascontiguousarray(blocks[..., :2]).view("<f2")[..., 0].astype(np.float16)
    by_channel = unpack(codec, np.ascontiguousarray(blocks[..., 2:]), GROUP_CELLS)
    cells = by_channel.transpose(0, 3, 1, 2).reshape(-1, layout.n_kv_heads, blocks.shape[2])
    planes.write(f"{store}_scales", (unit, slice(None), line), scales)
    codes = pack(codec, np.ascontiguousarray(cells[:n]))
    planes.write(f"{store}_codes", (page, slice(None), slot), codes)


def _as_blocks(pool: Pool, store: str, raw: Any, n: int, type_name: str) -> U8:
    """Return the caller's blocks in their full shape, or raise ShapeError."""
    layout = pool.layout
    dim, size = layout.head_dim(store), block_bytes(type_name)
    if type_name == "q2c_0":
        shape: tuple[int, ...] = (-(-n // GROUP_CELLS), layout.n_kv_heads, dim, size)
    else:
        shape = (n, layout.n_kv_heads, dim // GROUP_CELLS * size)
    if isinstance(raw, bytes | bytearray | memoryview):
        raw = np.frombuffer(raw, np.uint8)
    a = np.asarray(raw)
    if a.dtype != np.uint8 or (a.shape != shape and a.shape != (int(np.prod(shape)),)):
        raise ShapeError(
            message(
                "from_ggml",
                f"{store} is not such blocks",
                got=f"{a.dtype}{a.shape}",
                expected=f"uint8{shape}, or as many bytes",
            )
        )
    return np.ascontiguousarray(a).reshape(shape)
