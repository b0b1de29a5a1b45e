"""What state tests share: small specs, seeded cells, and comparisons of what caches hold."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from kvcore import CacheSpec, KVCache
from kvcore.backend import Backend
from kvcore.bounds import attention_bound, gamma
from kvcore.numerics import F32, Array
from kvcore.snapshot import capture
from kvcore.snapshot_image import Image
from tests.state.model import hadamard

HEADS, DIM, QUERIES = 2, 64, 4
FORMATS = ("f32", "f16", "int8", "q4_0", "q2k", "q2")
"""A float type, a row code of either rule, and per-channel K, V or both."""


def make_spec(name: str, **fields: Any) -> CacheSpec:
    """Return a small spec; the bare format unless told otherwise."""
    given = {"n_kv_heads": HEADS, "head_dim": DIM, "page_size": 4, "recipe": None, **fields}
    return CacheSpec(format=name, **given)


def cells(seed: int, n: int, spec: CacheSpec | None = None, size: float = 1.0) -> tuple[F32, F32]:
    """Return K and V of `n` cells; K has a mean per channel, as real keys do."""
    rng = np.random.default_rng(seed)
    h = HEADS if spec is None else spec.n_kv_heads
    dk, dv = (DIM, DIM) if spec is None else (spec.head_dim, spec.head_dim_v)
    k = rng.standard_normal((n, h, dk)) + 2 * rng.standard_normal((1, h, dk))
    v = rng.standard_normal((n, h, dv))
    return (size * k).astype(np.float32), (size * v).astype(np.float32)


def queries(seed: int, n: int, heads: int = QUERIES, dim: int = DIM) -> F32:
    return np.random.default_rng(seed).standard_normal((n, heads, dim)).astype(np.float32)


def fed(be: Backend, spec: CacheSpec, *chunks: tuple[F32, F32], capacity: int = 512) -> KVCache:
    """Return a cache that got some chunks."""
    cache = be.cache(spec, capacity)
    for k, v in chunks:
        cache.append(k, v)
    return cache


def cut(chunk: tuple[F32, F32], start: int, stop: int) -> tuple[F32, F32]:
    return chunk[0][start:stop], chunk[1][start:stop]


def joined(*chunks: tuple[F32, F32]) -> tuple[F32, F32]:
    k, v = (np.concatenate(x) for x in zip(*chunks, strict=True))
    return k, v


def contents(cache: KVCache) -> dict[str, bytes]:
    """Return every byte that a reader of the cache can see, by name."""
    return by_name(capture(cache))


def by_name(image: Image) -> dict[str, bytes]:
    parts = {
        **image.planes,
        "exact_k": image.exact_k,
        "exact_v": image.exact_v,
        "centre": image.centre,
        "marks": np.asarray(image.row, np.int32),
    }
    return {name: np.ascontiguousarray(a).tobytes() for name, a in parts.items()}


def same(one: KVCache, two: KVCache) -> list[str]:
    """Return the names of what two caches hold differently."""
    a, b = contents(one), contents(two)
    return [name for name in a if a[name] != b.get(name)]


def bulk(cache: KVCache, first: int, end: int) -> Array:
    """Return cells of the bulk as bytes of their gathered float16, through the backend."""
    k, v = cache.backend.gather(cache.pool, cache.table, np.arange(first, end, dtype=np.int32))
    host = cache.backend.to_host
    return np.concatenate([host(k).view(np.uint16), host(v).view(np.uint16)], axis=-1)


def attended(cache: KVCache, q: F32, **more: Any) -> Array:
    return np.asarray(cache.backend.to_host(cache.attend(q, **more)))


def misses(
    cache: KVCache, q: F32, k: Array, v: Array, out: Array, scale: float | None = None
) -> bool:
    """True if one query's output [Q, Dv] is not the attention over these rows.

    Parameters
    ----------
    q : f32[Q, Dk]
    k, v : f64[N, H, D]
        In the model's basis, as the query reads them.

    The bound is taken in the stored basis, where the backend computes, and widened by what
    rotating q, k, v and the output in float32 may add.
    """
    dim, fmt = q.shape[-1], cache.spec.format
    if scale is None:
        scale = 1 / math.sqrt(dim)
    groups = q.shape[0] // k.shape[1]
    wide = np.repeat(k, groups, axis=1)
    scores = np.einsum("qd,nqd->qn", q.astype(np.float64), wide) * scale
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    weights /= weights.sum(axis=1, keepdims=True)
    truth = np.einsum("qn,nqd->qd", weights, np.repeat(v, groups, axis=1))
    turned = [a @ hadamard(a.shape[-1]) if fmt.rotate_k else a for a in (q.astype(np.float64), k)]
    turned_v = v @ hadamard(v.shape[-1]) if fmt.rotate_v else v
    centre = cache.backend.to_host(cache.state.centre)[0]
    limit = attention_bound(*turned, turned_v, scale, centre=centre).out
    loud = float(np.abs(v).max(initial=0.0))
    turns = gamma(16) * np.linalg.norm(q, axis=-1).max() * np.linalg.norm(k, axis=-1).max()
    limit = limit.max(axis=-1, keepdims=True) * math.sqrt(v.shape[-1])
    limit = limit + (4 * turns * abs(scale) + gamma(16) * math.sqrt(v.shape[-1])) * loud
    return not bool((np.abs(out - truth) <= limit).all())
