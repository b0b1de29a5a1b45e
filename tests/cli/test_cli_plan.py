"""Plans: the published memory table to the byte, agreement with real caches, and what fits."""

from __future__ import annotations

import json

import numpy as np
import pytest

import kvcore
from kvcore.errors import FormatError, ShapeError, UnsupportedError
from kvcore.memory_plan import fits, longest_context, plan
from kvcore.model_geometry import read_geometry

GIB = 2**30
CELLS, LAYERS = 262144, 12

# The public engine's table: 2 KV heads x 256, 262144 cells, 12 layers; exact where it states all
# digits, else by bytes per cell.
PUBLISHED_GIB = {
    "f32": 12.0,
    "f16": 6.0,
    "q4_0": 1.6875,
    "q2k": 1.3125,
    "k4v2c": 1.3125,
    "q2": 0.9375,
    "k2cv2t": 0.9375,
}
PUBLISHED_CELL = {"int8": 1056, "k8v4": 816, "k4v4": 544, "k8v32": 2576, "k2cv1c": 256}


def spec_of(name, **fields):
    return kvcore.CacheSpec(format=name, n_kv_heads=2, head_dim=256, **fields)


@pytest.mark.parametrize("name", PUBLISHED_GIB)
def test_pool_bytes_equal_the_published_table(name):
    found = plan(spec_of(name), layers=LAYERS, context=CELLS)
    assert LAYERS * found.pool == PUBLISHED_GIB[name] * GIB


@pytest.mark.parametrize("name", PUBLISHED_CELL)
def test_pool_bytes_equal_the_published_bytes_per_cell(name):
    found = plan(spec_of(name), layers=LAYERS, context=CELLS)
    assert LAYERS * found.pool == PUBLISHED_CELL[name] * CELLS * LAYERS


@pytest.mark.parametrize(("window", "kib"), [(128, 304), (256, 560)])
def test_overlay_bytes_equal_the_published_ones(window, kib):
    spec = spec_of("f16", window=window, sinks=8)
    assert plan(spec, context=CELLS).overlay == kib * 1024
    # q2k with its recipe holds the cells of the centre in the same slots.
    assert plan(spec_of("q2k", window=window), context=CELLS).overlay == kib * 1024


@pytest.mark.parametrize("recipe", ["format", None])
@pytest.mark.parametrize("name", list(kvcore.formats()))
def test_a_plan_equals_the_cache_it_describes(name, recipe):
    be = kvcore.get_backend("reference")
    for page_size, window in ((4, None), (32, 5), (64, None)):
        spec = kvcore.CacheSpec(
            format=name,
            n_kv_heads=3,
            head_dim=64,
            recipe=recipe,
            page_size=page_size,
            window=window,
        )
        cache = be.cache(spec, 777)
        found = plan(spec, context=777)
        assert found.total == cache.nbytes
        arrays = [*cache.pool.planes.values(), cache.state.k, cache.state.v, cache.state.marks]
        held = sum(np.asarray(a).nbytes for a in arrays)
        assert found.per_layer - found.centre == held
        assert found.planes == {n: np.asarray(a).nbytes for n, a in cache.pool.planes.items()}
        assert (found.cells, found.overlay + found.tail) == (
            cache.capacity,
            np.asarray(cache.state.k).nbytes + np.asarray(cache.state.v).nbytes,
        )


def test_without_an_overlay_the_exact_slots_are_tail():
    found = plan(spec_of("q2", recipe=None), context=1000)
    assert found.overlay == 0
    assert found.tail == 2 * (32 + 16) * 2 * 256 * 2


def test_layers_and_batch_multiply():
    one = plan(spec_of("q2k"), context=5000)
    assert plan(spec_of("q2k"), layers=7, context=5000, batch=3).total == 21 * one.total


@pytest.mark.parametrize("field", ["layers", "context", "batch"])
@pytest.mark.parametrize("value", [0, -1, 2.5, True])
def test_counts_are_checked(field, value):
    with pytest.raises(ShapeError, match=field):
        plan(spec_of("q2k"), **{field: value})


@pytest.mark.parametrize("name", list(kvcore.formats()))
def test_the_longest_context_fits_and_one_unit_more_does_not(name):
    spec = spec_of(name, page_size=4)
    for memory in (2**20, 2**30, 8 * 2**30 + 12345):
        n = longest_context(spec, memory, layers=12, batch=2)
        if n:
            assert plan(spec, layers=12, context=n, batch=2).total <= memory
        more = n + spec.layout.unit_cells
        assert plan(spec, layers=12, context=more, batch=2).total > memory


def test_fits_orders_formats_by_reach_and_gives_reasons():
    found = fits(2**30, n_kv_heads=2, head_dim=80, layers=4)
    assert [f.format for f in found] == list(kvcore.formats())
    by_name = {f.format: f for f in found}
    assert by_name["f16"].context > by_name["f32"].context > 0
    assert "next D that works" in by_name["q4_0"].reason
    assert by_name["q4_0"].plan is None
    with pytest.raises(FormatError):
        fits(2**30, n_kv_heads=2, head_dim=80, formats=["q4_0"])
    with pytest.raises(FormatError, match="head_dim"):
        fits(2**30, n_kv_heads=2, head_dim=0)


def test_plan_command_prints_the_same_total(kvcore_command):
    args = ("plan", "-f", "q4_0", "--heads", 2, "--head-dim", 256, "--layers", 12, "-c", CELLS)
    assert kvcore_command(*args, "--json").json()["total"] == (
        plan(spec_of("q4_0"), layers=12, context=CELLS).total
    )
    bare = kvcore_command(*args, "--bare", "--json").json()
    assert bare["total"] == 1.6875 * GIB + 12 * 32
    assert str(bare["total"]) in kvcore_command(*args, "--bare").out


def test_fits_command(kvcore_command):
    args = ("plan", "--heads", 2, "--head-dim", 256, "--layers", 12, "--fits", "1.5GiB")
    rows = {row["format"]: row for row in kvcore_command(*args, "--json").json()}
    assert rows["q2k"]["context"] == longest_context(spec_of("q2k"), int(1.5 * GIB), layers=12)
    assert rows["f32"]["context"] < rows["q2"]["context"]
    assert "q2k" in kvcore_command(*args).out


def test_geometry_from_a_transformers_config(tmp_path, kvcore_command):
    config = {
        "model_type": "llama",
        "num_hidden_layers": 30,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "hidden_size": 576,
        "max_position_embeddings": 8192,
    }
    file = tmp_path / "config.json"
    file.write_text(json.dumps(config))
    g = read_geometry(tmp_path)
    assert (g.layers, g.n_kv_heads, g.head_dim, g.head_dim_v, g.context) == (30, 3, 64, 64, 8192)
    ran = kvcore_command("plan", "--model-file", file, "-f", "q2k", "--json")
    spec = kvcore.CacheSpec(format="q2k", n_kv_heads=3, head_dim=64)
    assert ran.json()["total"] == plan(spec, layers=30, context=8192).total
    file.write_text(json.dumps({"text_config": {**config, "head_dim": 128}}))
    assert read_geometry(file).head_dim == 128


@pytest.mark.parametrize(
    ("text", "words"),
    [("{", "not JSON"), ("[]", "not a configuration"), ("{}", "num_hidden_layers")],
)
def test_a_config_that_is_none_is_refused_by_field(tmp_path, text, words):
    file = tmp_path / "config.json"
    file.write_text(text)
    with pytest.raises(FormatError, match=words):
        read_geometry(file)


def write_gguf(path, **fields):
    gguf = pytest.importorskip("gguf")
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name("tiny")
    for name, value in fields.items():
        getattr(writer, f"add_{name}")(value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_geometry_from_gguf(tmp_path):
    file = write_gguf(
        tmp_path / "a.gguf",
        block_count=4,
        head_count=8,
        head_count_kv=2,
        embedding_length=512,
        context_length=4096,
    )
    g = read_geometry(file)
    assert (g.name, g.layers, g.n_kv_heads, g.head_dim) == ("tiny", 4, 2, 64)
    assert (g.head_dim_v, g.context) == (64, 4096)


def test_geometry_of_hybrid_gguf_counts_the_layers_with_a_cache(tmp_path):
    sizes = {"block_count": 4, "head_count": 8, "embedding_length": 512}
    file = write_gguf(tmp_path / "a.gguf", head_count_kv=[0, 2, 0, 2], key_length=128, **sizes)
    g = read_geometry(file)
    assert (g.layers, g.n_kv_heads, g.head_dim) == (2, 2, 128)
    mixed = write_gguf(tmp_path / "b.gguf", head_count_kv=[1, 2, 1, 2], **sizes)
    with pytest.raises(UnsupportedError, match="layers differ"):
        read_geometry(mixed)
