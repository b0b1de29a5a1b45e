"""GGUF files: what is read equals the gguf package's reader; damage and the unknown are refused."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_gguf import HEAD_DIM, N_LAYERS, PERIOD, WINDOW

from kvcore.errors import UnsupportedError
from kvcore.lab.config import read_config
from kvcore.lab.errors import ModelFileError
from kvcore.lab.gguf_file import GgufFile
from kvcore.lab.gguf_header import read_header
from kvcore.lab.weights import read_weights, split_halves

ARCHES = ("llama", "qwen2", "gemma3")


def plain(value):
    return value.tolist() if isinstance(value, np.ndarray) else value


@pytest.mark.parametrize("arch", ARCHES)
def test_metadata_and_tensors_equal_the_gguf_packages_reader(tiny_file, arch):
    path = tiny_file(arch=arch)
    ours, theirs = GgufFile(path), gguf.GGUFReader(path)
    fields = {k: f.contents() for k, f in theirs.fields.items() if not k.startswith("GGUF.")}
    assert {k: plain(v) for k, v in ours.metadata.items()} == fields
    assert set(ours.tensors) == {t.name for t in theirs.tensors}
    for t in theirs.tensors:
        expected = gguf.dequantize(t.data, t.tensor_type)
        assert np.array_equal(ours.tensor(t.name, tuple(t.shape.tolist()[::-1])), expected)


@pytest.mark.parametrize("block", ["F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q8_0"])
def test_every_block_type_reads_as_the_gguf_package_dequantizes_it(tmp_path, block):
    kind = gguf.GGMLQuantizationType[block]
    values = np.random.default_rng(1).standard_normal((3, 64)).astype(np.float32)
    data = gguf.quantize(values, kind)
    writer = gguf.GGUFWriter(tmp_path / "x.gguf", "llama")
    writer.add_tensor("x", data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    got = GgufFile(tmp_path / "x.gguf").tensor("x", (3, 64))
    assert got.dtype == np.float32
    assert np.array_equal(got, gguf.dequantize(data, kind))


@pytest.mark.parametrize("share", [0.0005, 0.01, 0.1, 0.5, 0.9, 0.9999])
def test_a_truncated_file_is_refused_and_says_so(tiny_file, tmp_path, share):
    whole = tiny_file().read_bytes()
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(whole[: int(len(whole) * share)])
    with pytest.raises(ModelFileError, match=r"truncated: got \d+ bytes, expected at least \d+"):
        GgufFile(cut)


def test_an_empty_missing_or_foreign_file_is_refused(tmp_path):
    empty, foreign = tmp_path / "empty.gguf", tmp_path / "zip.gguf"
    empty.touch()
    foreign.write_bytes(b"PK\x03\x04" + bytes(100))
    for path in (empty, tmp_path / "missing.gguf"):
        with pytest.raises(ModelFileError, match="nothing to read"):
            GgufFile(path)
    with pytest.raises(ModelFileError, match="is not a GGUF file"):
        GgufFile(foreign)


def test_big_endian_and_future_versions_are_refused(tiny_file, tmp_path):
    whole = bytearray(tiny_file().read_bytes())
    for version in (b"\x00\x00\x00\x03", b"\x04\x00\x00\x00"):
        whole[4:8] = version
        path = tmp_path / "other.gguf"
        path.write_bytes(whole)
        with pytest.raises(UnsupportedError, match="version or byte order"):
            GgufFile(path)


@given(data=st.data())
@settings(max_examples=300, deadline=None)
def test_a_damaged_header_raises_only_our_errors(tiny_file, data):
    path = tiny_file()
    damaged = bytearray(path.read_bytes())
    tensors = GgufFile(path).tensors.values()
    header_bytes = min(t.start for t in tensors)
    at = data.draw(st.integers(0, header_bytes - 8))
    damaged[at : at + 8] = data.draw(st.binary(min_size=8, max_size=8))
    try:
        read_header(path, np.frombuffer(bytes(damaged), np.uint8))
    except (ModelFileError, UnsupportedError):
        return


def test_an_unknown_architecture_is_refused_by_name(tiny_file):
    file = GgufFile(tiny_file(declared="mamba"))
    with pytest.raises(UnsupportedError, match="got mamba, expected llama or qwen2 or gemma3"):
        read_config(file)


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("llama.rope.scaling.type", "yarn", "got yarn, expected none or linear"),
        ("llama.rope.dimension_count", 8, "rope.dimension_count: got 8"),
        ("llama.expert_count", 4, "experts: got 4"),
        ("llama.attn_logit_softcapping", 50.0, "softcapping"),
        ("llama.attention.sliding_window", 128, "sliding window: got 128"),
    ],
)
def test_a_setting_that_is_not_computed_is_refused(tiny_file, key, value, says):
    with pytest.raises(UnsupportedError, match=says):
        read_config(GgufFile(tiny_file(extra={key: value})))


def test_a_tensor_without_a_use_and_a_missing_one_are_refused(tiny_file):
    extra = GgufFile(tiny_file(extra_tensor="blk.0.attn_sinks.weight"))
    with pytest.raises(UnsupportedError, match=r"no use for: got blk\.0\.attn_sinks\.weight"):
        read_weights(extra, read_config(extra))
    missing = GgufFile(tiny_file(without="blk.1.ffn_up.weight"))
    with pytest.raises(ModelFileError, match=r"blk\.1\.ffn_up\.weight .*: got no such tensor"):
        read_weights(missing, read_config(missing))


def test_gemma_layers_alternate_between_a_window_and_everything(tiny_file):
    config = read_config(GgufFile(tiny_file(arch="gemma3")))
    windows = [layer.window for layer in config.layers]
    assert windows == [None if (i + 1) % PERIOD == 0 else WINDOW for i in range(N_LAYERS)]


def test_missing_and_mistyped_metadata_is_named(tiny_file):
    file = GgufFile(tiny_file())
    with pytest.raises(ModelFileError, match=r"llama\.none .*: got nothing, expected a int"):
        file.require("llama.none", int)
    with pytest.raises(ModelFileError, match=r"general\.name .*: got a str, expected a float"):
        file.require("general.name", float)


def test_split_halves_undoes_the_interleaving_of_llama_files():
    halves = np.arange(2 * HEAD_DIM * 3, dtype=np.float32).reshape(2, 2, HEAD_DIM // 2, 3)
    interleaved = halves.swapaxes(1, 2).reshape(2 * HEAD_DIM, 3)
    assert np.array_equal(split_halves(interleaved, 2), halves.reshape(2 * HEAD_DIM, 3))
