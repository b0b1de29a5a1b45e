"""The decode measurement on a random model, against a token by token loop of the engine."""

from __future__ import annotations

import numpy as np
import pytest

from kvcore.lab.arms import parse_arm, parse_arms
from kvcore.lab.divergence import compare
from kvcore.lab.engine import Session
from kvcore.lab.errors import DataFileError, SettingError
from kvcore.lab.eval_kl import (
    CONTROL,
    arm_caches,
    cut,
    forced_logits,
    prompt_logits,
    read_prompt,
)
from kvcore.lab.journal import Journal
from kvcore.lab.kl_suite import KlSuite, Plan, summaries, worst_control
from kvcore.lab.kl_tables import kl_section, sweep_arms
from kvcore.lab.logits_file import read_logits

PROMPT, FORCED = 150, 40


@pytest.fixture(scope="module")
def prompt(loaded, body):
    ids = cut(loaded.tokenizer.encode(body.body), PROMPT, FORCED)
    return read_prompt(loaded.model, ids, PROMPT)


def looped(loaded, backend, prompt, name):
    """Return the same logits by the engine's own steps, one token at a time."""
    model, arm = loaded.model, parse_arm(name)
    caches = arm_caches(model, arm, backend, len(prompt.ids))
    for cache, k, v in zip(caches, prompt.k, prompt.v, strict=True):
        cache.append(k, v)
    session = Session(model, lambda layer, heads, dim: caches[layer])
    return np.stack([session.step(token) for token in prompt.forced])


@pytest.mark.parametrize("name", ["f16", "q4_0", "q2k", "q2k:bare", "k4v2c:window=32"])
def test_replayed_steps_equal_a_token_by_token_loop(loaded, backend, prompt, name):
    got = forced_logits(loaded.model, prompt, parse_arm(name), backend)
    expected = looped(loaded, backend, prompt, name)
    # The same values are read, but float32 sums differ in order; a code of 2 bits that flips in a
    # layer-1 cell moves logits by far more than that, so compare distributions as the tool does.
    d = compare(expected, got, prompt.targets)
    assert d.mean_kl < 2e-3
    assert np.median(np.abs(got - expected)) < 2e-2


def test_eager_steps_equal_the_loop_bit_for_bit_in_the_first_layers_cells(loaded, backend, prompt):
    name = "q2k:bare,grouping=eager,rule=old"
    d = compare(
        looped(loaded, backend, prompt, name),
        forced_logits(loaded.model, prompt, parse_arm(name), backend),
        prompt.targets,
    )
    assert d.mean_kl < 2e-2


def test_the_control_is_exactly_zero_and_fewer_bits_diverge_more(loaded, backend, body):
    arms = parse_arms(["int8:bare", "q4_0:bare", "q2:bare"])
    runs = KlSuite(loaded, backend, Journal(None)).run(
        [body], arms, Plan(n_prompt=PROMPT, n_forced=FORCED)
    )
    assert worst_control(runs) == 0
    assert runs[CONTROL][0].kl == [0.0] * FORCED
    kl = [summaries(runs)[a.name].mean_kl for a in arms]
    assert 0 < kl[0] < kl[1] < kl[2]


def test_prompt_mode_reads_every_cell_as_stored(loaded, backend, prompt):
    exact = prompt_logits(loaded.model, prompt, parse_arm("f32"), backend)
    session_rows = looped(loaded, backend, prompt, "f32")
    np.testing.assert_allclose(exact, session_rows, rtol=2e-3, atol=2e-3)
    coarse = prompt_logits(loaded.model, prompt, parse_arm("q2:bare"), backend)
    decode = forced_logits(loaded.model, prompt, parse_arm("q2:bare"), backend)
    worse = compare(exact, coarse, prompt.targets).mean_kl
    assert worse > compare(exact, decode, prompt.targets).mean_kl > 0


def test_two_runs_give_identical_numbers(loaded, backend, body):
    plan, arms = Plan(n_prompt=PROMPT, n_forced=FORCED), parse_arms(["q2k", "q4_0:bare"])
    one, two = (KlSuite(loaded, backend, Journal(None)).run([body], arms, plan) for _ in range(2))
    assert one == two


def test_known_results_are_not_measured_again(tmp_path, loaded, backend, body, monkeypatch):
    path, plan = tmp_path / "r.jsonl", Plan(n_prompt=PROMPT, n_forced=8)
    arms = parse_arms(["int8:bare"])
    first = KlSuite(loaded, backend, Journal(path)).run([body], arms, plan)
    monkeypatch.setattr("kvcore.lab.kl_suite.RUN", {})  # measuring anything would fail now
    assert KlSuite(loaded, backend, Journal(path)).run([body], arms, plan) == first
    with pytest.raises(KeyError):
        KlSuite(loaded, backend, Journal(path)).run([body], parse_arms(["q2"]), plan)


def test_saved_logits_are_those_that_were_compared(tmp_path, loaded, backend, body):
    suite = KlSuite(loaded, backend, Journal(None), save=tmp_path / "l")
    runs = suite.run([body], parse_arms(["q2k:bare"]), Plan(n_prompt=PROMPT, n_forced=8))
    exact = read_logits(tmp_path / "l" / "made.f16.decode.safetensors")
    other = read_logits(tmp_path / "l" / "made.q2k_bare.decode.safetensors")
    assert compare(exact.rows, other.rows, exact.targets.tolist()) == runs["q2k:bare"][0]


def test_a_journal_forgets_only_a_line_that_was_cut(tmp_path):
    path = tmp_path / "j"
    journal = Journal(path)
    assert journal.get({"a": 1}, lambda: [1.5]) == [1.5]
    assert journal.get({"a": 2}, lambda: {"x": 2}) == {"x": 2}
    path.write_bytes(path.read_bytes()[:-4])
    again = Journal(path)
    assert {"a": 1} in again
    assert {"a": 2} not in again
    assert again.get({"a": 2}, lambda: 3) == 3
    assert len(Journal(path)) == 2
    path.write_text("nonsense\n")
    with pytest.raises(DataFileError, match="line 1"):
        Journal(path)


@pytest.mark.parametrize(("n_prompt", "n_forced"), [(0, 5), (5, 0), (95, 5)])
def test_a_text_too_short_is_refused(n_prompt, n_forced):
    with pytest.raises(SettingError, match="too short"):
        cut(range(100), n_prompt, n_forced)
    assert len(cut(range(101), 95, 5)) == 101


def test_sweeps_change_one_option_of_a_recipe():
    arms = sweep_arms("q2k", gains=[1.1], windows=[0, 1024], sinks=[4])
    specs = [parse_arm(a).spec(2, 64) for a in arms]
    assert [s.k_gain for s in specs] == [1.1, 1.0, 1.0, 1.0]
    assert [s.window for s in specs] == [128, 0, 1024, 128]
    assert [s.sinks for s in specs] == [8, 8, 8, 4]


def test_a_failed_control_is_said_and_a_good_one_too(loaded, backend, body):
    runs = KlSuite(loaded, backend, Journal(None)).run(
        [body], parse_arms(["int8:bare"]), Plan(n_prompt=PROMPT, n_forced=8)
    )
    section = kl_section(runs, {"int8:bare": 264.0}, [body], "int8:bare", "decode")
    assert section.findings[0].startswith("Control: float16 against float16 is exactly 0 at all 8")
    broken = {**runs, CONTROL: runs["int8:bare"]}
    section = kl_section(broken, {"int8:bare": 264.0}, [body], "int8:bare", "decode")
    assert section.findings[0].startswith("CONTROL FAILED")
