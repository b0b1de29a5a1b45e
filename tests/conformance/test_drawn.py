"""Drawn geometries, arrivals, page tables and values: stored bytes identical, attention in bound.

On host backends by default: every drawn geometry would be a build on a device. All backends with
KVCORE_CHECK=full.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import kvcore
from kvcore import dispatch
from kvcore.backend import Backend
from kvcore.conformance.append_cases import Add, Commit, Cut, Script, make_twin, play
from kvcore.conformance.attention_cases import attention_differences
from kvcore.conformance.twin import Bench
from kvcore.formats import get as get_format
from kvcore.reference import Reference
from tests.strategies import PAGE_SIZES

NAMES = dispatch.IN_TREE if os.environ.get("KVCORE_CHECK") == "full" else ("cpu",)


@pytest.fixture(scope="module")
def opened(request: pytest.FixtureRequest) -> Backend:
    found = dispatch.probe(request.param)
    if not found.available:
        pytest.skip(f"{request.param}: {found.reason}")
    return kvcore.get_backend(request.param)


@st.composite
def scripts(draw: Any) -> tuple[str, Script]:
    """A format, what is kept exact, and steps that are legal in their order."""
    name = draw(st.sampled_from(list(kvcore.formats())))
    quantized = get_format(name).k.scale is not None
    centre = draw(st.sampled_from(["none", "auto", "calibrated"] if quantized else ["none"]))
    gain = draw(st.sampled_from([1.0, "unbiased"] if quantized else [1.0]))
    if get_format(name).k.per_channel:
        gain = draw(st.sampled_from([1.0, 1.1, "unbiased"]))
    deferred = centre == "auto" or gain == "unbiased" or draw(st.booleans())
    steps, length, committed = [], 0, 0
    for _ in range(draw(st.integers(1, 6))):
        kind = draw(st.sampled_from(["add", "draft", "commit", "cut"]))
        opened = length - committed
        if kind == "add" and not opened:
            n = draw(st.integers(0, 80))
            steps.append(Add(n=n))
            length, committed = length + n, length + n
        elif kind == "draft" and opened < 17:
            n = draw(st.integers(0, 17 - opened))
            steps.append(Add(n=n, draft=True))
            length += n
        elif kind == "commit":
            n = draw(st.integers(0, opened))
            steps.append(Commit(n=n))
            committed += n
        elif kind == "cut":
            length = draw(st.integers(0, length))
            committed = min(committed, length)
            steps.append(Cut(n=length))
    return name, Script(
        title="drawn",
        steps=tuple(steps),
        page_size=draw(st.sampled_from(PAGE_SIZES)),
        gain=gain,
        rule=draw(st.sampled_from(["shrink", "n", "old"])),
        values=draw(st.sampled_from(["ordinary", "hard", "non-finite"])),
        sinks=draw(st.sampled_from([0, 1, 5, 31])),
        window=draw(st.sampled_from([0, 1, 8, 50])),
        deferred=deferred,
        centre=centre,
        center_cells=draw(st.sampled_from([32, 64])),
        dims=draw(st.tuples(st.sampled_from([32, 96, 160]), st.sampled_from([32, 64, 128]))),
    )


@pytest.mark.parametrize("opened", NAMES, indirect=True)
@settings(
    max_examples=2 * settings.default.max_examples,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(drawn=scripts(), seed=st.integers(0, 2**32 - 1))
def test_any_history_stores_the_bytes_of_the_reference(opened, drawn, seed):
    name, script = drawn
    bench = Bench(be=opened, ref=Reference(), rng=np.random.default_rng(seed))
    twin, table = make_twin(bench, get_format(name), script)
    assert list(play(bench, twin, table, script)) == []


@pytest.mark.parametrize("opened", NAMES, indirect=True)
@given(
    drawn=scripts(),
    seed=st.integers(0, 2**32 - 1),
    ratio=st.sampled_from([1, 2, 3, 7, 8]),
    tokens=st.integers(1, 4),
    window=st.one_of(st.none(), st.integers(1, 60)),
    softcap=st.one_of(st.none(), st.sampled_from([0.5, 50.0])),
)
def test_any_history_is_attended_within_the_bound(
    opened, drawn, seed, ratio, tokens, window, softcap
):
    name, script = drawn
    rng = np.random.default_rng(seed)
    bench = Bench(be=opened, ref=Reference(), rng=rng)
    script = Script(**{f: getattr(script, f) for f in script.__slots__} | {"values": "ordinary"})
    twin, table = make_twin(bench, get_format(name), script)
    list(play(bench, twin, table, script, both=False))
    twin.sync()
    layout = twin.layout
    shape = (1, tokens, ratio * layout.n_kv_heads, layout.head_dim_k)
    q = rng.normal(size=shape).astype(np.float32)
    lengths = np.asarray(twin.lengths, np.int32)
    more = {"window": window, "softcap": softcap}
    mine, theirs = twin.states
    expected = bench.ref.attention(
        q, twin.pools[0], table, lengths, state=mine, return_lse=True, **more
    )
    got = opened.attention(q, twin.pools[1], table, lengths, state=theirs, return_lse=True, **more)
    on_host = tuple(bench.host(a) for a in got)
    assert list(attention_differences(twin, q, table, lengths, more, on_host, expected)) == []
