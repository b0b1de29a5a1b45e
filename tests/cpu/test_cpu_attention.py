"""Attention of the CPU backend lies within the derived bound of the float64 reference."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from cpu_scenes import CAPACITY, STEPS, Scene, append, examples, scenes, step
from hypothesis import given
from hypothesis import strategies as st

from kvcore.conformance.attention_cases import attention_differences
from kvcore.conformance.twin import Twin
from kvcore.dispatch import get_backend
from kvcore.numerics import Array

pytest.importorskip("numba")

NMSE = 1e-6
"""Largest share of the output's energy that the error may have, against float64."""


def _history(scene: Scene, steps: list[tuple[str, int]]) -> tuple[Twin, Array, Array]:
    """Return a twin with cells, its table and its lengths."""
    twin, table = scene.twin()
    if twin.states is None:
        ends = append(scene, twin, table, 130, starts=[0] * scene.batch)
        return twin, table, np.asarray(ends, np.int32)
    for what in (("add", 70), *steps):
        step(scene, twin, table, what)
    twin.sync()
    return twin, table, np.asarray(twin.lengths, np.int32)


def _options(rng: np.random.Generator, twin: Twin, lengths: Array, steps: int) -> dict[str, Any]:
    layout, batch = twin.layout, len(lengths)
    more: dict[str, Any] = {}
    if rng.random() < 0.3:
        more["window"] = int(rng.integers(1, 150))
    if rng.random() < 0.3:
        more["softcap"] = float(rng.uniform(1, 30))
    if rng.random() < 0.3:
        more["scale"] = float(rng.uniform(0.02, 0.5))
    if rng.random() < 0.3:
        shape = (batch, steps, layout.n_kv_heads)
        more["k"] = rng.normal(size=(*shape, layout.head_dim_k)).astype(np.float32)
        more["v"] = rng.normal(size=(*shape, layout.head_dim_v)).astype(np.float32)
    return more


@examples(60)
@given(
    scenes(("ordinary",)),
    STEPS,
    st.sampled_from((1, 1, 2, 5, 17, 18, 40)),
    st.sampled_from((1, 2, 3, 5)),
    st.sampled_from(("causal", "per query", "ids", "absent")),
)
def test_attention_stays_within_the_bound(
    scene: Scene, history: list[tuple[str, int]], tokens: int, ratio: int, choose: str
) -> None:
    twin, table, lengths = _history(scene, history)
    rng = twin.bench.rng
    more = _options(rng, twin, lengths, tokens)
    per_query = np.maximum(lengths[:, None] - (tokens - 1) + np.arange(tokens), 0)
    sizes = lengths
    if choose == "per query":
        sizes = rng.integers(0, lengths[:, None] + 1, (scene.batch, tokens)).astype(np.int32)
    elif choose == "ids":
        top = np.maximum(per_query, 1)[..., None]
        more["ids"] = rng.integers(-1, top, (scene.batch, tokens, 45)).astype(np.int32)
        more["ids"][np.broadcast_to(per_query[..., None] == 0, more["ids"].shape)] = -1
    elif choose == "absent":
        u = twin.layout.unit_pages
        gone = rng.random(table.shape[1] // u) < 0.3
        table = np.where(np.repeat(gone, u), np.int32(-1), table)
    q = rng.normal(size=(scene.batch, tokens, ratio * scene.heads, twin.layout.head_dim_k))
    q = q.astype(np.float32)
    one, two = twin.states or (None, None)
    want = twin.bench.ref.attention(
        q, twin.pools[0], table, sizes, state=one, return_lse=True, **more
    )
    got = twin.bench.be.attention(
        q, twin.pools[1], table, sizes, state=two, return_lse=True, **more
    )
    assert list(attention_differences(twin, q, table, sizes, more, got, want)) == []
    energy = float((want[0].astype(np.float64) ** 2).sum())
    error = float(((got[0].astype(np.float64) - want[0]) ** 2).sum())
    assert error <= NMSE * energy
    assert list(twin.differences()) == []


@pytest.mark.parametrize("tokens", [1, 5, 20])
@pytest.mark.parametrize("softcap", [None, 2.0])
def test_cells_that_nobody_holds_weigh_nothing(tokens: int, softcap: float | None) -> None:
    scene = Scene(
        k="int8", v="q4_0", heads=1, dims=(64, 32), page_size=4, gain=1.0, rule="n",
        state=(3, 20, True, "none"), batch=1, values="ordinary", seed=2,
    )  # fmt: skip
    twin, table, lengths = _history(scene, [])
    assert twin.states is not None
    table[:, 2:9] = -1
    table[:, 16] = -1
    q = twin.bench.rng.normal(size=(1, tokens, 2, 64)).astype(np.float32)
    more = {"softcap": softcap}
    want, got = (
        side.attention(q, pool, table, lengths, state=state, return_lse=True, **more)
        for side, pool, state in zip(
            (twin.bench.ref, twin.bench.be), twin.pools, twin.states, strict=True
        )
    )
    assert list(attention_differences(twin, q, table, lengths, more, got, want)) == []


@examples(30)
@given(scenes(("non-finite",)), st.sampled_from((1, 4, 30)))
def test_non_finite_cells_reach_the_queries_that_see_them_and_no_other(
    scene: Scene, tokens: int
) -> None:
    twin, table, lengths = _history(scene, [])
    rng = twin.bench.rng
    q = rng.normal(size=(scene.batch, tokens, 2 * scene.heads, twin.layout.head_dim_k))
    q = q.astype(np.float32)
    one, two = twin.states or (None, None)
    with np.errstate(all="ignore"):
        want = twin.bench.ref.attention(q, twin.pools[0], table, lengths, state=one)
    got = twin.bench.be.attention(q, twin.pools[1], table, lengths, state=two)
    assert np.array_equal(np.isnan(got), np.isnan(want))


@pytest.mark.parametrize("tokens", [1, 3, 20])
def test_long_contexts_split_and_merge(tokens: int) -> None:
    be, ref = get_backend("cpu"), get_backend("reference")
    import kvcore

    spec = kvcore.CacheSpec(format="q4_0", n_kv_heads=1, head_dim=32)
    a, b = be.cache(spec, 3000), ref.cache(spec, 3000)
    rng = np.random.default_rng(0)
    k, v = rng.normal(size=(2, 2500, 1, 32)).astype(np.float32)
    for cache in (a, b):
        cache.append(k, v)
    q = rng.normal(size=(tokens, 4, 32)).astype(np.float32)
    got, want = a.attend(q), b.attend(q)
    assert ((got - want) ** 2).sum() <= NMSE * (want**2).sum()


@pytest.mark.parametrize("tokens", [2, 24])
def test_an_empty_history_gives_zero_and_minus_infinity(tokens: int) -> None:
    scene = Scene(
        k="int8", v="q4_0", heads=1, dims=(64, 32), page_size=32, gain=1.0, rule="n",
        state=None, batch=1, values="ordinary", seed=1,
    )  # fmt: skip
    twin, table = scene.twin()
    q = np.ones((tokens, 2, 64), np.float32)
    zero = np.zeros((1, tokens), np.int32)
    out, lse = twin.bench.be.attention(q, twin.pools[1], table, zero, return_lse=True)
    assert not out.any()
    assert np.isneginf(lse).all()
    out, lse = twin.bench.be.attention(
        q, twin.pools[1], np.full_like(table, -1), [CAPACITY], return_lse=True
    )
    assert not out.any()
    assert np.isneginf(lse).all()


@pytest.mark.parametrize("tokens", [3, 40])
def test_results_do_not_depend_on_page_size_or_table(tokens: int) -> None:
    results = []
    for page_size, seed in ((1, 3), (16, 4), (64, 5)):
        scene = Scene(
            k="q2c", v="q4_0", heads=2, dims=(64, 64), page_size=page_size, gain=1.0, rule="n",
            state=(3, 20, True, "auto"), batch=1, values="ordinary", seed=seed,
        )  # fmt: skip
        twin, table = scene.twin()
        rng = np.random.default_rng(0)
        assert twin.states is not None
        k, v = rng.normal(size=(2, 150, 2, 64)).astype(np.float32)
        be, state = twin.bench.be, twin.states[1]
        be.append(twin.pools[1], table, np.arange(150), k, v, state=state)
        q = rng.normal(size=(tokens, 6, 64)).astype(np.float32)
        results.append(be.attention(q, twin.pools[1], table, [150], state=state))
    assert np.array_equal(results[0], results[1])
    assert np.array_equal(results[0], results[2])
