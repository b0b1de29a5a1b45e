"""The recall measurement as a section: a grid of depth and length, float16 beside every arm."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict

import numpy as np

from kvcore.lab.recall import DEPTHS, INSIDE
from kvcore.lab.recall_suite import LOOP_TOKENS, REFERENCE, WINDOW, Answer, Recall
from kvcore.lab.tables import Section, Table

PLACES = (*(f"{d:g}" for d in DEPTHS), INSIDE)


def recall_section(
    found: Sequence[Recall], text: str, origin: Mapping[str, str] | None = None
) -> Section:
    """Return tables and findings of a recall run, and what it ran on if that is given."""
    return Section(
        title="Recall",
        findings=_findings(found),
        tables=[
            _grid(found, "code"),
            _grid(found, "words"),
            _retention(found),
            _places(found, text, origin),
        ],
        data={"text": text, **(origin or {}), "runs": [asdict(r) for r in found]},
    )


def _score(answers: Sequence[Answer], kind: str) -> str:
    if kind == "code":
        right = sum(a.recalled for a in answers)
        digits = np.concatenate([a.hits for a in answers])
        return f"{right}/{len(answers)} ({100 * digits.mean():.0f} %)"
    words = np.concatenate([a.hits for a in answers])
    return f"{100 * words.mean():.0f} %"


def _grid(found: Sequence[Recall], kind: str) -> Table:
    lengths = sorted({r.length for r in found})
    columns = ["arm", *(f"{n} tokens, {p}" for n in lengths for p in PLACES)]
    rows = []
    for arm in dict.fromkeys(r.arm for r in found):
        row = [arm]
        for length in lengths:
            run = next(r for r in found if r.arm == arm and r.length == length)
            for place in PLACES:
                row.append(
                    _score([a for a in run.answers if (a.kind, a.place) == (kind, place)], kind)
                )
        rows.append(row)
    if kind == "code":
        title = "Codes by document length and depth"
        note = (
            "Codes recalled of those asked for (share of their tokens that were the arm's "
            "favourite). A code counts only if the key asked for gives its own code, whole. No "
            f"arm can be expected to do better than {REFERENCE}, the first row."
        )
    else:
        title = "Copied words by document length and depth"
        note = "Share of a word list's tokens continued rightly from its first words."
    return Table(title=title, columns=columns, rows=rows, note=note)


def _retention(found: Sequence[Recall]) -> Table:
    rows = [
        [r.arm, str(r.length), f"{100 * r.quoted:.0f} %", f"{100 * r.demoted:.0f} %",
         "yes" if r.loops else "no"]
        for r in found
    ]  # fmt: skip
    note = (
        f"A word list quoted while it lies in the last {WINDOW} cells, and after more text has "
        f"pushed all of it out. Loop: {LOOP_TOKENS} tokens of greedy continuation end in a "
        "repetition of at most 16 tokens."
    )
    columns = ["arm", "tokens", "quoted in window", "after demotion", "loop"]
    return Table(title="Verbatim quotes and loops", columns=columns, rows=rows, note=note)


def _places(found: Sequence[Recall], text: str, origin: Mapping[str, str] | None) -> Table:
    rows = []
    for length in sorted({r.length for r in found}):
        run = next(r for r in found if r.length == length)
        for a in run.answers:
            gap = a.length - a.end
            where = "inside" if a.length - a.start <= WINDOW else "outside"
            rows.append([str(a.length), a.kind, a.place, f"{a.start}-{a.end - 1}", str(gap), where])
    note = (
        f"Inside: every cell lies in the document's last {WINDOW}, and still does when the answer "
        "is given. Outside: no cell does, whatever is asked."
    )
    if origin is not None:
        note += (
            f" The documents are made of {text}, sha256 {origin['text_sha256'][:12]}; measured on "
            f"{origin['model']}, sha256 {origin['model_sha256'][:16]}..., backend "
            f"{origin['backend']}."
        )
    columns = ["document", "fact", "depth", "cells", "cells after it", f"window {WINDOW}"]
    return Table(title="Where the facts lie", columns=columns, rows=rows, note=note)


def _findings(found: Sequence[Recall]) -> list[str]:
    out = []
    totals: dict[str, tuple[int, int, float]] = {}
    for arm in dict.fromkeys(r.arm for r in found):
        answers = [a for r in found if r.arm == arm for a in r.answers]
        codes = [a for a in answers if a.kind == "code"]
        words = np.concatenate([a.hits for a in answers if a.kind == "words"])
        totals[arm] = (sum(a.recalled for a in codes), len(codes), float(words.mean()))
    right, n, words_exact = totals[REFERENCE]
    weak = " Too weak for codes to tell formats apart." if right * 2 < n else ""
    out.append(
        f"{REFERENCE} recalls {right} of {n} codes and copies {100 * words_exact:.0f} % of the "
        f"words: more than that no format can be asked for.{weak}"
    )
    rest = {arm: words for arm, (_, _, words) in totals.items() if arm != REFERENCE}
    listed = ", ".join(
        f"{arm} {100 * w:.0f} %" for arm, w in sorted(rest.items(), key=lambda p: -p[1])
    )
    out.append(f"Copied words: {listed}.")
    looping = [r.arm for r in found if r.loops]
    exact = "does too" if REFERENCE in looping else "does not"
    others = sorted({arm for arm in looping if arm != REFERENCE})
    out.append(
        f"Loops: {', '.join(others) if others else 'none of the formats'}; {REFERENCE} {exact}."
    )
    return out
