"""Recall: facts lie where they are said to lie, and only the instructed pair counts."""

from __future__ import annotations

import pytest

from kvcore.lab.arms import parse_arms
from kvcore.lab.errors import SettingError
from kvcore.lab.journal import Journal
from kvcore.lab.recall import DEPTHS, INSIDE, make_document
from kvcore.lab.recall_suite import Answer, RecallSuite
from kvcore.lab.recall_tables import recall_section

WINDOW, TOKENS = 420, 2600  # a byte is a token here, so facts are long


@pytest.fixture(scope="module")
def document(loaded, body):
    return make_document(
        loaded.tokenizer, body.body, n_tokens=TOKENS, per_place=1, window=WINDOW, seed=3
    )


def test_facts_are_at_their_cells(document, loaded):
    for fact in document.facts:
        said = document.ids[fact.start : fact.end]
        if fact.kind == "words":
            both = [*fact.question, *fact.answer]
            assert said[: len(both)] == both
        else:
            text = "".join(map(str, fact.answer))
            assert text in "".join(map(str, said))


def test_inside_facts_are_in_the_window_when_the_answer_ends_and_others_never(document):
    length = len(document.ids)
    for fact in document.facts:
        last_query = length + len(fact.question) + len(fact.answer)
        if fact.place == INSIDE:
            assert fact.start >= last_query - WINDOW
        else:
            assert fact.end <= length - WINDOW


def test_depths_come_in_order_with_every_kind(document):
    for kind in ("code", "words"):
        facts = [f for f in document.facts if f.kind == kind]
        assert [f.place for f in facts] == [*(f"{d:g}" for d in DEPTHS), INSIDE]
        starts = [f.start for f in facts]
        assert starts == sorted(starts)


def test_no_two_facts_share_a_key_or_code(document):
    codes = [tuple(f.answer) for f in document.facts if f.kind == "code"]
    keys = [tuple(f.question) for f in document.facts if f.kind == "code"]
    assert len(set(codes)) == len(codes)
    assert len(set(keys)) == len(keys)


def test_the_same_seed_makes_the_same_document(document, loaded, body):
    again = make_document(
        loaded.tokenizer, body.body, n_tokens=TOKENS, per_place=1, window=WINDOW, seed=3
    )
    assert again == document


def test_a_document_too_short_for_its_facts_is_refused(loaded, body):
    with pytest.raises(SettingError, match="do not fit"):
        make_document(loaded.tokenizer, body.body, n_tokens=500, per_place=1, window=WINDOW)


def test_one_wrong_token_is_no_recall():
    parts = {"kind": "code", "place": "0.5", "start": 0, "end": 9, "length": 99, "nll": 0.1}
    assert Answer(**parts, hits=[True] * 4).recalled
    assert not Answer(**parts, hits=[True, True, False, True]).recalled


def test_every_arm_is_asked_the_same_and_f16_stands_beside(loaded, backend, body, monkeypatch):
    monkeypatch.setattr("kvcore.lab.recall_suite.WINDOW", WINDOW)
    monkeypatch.setattr("kvcore.lab.recall_suite.LOOP_TOKENS", 8)
    suite = RecallSuite(loaded, backend, Journal(None), body, per_place=1)
    found = suite.run([TOKENS], parse_arms(["f32", "q2:bare"]))
    assert [r.arm for r in found] == ["f16", "f32", "q2:bare"]
    for r in found:
        assert [(a.kind, a.place) for a in r.answers] == [
            (a.kind, a.place) for a in found[0].answers
        ]
    # float32 stores answer as float16 ones do, but for ties within float16's rounding.
    for a, b in zip(found[0].answers, found[1].answers, strict=True):
        assert a.nll == pytest.approx(b.nll, abs=0.05)
    section = recall_section(found, body.name)
    assert section.findings[0].startswith("f16 recalls")
    assert [row[0] for row in section.tables[0].rows] == ["f16", "f32", "q2:bare"]
