"""docs/transformers.md runs as shown, and docs/lab.md names only what exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kvcore.lab.arms import parse_arm
from kvcore.lab.simulate import SIMULATIONS
from kvcore.lab.texts import names

DOCS = Path(__file__).resolve().parents[2] / "docs"


def test_the_script_of_the_transformers_page_runs_as_shown(capsys):
    pytest.importorskip("torch", reason="the extra torch is not installed")
    pytest.importorskip("transformers", reason="the extra torch is not installed")
    page = (DOCS / "transformers.md").read_text(encoding="utf-8")
    (script,) = re.findall(r"```py\n(.*?)```", page, re.DOTALL)
    exec(compile(script, "docs/transformers.md", "exec"), {"__name__": "page"})
    assert capsys.readouterr().out.startswith("torch.Size([1, 208])")


def test_the_lab_page_names_every_text_and_simulation_and_arms_that_parse():
    page = (DOCS / "lab.md").read_text(encoding="utf-8")
    assert all(name in page for name in names())
    assert all(name in page for name in SIMULATIONS)
    for arm in re.findall(r"--arm (\S+)", page):
        parse_arm(arm)
