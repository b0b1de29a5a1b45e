"""A report: one page without anything beside it, the same bytes for the same numbers."""

from __future__ import annotations

import json
import re

import pytest

from kvcore.lab import plots
from kvcore.lab.errors import SettingError
from kvcore.lab.report import make_report, markdown, page, write
from kvcore.lab.report_plan import FULL, QUICK
from kvcore.lab.report_sections import SECTIONS
from kvcore.lab.tables import Picture, Section, Table, figure, ordered, percent, signed

pytest.importorskip("matplotlib", reason="the extra lab is not installed")


def sections():
    points = {"q4_0": (216.0, 1e-3), "q2k": (168.0, 2e-2), "q2k:bare": (168.0, 0.4)}
    svg = plots.frontier(points, ("f16", 768.0))
    table = Table(title="T <b>", columns=["arm", "x|y"], rows=[["q2k", "1.5"]], note="n & m")
    picture = Picture(name="frontier", title="P", svg=svg)
    return [
        Section(
            title="One",
            findings=["a < b"],
            commands=["kvcore eval kl --arm 'a<b'"],
            tables=[table],
            pictures=[picture],
        ),
        Section(title="Two", pictures=[picture]),
    ]


def test_the_page_needs_nothing_beside_it():
    text = page("R", {"command": "kvcore report"}, sections())
    assert "<svg" in text
    links = re.findall(r'(?:href|src)="([^"]*)"|url\(([^)]*)\)', text)
    assert all((a or b).startswith("#") for a, b in links)
    assert "<script" not in text
    assert "@import" not in text


def test_ids_of_two_pictures_do_not_meet():
    text = page("R", {}, sections()[:1])
    ids = re.findall(r'\bid="([^"]+)"', text)
    assert len(ids) == len(set(ids))
    targets = set(re.findall(r'href="#([^"]+)"', text)) | set(re.findall(r"url\(#([^)]+)\)", text))
    assert targets <= set(ids)


def test_text_is_escaped_in_html_and_markdown():
    text = page("R", {}, sections())
    assert "T &lt;b&gt;" in text
    assert "a &lt; b" in text
    assert "--arm &#x27;a&lt;b&#x27;" in text
    assert "x\\|y" in markdown("R", {}, sections())


def test_the_same_numbers_give_the_same_bytes(tmp_path):
    first = write(tmp_path, "R", {"seed": "0"}, sections())
    bytes_of = {n: p.read_bytes() for n, p in first.items()}
    again = write(tmp_path, "R", {"seed": "0"}, sections())
    assert {n: p.read_bytes() for n, p in again.items()} == bytes_of
    assert (tmp_path / "frontier.svg").read_text().startswith("<svg")
    assert json.loads(bytes_of["report.json"])["origin"] == {"seed": "0"}


@pytest.mark.parametrize(
    "svg",
    [
        lambda: plots.lines({"a": {0: 1.0, 64: 0.1}}, x="w", y="kl", log_x=True, ticks=[0, 64]),
        lambda: plots.errors_by_layer({"q2k": [0.1, 0.2], "q2k:bare": [1.0, 2.0]}, ["L0", "L1s"]),
        lambda: plots.grouped_bars({"old": [1, 2], "n": [2, 3]}, ["one", "two"], y="%"),
        lambda: plots.heat_map({"K": [[1.0, 2.0]], "V": [[0.5, 1.0]]}, ["L0"]),
        lambda: plots.memory({"f16": {1024: 2.0**20, 4096: 2.0**22}}),
    ],
)
def test_every_plot_is_svg_without_a_date_and_repeats(svg):
    one = svg()
    assert one.startswith("<svg")
    assert one == svg()
    assert "dc:date" not in one


def test_every_arm_of_both_plans_can_be_made():
    from kvcore.lab.arms import parse_arms
    from kvcore.lab.report_plan import centre_arms, gain_arms, sink_arms, window_arms

    for plan in (FULL, QUICK):
        arms = [*plan.arms, *plan.prompt_arms, *plan.recall_arms]
        arms += gain_arms("recipe", plan.gains).values()
        arms += gain_arms("without centre", plan.gains).values()
        arms += window_arms("q2k", plan.windows).values()
        arms += sink_arms("q4_0", plan.sinks).values()
        arms += centre_arms("k4v2c", plan.centres).values()
        for arm in parse_arms(list(dict.fromkeys(arms))):
            if arm.format is not None and not arm.calibrated:
                arm.spec(2, 64)
    assert 1024 in FULL.windows
    assert FULL.texts == 9
    assert set(QUICK.arms) < set(FULL.arms)


def test_a_section_that_is_none_is_refused_before_anything_is_made(tmp_path, loaded, backend):
    with pytest.raises(SettingError, match=SECTIONS[0].__name__):
        make_report(loaded, backend, tmp_path / "r", source=("--model", "x"), only=["nothing"])
    assert not (tmp_path / "r").exists()


def test_numbers_are_written_as_people_read_them():
    assert percent(0.12345) == "12.35"
    assert signed(-0.051) == "-5.1 %"
    assert [figure(x) for x in (0, 1.234, 0.01234, 0.00001234, 123.4)] == [
        "0", "1.23", "0.0123", "1.23e-05", "123",
    ]  # fmt: skip
    assert ordered({"b": 2.0, "a": 1.0, "c": 2.0}) == "a < b = c"
