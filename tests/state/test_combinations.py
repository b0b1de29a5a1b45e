"""S2: every format with every kind of cache either works or is refused when it is made."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import kvcore
from kvcore.backend import Backend
from kvcore.errors import FormatError
from tests.state.model import Model
from tests.state.world import attended, cells, make_spec, misses, queries, same

KINDS = ("resident", "streamed", "ring", "batch")
OVERLAYS = {
    "bare": {},
    "overlay": {"window": 8, "sinks": 2},
    "centred": {"window": 8, "sinks": 2, "k_center": "auto", "center_cells": 32},
    "eager": {"grouping": "eager"},
    "unbiased": {"k_gain": "unbiased"},
    "gain": {"k_gain": 1.1},
}


def _make(be: Backend, spec: kvcore.CacheSpec, kind: str) -> kvcore.KVCache:
    if kind == "resident":
        return be.cache(spec, 256)
    if kind == "batch":
        batch = be.sequences(spec, 64)
        return batch[batch.add()]
    return be.stream(spec, 256, 128, ring=kind == "ring")


def _refused(name: str, fields: dict[str, object]) -> bool:
    """True for the combinations that rules refuse, from their words."""
    fmt = kvcore.format(name)
    centred = fields.get("k_center") == "auto"
    if centred or fields.get("k_gain") == "unbiased":
        return fmt.k.scale is None
    return "k_gain" in fields and not fmt.k.per_channel


@pytest.mark.parametrize("overlay", OVERLAYS)
@pytest.mark.parametrize("name", list(kvcore.formats()))
def test_s2_works_or_is_refused_when_made(backend: Backend, name: str, overlay: str) -> None:
    fields = {"n_kv_heads": 1, **OVERLAYS[overlay]}
    if _refused(name, fields):
        with pytest.raises(FormatError, match=r"\[spec\]"):
            make_spec(name, **fields)
        return
    spec = make_spec(name, **fields)
    chunk, q = cells(1, 90, spec), queries(1, 1)
    caches = [_make(backend, spec, kind) for kind in KINDS]
    model = Model(spec)
    for first, end in itertools.pairwise((0, 33, 34, 50, 90)):
        part = chunk[0][first:end], chunk[1][first:end]
        model.append(*part, draft=False)
        for cache in caches:
            cache.append(*part)
    rows = caches[0].read()
    for store, x in zip(("k", "v"), rows, strict=True):
        stored = model.to_stored(store, x)
        assert not any(model.misread(store, c, stored[c]) for c in range(90))
    out = attended(caches[0], q, window=60)
    assert not misses(caches[0], q[0], *(x[30:].astype(np.float64) for x in rows), out[0])
    for kind, cache in zip(KINDS[1:], caches[1:], strict=True):
        assert same(cache, caches[0]) == [], kind
        np.testing.assert_array_equal(attended(cache, q, window=60), out, err_msg=kind)
