"""Stored bytes depend on the accepted cells, not on how they came."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

import kvcore
from kvcore.backend import Backend
from tests.state.world import DIM, HEADS, cells, contents, cut, fed, make_spec, same

PATTERNS = {
    "single cells": [1] * 96,
    "uneven chunks": [1, 31, 33, 3, 28],
    "3-cell windows": [3] * 32,
}


def _in_calls(be: Backend, spec: kvcore.CacheSpec, calls: Sequence[int]) -> kvcore.KVCache:
    chunk, at, parts = cells(4, sum(calls)), 0, []
    for n in calls:
        parts.append(cut(chunk, at, at + n))
        at += n
    return fed(be, spec, *parts)


@pytest.mark.parametrize("name", list(kvcore.formats()))
def test_kb04_bytes_do_not_depend_on_chunking(backend: Backend, name: str) -> None:
    spec = make_spec(name)
    whole = _in_calls(backend, spec, [96])
    for calls in PATTERNS.values():
        assert same(_in_calls(backend, spec, calls), whole) == []


@pytest.mark.parametrize("calls", PATTERNS.values(), ids=PATTERNS)
def test_kb04_with_window_sinks_and_centre(backend: Backend, calls: list[int]) -> None:
    spec = make_spec("q2k", window=8, sinks=2, k_center="auto", center_cells=64)
    assert same(_in_calls(backend, spec, calls), _in_calls(backend, spec, [96])) == []


def test_kb04_deferred_single_cells_are_quantized_by_their_group(backend: Backend) -> None:
    """No cell of a closed group comes back as if it had been a group of its own."""
    cache = _in_calls(backend, make_spec("q2k"), [1] * 96)
    k, _ = cells(4, 96)
    read, _ = cache.read()
    error = np.sqrt(((read - k) ** 2).sum() / (k**2).sum())
    assert error > 0.05
    scales = backend.to_host(cache.pool.planes["k_scales"])
    used = {int(p) // 8 for p in cache.table[: 96 // 4]}
    assert all((scales[u] != 0).all() for u in used)


def test_kb04_eager_group_boundaries_follow_positions(backend: Backend) -> None:
    """Calls cut at group boundaries store what one call stores."""
    spec = make_spec("q2k", grouping="eager")
    whole = _in_calls(backend, spec, [96])
    assert same(_in_calls(backend, spec, [32, 64]), whole) == []
    assert same(_in_calls(backend, spec, [64, 32]), whole) == []


def test_kb04_first_cell_of_an_eager_pool_is_scaled_by_itself(backend: Backend) -> None:
    """With one cell, rule "n" takes its own size: it reads back as the outer level nearest 1."""
    spec = make_spec("k2cv1c", grouping="eager", rule="n")
    cache = fed(backend, spec, cells(1, 1))
    k, _ = cells(1, 1)
    read, _ = cache.read()
    stored_norm = np.linalg.norm(k)
    levels = np.array([0.452780034636, 1.510417608499])
    assert np.linalg.norm(read) <= levels.max() * 1.001 * stored_norm
    assert np.linalg.norm(read) >= levels.min() * 0.999 * stored_norm


@pytest.mark.parametrize("name", ["int8", "q4_0", "q2k"])
def test_drafts_leave_no_trace(backend: Backend, name: str) -> None:
    """Random verify windows, mostly rejected, end in the bytes of the accepted cells alone."""
    spec = make_spec(name, window=8, sinks=2)
    rng = np.random.default_rng(3)
    chunk = cells(5, 150)
    cache, n = backend.cache(spec, 256), 0
    while n < 150:
        take = min(int(rng.integers(0, 5)), 150 - n)
        reject = int(rng.integers(0, 18 - take))
        if take + reject == 0:
            continue
        k, v = cut(chunk, n, n + take)
        wrong = (50 * rng.standard_normal((reject, HEADS, DIM))).astype(np.float32)
        cache.append(np.concatenate([k, wrong]), np.concatenate([v, wrong]), draft=True)
        n += take
        cache.commit(n)
        cache.truncate(n)
    plain = fed(backend, spec, chunk)
    got, want = contents(cache), contents(plain)
    for part in ("k_codes", "k_scales", "v_codes", "v_scales", "centre"):
        assert got.get(part) == want.get(part), part
    members = list(range(2)) + list(range(142, 150))
    for one, two in zip(cache.read(members), plain.read(members), strict=True):
        np.testing.assert_array_equal(one, two)
