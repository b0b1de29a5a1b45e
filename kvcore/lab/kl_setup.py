"""What a decode measurement ran on: model, backend, and how each text was cut."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from kvcore.lab.arms import parse_arm
from kvcore.lab.tables import Table


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """How one text was used.

    Attributes
    ----------
    name, kind, sha256 : str
        Of the text.
    n_tokens : int
        It has in all.
    n_prompt, n_forced : int
        Of them were read as prompt and forced one by one.
    """

    name: str
    kind: str
    sha256: str
    n_tokens: int
    n_prompt: int
    n_forced: int

    @property
    def cells(self) -> int:
        """Cells that the caches hold at the last step."""
        return self.n_prompt + self.n_forced


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """What was measured, beside the arms.

    Attributes
    ----------
    model, model_sha256, backend, mode : str
    asked_prompt : int
        Prompt tokens at most.
    cuts : list of Cut
        One a text.
    calibration : mapping of str to str, or None
        Name, sha256 and number of tokens of the text that calibrated centres came from; None if
        no arm took them.
    """

    model: str
    model_sha256: str
    backend: str
    mode: str
    asked_prompt: int
    cuts: list[Cut]
    calibration: dict[str, Any] | None

    def data(self) -> dict[str, Any]:
        """Return it as plain data."""
        found = asdict(self)
        return {**found, "texts": found.pop("cuts")}


def setup_table(s: Setup) -> Table:
    """Return the texts and how they were cut, with model and backend under them."""
    rows = [
        [c.name, c.kind, str(c.n_tokens), str(c.n_prompt), str(c.n_forced), c.sha256[:12]]
        for c in s.cuts
    ]
    note = (
        f"{s.model}, sha256 {s.model_sha256[:16]}..., on the backend {s.backend}, {s.mode} mode; "
        f"prompts of at most {s.asked_prompt} tokens."
    )
    if s.calibration is not None:
        note += (
            f" Calibrated centres: mean K of the first {s.calibration['n_tokens']} tokens of the "
            f"text {s.calibration['name']}, sha256 {s.calibration['sha256'][:12]}."
        )
    columns = ["text", "kind", "tokens", "prompt", "forced", "sha256"]
    return Table(title="What was measured", columns=columns, rows=rows, note=note)


def setup_sentences(s: Setup, arms: Sequence[str]) -> list[str]:
    """Return what a reader must know of the cuts: short prompts, and windows that cover a text."""
    out = []
    short = [f"{c.name} {c.n_prompt}" for c in s.cuts if c.n_prompt < s.asked_prompt]
    if short:
        out.append(
            f"Prompts are shorter than the {s.asked_prompt} tokens asked for where the text ends "
            f"first: {', '.join(short)}."
        )
    out += covered_sentences(s, arms)
    return out


def covered_sentences(s: Setup, arms: Sequence[str]) -> list[str]:
    """Return which arms read whole texts from exact cells: their KL says nothing of the format."""
    by_texts: dict[tuple[str, ...], list[str]] = {}
    for name in arms:
        kept = parse_arm(name).exact_cells
        covered = tuple(c.name for c in s.cuts if kept >= c.cells)
        if covered:
            by_texts.setdefault(covered, []).append(name)
    return [
        f"Sinks and window cover every cell of {', '.join(texts)} for {', '.join(names)}: all is "
        "read from exact float16 cells there, which says nothing about the format."
        for texts, names in by_texts.items()
    ]
