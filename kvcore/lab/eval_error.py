"""What formats do to attention, layer by layer, on the real readers of a dump."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from kvcore.lab.arms import Arm, parse_arm, read_back
from kvcore.lab.dump_file import Dump, DumpLayer
from kvcore.lab.engine import LayerCache
from kvcore.lab.exact import OneByOne
from kvcore.lab.measure import Readers, mean_share, relative_rms, spread
from kvcore.lab.patterns import PATTERNS, feed
from kvcore.lab.weights import Floats
from kvcore.ops.rotate import rotate
from kvcore.spec import rotation_block

REFERENCE = "f16"
RULES = ("old", "n", "shrink", "deferred")
Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerFacts:
    """What a layer is like before anything is quantized.

    Attributes
    ----------
    label : str
    k_spread, v_spread : float
        Largest channel RMS over the median one.
    k_spread_rotated, v_spread_rotated : float
        The same after the Hadamard rotation.
    k_mean_share : float
        RMS of the channels' means over the RMS of K.
    query_rms : float
    attended : float
        Effective number of cells that a query attends to.
    """

    label: str
    k_spread: float
    k_spread_rotated: float
    v_spread: float
    v_spread_rotated: float
    k_mean_share: float
    query_rms: float
    attended: float


def layer_facts(layer: DumpLayer) -> LayerFacts:
    """Measure a layer; where no rotation exists for the head size, the rotated spreads are NaN."""
    turned = [float("nan")] * 2
    if layer.k.shape[-1] % 32 == 0 and rotation_block(layer.k.shape[-1]):
        turned = [spread(rotate(x)) for x in (layer.k, layer.v)]
    return LayerFacts(
        label=layer.label,
        k_spread=spread(layer.k),
        k_spread_rotated=turned[0],
        v_spread=spread(layer.v),
        v_spread_rotated=turned[1],
        k_mean_share=mean_share(layer.k),
        query_rms=float(np.sqrt(np.square(layer.q.astype(np.float64)).mean())),
        attended=Readers(layer).attended,
    )


class LayerBench:
    """Runs arms on one layer of a dump.

    Parameters
    ----------
    layer : DumpLayer
    backend : Backend
    centre : float32[H, D], optional
        For calibrated arms.
    """

    def __init__(self, layer: DumpLayer, backend: Any, centre: Floats | None = None) -> None:
        self.layer, self.backend, self.centre = layer, backend, centre
        self._exact: dict[str, Floats] = {}

    def _cache(self, arm: Arm) -> LayerCache:
        n, heads, dim = self.layer.k.shape
        return arm.cache(
            self.backend, n_kv_heads=heads, head_dim=dim, capacity=n, centre=self.centre
        )

    def stored(self, arm: Arm, pattern: str = PATTERNS[0]) -> LayerCache:
        """Return the arm's cache with every cell of the layer in it."""
        cache = self._cache(arm)
        feed(cache, arm, pattern, self.layer.k, self.layer.v)
        return cache

    def output(self, arm: Arm, pattern: str = PATTERNS[0]) -> Floats:
        """Return what the readers get, float32[N, Q, D].

        Parameters
        ----------
        arm : Arm
        pattern : str
            One of PATTERNS: all cells are stored before anyone reads. "decode": the cells before
            the readers are stored in one append, then each reader's cell is appended and read as
            a decode step, with window, sinks and open groups as they are at that step.
        """
        layer = self.layer
        if pattern != "decode":
            cache = self.stored(arm, pattern)
            out: Floats = cache.attend(layer.q, scale=layer.scale, window=layer.window)
            return out
        cache, first = self._cache(arm), len(layer.k) - len(layer.q)
        cache.append(layer.k[:first], layer.v[:first])
        steps = OneByOne(cache, arm.together)
        steps.append(layer.k[first:], layer.v[first:])
        return steps.attend(layer.q, scale=layer.scale, window=layer.window)

    def error(self, arm: Arm, pattern: str = PATTERNS[0]) -> float:
        """Return the relative RMS of the arm's output against float16 caches of this engine."""
        reading = "decode" if pattern == "decode" else PATTERNS[0]
        if reading not in self._exact:
            self._exact[reading] = self.output(parse_arm(REFERENCE), reading)
        return relative_rms(self.output(arm, pattern), self._exact[reading])


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorTable:
    """Errors of arms by layer.

    Attributes
    ----------
    reading : str
        "one-shot" or "decode", see :meth:`LayerBench.output`.
    queries : str
        "real", or the RMS of synthetic ones.
    layers : list of str
    bytes_per_cell : dict of arm to float
    errors : dict of arm to list of float
        Relative RMS by layer; 0.01 is one per cent.
    """

    reading: str
    queries: str
    layers: list[str]
    bytes_per_cell: dict[str, float]
    errors: dict[str, list[float]]

    def geomean(self, arm: str) -> float:
        """Geometric mean over layers; 0 if any is 0."""
        values = np.asarray(self.errors[arm])
        return float(np.exp(np.log(values).mean())) if (values > 0).all() else 0.0


def error_table(
    layers: Sequence[DumpLayer],
    arms: Sequence[Arm],
    backend: Any,
    *,
    reading: str = "one-shot",
    queries: str = "real",
    centres: Mapping[int, Floats] | None = None,
    progress: Progress | None = None,
) -> ErrorTable:
    """Measure arms on layers.

    Parameters
    ----------
    layers : sequence of DumpLayer
    arms : sequence of Arm
    backend : Backend
    reading : {"one-shot", "decode"}
    queries : str
        A label for the readers of these layers.
    centres : mapping of layer index to float32[H, D], optional
        For calibrated arms.
    progress : callable (what, done, total), optional
    """
    errors: dict[str, list[float]] = {arm.name: [] for arm in arms}
    total = len(layers) * len(arms)
    for i, layer in enumerate(layers):
        bench = LayerBench(layer, backend, (centres or {}).get(layer.index))
        for j, arm in enumerate(arms):
            errors[arm.name].append(bench.error(arm, reading))
            if progress is not None:
                progress("measuring attention errors", i * len(arms) + j + 1, total)
    _, heads, dim = layers[0].k.shape
    return ErrorTable(
        reading=reading,
        queries=queries,
        layers=[layer.label for layer in layers],
        bytes_per_cell={arm.name: arm.bytes_per_cell(heads, dim) for arm in arms},
        errors=errors,
    )


def append_table(
    layers: Sequence[DumpLayer], format: str, backend: Any, progress: Progress | None = None
) -> dict[str, dict[str, list[float]]]:
    """Measure how a format's error depends on the way its cells arrive.

    Returns
    -------
    dict
        Rule ("old", "n" and "shrink" are eager, "deferred" is kvcore's default) to pattern to
        the error of each layer, all cells stored before anyone reads.
    """
    out: dict[str, dict[str, list[float]]] = {}
    total, done = len(RULES) * len(PATTERNS) * len(layers), 0
    benches = [LayerBench(layer, backend) for layer in layers]
    for rule in RULES:
        how = "" if rule == "deferred" else f",grouping=eager,rule={rule}"
        arm = parse_arm(f"{format}:bare{how}")
        out[rule] = {}
        for pattern in PATTERNS:
            out[rule][pattern] = []
            for bench in benches:
                out[rule][pattern].append(bench.error(arm, pattern))
                done += 1
                if progress is not None:
                    progress("measuring append patterns", done, total)
    return out


def slope_table(
    layers: Sequence[DumpLayer], arms: Sequence[Arm], backend: Any
) -> dict[str, list[dict[str, float]]]:
    """Return score slopes of arms by layer: keys raw, centred and weighted."""
    out: dict[str, list[dict[str, float]]] = {arm.name: [] for arm in arms}
    for layer in layers:
        bench, readers = LayerBench(layer, backend), Readers(layer)
        for arm in arms:
            k, _ = read_back(bench.stored(arm))
            out[arm.name].append(asdict(readers.slope(k)))
    return out


def bias_table(
    layers: Sequence[DumpLayer], arms: Sequence[Arm], backend: Any, *, window: int, sinks: int
) -> dict[str, list[float]]:
    """Return the relative change of the weight on an exact window and sinks, by arm and layer."""
    out: dict[str, list[float]] = {arm.name: [] for arm in arms}
    for layer in layers:
        bench, readers = LayerBench(layer, backend), Readers(layer)
        for arm in arms:
            k, _ = read_back(bench.stored(arm))
            out[arm.name].append(readers.window_bias(k, window=window, sinks=sinks))
    return out


def chosen_layers(dump: Dump, wanted: Sequence[int] | None = None) -> list[DumpLayer]:
    """Return some or all layers of a dump."""
    return [dump.layer(i) for i in (dump.meta.layers if wanted is None else wanted)]
