"""The decode measurement as sections: which arms, which sweeps, and what the numbers say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict

from kvcore.lab.divergence import Divergence, Summary, change
from kvcore.lab.eval_kl import CONTROL
from kvcore.lab.journal import versions
from kvcore.lab.kl_setup import Setup, setup_sentences, setup_table
from kvcore.lab.kl_suite import (
    kl_table,
    score_table,
    summaries,
    text_table,
    worst_control,
)
from kvcore.lab.logits_file import LogitsMeta
from kvcore.lab.tables import Section, figure
from kvcore.lab.texts import Text

KL_ARMS = (
    "int8:bare", "k8v4:bare", "k4v4:bare", "q4_0+q4_0/none:bare", "q4_0:bare", "q4_0",
    "q2k:bare,grouping=eager,rule=old", "q2k:bare,grouping=eager,rule=n",
    "q2k:bare,grouping=eager,rule=shrink", "q2k:bare", "q2k:bare,sinks=8,k_center=auto", "q2k",
    "k4v2c:bare", "k4v2c:bare,sinks=8,k_center=auto", "k4v2c", "q2:bare", "q2", "sim:kivi",
)  # fmt: skip
"""The usual arms: formats bare and with their recipe, and the ingredients of q2k's one by one."""

GROUPING = {
    "old": "q2k:bare,grouping=eager,rule=old",
    "n": "q2k:bare,grouping=eager,rule=n",
    "shrink": "q2k:bare,grouping=eager,rule=shrink",
    "deferred": "q2k:bare",
}


def sweep_arms(
    format: str, *, gains: Sequence[float], windows: Sequence[int], sinks: Sequence[int]
) -> list[str]:
    """Return the arms of sweeps over a format's recipe, one option at a time."""
    out = [f"{format}:k_gain={g:g}" for g in gains]
    out += [f"{format}:window={w}" for w in windows]
    return out + [f"{format}:sinks={s}" for s in sinks]


def kl_section(
    runs: Mapping[str, Sequence[Divergence]],
    sizes: Mapping[str, float],
    texts: Sequence[Text],
    baseline: str,
    mode: str,
    setup: Setup | None = None,
) -> Section:
    """Return tables and findings of one run over texts, and what it ran on if that is given."""
    found = summaries(runs)
    notes = [] if setup is None else setup_sentences(setup, [n for n in runs if n != CONTROL])
    steps = len(next(iter(runs.values()))[0].kl)
    title = f"{mode.capitalize()} KL, {steps} forced tokens x {len(texts)} texts"
    return Section(
        title=title,
        findings=[control_sentence(runs), *notes, *grouping_sentences(found)],
        tables=[
            *([] if setup is None else [setup_table(setup)]),
            kl_table(found, sizes, baseline, title),
            text_table(found, texts),
            score_table(found, texts),
        ],
        data={
            "mode": mode,
            "baseline": baseline,
            "versions": versions(),
            "texts": [{"name": t.name, "kind": t.kind, "sha256": t.sha256} for t in texts],
            "bytes_per_cell": dict(sizes),
            "control": worst_control(runs),
            "arms": {name: asdict(s) for name, s in found.items()},
            **({} if setup is None else setup.data()),
        },
    )


def control_sentence(runs: Mapping[str, Sequence[Divergence]]) -> str:
    """Return what the second float16 run says."""
    worst = worst_control(runs)
    n = sum(len(d.kl) for d in runs[CONTROL])
    if worst == 0:
        return f"Control: float16 against float16 is exactly 0 at all {n} positions."
    return f"CONTROL FAILED: float16 against float16 reaches {worst:.3g}; trust no number here."


def grouping_sentences(found: Mapping[str, Summary]) -> list[str]:
    """Return how the rules for unfinished groups compare, if all were run."""
    if not all(arm in found for arm in GROUPING.values()):
        return []
    kl = {rule: found[arm].mean_kl for rule, arm in GROUPING.items()}
    as_stated = kl["old"] > kl["n"] > kl["shrink"] > kl["deferred"]
    numbers = ", ".join(f"{rule} {figure(x)}" for rule, x in kl.items())
    verdict = "old > n > shrink > deferred" if as_stated else "NOT old > n > shrink > deferred"
    return [f"Unfinished groups of q2k, mean KL: {numbers}; the order is {verdict}."]


def effect_sentence(found: Mapping[str, Summary], arm: str, base: str, what: str) -> str:
    """Return what one change does to the KL, over texts."""
    c = change(found[arm].per_text, found[base].per_text)
    return (
        f"{what}: {100 * (c.ratio - 1):+.1f} % KL (geometric mean; better on {c.improved} of "
        f"{c.n_texts} texts)."
    )


def files_section(exact: LogitsMeta, other: LogitsMeta, summary: Summary) -> Section:
    """Return the comparison of two saved runs."""
    title = f"{other.arm} against {exact.arm} on {other.text}, {other.mode} mode"
    return Section(
        title=title,
        tables=[kl_table({other.arm: summary}, {}, "", title, exact.arm)],
        data={"exact": asdict(exact), "other": asdict(other), "summary": asdict(summary)},
    )
