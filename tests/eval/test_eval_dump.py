"""kvcore dump: the file holds what the model made, and a bad file is named field by field."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest
from safetensors.numpy import load_file

from kvcore.lab.dump import default_layers, dump
from kvcore.lab.dump_file import read_dump
from kvcore.lab.engine import Session
from kvcore.lab.errors import DataFileError, SettingError
from kvcore.lab.tensor_file import header_bytes, write

CELLS, QUERIES = 96, 12


class Watcher:
    """A cache that only writes down what the engine gives it, and attends in float64."""

    def __init__(self, layer, heads, dim):
        self.k, self.v, self.q = [], [], []

    def append(self, k, v):
        self.k += list(k.copy())
        self.v += list(v.copy())

    def attend(self, q, *, k=None, v=None, scale=None, window=None):
        self.q += list(q.copy())
        keys, values = np.array(self.k, np.float64), np.array(self.v, np.float64)
        out = np.zeros_like(q)
        for t in range(len(q)):
            end = len(keys) - len(q) + t + 1
            low = max(0, end - window) if window else 0
            for h in range(q.shape[1]):
                g = h // (q.shape[1] // keys.shape[1])
                s = keys[low:end, g] @ q[t, h].astype(np.float64) * scale
                p = np.exp(s - s.max())
                out[t, h] = p / p.sum() @ values[low:end, g]
        return out

    def truncate(self, n):
        raise AssertionError

    def __len__(self):
        return len(self.k)

    nbytes = 0


@pytest.fixture(scope="module")
def made(tmp_path_factory, loaded, body):
    path = tmp_path_factory.mktemp("dump") / "d.safetensors"
    dump(loaded, body, path, n_cells=CELLS, n_queries=QUERIES, layers=[0, 1])
    return path


def test_the_file_holds_the_k_v_and_queries_of_the_model(made, loaded, body):
    session = Session(loaded.model, Watcher)
    ids = loaded.tokenizer.encode(body.body)[:CELLS]
    session.extend(ids)
    tensors = load_file(made)  # another reader than ours
    for i, cache in enumerate(session.caches):
        # Two float32 computations of the same layers, then float16: half an ulp and a rounding.
        for name, rows in (("k", cache.k), ("v", cache.v)):
            expected = np.array(rows)
            bound = np.abs(expected) * 2**-10 + 1e-3
            assert (np.abs(tensors[f"{name}_{i}"].astype(np.float32) - expected) <= bound).all()
        np.testing.assert_allclose(
            tensors[f"q_{i}"], np.array(cache.q)[-QUERIES:], rtol=1e-3, atol=1e-3
        )
    np.testing.assert_array_equal(tensors["ids"], ids)
    np.testing.assert_array_equal(tensors["query_positions"], np.arange(CELLS - QUERIES, CELLS))


def test_metadata_names_model_text_and_geometry(made, body):
    meta = read_dump(made).meta
    assert (meta.n_cells, meta.n_queries, meta.layers, meta.windows) == (96, 12, [0, 1], [0, 70])
    assert (meta.n_heads, meta.n_kv_heads, meta.head_dim) == (4, 2, 64)
    assert meta.text_sha256 == body.sha256
    assert len(meta.model_sha256) == 64


def rewritten(made, path, *, tensors=None, metadata=None, drop=()):
    """Write the dump again with some fields changed."""
    found = read_dump(made)
    every = {n: np.array(found.file.tensor(n)) for n in found.file.entries}
    fields = {k: json.loads(v) for k, v in found.file.metadata.items()}
    every |= tensors or {}
    fields |= metadata or {}
    for name in drop:
        every.pop(name, None)
        fields.pop(name, None)
    write(path, every, fields)
    return path


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"tensors": {"k_0": np.zeros((CELLS, 2, 32), np.float16)}}, "shape of k_0"),
        ({"tensors": {"v_1": np.zeros((CELLS - 1, 2, 64), np.float16)}}, "shape of v_1"),
        ({"tensors": {"q_0": np.zeros((QUERIES, 4, 64), np.float16)}}, "dtype of q_0"),
        ({"tensors": {"k_1": np.full((CELLS, 2, 64), np.nan, np.float16)}}, "values of k_1"),
        ({"tensors": {"positions": np.arange(1, CELLS + 1, dtype=np.int32)}}, "positions"),
        ({"tensors": {"k_7": np.zeros((1,), np.float16)}}, "k_7"),
        ({"drop": ["q_1"]}, "tensor q_1"),
        ({"drop": ["model_sha256"]}, "metadata model_sha256"),
        ({"metadata": {"n_cells": 0}}, "metadata n_cells"),
        ({"metadata": {"n_kv_heads": 3}}, "metadata n_heads"),
        ({"metadata": {"n_queries": 4000}}, "metadata n_queries"),
        ({"metadata": {"layers": [0, 9]}}, "metadata layers"),
        ({"metadata": {"windows": [0]}}, "metadata windows"),
        ({"metadata": {"scale": "big"}}, "metadata scale"),
        ({"metadata": {"kind": "other"}}, "metadata kind"),
        ({"metadata": {"version": 99}}, "metadata version"),
    ],
    ids=lambda x: x if isinstance(x, str) else "",
)
def test_a_wrong_field_is_refused_by_name(made, tmp_path, change, named):
    with pytest.raises(DataFileError, match=named):
        read_dump(rewritten(made, tmp_path / "x.safetensors", **change))


@pytest.mark.parametrize("keep", [0, 4, 100, 2000, -1])
def test_a_truncated_file_is_refused(made, tmp_path, keep):
    path = tmp_path / "cut.safetensors"
    whole = made.read_bytes()
    path.write_bytes(whole[:keep])
    with pytest.raises(DataFileError, match=r"header|truncated"):
        read_dump(path)


def test_extra_bytes_are_refused(made, tmp_path):
    path = tmp_path / "long.safetensors"
    path.write_bytes(made.read_bytes() + b"\0")
    with pytest.raises(DataFileError, match="body"):
        read_dump(path)


def test_a_zero_sized_tensor_is_refused_by_name(tmp_path):
    path = tmp_path / "zero.safetensors"
    path.write_bytes(header_bytes({"k_0": ("F16", (0, 2, 64))}, {}))
    with pytest.raises(DataFileError, match="shape of k_0"):
        read_dump(path)


def test_offsets_that_do_not_fit_the_shape_are_refused(made, tmp_path):
    whole = made.read_bytes()
    path = tmp_path / "offsets.safetensors"
    path.write_bytes(whole.replace(b'"shape": [96, 2, 64]', b'"shape": [96, 2, 65]', 1))
    with pytest.raises(DataFileError, match="data_offsets of k_0"):
        read_dump(path)


def test_a_file_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(DataFileError, match="the file: got none"):
        read_dump(tmp_path / "nothing")


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"n_cells": 10**6}, "cells"),
        ({"n_cells": 4000}, "too short"),
        ({"n_cells": 8, "n_queries": 8}, "queries"),
        ({"layers": [2]}, "layers"),
    ],
)
def test_a_wrong_wish_writes_nothing(tmp_path, loaded, body, options, named):
    short = dataclasses.replace(body, body=body.body[:3000])
    path = tmp_path / "no.safetensors"
    with pytest.raises(SettingError, match=named):
        dump(loaded, short, path, **{"n_cells": CELLS, "n_queries": QUERIES, **options})
    assert not path.exists()


def test_default_layers_span_the_model_and_keep_full_ones(loaded):
    assert default_layers(loaded.model.config) == (0, 1)
