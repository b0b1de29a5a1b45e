"""Scores beyond float32: they saturate, on every backend alike, and never hide a cell."""

from __future__ import annotations

import numpy as np
import pytest

import kvcore
from kvcore.backend import Backend

SPEC = kvcore.CacheSpec(format="f32", n_kv_heads=1, head_dim=64, recipe=None)


def _attend(backend: Backend, keys: list[float], **more: object) -> tuple[np.ndarray, np.ndarray]:
    cache = backend.cache(SPEC, 64)
    n = len(keys)
    k = np.repeat(np.float32(keys)[:, None, None], 64, axis=2)
    v = np.repeat(np.arange(1, n + 1, dtype=np.float32)[:, None, None], 64, axis=2)
    cache.append(k, v)
    q = np.ones((1, 2, 64), np.float32)
    out, lse = cache.attend(q, return_lse=True, **more)
    return backend.to_host(out)[0, 0], backend.to_host(lse)[0, 0]


@pytest.mark.parametrize("least", [-np.inf, -3e38])
@pytest.mark.parametrize("n", [1, 3, 40])
def test_cells_whose_scores_are_all_the_least_weigh_the_same(
    backend: Backend, least: float, n: int
) -> None:
    out, lse = _attend(backend, [least] * n)
    np.testing.assert_allclose(out, (n + 1) / 2, rtol=1e-6)
    np.testing.assert_allclose(lse, -3e38, rtol=1e-6)


@pytest.mark.parametrize("least", [-np.inf, -3e38])
def test_the_least_score_weighs_nothing_beside_another(backend: Backend, least: float) -> None:
    out, lse = _attend(backend, [least, 0.5, least])
    assert (out == 2).all()
    np.testing.assert_allclose(lse, 0.5 * 64 / 8, rtol=1e-6)


@pytest.mark.parametrize("most", [np.inf, 3e38])
def test_the_greatest_scores_share_everything(backend: Backend, most: float) -> None:
    out, lse = _attend(backend, [1.0, most, 2.0, most])
    assert (out == 3).all()
    np.testing.assert_allclose(lse, 3e38, rtol=1e-6)


def test_a_nan_passes_through(backend: Backend) -> None:
    out, lse = _attend(backend, [1.0, np.nan, -np.inf])
    assert np.isnan(out).all()
    assert np.isnan(lse)


def test_a_cell_that_is_not_listed_stays_unseen(backend: Backend) -> None:
    out, lse = _attend(backend, [-np.inf, -np.inf], ids=np.array([-1, 1], np.int32))
    assert (out == 2).all()
    out, lse = _attend(backend, [-np.inf], ids=np.array([-1], np.int32))
    assert (out == 0).all()
    assert lse == -np.inf
