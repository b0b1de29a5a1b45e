"""SmolLM2: what the measurements say about grouping, by order only."""

from __future__ import annotations

import pytest

from kvcore.lab.arms import parse_arms
from kvcore.lab.journal import Journal
from kvcore.lab.kl_suite import KlSuite, Plan, summaries, worst_control
from kvcore.lab.kl_tables import GROUPING
from kvcore.lab.load import load
from kvcore.lab.recall import make_document
from kvcore.lab.recall_suite import WINDOW
from kvcore.lab.report_plan import FULL, QUICK
from kvcore.lab.texts import text

pytestmark = pytest.mark.model


@pytest.fixture(scope="module")
def found(backend):
    loaded = load("smollm2")
    suite = KlSuite(loaded, backend, Journal(None))
    arms = parse_arms([*GROUPING.values(), "q2k", "q4_0", "q4_0:bare", "int8"])
    chosen = [text("doc-objects", loaded.metadata)]
    runs = suite.run(chosen, arms, Plan(n_prompt=300, n_forced=32))
    assert worst_control(runs) == 0
    return {name: s.mean_kl for name, s in summaries(runs).items()}


def test_rules_for_unfinished_groups_come_out_old_n_shrink_deferred(found):
    kl = [found[GROUPING[rule]] for rule in ("old", "n", "shrink", "deferred")]
    assert kl == sorted(kl, reverse=True)


def test_recipes_repair_what_bare_formats_lose(found):
    assert found["q2k"] < found["q2k:bare"] / 3
    assert found["q4_0"] < found["q4_0:bare"] / 3
    assert found["int8"] < found["q4_0:bare"]


@pytest.mark.parametrize("plan", [FULL, QUICK], ids=["full", "quick"])
def test_the_facts_of_both_plans_fit_their_documents(plan):
    tokenizer, body = load("smollm2").tokenizer, text("doc-statements").body
    for length in plan.lengths:
        made = make_document(
            tokenizer, body, n_tokens=length, per_place=plan.per_place, window=WINDOW
        )
        assert len(made.facts) == 2 * (3 * plan.per_place + 1)
