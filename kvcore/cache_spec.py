"""CacheSpec: what one layer's cache holds, with every default filled in and every clash refused."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from kvcore.errors import FormatError, message
from kvcore.formats import get as get_format
from kvcore.layout import Layout, StateLayout
from kvcore.spec import BARE, GROUP_CELLS, Format, Recipe

RULES = ("shrink", "n", "old")
GROUPINGS = ("deferred", "eager")
CENTRE_LEAVES = 96
"""An automatic centre is made of at least this many cells after the sinks."""


@dataclass(frozen=True, kw_only=True)
class CacheSpec:
    """What one layer's cache holds and how. Fields left None are filled from the recipe.

    Parameters
    ----------
    format : str or Format
    n_kv_heads : int
    head_dim : int
        Head size of K, and of V unless `head_dim_v` is given.
    head_dim_v : int, optional
    page_size : int
        Cells per page: divides 32 or is a multiple of it.
    recipe : Recipe, "format" or None
        "format": the recipe of the format's own file. None: the bare format.
    window, sinks : int, optional
        Cells kept exact in float16 at the end and at the start.
    k_center : {"none", "auto"} or float array [H, Dk], optional
        "auto" subtracts one vector per head made of the sequence's first cells; an array is that
        vector in the model's basis, from a calibration.
    grouping : {"deferred", "eager"}, optional
    k_gain : float or "unbiased"
        Factor of the stored K scale; "unbiased" makes <x, x^> = <x, x> in every group.
    rule : {"shrink", "n", "old"}
        Scale rule of a partial group in eager grouping.
    center_cells : int, optional
        Cells an automatic centre is made of (sinks left out), a multiple of 32.

    Attributes
    ----------
    center_key : str
        "none", "auto" or "calibrated:<sha256>": what of the centre changes stored bytes.

    Raises
    ------
    FormatError
        On a field that cannot be, or a combination that is refused.
    """

    format: Any
    n_kv_heads: int
    head_dim: int
    head_dim_v: Any = None
    page_size: int = 32
    recipe: Any = field(default="format", compare=False, repr=False)
    window: Any = None
    sinks: Any = None
    k_center: Any = field(default=None, compare=False)
    grouping: Any = None
    k_gain: Any = 1.0
    rule: str = "shrink"
    center_cells: Any = None
    center_key: str = field(default="", init=False)

    def __post_init__(self) -> None:
        fmt = self.format if isinstance(self.format, Format) else get_format(self.format)
        recipe = _recipe(self.recipe, fmt)

        def put(name: str, value: object) -> None:
            object.__setattr__(self, name, value)

        put("format", fmt)
        put("recipe", recipe)
        for name in ("window", "sinks", "k_center", "grouping"):
            if getattr(self, name) is None:
                put(name, getattr(recipe, name))
        if self.head_dim_v is None:
            put("head_dim_v", self.head_dim)
        for name in ("n_kv_heads", "head_dim", "head_dim_v", "page_size", "window", "sinks"):
            put(name, _whole(name, getattr(self, name), 0 if name in ("window", "sinks") else 1))
        fmt.check_dims(self.head_dim, self.head_dim_v)
        _check_page_size(self.page_size)
        _check_choice("grouping", self.grouping, GROUPINGS)
        _check_choice("rule", self.rule, RULES)
        put("k_center", self._centre())
        put("center_key", self._centre_key())
        put("center_cells", self._centre_cells())
        put("k_gain", self._gain())

    def _centre(self) -> Any:
        c = self.k_center
        if isinstance(c, str) and c in ("none", "auto"):
            if c == "auto" and self.grouping == "eager":
                raise FormatError(
                    "[spec] an automatic centre needs its cells kept exact until it is known: "
                    "got grouping='eager', expected 'deferred'; pass a calibrated k_center"
                )
        else:
            c = _calibrated(c, self.n_kv_heads, self.head_dim)
        if not (isinstance(c, str) and c == "none") and self.format.k.scale is None:
            raise FormatError(
                f"[spec] k_center has no use for a K stored as {self.format.k.name}: got a centre, "
                "expected k_center='none'; centre only a quantized K"
            )
        return c

    def _centre_key(self) -> str:
        if isinstance(self.k_center, str):
            return self.k_center
        return "calibrated:" + hashlib.sha256(self.k_center.tobytes()).hexdigest()

    def _centre_cells(self) -> int:
        if self.center_key != "auto":
            return 0
        if self.center_cells is None:
            return int(math.ceil((self.sinks + CENTRE_LEAVES) / GROUP_CELLS) * GROUP_CELLS)
        n = _whole("center_cells", self.center_cells, 1)
        if n % GROUP_CELLS or n <= self.sinks:
            raise FormatError(
                message(
                    "spec",
                    "center_cells is not usable",
                    got=n,
                    expected=f"a multiple of {GROUP_CELLS} above sinks={self.sinks}",
                )
            )
        return int(n)

    def _gain(self) -> Any:
        gain, k = self.k_gain, self.format.k
        if gain == "unbiased":
            if k.scale is None:
                raise FormatError(f"[spec] k_gain='unbiased' needs a quantized K: got {k.name}")
            if self.grouping == "eager":
                raise FormatError(
                    "[spec] k_gain='unbiased' needs whole groups: got grouping='eager', "
                    "expected 'deferred'"
                )
            return gain
        try:
            value = float(gain)
        except (TypeError, ValueError):
            value = math.nan
        if not math.isfinite(value) or value <= 0:
            raise FormatError(
                message("spec", "k_gain is not usable", got=gain, expected="a number > 0")
            )
        if value != 1.0 and not k.per_channel:
            raise FormatError(
                f"[spec] a numeric k_gain is for per-channel K codecs: got {value} with K as "
                f"{k.name}; use k_gain=1.0 or 'unbiased'"
            )
        return value

    @cached_property
    def layout(self) -> Layout:
        """Planes of this spec's pools."""
        return Layout(
            k=self.format.k,
            v=self.format.v,
            n_kv_heads=self.n_kv_heads,
            head_dim_k=self.head_dim,
            head_dim_v=self.head_dim_v,
            page_size=self.page_size,
            k_gain=self.k_gain,
            rule=self.rule,
        )

    @cached_property
    def state_layout(self) -> StateLayout:
        """Exact slots and bookkeeping of this spec's sequences."""
        return StateLayout(
            layout=self.layout,
            sinks=self.sinks,
            window=self.window,
            deferred=self.grouping == "deferred",
            centred=self.center_key != "none",
            center_cells=self.center_cells,
        )

    @property
    def bytes_per_cell(self) -> int:
        """Bytes of one cell in the pool: K and V with scales; tail and overlay not."""
        return int(self.format.bytes_per_cell(self.n_kv_heads, self.head_dim, self.head_dim_v))

    def replace(self, **changes: Any) -> CacheSpec:
        """Return a copy with some fields replaced."""
        return replace(self, **changes)


def _recipe(recipe: Any, fmt: Format) -> Recipe:
    if recipe is None:
        return BARE
    if isinstance(recipe, Recipe):
        return recipe
    if recipe == "format":
        return fmt.recipe
    raise FormatError(
        message("spec", "unknown recipe", got=recipe, expected="a Recipe, 'format' or None")
    )


def _whole(name: str, value: Any, least: int) -> int:
    ok = isinstance(value, int | np.integer) and not isinstance(value, bool) and value >= least
    if not ok:
        raise FormatError(
            message("spec", f"{name} is not usable", got=value, expected=f"an integer >= {least}")
        )
    return int(value)


def _check_page_size(page_size: int) -> None:
    if GROUP_CELLS % page_size and page_size % GROUP_CELLS:
        raise FormatError(
            message(
                "spec",
                "page_size is not usable",
                got=page_size,
                expected=f"a divisor or a multiple of {GROUP_CELLS}",
            )
        )


def _check_choice(name: str, value: Any, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise FormatError(message("spec", f"unknown {name}", got=repr(value), expected=choices))


def _calibrated(c: Any, n_heads: int, head_dim: int) -> np.ndarray[Any, Any]:
    try:
        centre = np.array(c, dtype=np.float32)
    except (TypeError, ValueError):
        centre = np.empty(0, np.float32)
    if centre.shape != (n_heads, head_dim):
        raise FormatError(
            message(
                "spec",
                "k_center is not usable",
                got=f"shape {centre.shape}" if centre.size else repr(c),
                expected=f"'none', 'auto' or a float array [{n_heads}, {head_dim}]",
            )
        )
    if not np.isfinite(centre).all():
        raise FormatError("[spec] k_center holds non-finite values: expected finite ones")
    centre.setflags(write=False)
    return centre
