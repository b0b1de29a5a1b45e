"""What a report measures: the full one, and a quick one of the same shape."""

from __future__ import annotations

from dataclasses import dataclass

from kvcore.lab.kl_tables import GROUPING

GAINS = (1.0, 1.03, 1.05, 1.08, 1.1, 1.13, 1.16)
WINDOWS = (0, 32, 64, 128, 256, 512, 1024)
SINKS = (0, 4, 8, 16, 64)
CENTRES = (32, 64, 128, 256)

_RECIPES = (
    "bf16", "int8", "k8v4", "k4v4", "q4_0", "k4v2c", "q2k", "q2", "k2cv2t", "k2cv1c", "k2cv1t",
)  # fmt: skip
_WIDE = ("f32", "k32v8", "k8v32", "q8_0")
_GROUPING = tuple(GROUPING.values())
_INGREDIENTS = (
    "q4_0+q4_0/none:bare", "q4_0:bare", "q4_0:bare,window=128,sinks=8", "q4_0:k_center=none",
    "q2k:bare,window=128,sinks=8", "q2k:bare,sinks=8,k_center=auto", "q2k:k_center=none",
    "q2k:k_gain=unbiased", "q2k:k_center=calibrated", "k4v2c:bare",
    "k4v2c:bare,sinks=8,k_center=auto", "k4v2c:k_center=calibrated", "q2:bare", "k2cv2t:bare",
    "sim:kivi",
)  # fmt: skip
_PROMPT = (
    "int8", "k8v4", "q4_0+q4_0/none:bare", "q4_0:bare", "q4_0:bare,sinks=8,k_center=auto",
    "q2k:bare", "q2k:bare,sinks=8,k_center=auto", "k4v2c:bare",
    "k4v2c:bare,sinks=8,k_center=auto", "q2:bare",
)  # fmt: skip

SWEPT = {"recipe": "q2k:", "without centre": "q2k:bare,sinks=8,window=128,"}
"""Gains are swept over q2k's recipe and over the published arm: window 128, no centre."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportPlan:
    """Sizes and arms of a report.

    Attributes
    ----------
    cells, queries : int
        Of the dump that attention errors are measured on.
    n_layers : int
        Layers of it at most.
    texts : int
        Texts of the decode measurement; the first of the nine, kinds in turn.
    swept_texts : int
        Texts of sweeps and prompt mode.
    prompt, forced : int
        Tokens of the decode measurement.
    prompt_mode : int
        Prompt tokens of the prompt mode.
    arms : tuple of str
    gains, windows, sinks, centres : tuple
        Of the sweeps.
    prompt_arms : tuple of str
    per_place : int
        Facts of each kind at every depth in the recall measurement.
    lengths : tuple of int
        Document lengths of it in tokens.
    recall_arms : tuple of str
    """

    cells: int
    queries: int
    n_layers: int
    texts: int
    swept_texts: int
    prompt: int
    forced: int
    prompt_mode: int
    arms: tuple[str, ...]
    gains: tuple[float, ...]
    windows: tuple[int, ...]
    sinks: tuple[int, ...]
    centres: tuple[int, ...]
    prompt_arms: tuple[str, ...]
    per_place: int
    lengths: tuple[int, ...]
    recall_arms: tuple[str, ...]


FULL = ReportPlan(
    cells=2048,
    queries=64,
    n_layers=8,
    texts=9,
    swept_texts=3,
    prompt=1024,
    forced=128,
    prompt_mode=384,
    arms=(*_RECIPES, *_WIDE, *_GROUPING, *_INGREDIENTS),
    gains=GAINS,
    windows=WINDOWS,
    sinks=SINKS,
    centres=CENTRES,
    prompt_arms=_PROMPT,
    per_place=2,
    lengths=(768, 1536),
    recall_arms=("int8", "q4_0:bare", "q4_0", "q2k:bare", "q2k", "k4v2c", "q2"),
)

QUICK = ReportPlan(
    cells=768,
    queries=32,
    n_layers=3,
    texts=3,
    swept_texts=1,
    prompt=384,
    forced=32,
    prompt_mode=160,
    arms=(*_RECIPES, *_GROUPING, "q4_0:bare", "k4v2c:bare", "sim:kivi"),
    gains=(1.0, 1.05, 1.1, 1.16),
    windows=(0, 64, 128, 1024),
    sinks=(0, 8, 64),
    centres=(32, 128),
    prompt_arms=("int8", "q4_0:bare", "q2k:bare", "k4v2c:bare"),
    per_place=1,
    lengths=(512,),
    recall_arms=("int8", "q4_0", "q2k:bare", "q2k"),
)


def gain_arms(how: str, gains: tuple[float, ...]) -> dict[float, str]:
    """Return the arm of each gain; `how` is a key of :data:`SWEPT`."""
    return {g: f"{SWEPT[how]}k_gain={g:g}" for g in gains}


def window_arms(format: str, windows: tuple[int, ...]) -> dict[float, str]:
    """Return the arm of each window, the rest as in the format's recipe."""
    return {w: f"{format}:window={w}" for w in windows}


def sink_arms(format: str, sinks: tuple[int, ...]) -> dict[float, str]:
    """Return the arm of each count of sinks, the rest as in the format's recipe."""
    return {s: f"{format}:sinks={s}" for s in sinks}


def centre_arms(format: str, cells: tuple[int, ...]) -> dict[float, str]:
    """Return the arm of each number of cells that the centre is made of."""
    return {n: f"{format}:center_cells={n}" for n in cells}
