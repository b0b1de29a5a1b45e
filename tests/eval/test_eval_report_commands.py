"""The commands that a report prints measure its numbers: none of them finds anything unknown."""

from __future__ import annotations

import dataclasses
import json
import shlex
import zlib

import pytest

import kvcore.cli.dump
import kvcore.cli.eval
from kvcore.cli.app import run
from kvcore.lab import published, report
from kvcore.lab.report_plan import QUICK
from kvcore.lab.report_sections import SECTIONS as SECTION_FUNCTIONS

pytest.importorskip("matplotlib", reason="the extra lab is not installed")

SMALL = dataclasses.replace(
    QUICK, cells=256, queries=4, n_layers=2, texts=2, swept_texts=1, prompt=96, forced=4,
    prompt_mode=40, arms=("q2k:bare", "q4_0", "q2k"), gains=(1.0, 1.1), windows=(0, 64),
    sinks=(0, 8), centres=(32,), prompt_arms=("q4_0:bare", "int8"), lengths=(400,),
    recall_arms=("int8",),
)  # fmt: skip
SECTIONS = ("decode_kl", "sweeps", "prompt_kl", "recall", "memory", "attention_error")


class Words:
    """A tokenizer of words, so that facts are as short as they are to a real one."""

    bos_id = 0
    stop_ids = frozenset()

    def encode(self, text, *, bos=True):
        ids = [zlib.crc32(word.encode()) % 130 + 1 for word in text.split()]
        return [0, *ids] if bos else ids


@pytest.fixture(scope="module")
def loaded(loaded):
    return dataclasses.replace(loaded, tokenizer=Words())


@pytest.fixture(scope="module")
def made(tmp_path_factory, loaded, backend):
    folder = tmp_path_factory.mktemp("report")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(report, "QUICK", SMALL)
        report.make_report(
            loaded, backend, folder, source=("--model", "toy"), quick=True, only=SECTIONS
        )
    return folder, json.loads((folder / "report.json").read_text())


@pytest.fixture
def shell(made, tmp_path, monkeypatch, loaded, capsys):
    """Run a printed command in an empty folder, with the report's results at hand."""
    folder, _ = made
    monkeypatch.chdir(tmp_path)
    for module in (kvcore.cli.dump, kvcore.cli.eval):
        monkeypatch.setattr(module, "load_model", lambda model, gguf, report: loaded)

    def ran(line):
        first, *arguments = shlex.split(line)
        assert first == "kvcore"
        if arguments[0] == "eval":
            arguments += ["--resume", str(folder / report.JOURNAL)]
        capsys.readouterr()
        code = run([*arguments, "--json"])
        said = capsys.readouterr()
        assert code == 0, said.err
        return json.loads(said.out)

    return ran


def test_the_page_names_the_command_that_made_it(made):
    folder, data = made
    sections = " ".join(f"--section {name}" for name in SECTIONS)
    assert data["origin"]["command"] == (
        f"kvcore report --model toy --quick --backend cpu --out {folder.name} {sections}"
    )


def test_every_command_of_a_section_finds_the_sections_numbers(made, shell, tmp_path):
    folder, data = made
    journal = (folder / report.JOURNAL).read_bytes()
    assert journal
    for section in data["sections"]:
        assert section["commands"]
        found = [shell(line) for line in section["commands"]]
        if "arms" in section:
            shared = section["arms"].keys() & found[0]["arms"].keys()
            assert shared
            assert all(found[0]["arms"][a] == section["arms"][a] for a in shared)
        if "texts" in section:
            assert found[0]["texts"] == section["texts"]
            assert found[0]["model_sha256"] == section["model_sha256"]
        if "mean_kl" in section:
            windows = section["mean_kl"]["window"]["q4_0"]
            for size, kl in windows.items():
                assert found[0]["arms"][f"q4_0:window={size}"]["mean_kl"] == kl
        if "once" in section:
            assert found[1]["once"] == section["once"]
            assert found[1]["append"] == section["append"]
        if "runs" in section:
            assert found[0]["model_sha256"] == section["model_sha256"]
            assert found[0]["backend"] == section["backend"] == "cpu"
            assert found[0]["runs"] == section["runs"]
        if "totals" in section:
            totals = [n for t in section["totals"].values() for n in t.values()]
            assert len(totals) == 6 * 5
            assert [f["total"] for f in found] == totals
    assert (folder / report.JOURNAL).read_bytes() == journal, "a command measured something new"
    written = (tmp_path / "dump.safetensors").read_bytes()
    assert written == (folder / "dump.safetensors").read_bytes()


def test_every_published_table_names_its_source(made):
    folder, _ = made
    page = (folder / "report.md").read_text()
    tables = page.split("**Published by Strata: ")[1:]
    assert len(tables) == 3
    assert all(published.SOURCE in table.partition("\n**")[0] for table in tables)
    assert "(published" not in page


def test_the_header_lists_the_texts_of_its_sections(made):
    _, data = made
    texts = [t.split()[0] for t in data["origin"]["texts"].split(", ")]
    assert texts == ["chat-cache", "doc-objects", "doc-statements"]
    assert data["origin"]["sections"].split(", ") == [
        make.__name__ for make in SECTION_FUNCTIONS if make.__name__ in SECTIONS
    ]


def test_markdown_and_html_show_them(made):
    folder, data = made
    line = data["sections"][0]["commands"][0]
    assert f"```sh\n{line}\n```" in (folder / "report.md").read_text()
    assert line in (folder / "report.html").read_text()
