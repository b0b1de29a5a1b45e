"""Arms: what is measured side by side, written in one line that says all of it.

``FORMAT[:OPTION,...]`` where FORMAT is a name that ``kvcore formats`` lists, a pair
``KCODEC+VCODEC/ROTATE``, or ``sim:NAME`` for a measuring-only arm; OPTION is ``bare`` (drop the
format's recipe) or ``field=value`` for a field of `CacheSpec`. The text of an arm is its label in
every table and plot, so that a label cannot say something else than what ran.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import kvcore
from kvcore.codecs import get as get_codec
from kvcore.errors import FormatError, message
from kvcore.formats import get as get_format
from kvcore.formats import names as format_names
from kvcore.lab.caches import HostCache
from kvcore.lab.engine import LayerCache
from kvcore.lab.errors import SettingError
from kvcore.lab.simulate import SIMULATIONS, SimulatedCache, Simulation
from kvcore.lab.weights import Floats
from kvcore.spec import SLACK, Format

_WHOLE = ("window", "sinks", "page_size", "center_cells")
_WORDS = ("k_center", "grouping", "rule")
_SIMULATED = "sim:"
CALIBRATED = "calibrated"


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """One thing to measure.

    Attributes
    ----------
    name : str
        The text it was made from.
    format : Format or None
        None for a simulation.
    simulation : Simulation or None
    options : mapping
        Fields of `CacheSpec`.
    """

    name: str
    format: Format | None
    simulation: Simulation | None
    options: Mapping[str, Any]

    @property
    def calibrated(self) -> bool:
        """True if it needs a centre per layer that was measured elsewhere."""
        return self.options.get("k_center") == CALIBRATED

    def spec(
        self, n_kv_heads: int, head_dim: int, centre: Floats | None = None
    ) -> kvcore.CacheSpec:
        """Return the specification of one layer.

        Parameters
        ----------
        n_kv_heads, head_dim : int
        centre : float32[H, D], optional
            For a calibrated arm.

        Raises
        ------
        FormatError
            The format does not suit the heads, or the fields each other.
        SettingError
            A simulation has none, or a calibrated arm was given no centre.
        """
        if self.format is None:
            raise SettingError(message("arm", "no kvcore format", got=self.name, expected="one"))
        options = dict(self.options)
        if self.calibrated:
            if centre is None:
                what, fix = f"{self.name} without a calibration", "give eval error a --calibration"
                expected = "a centre per layer"
                raise SettingError(message("arm", what, got="none", expected=expected, fix=fix))
            options["k_center"] = centre
        return kvcore.CacheSpec(
            format=self.format, n_kv_heads=n_kv_heads, head_dim=head_dim, **options
        )

    @property
    def exact_cells(self) -> int:
        """Cells of sinks and window, which are read exactly; 0 for a simulation."""
        if self.format is None:
            return 0
        options = {k: v for k, v in self.options.items() if v != CALIBRATED}
        spec = kvcore.CacheSpec(format=self.format, n_kv_heads=1, head_dim=256, **options)
        return int(spec.sinks or 0) + int(spec.window or 0)

    @property
    def together(self) -> int:
        """Decode steps that one call may take without changing what is stored or read."""
        return 1 if self.options.get("grouping") == "eager" else SLACK

    def bytes_per_cell(self, n_kv_heads: int, head_dim: int) -> float:
        """Bytes of K and V of one cell, scales included, overlay and tail not."""
        if self.simulation is not None:
            return self.simulation.bytes_per_cell(n_kv_heads, head_dim)
        assert self.format is not None
        return float(self.format.bytes_per_cell(n_kv_heads, head_dim))

    def cache(
        self,
        backend: Any,
        *,
        n_kv_heads: int,
        head_dim: int,
        capacity: int,
        centre: Floats | None = None,
    ) -> LayerCache:
        """Return an empty cache of one layer."""
        if self.simulation is not None:
            return SimulatedCache(self.simulation)
        return HostCache(backend.cache(self.spec(n_kv_heads, head_dim, centre), capacity=capacity))


def read_back(cache: LayerCache) -> tuple[Floats, Floats]:
    """Return K and V of all cells as the last query reads them, float32[N, H, D]."""
    if isinstance(cache, SimulatedCache):
        return cache.read()
    assert isinstance(cache, HostCache)
    return cache.cache.read()


def parse_arm(text: str) -> Arm:
    """Return the arm that a text describes.

    Raises
    ------
    SettingError
        Unknown simulation, an option that is unknown, given twice or without effect, or a value
        that is none.
    FormatError
        Unknown format or codec.
    """
    text = text.strip()
    if text.startswith(_SIMULATED):
        name, _, rest = text.removeprefix(_SIMULATED).partition(":")
        if rest:
            what = f"options of {_SIMULATED}{name}, but simulations take none"
            raise SettingError(message("arm", what, got=rest, expected=f"{_SIMULATED}{name}"))
        if name not in SIMULATIONS:
            expected = ", ".join(_SIMULATED + n for n in SIMULATIONS)
            raise SettingError(message("arm", "unknown simulation", got=text, expected=expected))
        return Arm(name=text, format=None, simulation=SIMULATIONS[name], options={})
    head, _, rest = text.partition(":")
    options: dict[str, Any] = {}
    for part in filter(None, rest.split(",")):
        new = _option(text, part)
        if options.keys() & new.keys():
            what = f"an option twice in {text}"
            raise SettingError(message("arm", what, got=part, expected="each once"))
        options |= new
    if "rule" in options and options.get("grouping") != "eager":
        what = f"a rule without unfinished groups in {text}"
        raise SettingError(
            message("arm", what, got=f"rule={options['rule']}", expected="grouping=eager beside it")
        )
    return Arm(name=text, format=_format(head), simulation=None, options=options)


def parse_arms(texts: Sequence[str]) -> list[Arm]:
    """Parse arms and refuse the same one twice."""
    arms = [parse_arm(t) for t in texts]
    twice = sorted({a.name for a in arms if [b.name for b in arms].count(a.name) > 1})
    if twice:
        raise SettingError(
            message("arms", "the same arm twice", got=", ".join(twice), expected="each once")
        )
    return arms


def _format(name: str) -> Format:
    if "+" in name:
        pair, _, rotate = name.partition("/")
        k, _, v = pair.partition("+")
        return Format(k=get_codec(k), v=get_codec(v), rotate=rotate or "none")
    if name not in every_format():
        fix = "write a pair as KCODEC+VCODEC/ROTATE, such as q4_0+q2c/kv"
        if name in SIMULATIONS:
            fix = f"it is simulated: write {_SIMULATED}{name}"
        expected = ", ".join(every_format())
        raise FormatError(
            message("arm", "unknown format", got=repr(name), expected=expected, fix=fix)
        )
    return get_format(name)


def _option(arm: str, part: str) -> dict[str, Any]:
    key, equals, value = part.partition("=")
    if part == "bare":
        return {"recipe": None}
    try:
        if key in _WHOLE and equals:
            return {key: int(value)}
        if key == "k_gain" and equals:
            return {key: value if value == "unbiased" else float(value)}
    except ValueError:
        what = f"option {key} of {arm}"
        raise SettingError(message("arm", what, got=value, expected="a number")) from None
    if key in _WORDS and equals:
        return {key: value}
    expected = "bare, k_gain=, " + ", ".join(f"{k}=" for k in (*_WHOLE, *_WORDS))
    raise SettingError(message("arm", f"unknown option in {arm}", got=part, expected=expected))


def every_format() -> tuple[str, ...]:
    """Return all formats' names, most bytes first."""
    return tuple(format_names())


PUBLISHED = ("q4_0:bare", "q2k:bare", "k4v2c:bare", "q2:bare")
"""The columns of the published table of attention errors, in its order."""

EXTRAS = (
    "k2cv2t:bare",
    "k2cv1c:bare",
    "k2cv1t:bare",
    "sim:token2",
    "sim:token2clip",
    "sim:skvq",
    "sim:kivi",
)
"""Its further arms, and measuring-only ones of other papers."""
