"""Pick the next token from its scores: the best one, or a seeded draw.

The order is temperature, top-k, top-p. The same seed, scores and settings give the same tokens on
every machine with IEEE arithmetic: ties go to the lower id and one uniform number is drawn a token.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kvcore.errors import message
from kvcore.lab.errors import SettingError


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How tokens are picked.

    Attributes
    ----------
    temperature : float
        0 takes the best token and ignores the rest.
    top_k : int
        Draw among this many best tokens; 0 for all.
    top_p : float
        Draw among the fewest best tokens whose share reaches this; in (0, 1].
    seed : int
        Start of the random stream.

    Raises
    ------
    SettingError
        A value outside its range.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        checks = (
            ("temperature", 0 <= self.temperature < math.inf, "a finite number, 0 or more"),
            ("top_k", self.top_k >= 0, "0 or more"),
            ("top_p", 0 < self.top_p <= 1, "above 0 and at most 1"),
            ("seed", self.seed >= 0, "0 or more"),
        )
        for name, fine, expected in checks:
            if not fine:
                got = getattr(self, name)
                raise SettingError(message("sampling", name, got=got, expected=expected))


class Sampler:
    """Draws tokens one after another with the settings of a `Sampling`."""

    def __init__(self, sampling: Sampling) -> None:
        self.sampling = sampling
        self._random = np.random.Generator(np.random.PCG64(sampling.seed))

    def pick(self, scores: npt.NDArray[np.float32]) -> int:
        """Return the token drawn from scores [V]."""
        how = self.sampling
        if how.temperature == 0:
            return int(scores.argmax())
        values = scores.astype(np.float64)
        order = np.argsort(-values, kind="stable")
        if how.top_k:
            order = order[: how.top_k]
        share = np.exp((values[order] - values[order[0]]) / how.temperature)
        cumulative = np.cumsum(share)
        # The token that reaches top_p still belongs to the nucleus.
        kept = int(np.searchsorted(cumulative, how.top_p * cumulative[-1], side="left")) + 1
        cumulative = cumulative[:kept]
        drawn = self._random.random() * cumulative[-1]
        return int(
            order[min(np.searchsorted(cumulative, drawn, side="right"), len(cumulative) - 1)]
        )
