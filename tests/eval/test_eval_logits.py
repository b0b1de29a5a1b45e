"""Saved logits: the header says what was written however a run stops, and faults are named."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import numpy as np
import pytest

from kvcore.lab.divergence import compare
from kvcore.lab.errors import DataFileError, SettingError
from kvcore.lab.eval_kl import compare_files
from kvcore.lab.logits_file import LogitsMeta, LogitsWriter, read_logits
from kvcore.lab.tensor_file import header_bytes

REPO = Path(__file__).resolve().parents[2]
V = 50


def meta(**changes):
    values = {
        "model_sha256": "a" * 64, "text": "t", "text_sha256": "b" * 64, "arm": "q2k",
        "mode": "decode", "kvcore": "0", "n_prompt": 7, "n_vocab": V,
    }  # fmt: skip
    return LogitsMeta(**{**values, **changes})


def rows(n, seed=0):
    return np.random.default_rng(seed).standard_normal((n, V)).astype(np.float32)


def written(path, n=6, **changes):
    with LogitsWriter(path, meta(**changes), 10) as out:
        for i, row in enumerate(rows(n)):
            out.write(row, i)
    return path


def test_what_is_written_is_read(tmp_path):
    found = read_logits(written(tmp_path / "a"))
    np.testing.assert_array_equal(found.rows, rows(6))
    assert found.targets.tolist() == [0, 1, 2, 3, 4, 5]
    assert found.meta == meta()


def test_an_exception_between_rows_leaves_a_true_header(tmp_path):
    path = tmp_path / "a"
    with pytest.raises(KeyboardInterrupt), LogitsWriter(path, meta(), 10) as out:  # noqa: PT012
        for row in rows(4):
            out.write(row, 1)
        raise KeyboardInterrupt
    assert len(read_logits(path).rows) == 4


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_a_killed_process_leaves_a_true_header(tmp_path, how):
    path, ready = tmp_path / "a", tmp_path / "ready"
    code = f"""
        import pathlib, time, numpy as np
        from kvcore.lab.logits_file import LogitsMeta, LogitsWriter
        out = LogitsWriter(pathlib.Path({str(path)!r}), LogitsMeta(model_sha256="a", text="t",
            text_sha256="b", arm="x", mode="decode", kvcore="0", n_prompt=1, n_vocab={V}), 10)
        for i in range(3):
            out.write(np.arange({V}), i)
        pathlib.Path({str(ready)!r}).touch()
        time.sleep(60)
    """
    child = subprocess.Popen([sys.executable, "-c", textwrap.dedent(code)], cwd=REPO)
    try:
        while not ready.exists() and child.poll() is None:
            time.sleep(0.02)
        child.send_signal(how)
        child.wait(20)
    finally:
        child.kill()
    assert len(read_logits(path).rows) == 3


def test_a_row_of_another_size_is_refused_and_not_counted(tmp_path):
    with LogitsWriter(tmp_path / "a", meta(), 10) as out:
        out.write(rows(1)[0], 0)
        with pytest.raises(DataFileError, match="row shape"):
            out.write(np.zeros(V + 1), 0)
    assert len(read_logits(tmp_path / "a").rows) == 1


def test_a_zero_vocabulary_is_refused_by_name(tmp_path):
    with pytest.raises(DataFileError, match="n_vocab"):
        LogitsWriter(tmp_path / "a", meta(n_vocab=0), 1)
    path = tmp_path / "b"
    fields = {"kind": "kvcore-logits", "n_rows": 3, "n_vocab": 0}
    path.write_bytes(header_bytes({"logits": ("F32", (3, 0))}, fields))
    with pytest.raises(DataFileError, match="n_vocab"):
        read_logits(path)


def test_a_file_without_rows_is_refused_by_name(tmp_path):
    with LogitsWriter(tmp_path / "a", meta(), 1):
        pass
    with pytest.raises(DataFileError, match="n_rows"):
        read_logits(tmp_path / "a")


def test_a_truncated_body_is_refused_by_name(tmp_path):
    path = written(tmp_path / "a")
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(DataFileError, match="body is truncated"):
        read_logits(path)


def test_a_missing_row_is_refused_by_name(tmp_path):
    path = written(tmp_path / "a")
    path.write_bytes(path.read_bytes()[: -4 * V])
    with pytest.raises(DataFileError, match="n_rows: got 6, but 5 are there"):
        read_logits(path)


def test_a_header_that_counts_too_few_rows_is_refused(tmp_path):
    path = written(tmp_path / "a")
    whole = path.read_bytes()
    path.write_bytes(whole.replace(b'"n_rows": "6"', b'"n_rows": "5"', 1))
    with pytest.raises(DataFileError, match="n_rows"):
        read_logits(path)


def test_a_row_that_is_not_finite_is_refused_by_number(tmp_path):
    bad = rows(3)
    bad[1, 4] = np.inf
    with LogitsWriter(tmp_path / "a", meta(), 3) as out:
        for row in bad:
            out.write(row, 0)
    with pytest.raises(DataFileError, match="row 1"):
        read_logits(tmp_path / "a")


def test_files_compare_as_their_rows_do(tmp_path):
    a, b = written(tmp_path / "a"), tmp_path / "b"
    with LogitsWriter(b, meta(arm="q2"), 10) as out:
        for i, row in enumerate(rows(6, seed=1)):
            out.write(row, i)
    got = compare_files(read_logits(a), read_logits(b))
    assert got == compare(rows(6), rows(6, seed=1), range(6))
    assert compare_files(read_logits(a), read_logits(a)).kl == [0.0] * 6


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"model_sha256": "c"}, "model_sha256"),
        ({"text_sha256": "c"}, "text_sha256"),
        ({"mode": "prompt"}, "mode"),
        ({"n_prompt": 8}, "n_prompt"),
    ],
)
def test_files_of_different_runs_are_refused_by_field(tmp_path, changes, named):
    a, b = written(tmp_path / "a"), written(tmp_path / "b", **changes)
    with pytest.raises(SettingError, match=named):
        compare_files(read_logits(a), read_logits(b))


def test_files_of_different_length_are_refused_by_row(tmp_path):
    a, b = written(tmp_path / "a"), written(tmp_path / "b", n=4)
    with pytest.raises(SettingError, match="row 4 is missing"):
        compare_files(read_logits(a), read_logits(b))


def test_the_header_is_safetensors(tmp_path):
    from safetensors.numpy import load_file

    path = written(tmp_path / "a.safetensors")
    np.testing.assert_array_equal(load_file(path)["logits"], rows(6))
    size = int.from_bytes(path.read_bytes()[:8], "little")
    assert json.loads(path.read_bytes()[8 : 8 + size])["logits"]["shape"] == [6, V]
