"""One row of values through the system: array, rotation, scale, codes, bytes, and back.

Everything shown is read out of a real cache on a real backend, not computed on the side; the
bytes are compared with the reference's. For a per-channel codec the "row" is what shares a scale:
one channel over 32 cells.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from kvcore.addressing import locate, read_bulk, scale_place
from kvcore.cache_spec import CacheSpec
from kvcore.dispatch import get_backend
from kvcore.errors import ShapeError, message
from kvcore.numerics import F32, Array
from kvcore.pool import Pool
from kvcore.quantize import unpack
from kvcore.read import host_pool
from kvcore.spec import GROUP_CELLS, Axis, Codec

_STORES = ("k", "v")


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """Where bytes of the row lie in a plane.

    Attributes
    ----------
    plane : str
    shape : tuple of int
        Of the whole plane.
    index : tuple of int
        [page, head, cell of the page], or [unit, head, group of the page] of a per-channel scale.
    byte : int
        Offset of the row's first byte in the plane.
    nbytes : int
        Bytes of one cell there (of the whole group for a per-channel scale).
    first : str
        The first bytes, hexadecimal.
    """

    plane: str
    shape: tuple[int, ...]
    index: tuple[int, ...]
    byte: int
    nbytes: int
    first: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Walk:
    """What one row of values went through.

    Attributes
    ----------
    format, backend, store, codec : str
    head_dim, cells : int
    channel : int or None
        The channel that is shown; None if a row is shown.
    array : tuple of float
        What the engine handed over.
    rotated : tuple of float or None
        In the stored basis; None if the store is not rotated.
    waits : bool
        Kept exact as float16 until its group is complete, and encoded from that.
    scale_rule : str
        "" for a float type.
    scales : tuple of float
        As stored, one per group.
    scale_bits : tuple of int
        Their float16 bits.
    codes : tuple of int
        One per value; the bits of the value itself for a float type.
    code_digits : int
        Hexadecimal digits of a code.
    places : tuple of Place
    dequantized : tuple of float
        In the stored basis.
    restored : tuple of float
        In the model's basis: what a reader gets.
    relative_rms, max_error : float
        Of `restored` against `array`.
    same_as_reference : bool
        Every byte of the pool equals the reference backend's.
    """

    format: str
    backend: str
    store: str
    codec: str
    head_dim: int
    cells: int
    channel: int | None
    array: tuple[float, ...]
    rotated: tuple[float, ...] | None
    waits: bool
    scale_rule: str
    scales: tuple[float, ...]
    scale_bits: tuple[int, ...]
    codes: tuple[int, ...]
    code_digits: int
    places: tuple[Place, ...]
    dequantized: tuple[float, ...]
    restored: tuple[float, ...]
    relative_rms: float
    max_error: float
    same_as_reference: bool

    def to_dict(self) -> dict[str, Any]:
        """Return plain data, as ``--json`` prints it."""
        return asdict(self)

    def __str__(self) -> str:
        return "\n".join(_lines(self))


def sample(cells: int, head_dim: int) -> F32:
    """Return values that look like a K: an even spread, and one channel with a large mean.

    They are small multiples of 1/32, so no machine rounds them.

    Parameters
    ----------
    cells, head_dim : int

    Returns
    -------
    f32[cells, head_dim]
    """
    c, d = np.arange(cells)[:, None], np.arange(head_dim)[None, :]
    spread = (7 * d * d + 13 * c * c + 5 * c * d + 3 * d + 11 * c) % 61 - 30.0
    values: F32 = (spread / 32 + 4.0 * (d == 5)).astype(np.float32)
    return values


def walk(
    format: Any = "q2k",
    backend: Any = None,
    *,
    store: str = "k",
    head_dim: int = 64,
    channel: int = 5,
    values: Any = None,
) -> Walk:
    """Take one row of values through a cache of one head.

    Parameters
    ----------
    format : str or Format
        Its bare form: no window, no sinks, no centre.
    backend : str or Backend, optional
        The best there is by default.
    store : {"k", "v"}
    head_dim : int
    channel : int
        Which channel to show of a per-channel codec.
    values : f32[D] or f32[32, D], optional
        The cells; :func:`sample` by default. A per-channel codec takes 32 of them.

    Raises
    ------
    FormatError, ShapeError, BackendUnavailable
    """
    be = backend if backend is not None and not isinstance(backend, str) else get_backend(backend)
    spec = CacheSpec(format=format, n_kv_heads=1, head_dim=head_dim, recipe=None)
    _check(spec, store, channel)
    codec = spec.layout.codec(store)
    x = _values(values, spec)
    cache = be.cache(spec, len(x))
    cache.append(x[:, None], x[:, None])
    pool = host_pool(be, cache.pool)
    stored = read_bulk(pool, store, cache.table, np.arange(len(x)))[:, 0]
    restored = cache.read()[_STORES.index(store)][:, 0]
    turned = spec.format.rotate_k if store == "k" else spec.format.rotate_v
    rotated = be.to_host(be.rotate(be.arrays.asarray(x, "float", "walk", "x"))) if turned else None
    pick = (slice(None), channel) if codec.per_channel else 0
    error = restored[pick].astype(np.float64) - x[pick]
    scales = _scales(pool, store, cache.table, channel)
    return Walk(
        format=spec.format.name,
        backend=be.name,
        store=store,
        codec=codec.name,
        head_dim=spec.head_dim,
        cells=len(x),
        channel=channel if codec.per_channel else None,
        array=_floats(x[pick]),
        rotated=None if rotated is None else _floats(rotated[pick]),
        waits=spec.state_layout.delayed(store),
        scale_rule=_rule(codec),
        scales=_floats(scales),
        scale_bits=tuple(int(b) for b in scales.view(np.uint16)),
        codes=tuple(int(c) for c in _codes(pool, store, cache.table, len(x))[pick]),
        code_digits=max(1, codec.bits // 4),
        places=_places(pool, store, cache.table),
        dequantized=_floats(stored[pick]),
        restored=_floats(restored[pick]),
        relative_rms=float(np.sqrt((error**2).sum() / (x[pick].astype(np.float64) ** 2).sum())),
        max_error=float(np.abs(error).max()),
        same_as_reference=_same(pool, spec, x),
    )


def _check(spec: CacheSpec, store: str, channel: int) -> None:
    if store not in _STORES:
        raise ShapeError(message("walk", "unknown store", got=repr(store), expected="k or v"))
    if not 0 <= channel < spec.head_dim:
        raise ShapeError(
            message("walk", "channel", got=channel, expected=f"0 to {spec.head_dim - 1}")
        )


def _values(values: Any, spec: CacheSpec) -> F32:
    cells = GROUP_CELLS if spec.format.per_channel else 1
    if values is None:
        return sample(cells, spec.head_dim)
    x = np.asarray(values, np.float32)
    x = x[None] if x.ndim == 1 else x
    if x.shape != (cells, spec.head_dim):
        raise ShapeError(
            message("walk", "values", got=x.shape, expected=f"[{cells}, {spec.head_dim}]")
        )
    return np.ascontiguousarray(x)


def _floats(x: Array) -> tuple[float, ...]:
    return tuple(float(v) for v in x.reshape(-1))


def _rule(codec: Codec) -> str:
    if codec.scale is None:
        return ""
    over = "cells of the channel" if codec.scale.axis is Axis.CELL else "values of the row"
    divided = f" / {codec.scale.divisor:g}" if codec.scale.divisor != 1 else ""
    return f"{codec.scale.rule.value} of {codec.scale.group} {over}{divided}"


def _scales(pool: Pool, store: str, table: Array, channel: int) -> Array:
    """Return the stored scales of what is shown, f16[groups]."""
    plane = pool.planes.get(f"{store}_scales")
    if plane is None:
        return np.empty(0, np.float16)
    page, slot = locate(pool.layout, table, np.zeros(1, np.int64))
    if pool.layout.codec(store).per_channel:
        unit, line = scale_place(pool.layout, page, slot)
        return np.ascontiguousarray(plane[unit, 0, line, channel])
    return np.ascontiguousarray(plane[page[0], 0, slot[0]])


def _codes(pool: Pool, store: str, table: Array, cells: int) -> Array:
    """Return unpacked codes, or the bits of float values: uint[cells, D]."""
    layout, codec = pool.layout, pool.layout.codec(store)
    page, slot = locate(layout, table, np.arange(cells))
    packed = np.ascontiguousarray(pool.planes[f"{store}_codes"][page, 0, slot])
    if codec.scale is None:
        return packed.view(np.uint32 if codec.bits == 32 else np.uint16)
    return unpack(codec, packed, layout.head_dim(store))


def _places(pool: Pool, store: str, table: Array) -> tuple[Place, ...]:
    page, slot = locate(pool.layout, table, np.zeros(1, np.int64))
    out = []
    for plane in pool.layout.planes(pool.n_pages):
        if not plane.name.startswith(store):
            continue
        index = (int(page[0]), 0, int(slot[0]))
        if plane.name.endswith("scales") and pool.layout.codec(store).per_channel:
            unit, line = scale_place(pool.layout, page, slot)
            index = (int(unit[0]), 0, int(line[0]))
        row = np.ascontiguousarray(pool.planes[plane.name][index])
        out.append(
            Place(
                plane=plane.name,
                shape=plane.shape,
                index=index,
                byte=int(np.ravel_multi_index(index, plane.shape[:3])) * row.nbytes,
                nbytes=row.nbytes,
                first=row.tobytes()[:8].hex(" "),
            )
        )
    return tuple(out)


def _same(pool: Pool, spec: CacheSpec, x: F32) -> bool:
    """Return True if the reference backend stores the same bytes."""
    twin = get_backend("reference").cache(spec, len(x))
    twin.append(x[:, None], x[:, None])
    return all(
        np.asarray(pool.planes[name]).tobytes() == np.asarray(plane).tobytes()
        for name, plane in twin.pool.planes.items()
    )


def _lines(w: Walk) -> list[str]:
    """Render a walk as text, at most 100 columns wide."""
    what = f"row of cell 0, {w.head_dim} values"
    if w.channel is not None:
        what = f"channel {w.channel} of cells 0 to {w.cells - 1}"
    lines = [
        f"{w.format} on {w.backend}: store {w.store.upper()}, codec {w.codec}, {what}",
        "",
        f"1 array        f32[{w.cells}, 1, {w.head_dim}], what cache.append is given",
        *_numbers(w.array),
    ]
    if w.rotated is not None:
        lines += ["2 rotation     kvcore/ops/rotate.py, Hadamard over D", *_numbers(w.rotated)]
    else:
        lines += ["2 rotation     none: this store keeps the model's basis"]
    if w.waits:
        lines += ["  tail         float16 until the 32 cells are there; encoded from that"]
    if w.scales:
        lines += [f"3 scale        {w.scale_rule}, as float16"]
        pairs = [f"0x{b:04x} = {s:.6g}" for b, s in zip(w.scale_bits, w.scales, strict=True)]
        lines += _wrap(pairs, 4, 22)
    else:
        lines += [f"3 scale        none: {w.codec} keeps the value itself"]
    lines += ["4 codes        kvcore/quantize.py, hexadecimal, one a value"]
    lines += _wrap([f"{c:0{w.code_digits}x}" for c in w.codes], _per_line(w.code_digits), 0)
    lines += ["5 planes       kvcore/layout.py"]
    lines += [_place(p) for p in w.places]
    lines += ["6 dequantized  level x scale, in the stored basis", *_numbers(w.dequantized)]
    if w.rotated is not None:
        lines += ["7 read         rotated back: what a query meets", *_numbers(w.restored)]
    same = "yes" if w.same_as_reference else "NO"
    lines += [
        f"8 error        {100 * w.relative_rms:.2f} % relative RMS, {w.max_error:.4f} at most",
        f"               same bytes as the reference: {same}",
    ]
    return lines


def _per_line(digits: int) -> int:
    return 32 if digits <= 2 else 64 // (digits + 1) // 4 * 4


def _numbers(values: tuple[float, ...]) -> list[str]:
    return _wrap([f"{v:+.4f}" for v in values], 8, 9)


def _wrap(words: list[str], per_line: int, width: int) -> list[str]:
    rows = [words[i : i + per_line] for i in range(0, len(words), per_line)]
    return ["    " + " ".join(f"{w:<{width}}" for w in row).rstrip() for row in rows]


def _place(p: Place) -> str:
    shape = ", ".join(str(n) for n in p.shape)
    index = ", ".join(str(n) for n in p.index)
    return f"    {p.plane}[{shape}] at [{index}]: byte {p.byte}, {p.nbytes} bytes, {p.first} ..."
