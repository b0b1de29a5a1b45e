"""Context shift: drop cells in the middle, move the later ones down, turn their K.

K of a moved cell is read from where it is most exact, un-rotated, turned to its new position by
the caller, rotated again and encoded once more, by the reference quantizers, whose bytes are those
of every backend. V does not depend on the position: its stored rows move as they are; only
per-channel V whose groups are cut anew is encoded again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from kvcore import marks as rules
from kvcore.addressing import exact_slot, locate, read_bulk, scale_place
from kvcore.errors import ShapeError, UnsupportedError, message
from kvcore.held import Held
from kvcore.layout import LENGTH
from kvcore.numerics import F32, Array, to_f32
from kvcore.ops.rotate import rotate
from kvcore.pages import checked_cells
from kvcore.spec import GROUP_CELLS

if TYPE_CHECKING:
    from kvcore.cache import KVCache


def refusal(cache: KVCache) -> str:
    """Return why a cache cannot be shifted, or ""."""
    spec = cache.spec
    if spec.grouping == "eager" and spec.format.per_channel:
        return (
            f"{spec.format.name} with grouping='eager': a group's scale is fixed by the append "
            "that opened it, so moved cells would be clipped by scales that are not theirs"
        )
    return ""


def shift(cache: KVCache, keep: int, drop: int, rope: Any) -> int:
    """Drop cells [keep, keep + drop) and move the later ones down; see :meth:`KVCache.shift`."""
    reason = refusal(cache)
    if reason:
        raise UnsupportedError(f"[shift] cannot shift {reason}; re-encode the prompt instead")
    with cache._lock.writing():
        cache._check_settled("shift")
        n = len(cache)
        keep = checked_cells("shift", "keep", keep, 0, n)
        drop = checked_cells("shift", "drop", drop, 0, n - keep)
        if drop == 0:
            return 0
        old = _twin(cache)
        moved = np.arange(keep + drop, n)
        k, v = _stored(old, "k", moved), _stored(old, "v", moved)
        k = _turned(cache, k, moved, moved - drop, rope)
        new = _twin(cache)
        new._truncate(keep)
        if moved.size:
            new._write(keep, k, v, n - drop)
            _move_v(old, new, moved, drop)
        lost = _requantized(old, new, moved, drop)
        from kvcore.snapshot import capture

        cache._adopt(capture(new), b"")
        return lost


def _twin(cache: Held) -> Any:
    """Return a cache with the same contents on the reference backend."""
    from kvcore.cache import KVCache
    from kvcore.reference import BACKEND
    from kvcore.snapshot import capture

    twin = KVCache(BACKEND(), cache.spec, cache.capacity, reserve=len(cache))
    twin._adopt(capture(cache), b"")
    return twin


def _exact_cells(cache: Held, store: str, cells: Array) -> Array:
    row, sl = list(cache.marks), cache.spec.state_layout
    n = row[LENGTH]
    return np.array([rules.reads_exact(row, sl, store, int(c), n) for c in cells], bool)


def _stored(cache: Held, store: str, cells: Array) -> F32:
    """Return cells as a query reads them, f32[n, H, D], in the stored basis, centre added."""
    layout, state = cache.spec.layout, cache.state
    exact = _exact_cells(cache, store, cells)
    x = np.empty((len(cells), layout.n_kv_heads, layout.head_dim(store)), np.float32)
    x[exact] = getattr(state, store)[0, exact_slot(state, store, cells[exact])]
    x[~exact] = read_bulk(cache.pool, store, cache.table, cells[~exact])
    if store == "k" and state.layout.centred:
        x[~exact] += state.centre[0].astype(np.float32)
    return x


def _turned(cache: KVCache, k: F32, old: Array, new: Array, rope: Any) -> F32:
    turned = cache.spec.format.rotate_k
    x = rotate(k) if turned else k
    shape = x.shape
    if callable(rope):
        x = np.asarray(rope(x, old, new))
        if x.shape != shape or x.dtype.kind != "f":
            raise ShapeError(
                message("shift", "rope's result", got=f"{x.dtype}{x.shape}", expected=f"f32{shape}")
            )
        x = to_f32(x)
    else:
        x = _by_angles(x, rope)
    return rotate(x) if turned else x


def _by_angles(x: F32, angles: Any) -> F32:
    try:
        a = np.asarray(angles)
    except ValueError:  # rows of unequal length
        a = np.zeros(0, object)
    if a.ndim != 1 or a.dtype.kind != "f" or 2 * a.size > x.shape[-1] or not np.isfinite(a).all():
        raise ShapeError(
            message(
                "shift",
                "rope is neither callable nor angles",
                got=f"{a.dtype}{a.shape}",
                expected=f"finite floats [pairs], pairs <= {x.shape[-1] // 2}",
            )
        )
    pairs = a.size
    cos, sin = np.cos(a.astype(np.float64)), np.sin(a.astype(np.float64))
    low, high = x[..., :pairs].astype(np.float64), x[..., pairs : 2 * pairs].astype(np.float64)
    out: F32 = x.copy()
    out[..., :pairs] = low * cos - high * sin
    out[..., pairs : 2 * pairs] = high * cos + low * sin
    return out


def _move_v(old: Held, new: Held, moved: Array, drop: int) -> None:
    """Give moved cells the stored bytes of V they had."""
    layout = new.spec.layout
    if layout.v.per_channel:
        keep = int(moved[0]) - drop
        if drop % GROUP_CELLS or keep % GROUP_CELLS:
            return
        end = min(list(c.marks)[rules.FRONTIER["v"]] - d for c, d in ((old, drop), (new, 0)))
        moved = moved[moved - drop < end]
    was, now = (locate(layout, c.table, m) for c, m in ((old, moved), (new, moved - drop)))
    for name, plane in new.pool.planes.items():
        source = old.pool.planes[name]
        if name == "v_scales" and layout.v.per_channel:
            a, b = scale_place(layout, *was), scale_place(layout, *now)
            plane[b[0], :, b[1]] = source[a[0], :, a[1]]
        elif name.startswith("v_"):
            plane[now[0], :, now[1]] = source[was[0], :, was[1]]


def _requantized(old: Held, new: Held, moved: Array, drop: int) -> int:
    """Count moved cells that are exact now by their place but were not before."""
    lost = np.zeros(len(moved), bool)
    for store in ("k", "v"):
        if new.spec.layout.codec(store).float_type in ("f16", "f32"):
            continue
        now = _exact_cells(new, store, moved - drop)
        lost |= now & ~_exact_cells(old, store, moved)
    return int(lost.sum())
