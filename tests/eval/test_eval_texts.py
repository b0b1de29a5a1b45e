"""The texts: nine, of three kinds, each known by its hash."""

from __future__ import annotations

import hashlib

import pytest

from kvcore.lab.errors import SettingError
from kvcore.lab.texts import CALIBRATION, KINDS, names, text


def test_there_are_nine_of_three_kinds_and_any_three_mix_them():
    found = [text(n) for n in names()]
    assert len(found) == 9
    assert len({t.sha256 for t in found}) == 9
    assert [t.kind for t in found[:3]] == list(KINDS)
    assert {t.kind for t in found} == set(KINDS)


def test_the_calibration_is_none_of_them():
    assert text(CALIBRATION).sha256 not in {text(n).sha256 for n in names()}


def test_a_conversation_is_written_in_the_models_dialect():
    plain, chatml = (
        text("chat-garden", m) for m in ({}, {"tokenizer.chat_template": "<|im_start|>"})
    )
    assert plain.body.startswith("User: I moved")
    assert chatml.body.startswith("<|im_start|>user\nI moved")
    assert chatml.body.count("<|im_end|>") == 6


def test_a_file_is_a_text_and_its_hash_is_the_bodys(tmp_path):
    path = tmp_path / "mine.txt"
    path.write_text("hello", encoding="utf-8")
    found = text(str(path))
    assert (found.name, found.kind) == ("mine", "file")
    assert found.sha256 == hashlib.sha256(b"hello").hexdigest()


def test_an_unknown_text_is_refused_with_the_names():
    with pytest.raises(SettingError, match="doc-objects"):
        text("no such text")
