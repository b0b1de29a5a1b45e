"""kvcore dump, eval and report from the command line: refusals, exit codes, one line of error."""

from __future__ import annotations

import json

import numpy as np
import pytest

import kvcore
from kvcore.cli.app import run
from kvcore.lab.arms import parse_arm
from kvcore.lab.dump import dump
from kvcore.lab.dump_file import read_dump
from kvcore.lab.eval_error import LayerBench
from kvcore.lab.logits_file import LogitsMeta, LogitsWriter
from kvcore.lab.texts import Text

COMMANDS = [("dump",), ("eval", "error"), ("eval", "kl"), ("eval", "recall"), ("report",)]


@pytest.fixture
def call(capsys):
    def made(*arguments):
        capsys.readouterr()
        code = run([str(a) for a in arguments])
        said = capsys.readouterr()
        return code, said.out, said.err

    return made


@pytest.mark.parametrize("command", COMMANDS)
def test_help_ends_with_an_example(call, command):
    code, out, _ = call(*command, "--help")
    assert code == 0
    assert "Example: kvcore " + " ".join(command) in " ".join(out.split())


def test_check_says_what_a_file_holds_or_names_what_is_wrong(call, tmp_path, loaded, body):
    path = tmp_path / "d.safetensors"
    dump(loaded, body, path, n_cells=64, n_queries=4, layers=[1])
    code, out, _ = call("dump", "--check", path, "--json")
    assert code == 0
    assert json.loads(out)["n_cells"] == 64
    path.write_bytes(path.read_bytes()[:-9])
    code, out, err = call("dump", "--check", path)
    assert (code, out) == (1, "")
    assert "body is truncated" in err
    assert err.count("\n") == 1


def test_errors_of_a_dump_are_printed_and_come_as_json(call, tmp_path, loaded, body):
    path = tmp_path / "d.safetensors"
    dump(loaded, body, path, n_cells=160, n_queries=4, layers=[1])
    wanted = ("--arm", "int8:bare", "--arm", "q2:bare", "--no-append", "--no-flat")
    code, out, _ = call("eval", "error", path, *wanted, "--backend", "cpu", "--json")
    data = json.loads(out)
    assert code == 0
    assert 0 < data["once"]["int8:bare"][0] < data["once"]["q2:bare"][0]
    assert data["versions"]["kvcore"]
    assert data["backend"] == "cpu"
    code, out, _ = call("eval", "error", path, *wanted, "--backend", "cpu")
    assert code == 0
    assert "int8:bare" in out


def test_two_files_of_logits_are_compared(call, tmp_path):
    for name in "ab":
        meta = LogitsMeta(
            model_sha256="m", text="t", text_sha256="s", arm=name, mode="decode", kvcore="0",
            n_prompt=3, n_vocab=9,
        )  # fmt: skip
        with LogitsWriter(tmp_path / name, meta, 4) as out:
            for i in range(4):
                out.write(np.arange(9) * (1 + (name == "b")), i)
    code, out, _ = call("eval", "kl", tmp_path / "a", tmp_path / "b", "--json")
    assert code == 0
    assert json.loads(out)["summary"]["mean_kl"] > 0
    code, out, _ = call("eval", "kl", tmp_path / "a", tmp_path / "a", "--json")
    assert json.loads(out)["summary"]["mean_kl"] == 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("eval", "kl", "one"), "two files"),
        (("eval", "kl", "--mode", "sideways", "--arm", "q2k"), "--mode"),
        (("eval", "kl", "--gain", "much"), "--gain"),
        (("eval", "error", "nothing"), "the file: got none"),
        (("eval", "recall", "--lengths", "long"), "--lengths"),
        (("dump", "x", "--layers", "a,b"), "--layers"),
    ],
)
def test_a_wrong_call_is_one_line_and_not_code_0(call, arguments, said):
    code, out, err = call(*arguments)
    assert code != 0
    assert out == ""
    assert said in err


def test_a_plan_draws_its_picture(call, tmp_path):
    pytest.importorskip("matplotlib", reason="the extra lab is not installed")
    path = tmp_path / "plan.svg"
    options = ("--heads", 2, "--head-dim", 64, "--layers", 3, "--context", 8192)
    code, out, _ = call("plan", *options, "--picture", path)
    assert code == 0
    assert "total" in out
    assert path.read_text(encoding="utf-8").startswith("<svg")


def test_a_calibrated_centre_is_the_mean_of_another_text(call, tmp_path, loaded, body):
    other = Text(name="other", kind="document", body=body.body[::-1])
    files = [tmp_path / "d.safetensors", tmp_path / "c.safetensors", tmp_path / "few.safetensors"]
    dump(loaded, body, files[0], n_cells=160, n_queries=8, layers=[0, 1])
    dump(loaded, other, files[1], n_cells=200, n_queries=4, layers=[0, 1])
    dump(loaded, other, files[2], n_cells=200, n_queries=4, layers=[0])
    arm = "q2k:bare,k_center=calibrated"
    results = tmp_path / "r.jsonl"
    common = (files[0], "--arm", arm, "--no-append", "--no-flat", "--backend", "cpu", "--json")
    more = ("--calibration", files[1], "--resume", results)
    code, out, err = call("eval", "error", *common, *more)
    assert code == 0, err
    found = json.loads(out)["once"][arm]
    for got, layer in zip(found, (0, 1), strict=True):
        mine = read_dump(files[0]).layer(layer)
        centre = read_dump(files[1]).layer(layer).k.astype(np.float64).mean(0).astype(np.float32)
        bench = LayerBench(mine, kvcore.get_backend("cpu"), centre)
        assert got == bench.error(parse_arm(arm))
    known = [json.loads(line)["key"] for line in results.read_text().splitlines()]
    assert {k["calibration"] for k in known if arm in k["what"]} == {
        read_dump(files[1]).meta.text_sha256
    }
    for wrong, what in ((files[0], "another than is measured"), (files[2], "layers")):
        code, out, err = call("eval", "error", *common, "--calibration", wrong)
        assert (code, out) == (2, "")
        assert what in err
    code, out, err = call("eval", "error", *common)
    assert (code, out) == (2, "")
    assert "calibration" in err
