"""What tests of KVCache share: filling in any pattern, and the bytes that are live."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

import kvcore
from kvcore.cache import KVCache
from kvcore.layout import K_FRONTIER, V_FRONTIER
from kvcore.reference import Reference

H, D = 2, 64


def spec_of(format: str, **more: Any) -> kvcore.CacheSpec:
    fields: dict[str, Any] = {"n_kv_heads": H, "head_dim": D, "page_size": 4}
    return kvcore.CacheSpec(format=format, **(fields | more))


def make(spec: kvcore.CacheSpec, capacity: int = 320) -> KVCache:
    return Reference().cache(spec, capacity)


def tokens(n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """K with channel structure and a mean, V normal: f32[n, H, D]."""
    rng = np.random.default_rng(seed)
    k = rng.normal(size=(n, H, D)) * np.exp(rng.normal(size=D)) + 3 * rng.normal(size=(H, D))
    return k.astype(np.float32), rng.normal(size=(n, H, D)).astype(np.float32)


def fill(cache: KVCache, k: np.ndarray, v: np.ndarray, calls: Sequence[int]) -> KVCache:
    start = len(cache)
    for n in calls:
        cache.append(k[start : start + n], v[start : start + n])
        start += n
    return cache


def live_bytes(cache: KVCache) -> dict[str, np.ndarray]:
    """What a reader may see: bulk below each frontier, live exact slots, centre, marks."""
    layout, n = cache.pool.layout, len(cache)
    row = cache.state.marks[0]
    out = {"marks": row.copy(), "centre": cache.state.centre.view(np.uint16).copy()}
    for store, frontier in (("k", row[K_FRONTIER]), ("v", row[V_FRONTIER])):
        cells = np.arange(min(n, int(frontier)))
        page = cache.table[cells // layout.page_size]
        slot = cells % layout.page_size
        out[f"{store} codes"] = cache.pool.planes[f"{store}_codes"][page, :, slot]
        codec = layout.codec(store)
        if codec.scale is not None and codec.per_channel:
            units = page[::32] // layout.unit_pages
            out[f"{store} scales"] = cache.pool.planes[f"{store}_scales"][
                units, :, slot[::32] // 32
            ].view(np.uint16)
        elif codec.scale is not None:
            out[f"{store} scales"] = cache.pool.planes[f"{store}_scales"][page, :, slot].view(
                np.uint16
            )
    k, v = cache.read()
    return out | {"read k": k, "read v": v}


def assert_same(a: KVCache, b: KVCache, marks: bool = True) -> None:
    one, two = live_bytes(a), live_bytes(b)
    for name, value in one.items():
        if marks or name != "marks":
            np.testing.assert_array_equal(value, two[name], err_msg=name)
