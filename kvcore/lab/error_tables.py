"""The error measures as tables in the published layout, and as sentences."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from kvcore.lab import published
from kvcore.lab.arms import PUBLISHED
from kvcore.lab.dump_file import DumpMeta
from kvcore.lab.error_suite import FLAT_RMS, SINKS, WINDOW, ErrorResults
from kvcore.lab.eval_error import RULES
from kvcore.lab.patterns import PATTERNS
from kvcore.lab.tables import Section, Table, ordered, percent, signed

_PLAIN = PATTERNS[0]


def geomean(values: Sequence[float]) -> float:
    """Return the geometric mean; 0 if any value is 0."""
    if not values or min(values) <= 0:
        return 0.0
    return math.exp(sum(map(math.log, values)) / len(values))


def geomeans(errors: Mapping[str, Sequence[float]], arms: Sequence[str]) -> dict[str, float]:
    """Return the geometric mean over layers of those arms that were measured."""
    return {a: geomean(errors[a]) for a in arms if a in errors}


def error_section(r: ErrorResults, meta: DumpMeta) -> Section:
    """Return all tables and findings of one dump."""
    tables = [facts_table(r, meta)]
    if all(a in r.once for a in PUBLISHED):
        tables.append(layout_a(r, r.once, f"{meta.model}, real queries"))
        if r.flat:
            tables.append(layout_a(r, r.flat, f"{meta.model}, synthetic queries of RMS {FLAT_RMS}"))
        tables.append(published_a())
    tables.append(arms_table(r, r.once, "Attention error, all cells stored by one append"))
    tables.append(arms_table(r, r.decode, "Attention error of decode steps, overlay and tail in"))
    tables += [slopes_table(r), bias_table(r)]
    if r.append:
        tables += [layout_b(r), published_b()]
    return Section(title=f"Attention error, {meta.model}", findings=findings(r), tables=tables)


def facts_table(r: ErrorResults, meta: DumpMeta) -> Table:
    """Return what the layers are like."""
    names = {
        "K spread": "k_spread", "K spread rotated": "k_spread_rotated", "V spread": "v_spread",
        "V spread rotated": "v_spread_rotated", "K mean share": "k_mean_share",
        "query RMS": "query_rms", "cells attended": "attended",
    }  # fmt: skip
    rows = [
        [label, *(f"{f[key]:.4g}" for key in names.values())]
        for label, f in zip(r.layers, r.facts, strict=True)
    ]
    note = (
        f"{meta.model}, sha256 {meta.model_sha256[:16]}...; {meta.n_cells} cells of {meta.text}, "
        f"sha256 {meta.text_sha256[:12]}, {meta.n_queries} real queries a head. Spread: channel "
        "RMS, largest over median. Mean share: RMS of the channels' means over the RMS "
        "of K. Cells attended: exp of the mean entropy of the exact weights."
    )
    title = f"Layers of {meta.model}"
    return Table(title=title, columns=["layer", *names], rows=rows, note=note)


def layout_a(r: ErrorResults, errors: Mapping[str, Sequence[float]], who: str) -> Table:
    """Return the published table's layout: a layer a row, K's spread, then four formats."""
    flat = errors is r.flat
    attended = r.flat_attended if flat else [f["attended"] for f in r.facts]
    rows = [
        [label, f"{f['k_spread']:.1f}", *(percent(errors[a][i], 3) for a in PUBLISHED),
         f"{attended[i]:.0f}"]
        for i, (label, f) in enumerate(zip(r.layers, r.facts, strict=True))
    ]  # fmt: skip
    means = geomeans(errors, PUBLISHED)
    rows.append(["geomean", "", *(percent(means[a], 3) for a in PUBLISHED), ""])
    order = f"Order: {ordered(means)}."
    note = f"Relative RMS of the output against float16, per cent. {order}"
    if flat:
        note += " Synthetic queries attend to nearly everything: this is no ranking of formats."
    columns = ["layer", "K spread", *PUBLISHED, "cells attended"]
    return Table(title=f"Attention error by layer: {who}", columns=columns, rows=rows, note=note)


def published_a() -> Table:
    """Return the published table, for order and ratios."""
    rows = [
        [layer, f"{spread:.1f}", *(f"{x:.3f}" for x in errors)]
        for layer, (spread, errors) in published.ERROR.items()
    ]
    note = (
        f"{published.SOURCE} Another, far larger model; its readers are not described. Compare "
        "order and ratios, not values. At L3 also: "
        + ", ".join(f"{arm} {x}" for arm, x in published.ERROR_EXTRAS.items())
        + "."
    )
    columns = ["layer", "K spread", *published.ERROR_ARMS]
    return Table(
        title="Published by Strata: attention error, %", columns=columns, rows=rows, note=note
    )


def arms_table(r: ErrorResults, errors: Mapping[str, Sequence[float]], title: str) -> Table:
    """Return an arm a row, with its bytes and the geometric mean."""
    rows = [
        [arm, f"{r.bytes_per_cell[arm]:g}", *(percent(x) for x in values),
         percent(geomean(values))]
        for arm, values in errors.items()
    ]  # fmt: skip
    note = (
        "Per cent of the float16 output's RMS. B/cell: of a stored cell, scales included; exact "
        "cells are not counted. Arms that start with sim: are other papers' rules, simulated; they "
        "are measured here and served nowhere."
    )
    columns = ["arm", "B/cell", *r.layers, "geomean"]
    return Table(title=title, columns=columns, rows=rows, note=note)


def slopes_table(r: ErrorResults) -> Table:
    """Return score slopes."""
    rows = [
        [arm, *(f"{s['raw']:.3f} / {s['centred']:.3f} / {s['weighted']:.3f}" for s in values)]
        for arm, values in r.slopes.items()
    ]
    note = (
        "Least-squares slope of approximate scores on exact ones: raw / after each query's mean "
        "is taken off / the same, weighted by the exact attention. 1 is no shrinkage."
    )
    return Table(title="Score slope", columns=["arm", *r.layers], rows=rows, note=note)


def bias_table(r: ErrorResults) -> Table:
    """Return what an exact window does to the weights."""
    rows = [[arm, *(signed(x) for x in values)] for arm, values in r.bias.items()]
    note = (
        f"Change of the weight on the last {WINDOW} cells and {SINKS} sinks when these are exact "
        "and the rest is not; above 0 the window draws attention to itself."
    )
    return Table(title="Window mass bias", columns=["arm", *r.layers], rows=rows, note=note)


def layout_b(r: ErrorResults) -> Table:
    """Return the published layout of append patterns: old / n / shrink / deferred."""
    rows = []
    for i, label in enumerate(r.layers):
        cells = []
        for pattern in PATTERNS:
            cells.append(" / ".join(percent(r.append[rule][pattern][i]) for rule in RULES))
        rows.append([label, *cells])
    rows.append(["sum over one-shot", *(_excess(r, p) for p in PATTERNS)])
    note = (
        f"q2k bare, error in per cent by rule: {' / '.join(RULES)}; the first three are eager. "
        "Last row: the sum over layers against that of one-shot of the same rule."
    )
    columns = ["layer", *PATTERNS]
    return Table(title="Append patterns", columns=columns, rows=rows, note=note)


def _excess(r: ErrorResults, pattern: str) -> str:
    out = []
    for rule in RULES:
        one, here = sum(r.append[rule][_PLAIN]), sum(r.append[rule][pattern])
        out.append(signed(here / one - 1))
    return " / ".join(out)


def published_b() -> Table:
    """Return the published append patterns."""

    def three(values: Sequence[float]) -> str:
        return " / ".join(f"{x:.3f}" for x in values)

    rows = [
        [layer, f"{one:.3f}", three(windows), three(chunks), f"{decode:.3f}"]
        for layer, (one, windows, chunks, decode) in published.APPEND.items()
    ]
    note = (
        f"{published.SOURCE} By rule: {' / '.join(published.APPEND_RULES)}. Another model; compare "
        "order only."
    )
    columns = ["layer", *PATTERNS]
    return Table(
        title="Published by Strata: append patterns, %", columns=columns, rows=rows, note=note
    )


def findings(r: ErrorResults) -> list[str]:
    """Return what the numbers say, made from the numbers."""
    out = []
    real = geomeans(r.once, PUBLISHED)
    if len(real) == len(PUBLISHED):
        theirs = geomeans_published()
        out.append(f"With real queries the order is {ordered(real)}.")
        k, v = r.once["q2k:bare"], r.once["k4v2c:bare"]
        wins = sum(a < b for a, b in zip(k, v, strict=True))
        verdict = "reproduces" if wins * 2 > len(k) else "does not reproduce"
        out.append(
            f"q2k (2-bit K, 4-bit V) is better than k4v2c at equal bytes on {wins} of {len(k)} "
            f"layers: the published order {verdict} with real queries."
        )
        if r.flat:
            flat = geomeans(r.flat, PUBLISHED)
            same = ordered(flat) == ordered(theirs)
            out.append(
                f"With flat synthetic queries the order is {ordered(flat)}: "
                f"{'the published one' if same else f'not the published {ordered(theirs)}'}."
            )
    if r.append:
        exact = max(
            abs(a - b)
            for p in PATTERNS
            for a, b in zip(r.append["deferred"][p], r.append["deferred"][_PLAIN], strict=True)
        )
        out.append(
            "Deferred grouping: the largest change of the error by the append pattern is "
            f"{100 * exact:.3g} percentage points."
        )
    return out


def geomeans_published() -> dict[str, float]:
    """Return the published arms' geometric means over layers, per cent."""
    columns = zip(*(errors for _, errors in published.ERROR.values()), strict=True)
    return {a: geomean(c) for a, c in zip(published.ERROR_ARMS, columns, strict=True)}
