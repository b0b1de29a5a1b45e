"""Every page runs as it is printed, and nothing generated has drifted."""

from __future__ import annotations

import doctest
import re

import numpy as np
import pytest

import kvcore
from kvcore import codecs
from kvcore.cli.formats import markdown_table
from kvcore.formats import names, unregister
from kvcore.quantize import encode_group, encode_rows, unpack, zero_code

from .pages import PAGES, REPO, blocks, console, refreshed

README = (REPO / "README.md").read_text(encoding="utf-8")
IDS = [str(p.relative_to(REPO)) for p in PAGES]


@pytest.fixture
def known_formats():
    before = set(names())
    yield
    for name in set(names()) - before:
        unregister(name)


@pytest.mark.parametrize("path", PAGES, ids=IDS)
def test_python_blocks_run(path, known_formats):
    namespace: dict[str, object] = {"__name__": "page"}
    for block in blocks(path.read_text(encoding="utf-8")):
        if block.language == "python":
            code = "\n" * (block.line - 1) + block.text
            exec(compile(code, str(path), "exec"), namespace)


@pytest.mark.parametrize("path", PAGES, ids=IDS)
def test_sessions_print_what_is_shown(path):
    parser, runner = doctest.DocTestParser(), doctest.DocTestRunner(verbose=False)
    globs: dict[str, object] = {}
    for block in blocks(path.read_text(encoding="utf-8")):
        if block.language == "pycon":
            test = parser.get_doctest(block.text, globs, path.name, str(path), block.line)
            runner.run(test, clear_globs=False)
            globs = test.globs
    assert runner.summarize(verbose=False).failed == 0


@pytest.mark.parametrize("path", PAGES, ids=IDS)
def test_commands_print_what_is_shown(path):
    for block in blocks(path.read_text(encoding="utf-8")):
        if block.language == "console":
            assert console(block.text) == block.text, (
                f"line {block.line}: run python tests/docs/pages.py"
            )


@pytest.mark.parametrize("path", PAGES, ids=IDS)
def test_nothing_generated_has_drifted(path):
    page = path.read_text(encoding="utf-8")
    assert refreshed(page) == page, "run python tests/docs/pages.py"


@pytest.mark.parametrize("path", PAGES, ids=IDS)
def test_links_and_named_files_exist(path):
    page = re.sub(r"```.*?```", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
    for target in re.findall(r"\]\((?!https?:|#)([^)#]+)", page):
        assert (path.parent / target).exists(), target
    for name in re.findall(r"`((?:kvcore|backends|tests|docs|bench)/[\w/.*-]+)`", page):
        to_write = ("kvcore/codecs/q4_16.py", "kvcore/formats/k4f.py")
        known = name in to_write or "NAME" in name or any(REPO.glob(name))
        assert known, f"{name} is named but does not exist"


@pytest.mark.parametrize("name", ["adding-a-format.md", "adding-a-backend.md"])
def test_how_to_pages_fit_a_screen(name):
    lines = (REPO / "docs" / name).read_text(encoding="utf-8").splitlines()
    assert len(lines) <= 95
    assert max(map(len, lines)) <= 120


def test_readme_has_exactly_two_commands_and_ci_runs_the_second():
    shown = [b.text.split("#")[0].strip() for b in blocks(README) if b.language == "bash"]
    assert shown == ["./dev generate", "./dev test"]
    script = (REPO / ".ci" / "run").read_text(encoding="utf-8")
    assert re.findall(r"^exec (.*)$", script, re.MULTILINE) == ['./dev test "$@"']


def test_readme_example_is_about_ten_lines_and_leaves_a_real_output():
    (example,) = (b for b in blocks(README) if b.language == "python")
    assert 8 <= len([line for line in example.text.splitlines() if line.strip()]) <= 12
    namespace: dict[str, object] = {}
    exec(example.text, namespace)
    assert np.asarray(namespace["out"]).shape == (1, 8, 128)
    assert np.isfinite(namespace["out"]).all()


def test_readme_lists_every_format():
    assert markdown_table() in README
    assert all(f"| {name} |" in README for name in kvcore.formats())


@pytest.mark.parametrize("name", sorted(n for n, c in codecs.all_codecs().items() if c.scale))
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_nonfinite_table_says_what_is_stored(name, bad):
    codec = codecs.get(name)
    assert codec.scale is not None
    x = np.ones((32, 64), np.float32)
    x[0, 0] = bad
    if codec.per_channel:
        codes, scale = encode_group(codec, x, np.ones(32, bool))
        hit = unpack(codec, codes, 64)[:, 0]
        assert scale.view(np.uint16)[0] == 0x7E00
        assert np.isfinite(scale[1:]).all()
    else:
        codes, scales = encode_rows(codec, x)
        hit = unpack(codec, codes, 64)[0, : codec.scale.group]
        assert scales is not None
        assert scales.view(np.uint16)[0, 0] == 0x7E00
        assert np.isfinite(scales.reshape(-1)[1:]).all()
    assert (hit == zero_code(codec)).all()
