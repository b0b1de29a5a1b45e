"""The lab refuses what it cannot do before a model runs, and names what is wrong."""

from __future__ import annotations

import dataclasses
import itertools
import json

import numpy as np
import pytest

import kvcore.cli.dump
import kvcore.cli.eval
import kvcore.cli.report
from kvcore.cli.app import run
from kvcore.lab.arms import parse_arm
from kvcore.lab.dump import dump
from kvcore.lab.dump_file import read_dump
from kvcore.lab.errors import DataFileError, SettingError
from kvcore.lab.logits_file import LogitsMeta, LogitsWriter
from kvcore.lab.outputs import check_file, check_folder
from kvcore.lab.recall import make_document


@pytest.fixture
def never(monkeypatch):
    """Fail when a command comes as far as its model."""

    def load(*_):
        raise AssertionError("the model was read")

    for module in (kvcore.cli.dump, kvcore.cli.eval, kvcore.cli.report):
        monkeypatch.setattr(module, "load_model", load)


@pytest.fixture
def toy(monkeypatch, loaded):
    for module in (kvcore.cli.dump, kvcore.cli.eval, kvcore.cli.report):
        monkeypatch.setattr(module, "load_model", lambda *_: loaded)


@pytest.fixture
def call(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def made(*arguments):
        capsys.readouterr()
        code = run([str(a) for a in arguments])
        said = capsys.readouterr()
        return code, said.out, said.err

    return made


@pytest.fixture
def made(tmp_path, loaded, body):
    path = tmp_path / "d.safetensors"
    dump(loaded, body, path, n_cells=64, n_queries=4, layers=[0, 1])
    return path


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("dump", "no/x.st", "--cells", 128), "no folder for x.st"),
        (("dump", ".", "--cells", 128), "the folder ."),
        (("eval", "recall", "--arm", "q4_0", "--lengths", ""), "--lengths: got ''"),
        (("eval", "recall", "--resume", "no/r.jsonl"), "no folder for r.jsonl"),
        (("eval", "kl", "--resume", "no/r.jsonl"), "no folder for r.jsonl"),
        (("eval", "kl", "--save-logits", "file"), "the file file, expected a folder"),
        (("eval", "kl", "--save-logits", "/proc/foo"), "/proc"),
        (("eval", "kl", "--sweep", "q4_0"), "--gain, --window or --sinks"),
        (("eval", "kl", "a", "b", "--arm", "q2k"), "got --arm beside them"),
        (("eval", "kl", "--window", ""), "--window: got ''"),
        (("eval", "kl", "--gain", ","), "--gain: got ','"),
        (("eval", "kl", "--texts", ""), "--texts: got ''"),
        (("eval", "kl", "--texts", "chat-cache,chat-cache"), "got chat-cache twice"),
        (("eval", "kl", "--arm", "q2k", "--arm", "q2k"), "the same arm twice"),
        (("eval", "kl", "--sweep", "sim:kivi", "--window", "0"), "simulations take none"),
        (("report", "--section", "memory", "--out", "file"), "the file file"),
        (("report", "--out", "/proc/x"), "/proc"),
        (("report", "--section", "foo"), "unknown section: got foo"),
    ],
)
def test_a_wrong_call_is_refused_before_a_model_is_read(call, never, tmp_path, arguments, said):
    (tmp_path / "file").write_text("kept")
    code, out, err = call(*arguments)
    assert (code, out) == (2, "")
    assert said in err
    assert [(p.name, p.read_text()) for p in tmp_path.iterdir()] == [("file", "kept")]


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (("--layers", ""), "--layers: got ''"),
        (("--layers", "0,0"), "got 0 twice"),
        (("--layers", "7"), "does not hold: got 7, expected some of 0, 1"),
        (("--arm", "q2k:k_center=calibrated"), "give eval error a --calibration"),
        (("--resume", "no/r.jsonl"), "no folder for r.jsonl"),
    ],
)
def test_a_wrong_call_on_a_dump_is_about_the_call(call, made, more, said):
    code, out, err = call("eval", "error", made, *more)
    assert (code, out) == (2, "")
    assert said in err
    assert "make the file again" not in err


def test_a_calibration_that_no_arm_takes_is_refused(call, tmp_path, loaded, body, made):
    other = dataclasses.replace(body, body=body.body[::-1])
    dump(loaded, other, tmp_path / "c.safetensors", n_cells=64, n_queries=4, layers=[0, 1])
    code, out, err = call("eval", "error", made, "--calibration", "c.safetensors", "--arm", "q2k")
    assert (code, out) == (2, "")
    assert "no arm takes it: got q2k" in err


def test_a_file_that_is_none_is_not_to_be_made_again(call, tmp_path):
    code, _, err = call("dump", "--check", "nosuch.st")
    assert code == 1
    assert "[nosuch.st] the file: got none, expected a file; check the path" in err
    assert "[.] the file: got a folder" in call("dump", "--check", ".")[2]


def test_queries_at_other_positions_are_refused_by_name(made):
    found = read_dump(made)
    entry = found.file.entries["query_positions"]
    whole = bytearray(made.read_bytes())
    moved = np.array(found.file.tensor("query_positions")) + 1000
    whole[entry.start : entry.start + moved.nbytes] = moved.tobytes()
    made.write_bytes(whole)
    with pytest.raises(DataFileError, match="query_positions: got 1060 to 1063, expected the last"):
        read_dump(made)


def test_too_many_queries_are_refused_with_the_option(tmp_path, loaded, body):
    with pytest.raises(SettingError, match=r"queries of 64 cells: got 64, .*--queries"):
        dump(loaded, body, tmp_path / "x", n_cells=64)
    with pytest.raises(SettingError, match="no folder for x"):
        dump(loaded, body, tmp_path / "no" / "x", n_cells=64, n_queries=4)


@pytest.mark.parametrize(
    ("arm", "said"),
    [
        ("q2k:rule=old", "grouping=eager beside it"),
        ("q2k:grouping=deferred,rule=n", "grouping=eager beside it"),
        ("q2k:window=64,window=32", "an option twice"),
        ("q2k:bare,bare", "an option twice"),
        ("kivi", "write sim:kivi"),
        ("nothing", "KCODEC"),
        ("sim:kivi:window=0", "simulations take none"),
    ],
)
def test_an_arm_that_cannot_be_is_refused_with_what_to_write(arm, said):
    with pytest.raises(ValueError, match=said.replace("+", r"\+")):
        parse_arm(arm)


def test_a_recall_document_too_short_is_refused_with_the_least_length(loaded, body):
    def made(n):
        make_document(loaded.tokenizer, body.body, n_tokens=n, per_place=1, window=420)

    with pytest.raises(SettingError, match="do not fit the document: got 100 tokens") as error:
        made(100)
    least = int(str(error.value).partition("expected >= ")[2].partition(";")[0])
    made(least)
    with pytest.raises(SettingError, match=f">= {least}"):
        made(least - 1)


def test_recall_has_no_calibration(call, toy):
    code, out, err = call("eval", "recall", "--arm", "q2k:k_center=calibrated", "--lengths", "4000")
    assert (code, out) == (2, "")
    assert "k_center=calibrated" in err


def test_kl_of_a_text_too_short_counts_its_tokens(call, toy, tmp_path):
    (tmp_path / "t.txt").write_text("x" * 50)
    code, out, err = call("eval", "kl", "--arm", "q2", "--texts", "t.txt", "--forced", 1000)
    assert (code, out) == (2, "")
    assert "the text t is too short for 1000 forced tokens: got 51 tokens, expected >= 1002" in err


def saved(path, arm, scale=1.0):
    meta = LogitsMeta(
        model_sha256="m", text="t", text_sha256="s", arm=arm, mode="decode", kvcore="0",
        n_prompt=3, n_vocab=9,
    )  # fmt: skip
    with LogitsWriter(path, meta, 3) as out:
        for i in range(3):
            out.write(np.arange(9) * scale, i)
    return path


def test_the_exact_file_comes_first_and_the_table_says_which_runs_it_compares(call, tmp_path):
    exact, other = saved(tmp_path / "f16", "f16"), saved(tmp_path / "q2k", "q2k", 1.1)
    code, out, err = call("eval", "kl", other, exact)
    assert (code, out) == (2, "")
    assert "the exact run: got q2k first, expected f16; swap the files" in err
    code, out, _ = call("eval", "kl", exact, other)
    assert code == 0
    assert "KL(f16 || arm)" in out
    assert "vs" not in out
    assert "KL(q2k || arm)" in call("eval", "kl", other, saved(tmp_path / "q2", "q2"))[1]


def test_a_constant_row_is_no_logits(call, tmp_path):
    code, _, err = call("eval", "kl", saved(tmp_path / "a", "f16"), saved(tmp_path / "b", "q2", 0))
    assert code == 1
    assert "[b] row 0: got one value for every token, expected logits" in err


def test_outputs_are_only_tried(tmp_path):
    file = tmp_path / "a"
    check_file("x", file)
    check_folder("x", tmp_path / "new")
    assert not list(tmp_path.iterdir())
    file.write_text("kept")
    check_file("x", file)
    assert file.read_text() == "kept"
    for wrong in (lambda: check_folder("x", file), lambda: check_file("x", tmp_path)):
        with pytest.raises(SettingError):
            wrong()


def test_a_kl_run_says_what_it_measured(call, toy, tmp_path, loaded, body):
    (tmp_path / "t.txt").write_text(body.body[:300])
    common = ("eval", "kl", "--texts", "t.txt", "--forced", 4, "--backend", "cpu")
    arms = ("--arm", "q4_0", "--arm", "q2:bare", "--arm", "q2k:k_center=calibrated")
    code, out, err = call(*common, *arms, "--prompt", 9000)
    assert code == 0, err
    for said in (
        "What was measured", "sha256", "on the backend cpu, decode mode", "at most 9000 tokens",
        "Prompts are shorter than the 9000 tokens asked for", "t 296.", "exact cells",
        "Calibrated centres: mean K of the first 1024 tokens of the text calibration",
    ):  # fmt: skip
        assert said in out
    assert "cover" not in out
    code, out, err = call(*common, *arms[:4], "--prompt", 100, "--json")
    found = json.loads(out)
    assert code == 0, err
    assert found["texts"][0]["n_prompt"] == 100
    assert (found["asked_prompt"], found["backend"], found["calibration"]) == (100, "cpu", None)
    assert len(found["model_sha256"]) == 64
    said = [s for s in found["findings"] if "cover every cell" in s]
    assert len(said) == 1
    assert "of t for q4_0:" in said[0]


def test_no_arms_name_breaks_in_a_table(call, toy, tmp_path, body):
    (tmp_path / "t.txt").write_text(body.body[:300])
    arms = ["q2k:bare,grouping=eager,rule=shrink", "q4_0:bare,window=128,sinks=8,k_center=auto"]
    names = itertools.chain(*(("--arm", a) for a in arms))
    common = ("eval", "kl", "--texts", "t.txt", "--forced", 2, "--prompt", 40, "--backend", "cpu")
    code, out, err = call(*common, *names)
    assert code == 0, err
    assert all(sum(line.startswith(arm) for line in out.splitlines()) == 3 for arm in arms)


def test_a_report_keeps_a_page_that_says_more(call, toy, tmp_path):
    pytest.importorskip("matplotlib", reason="the extra lab is not installed")
    common = ("report", "--quick", "--out", "rep1", "--backend", "cpu")
    (tmp_path / "rep1").mkdir()
    code, _, err = call(*common, "--section", "memory")
    assert code == 0, err
    page = tmp_path / "rep1" / "report.json"
    data = json.loads(page.read_text())
    assert data["origin"]["texts"] == "none"
    assert data["origin"]["sections"] == "memory"
    assert "--out rep1" in data["origin"]["command"]
    data["sections"] *= 2
    data["origin"]["sections"] = "memory, decode_kl"
    page.write_text(json.dumps(data))
    before = page.read_bytes()
    code, out, err = call(*common, "--section", "memory")
    assert (code, out) == (2, "")
    assert "rep1 holds another page" in err
    assert page.read_bytes() == before
