"""Plans: the published memory table to the byte, agreement with real caches, and what fits."""

from __future__ import annotations

import json

import numpy as np
import pytest

import kvcore
from kvcore.cli.plan import parse_size
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


def geometry_of(tmp_path, **fields):
    file = tmp_path / "config.json"
    usual = {"num_hidden_layers": 8, "num_attention_heads": 16, "hidden_size": 1024}
    file.write_text(json.dumps({**usual, **fields}))
    return read_geometry(file)


LINEAR = ["linear_attention"] * 3 + ["full_attention"]


@pytest.mark.parametrize(
    ("fields", "layers"),
    [
        ({"layer_types": LINEAR * 2}, 2),
        ({"full_attention_interval": 4, "linear_num_key_heads": 16}, 2),
        ({"layer_types": ["sliding_attention", "full_attention"] * 4}, 8),
        ({"layer_types": ["conv", "full_attention"] * 4}, 4),
        ({"layers_block_type": ["mamba"] * 7 + ["attention"], "mamba_d_state": 16}, 1),
        ({"block_types": ["recurrent", "recurrent", "attention"]}, 2),
        ({"hybrid_override_pattern": "M-M*M-M*"}, 2),
        ({"attn_layer_period": 4, "attn_layer_offset": 2, "mamba_d_conv": 4}, 2),
        ({"attn_layer_indices": [3, 5], "mamba_d_conv": 4}, 2),
        ({"num_kv_shared_layers": 3}, 5),
        ({"num_kv_shared_layers": 4, "layer_types": LINEAR * 2}, 1),
        ({"model_type": "falcon_h1", "mamba_d_conv": 4}, 8),
    ],
    ids=lambda x: "" if isinstance(x, int) else next(iter(x)),
)
def test_layers_without_a_cache_of_their_own_are_not_counted(tmp_path, fields, layers):
    assert geometry_of(tmp_path, **fields).layers == layers


@pytest.mark.parametrize(
    ("fields", "heads"),
    [
        ({"model_type": "falcon", "multi_query": True, "num_kv_heads": 16}, 1),
        (
            {
                "model_type": "falcon",
                "new_decoder_architecture": True,
                "multi_query": True,
                "num_kv_heads": 8,
            },
            8,
        ),
        ({"model_type": "falcon", "multi_query": False, "num_kv_heads": 4}, 16),
        ({"model_type": "gpt_bigcode", "multi_query": True}, 1),
        ({"multi_query_attention": True, "multi_query_group_num": 2}, 2),
        ({"attn_config": {"kv_n_heads": 4}}, 4),
        ({"num_kv_heads": [4] * 8}, 4),
    ],
)
def test_kv_heads_are_those_that_are_kept(tmp_path, fields, heads):
    assert geometry_of(tmp_path, **fields).n_kv_heads == heads


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64}, "--head-dim 192"),
        ({"layer_types": ["other"] * 8}, "a kind of layer: got other"),
        ({"mamba_d_state": 16}, "layers without a KV cache: got mamba_d_state"),
        ({"is_encoder_decoder": True}, "cross-attention"),
        ({"global_head_dim": 128}, "layers differ in heads: global_head_dim"),
        ({"num_kv_heads": [2] * 4 + [4] * 4}, "layers differ in KV heads"),
    ],
)
def test_what_one_spec_cannot_describe_is_refused_with_the_reason(tmp_path, fields, words):
    with pytest.raises(UnsupportedError, match=words):
        geometry_of(tmp_path, **fields)


def test_fields_have_to_fit_and_are_shown_as_they_are(tmp_path):
    with pytest.raises(FormatError, match="hidden_size: got '1024'"):
        geometry_of(tmp_path, hidden_size="1024")
    with pytest.raises(FormatError, match="head_dim: got none, and a hidden_size of 1000"):
        geometry_of(tmp_path, hidden_size=1000)
    with pytest.raises(FormatError, match="8, one a layer"):
        geometry_of(tmp_path, layer_types=LINEAR)
    with pytest.raises(FormatError, match="keep a KV cache"):
        geometry_of(tmp_path, layer_types=["mamba"] * 8)


def test_the_older_names_of_fields_are_read_and_options_win(tmp_path, kvcore_command):
    file = tmp_path / "config.json"
    file.write_text(json.dumps({"n_layer": 12, "n_head": 12, "n_embd": 768, "n_ctx": 1024}))
    g = read_geometry(file)
    assert (g.layers, g.n_kv_heads, g.head_dim, g.context) == (12, 12, 64, 1024)
    file.write_text(json.dumps({"kv_lora_rank": 512, "layer_types": ["other"]}))
    options = ("--layers", 2, "--heads", 3, "--head-dim", 192, "--head-dim-v", 128)
    ran = kvcore_command("plan", "-m", file, *options, "-c", 1000, "-f", "f16", "--bare", "--json")
    assert ran.code == 0, ran.err
    spec = kvcore.CacheSpec(format="f16", n_kv_heads=3, head_dim=192, head_dim_v=128, recipe=None)
    assert ran.json()["total"] == plan(spec, layers=2, context=1000).total


def test_gguf_with_latent_shared_or_linear_layers(tmp_path):
    sizes = {"block_count": 8, "head_count": 8, "head_count_kv": 2, "embedding_length": 512}
    latent = write_gguf(tmp_path / "a.gguf", kv_lora_rank=512, **sizes)
    with pytest.raises(UnsupportedError, match="latent"):
        read_geometry(latent)
    assert read_geometry(latent, n_kv_heads=8, head_dim=192).head_dim_v == 192
    linear = write_gguf(tmp_path / "b.gguf", ssm_state_size=16, **sizes)
    with pytest.raises(UnsupportedError, match="--layers"):
        read_geometry(linear)
    assert read_geometry(linear, layers=3).layers == 3
    shared = write_gguf(tmp_path / "c.gguf", shared_kv_layers=3, **sizes)
    assert read_geometry(shared).layers == 5


@pytest.mark.parametrize(
    ("text", "size"),
    [("8GiB", 8 * GIB), ("8GB", 8 * 10**9), ("8G", 8 * GIB), ("512m", 2**29), ("1.5kB", 1500),
     ("123", 123), ("7b", 7)],
)  # fmt: skip
def test_gb_is_decimal_and_gib_binary(text, size):
    assert parse_size(text) == size


def test_memory_too_small_for_anything_is_said_with_what_is_needed(kvcore_command):
    args = ("plan", "--heads", 2, "--head-dim", 256, "--layers", 12, "--fits", "1KiB")
    ran = kvcore_command(*args)
    assert ran.code == 1
    assert "Nothing fits" in ran.out
    least = plan(spec_of("q2k"), layers=12, context=32).total
    assert f"32 cells take {least} bytes" in ran.out
    facts = {row["format"]: row for row in kvcore_command(*args, "--json").json()}
    assert f"expected >= {least}" in facts["q2k"]["reason"]
    assert longest_context(spec_of("q2k"), least, layers=12) == 32
    assert longest_context(spec_of("q2k"), least - 1, layers=12) == 0


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (("-c", 1000, "--fits", "8GiB"), "--context 1000"),
        (("--picture", "no/x.svg"), "no folder for x.svg"),
        (("--picture", "x.png"), "a name in .svg"),
        (("-f", "q4_0+q2c/kv"), "unknown format: got 'q4_0+q2c/kv', expected one of"),
    ],
)
def test_an_option_that_cannot_be_met_is_refused(kvcore_command, tmp_path, monkeypatch, more, said):
    monkeypatch.chdir(tmp_path)
    ran = kvcore_command("plan", "--heads", 2, "--head-dim", 64, *more)
    assert (ran.code, ran.out) == (2, "")
    assert said in ran.err
    assert "kvcore.Format(" not in ran.err
    assert not list(tmp_path.iterdir())
