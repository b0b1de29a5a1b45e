"""The command line's promises: help with an example, --json, exit codes, one line of error."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import kvcore
from kvcore import dispatch
from kvcore.cli.app import app, exit_code
from kvcore.cli.formats import DIMS, HEAD_DIM, HEADS
from kvcore.errors import BackendUnavailable, FormatError, RangeError, UnsupportedError
from kvcore.reference import Reference
from kvcore.registry import implements

COMMANDS = sorted(c.name for c in app.registered_commands)
COMMANDS += sorted(
    f"{group.name} {c.name}"
    for group in app.registered_groups
    for c in group.typer_instance.registered_commands
)
REPO = Path(__file__).resolve().parents[2]
PLAN = ("plan", "--heads", 2, "--head-dim", 256, "--layers", 12, "--context", 262144)


def as_module(*arguments: str, encoding: str = "utf-8") -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join(filter(None, [str(REPO), os.environ.get("PYTHONPATH")]))
    return subprocess.run(
        [sys.executable, "-m", "kvcore", *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": path, "PYTHONIOENCODING": encoding},
        timeout=120,
        check=False,
    )


def test_the_commands_that_are_promised_exist():
    promised = {"backends", "formats", "plan", "explain", "emit", "generate", "walk", "check"}
    promised |= {"bench", "dump", "report", "eval error", "eval kl", "eval recall"}
    assert promised <= set(COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_help_shows_an_example_and_json(kvcore_command, command):
    ran = kvcore_command(*command.split(), "--help")
    assert ran.code == 0
    assert f"Example: kvcore {command}" in ran.out
    assert "--json" in ran.out


def test_no_command_prints_the_help(kvcore_command):
    ran = kvcore_command()
    assert ran.code == 0
    assert all(command.split()[0] in ran.out for command in COMMANDS)


def test_version(kvcore_command):
    assert kvcore_command("--version").out.strip() == kvcore.__version__


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("nosuch",), "No such command"),
        (("plan", "--nosuch"), "No such option"),
        (("plan",), "--head-dim"),
        (("plan", "--heads", "two"), "--heads"),
        ((*PLAN, "--format", "q9"), "unknown format"),
        ((*PLAN, "--page-size", 5), "page_size"),
        ((*PLAN, "--fits", "lots"), "8GiB"),
        (("plan", "--model-file", "/nosuch/model.gguf"), "no such file"),
        (("formats", "q9"), "unknown format"),
        (("walk", "--on", "nosuch"), "unknown backend"),
        (("walk", "--on", "reference", "--store", "x"), "unknown store"),
        (("walk", "--on", "reference", "--head-dim", 40), "the next D that works is 64"),
        (("walk", "--on", "reference", "--channel", 64), "channel"),
        (("walk", "--on", "reference", "--values", "/nosuch.npy"), "--values"),
        (("explain", "--on", "nosuch"), "unknown backend"),
        (("bench", "--on", "reference", "--heads", 2, "--q-heads", 3), "query heads"),
        (("generate", "x", "--on", "nosuch"), "unknown backend"),
    ],
)
def test_a_wrong_call_is_one_line_on_stderr_and_exit_2(kvcore_command, arguments, words):
    ran = kvcore_command(*arguments)
    assert ran.code == 2
    assert ran.err.startswith("kvcore: ")
    assert ran.err.count("\n") == 1
    assert words in ran.err
    assert "Traceback" not in ran.err


def test_errors_map_to_exit_codes():
    assert exit_code(FormatError("x")) == exit_code(RangeError("x")) == 2
    assert exit_code(BackendUnavailable("x")) == exit_code(UnsupportedError("x")) == 1


def test_backends_lists_every_known_one(kvcore_command):
    ran = kvcore_command("backends", "--json")
    found = ran.json()
    assert [b["name"] for b in found["backends"]] == [b.name for b in kvcore.backends()]
    for row in found["backends"]:
        assert row["device"] if row["available"] else row["reason"]
    assert ran.code == (0 if found["chosen"] else 1)
    assert all(b.name in kvcore_command("backends").out for b in kvcore.backends())


def test_formats_json_holds_every_format_with_its_size(kvcore_command):
    rows = {row["name"]: row for row in kvcore_command("formats", "--json").json()}
    assert list(rows) == list(kvcore.formats())
    for name, row in rows.items():
        assert row["bytes_per_cell"] == kvcore.format(name).bytes_per_cell(HEADS, HEAD_DIM)
    assert (rows["q2k"]["bytes_per_cell"], rows["q2k"]["bits_per_value"]) == (448, 3.5)


def test_formats_dims_say_what_check_dim_does(kvcore_command):
    table = kvcore_command("formats", "--dims", "--json").json()
    for name, row in table["codecs"].items():
        codec = kvcore.codecs.get(name)
        for dim in DIMS:
            try:
                codec.check_dim(dim)
                works = True
            except FormatError:
                works = False
            assert row[str(dim)] is works, (name, dim)
    text = kvcore_command("formats", "--dims").out
    assert "→ 96" in text


def test_formats_of_one_name_prints_it(kvcore_command):
    assert kvcore_command("formats", "q4_0").out.strip() == str(kvcore.format("q4_0"))
    assert kvcore_command("formats", "q4_0", "--json").json()["k"] == "q4_0"


def test_explain_names_a_kernel_for_each_op(kvcore_command):
    ran = kvcore_command("explain", "--on", "reference", "--json")
    assert ran.code == 0
    assert {c["op"] for c in ran.json()["choices"]} == set(kvcore.ops.declared())
    assert "reference.attention" in kvcore_command("explain", "--on", "reference").out


def test_bench_prints_one_row_per_call(kvcore_command):
    args = ("bench", "--on", "reference", "-f", "f16", "-f", "q2k", "--context", 256)
    ran = kvcore_command(*args, "--seconds", 0, "--json")
    assert ran.code == 0
    rows = [(t["format"], t["call"]) for t in ran.json()["timings"]]
    calls = ("append chunk", "append step", "attend step")
    assert rows == [(f, c) for f in ("f16", "q2k") for c in calls]


def test_an_unavailable_backend_exits_1_with_the_reason(kvcore_command):
    missing = [b for b in kvcore.backends() if not b.available]
    if not missing:
        pytest.skip("every backend is available here")
    ran = kvcore_command("walk", "--on", missing[0].name)
    assert ran.code == 1
    assert ran.err.count("\n") == 1
    assert "is not available" in ran.err


def test_python_m_kvcore_is_the_command():
    ran = as_module("formats", "--json")
    assert ran.returncode == 0
    assert [row["name"] for row in json.loads(ran.stdout)] == list(kvcore.formats())
    assert as_module("formats", "q9").returncode == 2


def test_a_console_that_knows_ascii_only_still_gets_the_table():
    ran = as_module("formats", "--dims", encoding="ascii")
    assert ran.returncode == 0
    assert "? 96" in ran.stdout


@pytest.mark.skipif(os.name != "posix", reason="needs a POSIX pipe")
def test_a_closed_pipe_is_no_error():
    shell = f"{sys.executable} -m kvcore walk --on reference | head -1"
    path = os.pathsep.join(filter(None, [str(REPO), os.environ.get("PYTHONPATH")]))
    ran = subprocess.run(
        ["sh", "-c", shell],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
        timeout=120,
        check=True,
    )
    assert ran.stderr == ""


def test_check_of_the_reference_against_itself_passes(kvcore_command):
    args = ("check", "--backend", "reference", "--op", "rotate", "--op", "gather", "--quick")
    ran = kvcore_command(*args, "--json")
    assert ran.code == 0
    (report,) = ran.json()
    assert report["ok"]
    assert report["cases"] > 0
    assert {row["op"] for row in report["counts"]} == {"rotate", "gather"}
    assert "0 failures" in kvcore_command(*args).out


def test_check_exits_1_on_a_mismatch_and_names_the_call(kvcore_command, monkeypatch):
    class Wrong(Reference):
        @implements("ring_table", version=Reference.ring_table.__kvcore_op__[1])
        def ring_table(self, n_blocks, n_slots, unit=1):
            return super().ring_table(n_blocks, n_slots, unit) + 1

    monkeypatch.setitem(dispatch._open, "reference", Wrong())
    ran = kvcore_command("check", "--backend", "reference", "--op", "ring_table", "--quick")
    assert ran.code == 1
    assert "NOT ok" in ran.out
    assert "kvcore.check(backend, ops=['ring_table']" in ran.out


def test_check_of_an_unknown_op_is_a_wrong_call(kvcore_command):
    ran = kvcore_command("check", "--backend", "reference", "--op", "nosuch")
    assert ran.code == 2
    assert "nosuch" in ran.err


def test_blas_threads_are_told_not_to_spin_before_numpy_is_loaded():
    code = (
        "import sys, kvcore; assert 'numpy' not in sys.modules; import os, kvcore.cli; "
        "print(os.environ['OPENBLAS_THREAD_TIMEOUT'])"
    )
    env = {k: v for k, v in os.environ.items() if k != "OPENBLAS_THREAD_TIMEOUT"}
    ran = subprocess.run(
        [sys.executable, "-c", code],
        env={**env, "PYTHONPATH": str(REPO)},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert ran.stdout.strip() == "4"
