"""Tokenizers built from tiny vocabularies whose right answers can be read off."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_gguf import SPECIAL, SYSTEM, byte_alphabet

from kvcore.errors import RangeError, UnsupportedError
from kvcore.lab.chat import chat_prompt
from kvcore.lab.errors import ModelFileError
from kvcore.lab.gguf_file import GgufFile
from kvcore.lab.tokenizer import Tokenizer


@pytest.fixture
def metadata(tiny_file):
    return GgufFile(tiny_file()).metadata


@pytest.fixture
def byte_level(metadata):
    return Tokenizer(metadata)


@pytest.fixture
def sentence_piece(tiny_file):
    return Tokenizer(GgufFile(tiny_file(arch="gemma3")).metadata)


def names(metadata, ids):
    return [metadata["tokenizer.ggml.tokens"][i] for i in ids]


def test_byte_level_merges_in_the_files_order(metadata, byte_level):
    assert names(metadata, byte_level.encode("hello hell")) == ["hello", "Ġ", "hell"]
    assert names(metadata, byte_level.encode("hel")) == ["he", "l"]
    assert names(metadata, byte_level.encode("llo")) == ["ll", "o"]


def test_smollm_splits_every_digit_and_special_names_are_one_token(metadata, byte_level):
    assert names(metadata, byte_level.encode("12<|im_end|>")) == ["1", "2", "<|im_end|>"]


def test_sentence_piece_merges_by_score_and_falls_back_to_bytes(tiny_file, sentence_piece):
    metadata = GgufFile(tiny_file(arch="gemma3")).metadata
    # Scores: ll > he > hell > hello; no piece for é, so its two bytes; \n\n is one user token.
    got = names(metadata, sentence_piece.encode("hello wor\n\né"))
    assert got == ["<bos>", "hello", "\u2581wo", "r", "\n\n", "<0xC3>", "<0xA9>"]


def test_bos_is_put_first_once_and_only_if_wanted(sentence_piece, byte_level):
    assert sentence_piece.encode("he")[0] == sentence_piece.bos_id == 1
    assert sentence_piece.encode("he", bos=False) == sentence_piece.encode("he")[1:]
    assert sentence_piece.encode("<bos>he") == sentence_piece.encode("he")
    assert byte_level.bos_id is None


def test_stop_tokens_are_the_files_eos_and_the_known_end_marks(byte_level, sentence_piece):
    assert byte_level.stop_ids == {0, 2}
    assert sentence_piece.stop_ids == {2}


@given(text=st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=40))
@settings(max_examples=200, deadline=None)
@pytest.mark.parametrize("arch", ["llama", "gemma3"])
def test_decoding_gives_the_text_back(tiny_file, arch, text):
    if arch == "gemma3" and "\u2581" in text:
        return  # SentencePiece cannot tell this character from a space
    tokenizer = Tokenizer(GgufFile(tiny_file(arch=arch)).metadata)
    ids = tokenizer.encode(text, bos=False)
    assert tokenizer.decode(ids, special=True) == text
    assert len(ids) <= len(text.encode())


@given(ids=st.lists(st.integers(3, 258), max_size=30))
@settings(max_examples=200, deadline=None)
def test_a_stream_joins_to_what_decode_gives_and_to_pythons_utf8(tiny_file, ids):
    tokenizer = Tokenizer(GgufFile(tiny_file()).metadata)
    stream = tokenizer.stream()
    text = "".join([stream.feed(i) for i in ids]) + stream.finish()
    assert text == tokenizer.decode(ids) == bytes(i - 3 for i in ids).decode("utf-8", "replace")


def test_a_stream_holds_half_a_character_back(byte_level):
    first, second = byte_level.encode("é")
    stream = byte_level.stream()
    assert [stream.feed(first), stream.feed(second)] == ["", "é"]
    assert byte_level.decode([first]) == "\ufffd"


def test_control_tokens_are_left_out_unless_asked_for(byte_level):
    ids = byte_level.encode("a<|im_end|>")
    assert byte_level.decode(ids) == "a"
    assert byte_level.decode(ids, special=True) == "a<|im_end|>"


@pytest.mark.parametrize("token", [-1, len(SPECIAL) + 256 + 4])
def test_a_token_outside_the_vocabulary_is_refused(byte_level, token):
    with pytest.raises(RangeError, match=f"token: got {token}, expected 0 to 262"):
        byte_level.decode([token])


def test_unknown_tokenizers_are_refused_by_name(tiny_file, metadata):
    with pytest.raises(UnsupportedError, match="pre-tokenizer not supported: got deepseek-coder"):
        Tokenizer(GgufFile(tiny_file(pre="deepseek-coder")).metadata)
    with pytest.raises(UnsupportedError, match="family not supported: got bert"):
        Tokenizer(metadata | {"tokenizer.ggml.model": "bert"})


def test_contradicting_metadata_is_refused(metadata):
    with pytest.raises(ModelFileError, match="a merge: got"):
        Tokenizer(metadata | {"tokenizer.ggml.merges": ["x yzzz"]})
    with pytest.raises(ModelFileError, match="token types: got 1 types"):
        Tokenizer(metadata | {"tokenizer.ggml.token_type": [1]})
    with pytest.raises(ModelFileError, match=r"tokenizer\.ggml\.tokens: got nothing"):
        Tokenizer({"tokenizer.ggml.model": "gpt2"})


def test_the_byte_alphabet_covers_every_byte_once():
    assert len(set(byte_alphabet())) == 256


def test_chat_prompt_is_what_the_template_says(metadata):
    head = f"<|im_start|>system\n{SYSTEM}<|im_end|>\n"
    tail = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    assert chat_prompt(metadata, "hi") == head + tail
    assert chat_prompt(metadata, "hi", system="S") == head.replace(SYSTEM, "S") + tail


def test_chat_is_refused_without_a_template_or_with_another_dialect(tiny_file, metadata):
    with pytest.raises(UnsupportedError, match="a base model"):
        chat_prompt(GgufFile(tiny_file(arch="gemma3")).metadata, "hi")
    with pytest.raises(UnsupportedError, match="another dialect"):
        chat_prompt(metadata | {"tokenizer.chat_template": "[INST]"}, "hi")
