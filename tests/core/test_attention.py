"""The reference attention against a plain float64 one, feature by feature."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import kvcore
from kvcore.addressing import read_bulk
from kvcore.bounds import attention_bound
from kvcore.pool import Pool
from kvcore.reference import Reference
from tests.strategies import random_table

BE = Reference()


class Store:
    """A filled pool of one sequence and what a reader finds in it."""

    def __init__(self, n: int, fmt: str = "q4_0", heads: int = 2, dims: tuple[int, int] = (64, 64),
                 seed: int = 0, v: np.ndarray | None = None) -> None:  # fmt: skip
        spec = kvcore.CacheSpec(
            format=fmt, n_kv_heads=heads, head_dim=dims[0], head_dim_v=dims[1], page_size=4,
            recipe=None,
        )  # fmt: skip
        rng = np.random.default_rng(seed)
        self.n, self.heads, self.dims = n, heads, dims
        table, pages = random_table(seed, spec.layout, max(n, 1))
        self.table = table[0]
        self.pool: Pool = BE.pool(spec.layout, pages)
        for plane in self.pool.planes.values():
            plane.view(np.uint8)[...] = 0xFF  # NaN wherever nothing is written
        k = rng.normal(size=(n, heads, dims[0])).astype(np.float32)
        v = rng.normal(size=(n, heads, dims[1])).astype(np.float32) if v is None else v
        BE.append(self.pool, self.table, np.arange(n), k, v)
        cells = np.arange(n)
        self.k, self.v = (read_bulk(self.pool, s, self.table, cells) for s in ("k", "v"))

    def query(self, q_heads: int, t: int = 1, seed: int = 1) -> np.ndarray:
        return (
            np.random.default_rng(seed).normal(size=(t, q_heads, self.dims[0])).astype(np.float32)
        )

    def attend(self, q, lengths, **more):
        return BE.attention(q, self.pool, self.table, lengths, return_lse=True, **more)

    def plain(self, q, cells, scale=None, cap=None):
        """Plain loops over query heads, float64."""
        scale = float(np.float32(1 / np.sqrt(self.dims[0]))) if scale is None else scale
        out = np.zeros((q.shape[0], self.dims[1]))
        lse = np.full(q.shape[0], -np.inf)
        for h in range(q.shape[0]) if len(cells) else ():
            kv = h // (q.shape[0] // self.heads)
            s = self.k[cells, kv].astype(np.float64) @ q[h].astype(np.float64) * scale
            s = cap * np.tanh(s / cap) if cap else s
            w = np.exp(s - s.max())
            out[h] = w @ self.v[cells, kv].astype(np.float64) / w.sum()
            lse[h] = s.max() + np.log(w.sum())
        return out, lse

    def check(self, q, got, t, cells, **more):
        out, lse = self.plain(q[t], cells, **more)
        # the reference works in float64 (2^-40: its own rounding of sums near 0) and rounds once
        np.testing.assert_allclose(got[0][t], out, rtol=2.0**-23, atol=2.0**-40)
        np.testing.assert_allclose(got[1][t], lse, rtol=2.0**-23)


@pytest.mark.parametrize(
    ("q_heads", "heads"), [(28, 4), (12, 2), (71, 1), (40, 8), (64, 2), (5, 5)]
)
def test_kb_15_any_ratio_of_heads(q_heads, heads):
    s = Store(20, heads=heads)
    q = s.query(q_heads)
    s.check(q, s.attend(q, [20]), 0, np.arange(20))


@pytest.mark.parametrize("dims", [(576, 512), (192, 128), (128, 128), (64, 256)])
def test_kb_17_k_and_v_of_other_widths(dims):
    n = 9
    v = np.broadcast_to(np.arange(n, dtype=np.float32)[:, None, None], (n, 1, dims[1]))
    s = Store(n, "f16", heads=1, dims=dims, v=np.ascontiguousarray(v))
    out, lse = s.attend(np.zeros((1, 3, dims[0]), np.float32), [n])
    assert out.shape == (1, 3, dims[1])
    assert (out == 4.0).all()
    np.testing.assert_allclose(lse, np.log(9), rtol=2.0**-23)
    ones = Store(n, "f16", heads=1, dims=dims, v=np.ones((n, 1, dims[1]), np.float32))
    out, _ = ones.attend(ones.query(3), [n])
    np.testing.assert_array_equal(out, np.ones_like(out))


@pytest.mark.parametrize("n", [1, 31, 32, 33, 63, 64, 65, 127, 128, 129, 513, 1023, 1024, 1025])
def test_kb_18_every_length_around_a_tile(n):
    v = np.broadcast_to(np.arange(n, dtype=np.float32)[:, None, None], (n, 1, 32))
    s = Store(n, "f32", heads=1, dims=(32, 32), v=np.ascontiguousarray(v))
    out, _ = s.attend(np.zeros((1, 1, 32), np.float32), [n])
    np.testing.assert_allclose(out, (n - 1) / 2, rtol=2.0**-23)
    q = s.query(1)
    s.check(q, s.attend(q, [n]), 0, np.arange(n))


@pytest.mark.parametrize("masked", [1, 15, 16, 31, 32, 63, 64, 127, 128, 1024])
def test_kb_13_masked_ids_before_between_and_after_change_nothing(masked):
    s = Store(8)
    q = s.query(4)
    gap = [-1] * masked
    wanted = s.attend(q, [8], ids=np.array([0, 1, 2]))
    for ids in ([*gap, 0, 1, 2], [0, *gap, 1, 2], [0, 1, 2, *gap]):
        for a, b in zip(s.attend(q, [8], ids=np.array(ids)), wanted, strict=True):
            np.testing.assert_array_equal(a, b)
    out, lse = s.attend(q, [8], ids=np.array(gap))
    assert not out.any()
    assert (lse == -np.inf).all()


def test_kb_12_a_repeated_id_counts_twice():
    s = Store(8)
    q = s.query(4)
    s.check(q, s.attend(q, [8], ids=np.array([3, 3, 5])), 0, np.array([3, 3, 5]))


def test_kb_14_empty_sequences_beside_others():
    s = Store(5)
    table = np.tile(s.table, (4, 1))
    q = np.tile(s.query(4)[None], (4, 1, 1, 1))
    out, lse = BE.attention(q, s.pool, table, [0, 5, 0, 1], return_lse=True)
    for b, n in enumerate([0, 5, 0, 1]):
        s.check(q[b], (out[b], lse[b]), 0, np.arange(n))
    empty = Store(0)
    out, lse = empty.attend(empty.query(4), [0])
    assert not out.any()
    assert (lse == -np.inf).all()
    k, v = BE.gather(s.pool, s.table, np.zeros(0, int))
    assert k.shape == v.shape == (0, 2, 64)


def test_a_verify_window_is_causal_and_a_length_per_query_says_otherwise():
    s = Store(20)
    q = s.query(4, t=3)
    got = s.attend(q, [20])
    for t, n in enumerate([18, 19, 20]):
        s.check(q, got, t, np.arange(n))
    got = s.attend(q, [[7, 0, 20]])
    for t, n in enumerate([7, 0, 20]):
        s.check(q, got, t, np.arange(n))
    got = s.attend(q, [1])
    for t, n in enumerate([0, 0, 1]):
        s.check(q, got, t, np.arange(n))


@given(
    n=st.integers(1, 40),
    window=st.one_of(st.none(), st.integers(1, 50)),
    cap=st.one_of(st.none(), st.sampled_from([0.5, 30.0])),
    scale=st.one_of(st.none(), st.sampled_from([0.25, -1.0])),
    chosen=st.booleans(),
    seed=st.integers(0, 99),
)
def test_options_compose(n, window, cap, scale, chosen, seed):
    s = Store(n, seed=seed % 3)
    rng = np.random.default_rng(seed)
    q = s.query(6, seed=seed)
    ids = rng.integers(-1, n, 2 * n) if chosen else None
    got = s.attend(q, [n], window=window, softcap=cap, scale=scale, ids=ids)
    cells = np.arange(n) if ids is None else ids[ids >= 0]
    cells = cells[cells >= n - window] if window else cells
    s.check(q, got, 0, cells, cap=cap, scale=scale)


def test_the_own_chunk_is_read_as_given_and_the_past_from_the_store():
    s = Store(12)
    rng = np.random.default_rng(3)
    k, v = (rng.normal(size=(4, 2, 64)).astype(np.float32) for _ in range(2))
    q = s.query(4, t=4)
    got = s.attend(q, [12], k=k, v=v)
    s.k[8:], s.v[8:] = k, v
    for t in range(4):
        s.check(q, got, t, np.arange(9 + t))


def test_cells_that_nobody_holds_have_no_weight():
    s = Store(40)
    q = s.query(4)
    s.table = s.table.copy()
    s.table[[1, 4]] = -1
    cells = np.array([c for c in range(40) if c // 4 not in (1, 4)])
    s.check(q, s.attend(q, [40]), 0, cells)


def test_kb_10_what_lies_beyond_the_length_is_never_looked_at():
    s, clean = Store(5), Store(5)
    for plane in clean.pool.planes.values():
        plane[~np.isfinite(plane.astype(np.float32))] = 0
    q = s.query(4)
    for a, b in zip(s.attend(q, [5]), clean.attend(q, [5]), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("page_size", [4, 8, 32, 64])
def test_the_result_does_not_depend_on_pages(page_size):
    rng = np.random.default_rng(0)
    k, v = (rng.normal(size=(70, 2, 64)).astype(np.float32) for _ in range(2))
    q = rng.normal(size=(1, 4, 64)).astype(np.float32)
    outs = []
    for size, seed in ((page_size, 1), (page_size, 2), (16, 3)):
        spec = kvcore.CacheSpec(
            format="q2k", n_kv_heads=2, head_dim=64, page_size=size, recipe=None
        )
        table, pages = random_table(seed, spec.layout, 70)
        pool = BE.pool(spec.layout, pages)
        BE.append(pool, table, np.arange(70), k, v)
        outs.append(BE.attention(q, pool, table, [70]))
    np.testing.assert_array_equal(outs[0], outs[1])
    np.testing.assert_array_equal(outs[0], outs[2])


@pytest.mark.parametrize("name", ["f16", "int8", "q4_0", "q2k"])
def test_s1_a_query_may_be_any_view(name):
    s = Store(20, name)
    fused = np.random.default_rng(0).normal(size=(3, 12, 64)).astype(np.float32)
    for view in (fused[:, 2:6], fused[:, 4:8][::-1], np.asfortranarray(fused[:, :4])):
        a = s.attend(view, [20])
        b = s.attend(np.ascontiguousarray(view), [20])
        for x, y in zip(a, b, strict=True):
            np.testing.assert_array_equal(x, y)


def test_scores_beyond_exps_range_stay_finite():
    s = Store(10, "f32")
    q = s.query(4) * np.float32(1e4)
    out, lse = s.attend(q, [10])
    assert np.isfinite(out).all()
    assert np.isfinite(lse).all()
    bound = attention_bound(q[0], s.k, s.v, 0.125)
    assert np.isfinite(bound.lse).all()


def test_merging_by_lse_equals_attention_over_both_parts():
    """What the log-sum-exp is for: two disjoint parts combine to the whole."""
    s = Store(50)
    q = s.query(4)
    whole = s.attend(q, [50])
    parts = [s.attend(q, [50], ids=i) for i in (np.arange(20), np.arange(20, 50))]
    weights = [np.exp(p[1].astype(np.float64) - whole[1]) for p in parts]
    out = sum(w[..., None] * p[0] for w, p in zip(weights, parts, strict=True))
    np.testing.assert_allclose(out, whole[0], rtol=2.0**-19, atol=2.0**-22)
    np.testing.assert_allclose(sum(weights), 1.0, rtol=2.0**-19)
