"""kvcore generate: streams text and accounts for the cache; with a tiny model and the real one."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

import kvcore
from kvcore.cli import live
from kvcore.memory_plan import plan

pytest.importorskip("gguf")
pytest.importorskip("tokenizers")

TINY = Path(__file__).resolve().parents[1] / "lab" / "tiny_gguf.py"


@pytest.fixture(scope="module")
def tiny_model(tmp_path_factory):
    spec = importlib.util.spec_from_file_location("tiny_gguf_for_cli", TINY)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module.write(tmp_path_factory.mktemp("tiny") / "tiny.gguf", module.Tiny())


def test_json_holds_text_and_a_cache_that_the_plan_predicts(kvcore_command, tiny_model):
    args = ("generate", "hello", "--gguf", tiny_model, "--format", "f16", "-n", 5)
    ran = kvcore_command(*args, "--on", "reference", "--window", 4, "--sinks", 2, "--json")
    assert ran.code == 0
    said = ran.json()
    spec = kvcore.CacheSpec(format="f16", n_kv_heads=2, head_dim=16, window=4, sinks=2)
    expected = plan(spec, layers=said["n_layers"], context=said["capacity"])
    assert said["cache_bytes"] == expected.total
    assert said["f16_bytes"] == expected.f16_total
    assert said["tokens"] <= 5
    assert (said["format"], said["backend"]) == ("f16", "reference")


def test_text_is_streamed_and_the_summary_ends_it(kvcore_command, tiny_model):
    args = ("generate", "hello", "--gguf", tiny_model, "-f", "f16", "-n", 5, "--on", "reference")
    text = kvcore_command(*args, "--json").json()["text"]
    ran = kvcore_command(*args)
    assert ran.code == 0
    assert ran.out.startswith(text)
    names = ("model", "backend", "format", "bytes per cell", "cache", "prompt", "generated")
    lines = ran.out[len(text) :].splitlines()
    for name in names:
        assert any(line.startswith(name) for line in lines), name


def test_same_seed_same_text(kvcore_command, tiny_model):
    args = ("generate", "hello", "--gguf", tiny_model, "-f", "f32", "-n", 8, "--on", "reference")
    sampled = (*args, "-t", "0.9", "--seed", 3, "--json")
    assert kvcore_command(*sampled).json()["text"] == kvcore_command(*sampled).json()["text"]


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("--gguf", "/nosuch.gguf"), 1, "nothing to read"),
        (("--model", "nosuch"), 2, "unknown model"),
        (("-f", "q2k"), 2, "head size D"),
        (("-n", 10_000), 2, "shorten the prompt"),
    ],
)
def test_what_goes_wrong_is_one_line(kvcore_command, tiny_model, arguments, code, words):
    base = ("generate", "hello", "--on", "reference", "-f", "f16")
    given = arguments if "--model" in arguments else ("--gguf", tiny_model, *arguments)
    ran = kvcore_command(*base, *given)
    assert ran.code == code
    assert ran.err.splitlines()[-1].startswith("kvcore: ")
    assert words in ran.err
    assert "Traceback" not in ran.err


class Terminal:
    """A stdout that is a terminal, kept as text."""

    def __init__(self):
        self.text = ""

    def write(self, text):
        self.text += text

    def flush(self):
        pass

    def isatty(self):
        return True


def test_on_a_terminal_every_word_is_printed_once_above_the_progress_line(monkeypatch):
    from rich.console import Console

    terminal = Terminal()
    console = Console(file=terminal, width=40, force_terminal=True, highlight=False)
    monkeypatch.setattr(live.show, "out", lambda: console)
    words = [f"word{i}" for i in range(60)]
    with live.TokenStream(60) as stream:
        for word in words:
            stream.feed(word + " ")
        stream.feed("\nlast")
    assert "60/60" in terminal.text or "61/60" in terminal.text
    # What stays: lines that were printed for good are not followed by a cursor moving up.
    for word in words:
        assert word in terminal.text
    assert stream._line == "last"


@pytest.mark.model
def test_q2k_on_the_real_model_keeps_what_the_plan_says(kvcore_command):
    args = ("generate", "The capital of France is", "--model", "smollm2", "--format", "q2k")
    ran = kvcore_command(*args, "-n", 8, "--json")
    assert ran.code == 0
    said = ran.json()
    spec = kvcore.CacheSpec(format="q2k", n_kv_heads=3, head_dim=64)
    assert said["cache_bytes"] == plan(spec, layers=30, context=said["capacity"]).total
    assert said["bytes_per_cell"] == 3 * (16 + 4 + 32 + 4)
    assert "Paris" in said["text"]
