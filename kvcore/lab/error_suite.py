"""Run the error measures over a dump, resumable, as plain data."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import numpy as np

from kvcore.errors import message
from kvcore.lab.arms import EXTRAS, PUBLISHED, Arm, parse_arm, read_back
from kvcore.lab.dump_file import Dump, DumpLayer
from kvcore.lab.errors import SettingError
from kvcore.lab.eval_error import RULES, LayerBench, layer_facts
from kvcore.lab.journal import Journal, versions
from kvcore.lab.measure import Readers, channel_rms, flat_queries
from kvcore.lab.patterns import PATTERNS
from kvcore.lab.weights import Floats
from kvcore.ops.rotate import rotate

Progress = Callable[[str, int, int], None]

FLAT_RMS = 0.3
"""RMS of the synthetic queries whose table is printed beside, marked as no ranking."""

WINDOW, SINKS = 128, 8

RECIPES = ("q4_0", "q2k", "k4v2c", "q2")
SLOPES = ("q4_0:bare", "q2k:bare", "q2k:bare,sinks=8,k_center=auto", "q2k:bare,k_gain=unbiased")
BASIC = ("int8:bare", "q4_0+q4_0/none:bare", *PUBLISHED)


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorResults:
    """What was measured on one dump.

    Attributes
    ----------
    layers : list of str
        Labels.
    facts : list of dict
        :class:`kvcore.lab.eval_error.LayerFacts` of each layer.
    bytes_per_cell : dict of arm to float
    once, decode, flat : dict of arm to list of float
        Relative RMS by layer: all cells stored by one append and read by real queries; real
        queries as decode steps; as `once`, but with synthetic flat queries.
    flat_attended : list of float
        Effective number of cells that the synthetic queries attend to.
    slopes : dict of arm to list of dict
    bias : dict of arm to list of float
        Change of the weight on an exact window and sinks.
    append : dict of rule to dict of pattern to list of float
        Of q2k.
    channels : dict of str to list of list of float
        Channel RMS over its layer's median, by layer: "K", "K rotated", "V", "V rotated".
    """

    layers: list[str]
    facts: list[dict[str, Any]]
    bytes_per_cell: dict[str, float]
    once: dict[str, list[float]]
    decode: dict[str, list[float]]
    flat: dict[str, list[float]]
    flat_attended: list[float]
    slopes: dict[str, list[dict[str, float]]]
    bias: dict[str, list[float]]
    append: dict[str, dict[str, list[float]]]
    channels: dict[str, list[list[float]]]


class ErrorSuite:
    """Measures a dump.

    Parameters
    ----------
    dump : Dump
    backend : Backend
    journal : Journal
    layers : sequence of int, optional
        Some of the dump's.
    calibration : Dump, optional
        Of another text: its mean K is the centre of calibrated arms.
    progress : callable (what, done, total), optional

    Raises
    ------
    SettingError
        The calibration is of another model, lacks a layer, or is of the measured text.
    """

    def __init__(
        self,
        dump: Dump,
        backend: Any,
        journal: Journal,
        *,
        layers: Sequence[int] | None = None,
        calibration: Dump | None = None,
        progress: Progress | None = None,
    ) -> None:
        self.dump, self.backend, self.journal = dump, backend, journal
        self.layers = [dump.layer(i) for i in (dump.meta.layers if layers is None else layers)]
        self.centres = {} if calibration is None else self._mean_keys(calibration)
        self.calibration = None if calibration is None else calibration.meta.text_sha256
        self.progress = progress

    def _mean_keys(self, other: Dump) -> Mapping[int, Floats]:
        """Return every layer's mean K over the calibration's cells, float32[H, D]."""
        mine, its = self.dump.meta, other.meta
        asked = {x.index for x in self.layers}
        if its.model_sha256 != mine.model_sha256:
            raise _calibration("model", its.model, f"{mine.model}, the same file")
        if its.text_sha256 == mine.text_sha256:
            raise _calibration("text", its.text, "another than is measured")
        if not asked <= set(its.layers):
            raise _calibration("layers", list(its.layers), f"{sorted(asked)} among them")
        return {x.index: other.layer(x.index).k.mean(0, np.float64).astype(np.float32)
                for x in self.layers}  # fmt: skip

    def run(
        self, arms: Sequence[Arm] | None = None, *, append: bool = True, flat: bool = True
    ) -> ErrorResults:
        """Measure everything; `arms` replaces the usual list of the one-shot and decode tables.

        Score slopes, window bias and append patterns are of arms of their own, whatever `arms`.

        Raises
        ------
        SettingError
            There is a calibration that no arm takes, or an arm wants one and there is none.
        """
        names = [*BASIC, *EXTRAS] if arms is None else [a.name for a in arms]
        also = [*names, *RECIPES] if arms is None else names
        if self.centres and not any(parse_arm(n).calibrated for n in also):
            raise _calibration("no arm takes it", ", ".join(also), "one with k_center=calibrated")
        _, heads, dim = self.layers[0].k.shape
        for arm in map(parse_arm, also):
            if arm.calibrated and not self.centres:
                arm.spec(heads, dim)  # refuses, before anything is measured
        flats = [flat_queries(layer, FLAT_RMS) for layer in self.layers] if flat else []
        flat_names = [n for n in names if not n.startswith("sim:")]
        return ErrorResults(
            layers=[layer.label for layer in self.layers],
            facts=[self._known(layer, "facts", lambda x: asdict(layer_facts(x)))
                   for layer in self.layers],
            bytes_per_cell={n: parse_arm(n).bytes_per_cell(heads, dim) for n in also},
            once=self._errors("errors", names, self.layers, "one-shot"),
            decode=self._errors("errors of decode steps", also, self.layers, "decode"),
            flat=self._errors("errors of flat queries", flat_names, flats, "one-shot"),
            flat_attended=[self._attended(x) for x in flats],
            slopes={n: [self._slope(x, n) for x in self.layers] for n in SLOPES},
            bias={n: [self._bias(x, n) for x in self.layers] for n in PUBLISHED},
            append=self._append() if append else {},
            channels=self._channels(),
        )  # fmt: skip

    def _known(
        self, layer: DumpLayer, what: str, measure: Callable[[DumpLayer], Any], arm: str = ""
    ) -> Any:
        m = self.dump.meta
        centre = {"calibration": self.calibration} if arm and parse_arm(arm).calibrated else {}
        key = {
            **centre,
            "what": what,
            "model": m.model_sha256,
            "text": m.text_sha256,
            "cells": m.n_cells,
            "queries": m.n_queries,
            "layer": layer.index,
            "backend": self.backend.name,
            **{k: versions()[k] for k in ("kvcore", "numpy")},
        }
        return self.journal.get(key, lambda: measure(layer))

    def _errors(
        self, what: str, names: Sequence[str], layers: Sequence[DumpLayer], pattern: str
    ) -> dict[str, list[float]]:
        out: dict[str, list[float]] = {name: [] for name in names}
        for i, layer in enumerate(layers):
            bench = LayerBench(layer, self.backend, self.centres.get(layer.index))
            for j, name in enumerate(names):
                arm, label = parse_arm(name), f"{what}: {pattern}: {name}"
                measure = partial(_error_of, bench, arm, pattern)
                out[name].append(self._known(layer, label, measure, name))
                self._tell(what, i * len(names) + j + 1, len(names) * len(layers))
        return out

    def _append(self) -> dict[str, dict[str, list[float]]]:
        out: dict[str, dict[str, list[float]]] = {r: {p: [] for p in PATTERNS} for r in RULES}
        done, total = 0, len(RULES) * len(PATTERNS) * len(self.layers)
        for layer in self.layers:
            bench = LayerBench(layer, self.backend)
            for rule in RULES:
                how = "" if rule == "deferred" else f",grouping=eager,rule={rule}"
                arm = parse_arm(f"q2k:bare{how}")
                for pattern in PATTERNS:
                    label = f"append: {pattern}: {arm.name}"
                    measure = partial(_error_of, bench, arm, pattern)
                    out[rule][pattern].append(self._known(layer, label, measure))
                    done += 1
                    self._tell("append patterns", done, total)
        return out

    def _attended(self, layer: DumpLayer) -> float:
        found: float = self._known(layer, f"attended {FLAT_RMS}", lambda x: Readers(x).attended)
        return found

    def _stored_k(self, layer: DumpLayer, name: str) -> Floats:
        bench = LayerBench(layer, self.backend, self.centres.get(layer.index))
        return read_back(bench.stored(parse_arm(name)))[0]

    def _slope(self, layer: DumpLayer, name: str) -> dict[str, float]:
        found: dict[str, float] = self._known(
            layer, f"slope: {name}", lambda x: asdict(Readers(x).slope(self._stored_k(x, name)))
        )
        return found

    def _bias(self, layer: DumpLayer, name: str) -> float:
        def measure(x: DumpLayer) -> float:
            k = self._stored_k(x, name)
            return Readers(x).window_bias(k, window=WINDOW, sinks=SINKS)

        found: float = self._known(layer, f"bias {WINDOW} {SINKS}: {name}", measure)
        return found

    def _channels(self) -> dict[str, list[list[float]]]:
        turns: dict[str, Callable[[DumpLayer], Floats]] = {"K": lambda x: x.k, "V": lambda x: x.v}
        if self.layers[0].k.shape[-1] % 32 == 0:
            turns["K rotated"] = lambda x: rotate(x.k)
            turns["V rotated"] = lambda x: rotate(x.v)
        out = {}
        for name in sorted(turns):
            rows = []
            for layer in self.layers:
                rms = channel_rms(turns[name](layer)).ravel()
                rows.append([round(float(x), 4) for x in rms / np.median(rms)])
            out[name] = rows
        return out

    def _tell(self, what: str, done: int, total: int) -> None:
        if self.progress is not None:
            self.progress(what, done, total)


def _calibration(what: str, got: object, expected: str) -> SettingError:
    return SettingError(message("calibration", what, got=got, expected=expected))


def _error_of(bench: LayerBench, arm: Arm, pattern: str, layer: DumpLayer) -> float:
    """Measure an arm; the layer is the bench's own."""
    return bench.error(arm, pattern)
