"""Run the decode measurement over texts and arms, resumable, and make its tables."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from kvcore.errors import message
from kvcore.lab.arms import Arm, parse_arm
from kvcore.lab.divergence import Divergence, Summary, change, compare, summarize
from kvcore.lab.dump import file_sha256
from kvcore.lab.errors import SettingError
from kvcore.lab.eval_kl import (
    CONTROL,
    REFERENCE,
    RUN,
    Prompt,
    cut,
    logits_meta,
    mean_keys,
    read_prompt,
    save_rows,
)
from kvcore.lab.journal import Journal, versions
from kvcore.lab.kl_setup import Cut, Setup
from kvcore.lab.load import LoadedModel
from kvcore.lab.tables import Table, figure, percent
from kvcore.lab.texts import Text
from kvcore.lab.weights import Floats

Progress = Callable[[str, int, int], None]
CENTRE_TOKENS = 1024
"""Tokens of the calibration's text whose mean K is the centre."""

_KEYED = ("kvcore", "numpy")


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How texts are cut and run.

    Attributes
    ----------
    n_prompt : int
        Prompt tokens at most; a shorter text gives what it has.
    n_forced : int
    mode : {"decode", "prompt"}
    """

    n_prompt: int = 1024
    n_forced: int = 128
    mode: str = "decode"


class KlSuite:
    """Measures arms on texts with one model and one backend.

    Parameters
    ----------
    loaded : LoadedModel
    backend : Backend
    journal : Journal
    calibration : Text, optional
        Where calibrated arms take their centres from; none of the measured texts.
    save : Path, optional
        A folder for every run's logits.
    progress : callable (what, done, total), optional
    """

    def __init__(
        self,
        loaded: LoadedModel,
        backend: Any,
        journal: Journal,
        *,
        calibration: Text | None = None,
        save: Path | None = None,
        progress: Progress | None = None,
    ) -> None:
        self.loaded, self.backend, self.journal = loaded, backend, journal
        self.calibration, self.save, self.progress = calibration, save, progress
        self.model_sha256 = file_sha256(loaded.path)
        self._centres: Mapping[int, Floats] | None = None
        self._ids: dict[str, list[int]] = {}

    def run(
        self, texts: Sequence[Text], arms: Sequence[Arm], plan: Plan
    ) -> dict[str, list[Divergence]]:
        """Return every arm's divergences, one a text; the control's under :data:`CONTROL`."""
        for text in texts:
            self.cut(text, plan)  # a text that is too short is refused before anything runs
        names = [CONTROL, *(a.name for a in arms)]
        out: dict[str, list[Divergence]] = {name: [] for name in names}
        for i, text in enumerate(texts):
            one = _TextRun(self, text, plan)
            for j, name in enumerate(names):
                out[name].append(one.divergence(name))
                if self.progress is not None:
                    what = f"{plan.mode} KL"
                    self.progress(what, i * len(names) + j + 1, len(texts) * len(names))
        return out

    def ids(self, text: Text) -> list[int]:
        """Return a text's tokens."""
        if text.sha256 not in self._ids:
            self._ids[text.sha256] = list(self.loaded.tokenizer.encode(text.body))
        return self._ids[text.sha256]

    def cut(self, text: Text, plan: Plan) -> Cut:
        """Return how a text is cut into prompt and forced tokens.

        Raises
        ------
        SettingError
            It has no room for one prompt token, the forced ones and a last target.
        """
        n = len(self.ids(text))
        if n < plan.n_forced + 2:
            raise SettingError(
                message(
                    "kl",
                    f"the text {text.name} is too short for {plan.n_forced} forced tokens",
                    got=f"{n} tokens",
                    expected=f">= {plan.n_forced + 2}, one of a prompt and a last target included",
                    fix="force fewer",
                )
            )
        return Cut(
            name=text.name,
            kind=text.kind,
            sha256=text.sha256,
            n_tokens=n,
            n_prompt=min(plan.n_prompt, n - plan.n_forced - 1),
            n_forced=plan.n_forced,
        )

    def setup(self, texts: Sequence[Text], arms: Sequence[Arm], plan: Plan) -> Setup:
        """Return what a run of arms on texts is measured on."""
        wanted = self.calibration is not None and any(a.calibrated for a in arms)
        calibration = None
        if wanted and self.calibration is not None:
            text = self.calibration
            n = min(len(self.ids(text)), CENTRE_TOKENS)
            calibration = {"name": text.name, "sha256": text.sha256, "n_tokens": n}
        return Setup(
            model=self.loaded.model.config.name,
            model_sha256=self.model_sha256,
            backend=self.backend.name,
            mode=plan.mode,
            asked_prompt=plan.n_prompt,
            cuts=[self.cut(text, plan) for text in texts],
            calibration=calibration,
        )

    def centres(self, arm: Arm) -> Mapping[int, Floats] | None:
        """Return the calibration for an arm that wants one."""
        if not arm.calibrated or self.calibration is None:
            return None
        if self._centres is None:
            ids = self.ids(self.calibration)[:CENTRE_TOKENS]
            self._centres = mean_keys(self.loaded.model, ids)
        return self._centres


class _TextRun:
    """One text: the prompt and the exact run are made when the first arm needs them."""

    def __init__(self, suite: KlSuite, text: Text, plan: Plan) -> None:
        self.suite, self.text, self.plan = suite, text, plan
        self.n_prompt = suite.cut(text, plan).n_prompt
        self.ids = cut(suite.ids(text), self.n_prompt, plan.n_forced)
        self._prompt: Prompt | None = None
        self._exact: Floats | None = None

    def divergence(self, name: str) -> Divergence:
        """Return one arm's result, measured now or known."""
        arm = parse_arm(REFERENCE if name == CONTROL else name)
        calibration = self.suite.calibration if arm.calibrated else None
        key = {
            "what": "kl",
            "model": self.suite.model_sha256,
            "text": self.text.sha256,
            "n_prompt": self.n_prompt,
            "n_forced": self.plan.n_forced,
            "mode": self.plan.mode,
            "arm": name,
            "calibration": None if calibration is None else calibration.sha256,
            "backend": self.suite.backend.name,
            **{k: versions()[k] for k in _KEYED},
        }
        found = self.suite.journal.get(key, lambda: asdict(self._measure(arm, name)))
        return Divergence(**found)

    def _measure(self, arm: Arm, name: str) -> Divergence:
        model = self.suite.loaded.model
        run = RUN[self.plan.mode]
        if self._prompt is None or self._exact is None:
            self._prompt = read_prompt(model, self.ids, self.n_prompt)
            self._exact = run(model, self._prompt, parse_arm(REFERENCE), self.suite.backend)
            self._keep(REFERENCE, self._exact)
        rows = run(model, self._prompt, arm, self.suite.backend, self.suite.centres(arm))
        if name != CONTROL:
            self._keep(name, rows)
        return compare(self._exact, rows, self._prompt.targets)

    def _keep(self, name: str, rows: Floats) -> None:
        if self.suite.save is None or self._prompt is None:
            return
        self.suite.save.mkdir(parents=True, exist_ok=True)
        arm = re.sub(r"[^\w.+=,-]", "_", name)  # some systems allow no colon in a file's name
        file = f"{self.text.name}.{arm}.{self.plan.mode}.safetensors"
        meta = logits_meta(
            model_sha256=self.suite.model_sha256,
            text=self.text.name,
            text_sha256=self.text.sha256,
            arm=name,
            mode=self.plan.mode,
            prompt=self._prompt,
            v=rows.shape[1],
        )
        save_rows(self.suite.save / file, meta, rows, self._prompt.targets)


def summaries(runs: Mapping[str, Sequence[Divergence]]) -> dict[str, Summary]:
    """Sum up every arm."""
    return {name: summarize(found) for name, found in runs.items()}


def kl_table(
    found: Mapping[str, Summary],
    sizes: Mapping[str, float],
    baseline: str,
    title: str,
    exact: str = "float16",
) -> Table:
    """Return the table of arms, each against the baseline if one is named.

    `exact` says what run the others are compared with.
    """
    rows = []
    for name, s in found.items():
        against = "-"
        usable = baseline in found and min(*s.per_text, *found[baseline].per_text, 1.0) > 0
        if usable and name != baseline:
            c = change(s.per_text, found[baseline].per_text)
            against = f"{100 * (c.ratio - 1):+.1f} % ({c.improved}/{c.n_texts})"
        rows.append(
            [
                name,
                f"{sizes[name]:g}" if name in sizes else "-",
                figure(s.mean_kl),
                figure(s.median_kl),
                figure(s.p999_kl),
                percent(s.top1, 1),
                f"{s.nll:.3f}",
                *([against] if baseline else []),
            ]
        )
    note = (
        f"KL({exact} || arm) in nats: mean of the texts' means, median and 99.9 % over all "
        "positions."
    )
    if sizes:
        note += (
            " B/cell: of a stored cell of K and V in one layer, scales included; the exact cells "
            "of sinks, window and open groups are not counted."
        )
    columns = ["arm", "B/cell", "mean KL", "median", "99.9 %", "top-1 %", "nll"]
    if baseline:
        columns.append(f"vs {baseline}")
        note += (
            " Last column: geometric mean over texts of the KL's ratio to "
            f"{baseline}, and on how many texts it is lower."
        )
    return Table(title=title, columns=columns, rows=rows, note=note)


def text_table(found: Mapping[str, Summary], texts: Sequence[Text]) -> Table:
    """Return mean KL by text."""
    rows = [[name, *(figure(x) for x in s.per_text)] for name, s in found.items()]
    columns = ["arm", *(f"{t.name} ({t.kind})" for t in texts)]
    note = "One text's KL varies by 2 to 10 % with the last bit of a score: read order, not digits."
    return Table(title="Mean KL by text", columns=columns, rows=rows, note=note)


def score_table(found: Mapping[str, Summary], texts: Sequence[Text]) -> Table:
    """Return the score by text, the exact run's first."""
    exact = next(iter(found.values()))
    rows = [[name, *(f"{x:.3f}" for x in s.nll_per_text)] for name, s in found.items()]
    columns = ["arm", *(f"{t.name} ({t.kind})" for t in texts)]
    note = (
        "Mean negative log likelihood of the text's own next token, in nats; the first row is "
        f"float16's, {exact.nll_exact:.3f} on average."
    )
    return Table(title="Score by text", columns=columns, rows=rows, note=note)


def worst_control(runs: Mapping[str, Sequence[Divergence]]) -> float:
    """Return the largest KL of the control over all positions: must be 0."""
    return float(np.max(np.abs(np.concatenate([d.kl for d in runs[CONTROL]]))))
