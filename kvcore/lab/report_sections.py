"""The sections of a report: measure, then say it in tables, pictures and sentences."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import kvcore
from kvcore.lab import plots, published
from kvcore.lab import texts as library
from kvcore.lab.arms import PUBLISHED, parse_arm, parse_arms
from kvcore.lab.divergence import Divergence, Summary
from kvcore.lab.dump import default_layers, dump, file_sha256
from kvcore.lab.dump_file import Dump, read_dump
from kvcore.lab.error_suite import RECIPES, ErrorSuite
from kvcore.lab.error_tables import error_section, geomeans_published
from kvcore.lab.eval_error import RULES
from kvcore.lab.eval_kl import CONTROL
from kvcore.lab.journal import Journal, versions
from kvcore.lab.kl_setup import Setup, setup_sentences, setup_table
from kvcore.lab.kl_suite import KlSuite, Plan, kl_table, summaries
from kvcore.lab.kl_tables import control_sentence, effect_sentence, kl_section
from kvcore.lab.load import LoadedModel
from kvcore.lab.patterns import PATTERNS
from kvcore.lab.recall_suite import RecallSuite
from kvcore.lab.recall_tables import recall_section
from kvcore.lab.report_commands import DUMP, Commands, plan_commands
from kvcore.lab.report_plan import (
    SWEPT,
    ReportPlan,
    centre_arms,
    gain_arms,
    sink_arms,
    window_arms,
)
from kvcore.lab.tables import Picture, Section, Table, figure, ordered, signed

Progress = Callable[[str, int, int], None]
DOCUMENT = "doc-objects"
CONTEXTS = (1024, 4096, 16384, 65536, 262144)


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What every section needs.

    Attributes
    ----------
    loaded : LoadedModel
    backend : Backend
    journal : Journal
    folder : Path
        For the dump.
    plan : ReportPlan
    commands : Commands
        Say under each section how its numbers are measured again.
    progress : callable (what, done, total), optional
    used : dict of str to str
        Name and sha256 of the texts that sections asked for.
    """

    loaded: LoadedModel
    backend: Any
    journal: Journal
    folder: Path
    plan: ReportPlan
    commands: Commands
    progress: Progress | None
    used: dict[str, str] = field(default_factory=dict)

    def text(self, name: str) -> library.Text:
        """Return a text in the model's dialect."""
        found = library.text(name, self.loaded.metadata)
        self.used[name] = found.sha256
        return found

    def texts(self, n: int) -> list[library.Text]:
        """Return the first n of the nine, kinds in turn."""
        return [self.text(name) for name in library.names()[:n]]

    def suite(self) -> KlSuite:
        """Return the decode measurement."""
        return KlSuite(
            self.loaded,
            self.backend,
            self.journal,
            calibration=library.text(library.CALIBRATION, self.loaded.metadata),
            progress=self.progress,
        )

    def kl(
        self, texts: Sequence[library.Text], arms: Sequence[str], plan: Plan
    ) -> tuple[dict[str, list[Divergence]], Setup]:
        """Measure the KL of arms; return it and what it was measured on."""
        suite, chosen = self.suite(), parse_arms(arms)
        runs = suite.run(texts, chosen, plan)
        setup = suite.setup(texts, chosen, plan)
        if setup.calibration is not None:
            self.text(library.CALIBRATION)
        return runs, setup

    def sizes(self, names: Any) -> dict[str, float]:
        """Return bytes per cell of arms."""
        c = self.loaded.model.config
        return {n: parse_arm(n).bytes_per_cell(c.n_kv_heads, c.head_dim) for n in names}


def attention_error(work: Work) -> Section:
    """Dump, measure and draw the error of attention."""
    plan, config = work.plan, work.loaded.model.config
    layers = default_layers(config)
    step = max(len(layers) / plan.n_layers, 1.0)
    chosen = sorted({layers[int(i * step)] for i in range(min(plan.n_layers, len(layers)))})
    found = _dumped(work, chosen)
    results = ErrorSuite(found, work.backend, work.journal, progress=work.progress).run()
    section = error_section(results, found.meta)
    shown = {a: results.once[a] for a in ("int8:bare", *PUBLISHED)}
    recipes = {a: results.decode[a] for a in (*PUBLISHED, *RECIPES)}
    append = {
        rule: [100 * sum(results.append[rule][p]) / len(results.layers) for p in PATTERNS]
        for rule in RULES
    }
    pictures = [
        Picture(name="error-by-layer", title="Attention error by layer, real queries, formats "
                "bare and stored by one append", svg=plots.errors_by_layer(shown, results.layers)),
        Picture(name="error-decode", title="Attention error of decode steps: formats bare and "
                "with their recipe", svg=plots.errors_by_layer(recipes, results.layers)),
        Picture(name="append-patterns", title="q2k bare: mean error over layers by the way cells "
                "arrive and the rule for unfinished groups",
                svg=plots.grouped_bars(append, PATTERNS, y="mean relative RMS error, %")),
        Picture(name="channel-spread", title="RMS of every channel over its layer's median, "
                "before and after the Hadamard rotation",
                svg=plots.heat_map(results.channels, results.layers)),
    ]  # fmt: skip
    say = work.commands
    return Section(
        title=section.title, findings=section.findings, tables=section.tables,
        commands=[say.dump(DOCUMENT, plan.cells, plan.queries, chosen), say.error()],
        pictures=pictures, data={"dump": asdict(found.meta), **asdict(results)},
    )  # fmt: skip


def _dumped(work: Work, layers: Sequence[int]) -> Dump:
    """Return the dump in the report's folder, made anew unless it is the same one."""
    path, text, plan = work.folder / DUMP, work.text(DOCUMENT), work.plan
    if path.exists():
        found = read_dump(path)
        m = found.meta
        got = (m.model_sha256, m.text_sha256, m.n_cells, m.n_queries, m.layers, m.kvcore)
        model = file_sha256(work.loaded.path)
        wanted = (model, text.sha256, plan.cells, plan.queries, list(layers), kvcore.__version__)
        if got == wanted:
            return found
    dump(
        work.loaded, text, path, n_cells=plan.cells, n_queries=plan.queries, layers=layers,
        progress=work.progress,
    )  # fmt: skip
    return read_dump(path)


def decode_kl(work: Work) -> Section:
    """Measure the decode KL of every format and draw the frontier."""
    plan = work.plan
    texts = work.texts(plan.texts)
    mode, base = Plan(n_prompt=plan.prompt, n_forced=plan.forced), "q2k:bare"
    runs, setup = work.kl(texts, plan.arms, mode)
    sizes = work.sizes(plan.arms)
    section = kl_section(runs, sizes, texts, base, mode.mode, setup)
    section.commands.append(work.commands.kl(_names(texts), mode, plan.arms, base))
    found = summaries(runs)
    points = {n: (sizes[n], found[n].mean_kl) for n in plan.arms if _on_frontier(n)}
    exact = ("f16", work.sizes(["f16"])["f16"])
    section.pictures.append(
        Picture(
            name="frontier",
            title="Decode KL against bytes per cell; formats with their recipe, hollow without",
            svg=plots.frontier(points, exact),
        )
    )
    section.findings.extend(_effects(found))
    section.tables.append(_published_kl())
    return section


def _on_frontier(arm: str) -> bool:
    """Every format, its bare form, and other papers' rules; not the single ingredients."""
    return ":" not in arm or arm.startswith("sim:") or arm.endswith("2k:bare") or arm == "q4_0:bare"


def _effects(found: Mapping[str, Summary]) -> list[str]:
    pairs = (
        ("q2k", "q2k:bare", "q2k's recipe (centre, 8 sinks, window 128) against bare q2k"),
        (
            "q2k:bare,window=128,sinks=8", "q2k:bare",
            f"A window of 128 and 8 sinks alone, on q2k (Strata: {_window_effect('q2k')})",
        ),
        ("q2k", "q2k:k_center=none", "Centring within q2k's recipe"),
        ("q2k:k_gain=unbiased", "q2k", "The unbiased gain within q2k's recipe"),
        ("q2k:k_center=calibrated", "q2k", "A calibrated centre instead of the automatic one"),
        ("k4v2c", "q2k", "K4+V2c against K2c+V4, both with their recipe, at equal bytes"),
        (
            "k4v2c:bare", "q2k:bare",
            "K4+V2c against K2c+V4, both bare, at equal bytes (Strata's attention error: "
            f"{signed(_published_ratio() - 1)})",
        ),
        (
            "q4_0:bare,window=128,sinks=8", "q4_0:bare",
            f"A window of 128 and 8 sinks, on q4_0 (Strata: {_window_effect('q4_0')})",
        ),
        ("q4_0:bare", "q4_0+q4_0/none:bare", "The Hadamard rotation, on bare q4_0"),
        ("k4v4", "q4_0", "One scale per 64 values instead of 32, at 4 bits with recipe"),
    )  # fmt: skip
    return [
        effect_sentence(found, arm, base, what)
        for arm, base, what in pairs
        if arm in found and base in found
    ]


def _window_effect(format: str) -> str:
    """Return what the published engine's KL does with a window of 128."""
    kl = published.DECODE_KL
    return f"{signed(kl[f'{format} + window 128'] / kl[format] - 1)} by its published means"


def _published_ratio() -> float:
    means = geomeans_published()
    return means["k4v2c:bare"] / means["q2k:bare"]


def _published_kl() -> Table:
    rows = [[arm, figure(x)] for arm, x in published.DECODE_KL.items()]
    note = (
        f"{published.SOURCE} Nine texts, 128 forced tokens, another and far larger model: compare "
        "signs and order."
    )
    title = "Published by Strata: decode KL"
    return Table(title=title, columns=["arm", "mean KL"], rows=rows, note=note)


def sweeps(work: Work) -> Section:
    """Sweep the gain, the window, the sinks and the cells of the centre."""
    plan, texts = work.plan, work.texts(work.plan.swept_texts)
    series = {
        "gain": {how: gain_arms(how, plan.gains) for how in SWEPT},
        "window": {f: window_arms(f, plan.windows) for f in ("q2k", "q4_0", "k4v2c")},
        "sinks": {f: sink_arms(f, plan.sinks) for f in ("q2k", "q4_0")},
        "centre": {f: centre_arms(f, plan.centres) for f in ("q4_0", "q2k", "k4v2c")},
    }
    names = dict.fromkeys(a for s in series.values() for arms in s.values() for a in arms.values())
    mode = Plan(n_prompt=plan.prompt, n_forced=plan.forced)
    runs, setup = work.kl(texts, list(names), mode)
    found = summaries(runs)
    kl = {
        what: {
            label: {x: found[arm].mean_kl for x, arm in arms.items()}
            for label, arms in group.items()
        }
        for what, group in series.items()
    }
    axis = {
        "gain": "gain of the stored K scale",
        "window": "window in cells",
        "sinks": "sinks",
        "centre": "cells that the automatic centre is made of",
    }
    pictures = [
        Picture(
            name=f"sweep-{what}",
            title=f"Decode KL by {axis[what]}, {len(texts)} texts",
            svg=plots.lines(
                kl[what], x=axis[what], y="mean KL, nats", log_x=what != "gain",
                ticks=sorted(next(iter(kl[what].values()))),
            ),
        )
        for what in series
    ]  # fmt: skip
    findings = [
        f"By {axis[what]}: the best for {label} is {min(v, key=lambda x: v[x]):g}."
        for what in series
        for label, v in kl[what].items()
    ]
    best = min(published.GAIN_SWEEP, key=lambda g: published.GAIN_SWEEP[g])
    here = kl["gain"]["without centre"]
    findings.append(
        f"Strata's published gain optimum with a window of 128 and no centre is {best:g} "
        f"({published.GAIN_SWEEP[best]:+d} % KL); here {best:g} changes the KL by "
        f"{signed(here[best] / here[1.0] - 1)}."
    )
    return Section(
        title=f"Sweeps, {plan.forced} forced tokens x {len(texts)} texts",
        findings=[control_sentence(runs), *setup_sentences(setup, list(names)), *findings],
        commands=[work.commands.kl(_names(texts), mode, names)],
        tables=[setup_table(setup), *(_sweep_table(axis[what], kl[what]) for what in series)],
        pictures=pictures,
        data={"mean_kl": kl, **setup.data()},
    )


def _sweep_table(what: str, kl: Mapping[str, Mapping[float, float]]) -> Table:
    xs = sorted(next(iter(kl.values())))
    rows = [[label, *(figure(points[x]) for x in xs)] for label, points in kl.items()]
    title = f"Mean decode KL by {what}"
    return Table(title=title, columns=["series", *(f"{x:g}" for x in xs)], rows=rows)


def prompt_kl(work: Work) -> Section:
    """Measure with every cell read as stored, the prompt's too."""
    plan, texts = work.plan, work.texts(work.plan.swept_texts)
    mode = Plan(n_prompt=plan.prompt_mode, n_forced=plan.forced, mode="prompt")
    runs, setup = work.kl(texts, plan.prompt_arms, mode)
    sizes, found = work.sizes(plan.prompt_arms), summaries(runs)
    title, base = f"Prompt KL, {plan.forced} positions x {len(texts)} texts", "q4_0:bare"
    kl = {a: found[a].mean_kl for a in plan.prompt_arms}
    return Section(
        title=title,
        findings=[
            control_sentence(runs),
            *setup_sentences(setup, plan.prompt_arms),
            f"Order: {ordered(kl)}.",
        ],
        commands=[work.commands.kl(_names(texts), mode, plan.prompt_arms, base)],
        tables=[setup_table(setup), kl_table(found, sizes, base, title)],
        data={"arms": {n: asdict(s) for n, s in found.items() if n != CONTROL}, **setup.data()},
    )


def recall(work: Work) -> Section:
    """Ask for facts."""
    text = work.text("doc-statements")
    suite = RecallSuite(
        work.loaded, work.backend, work.journal, text, per_place=work.plan.per_place,
        progress=work.progress,
    )  # fmt: skip
    plan = work.plan
    runs = suite.run(plan.lengths, parse_arms(plan.recall_arms))
    section = recall_section(runs, text.name, suite.origin())
    section.commands.append(
        work.commands.recall(text.name, plan.lengths, plan.per_place, 0, plan.recall_arms)
    )
    return section


def memory(work: Work) -> Section:
    """Plan the bytes of the model's caches by context."""
    c = work.loaded.model.config
    totals: dict[str, dict[float, float]] = {}
    rows = []
    for name in ("f16", "int8", "k8v4", "q4_0", "q2k", "q2"):
        spec = kvcore.CacheSpec(format=name, n_kv_heads=c.n_kv_heads, head_dim=c.head_dim)
        plans = {n: kvcore.plan(spec, layers=c.n_layers, context=n) for n in CONTEXTS}
        totals[name] = {n: float(p.total) for n, p in plans.items()}
        rows.append(
            [name, str(spec.bytes_per_cell), *(f"{p.total / 2**20:.2f}" for p in plans.values())]
        )
    columns = ["format", "B/cell", *(f"{n} cells" for n in CONTEXTS)]
    note = "All layers, overlay, tail and centre included; formats with their recipe."
    table = Table(title="MiB by context", columns=columns, rows=rows, note=note)
    picture = Picture(
        name="memory", title="Memory of all layers' caches by context", svg=plots.memory(totals)
    )
    return Section(
        title="Memory", commands=plan_commands(c, totals, CONTEXTS), tables=[table],
        pictures=[picture], data={"totals": totals},
    )  # fmt: skip


def _names(texts: Sequence[library.Text]) -> list[str]:
    return [t.name for t in texts]


SECTIONS: tuple[Callable[[Work], Section], ...] = (
    decode_kl,
    attention_error,
    sweeps,
    prompt_kl,
    recall,
    memory,
)


def origin(work: Work, command: str, sections: Sequence[str]) -> dict[str, str]:
    """Return where every number of a report comes from."""
    config = work.loaded.model.config
    return {
        "command": command,
        "sections": ", ".join(sections),
        "model": f"{config.name}, {config.n_layers} layers, {config.n_heads} query and "
        f"{config.n_kv_heads} KV heads x {config.head_dim}",
        "model file": f"{work.loaded.path.name}, sha256 {file_sha256(work.loaded.path)}",
        "backend": f"{work.backend.name}, {work.backend.device}",
        "seed": "0 (synthetic queries and facts; everything else is deterministic)",
        "versions": ", ".join(f"{k} {v}" for k, v in versions().items() if k != "source"),
        "sources": f"measured by {', '.join(sorted(work.journal.sources)) or 'nothing'}; page "
        f"written by {versions()['source']} (hashes of kvcore's source files)",
        "texts": ", ".join(f"{n} {sha256[:12]}" for n, sha256 in work.used.items()) or "none",
    }
