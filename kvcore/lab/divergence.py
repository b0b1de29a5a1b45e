"""KL divergence and agreement of next-token distributions, by position and in sum."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kvcore.errors import ShapeError, message
from kvcore.lab.errors import SettingError
from kvcore.lab.weights import Floats

Doubles = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Divergence:
    """One run of one text compared with the exact run, position by position.

    Attributes
    ----------
    kl : list of float
        KL(exact || arm) of the next token in nats.
    same : list of bool
        Both prefer the same token.
    nll, nll_exact : float
        Mean negative log likelihood of the text's own next token, in nats.
    """

    kl: list[float]
    same: list[bool]
    nll: float
    nll_exact: float

    @property
    def mean_kl(self) -> float:
        """Mean over positions."""
        return float(np.mean(self.kl))


def log_softmax(rows: npt.ArrayLike) -> Doubles:
    """Log probabilities [N, V] of logits [N, V], in float64."""
    values: Doubles = np.asarray(rows, np.float64)
    values = values - values.max(-1, keepdims=True)
    values -= np.log(np.exp(values).sum(-1, keepdims=True))
    return values


def compare(exact: Floats, rows: Floats, targets: Sequence[int]) -> Divergence:
    """Compare logits with those of the exact run.

    Parameters
    ----------
    exact, rows : float32[N, V]
    targets : sequence of int
        The text's own next token of each row.

    Raises
    ------
    ShapeError
        The runs differ in shape or the targets in number.
    """
    if exact.shape != rows.shape or exact.shape[0] != len(targets):
        got = f"{list(exact.shape)}, {list(rows.shape)} and {len(targets)} targets"
        raise ShapeError(message("kl", "the runs differ", got=got, expected="the same rows"))
    kl, same, nll, nll_exact = [], [], [], []
    for i, target in enumerate(targets):  # a row at a time: a vocabulary is large
        p, q = log_softmax(exact[i : i + 1])[0], log_softmax(rows[i : i + 1])[0]
        kl.append(float(np.sum(np.exp(p) * (p - q))))
        same.append(bool(p.argmax() == q.argmax()))
        nll.append(-float(q[target]))
        nll_exact.append(-float(p[target]))
    return Divergence(
        kl=kl, same=same, nll=float(np.mean(nll)), nll_exact=float(np.mean(nll_exact))
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """An arm over all texts.

    Attributes
    ----------
    mean_kl : float
        Mean of the texts' means: each text counts once.
    median_kl, p999_kl : float
        Over all positions of all texts.
    top1 : float
        Share of positions with the exact run's favourite.
    nll, nll_exact : float
        Mean of the texts'.
    per_text : list of float
        Mean KL of each.
    nll_per_text : list of float
        Its score.
    """

    mean_kl: float
    median_kl: float
    p999_kl: float
    top1: float
    nll: float
    nll_exact: float
    per_text: list[float]
    nll_per_text: list[float]


def summarize(runs: Sequence[Divergence]) -> Summary:
    """Sum up one arm's runs, one a text."""
    kl = np.concatenate([r.kl for r in runs])
    return Summary(
        mean_kl=float(np.mean([r.mean_kl for r in runs])),
        median_kl=float(np.median(kl)),
        p999_kl=float(np.quantile(kl, 0.999)),
        top1=float(np.concatenate([r.same for r in runs]).mean()),
        nll=float(np.mean([r.nll for r in runs])),
        nll_exact=float(np.mean([r.nll_exact for r in runs])),
        per_text=[r.mean_kl for r in runs],
        nll_per_text=[r.nll for r in runs],
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """An arm against a baseline, text by text.

    Attributes
    ----------
    ratio : float
        Geometric mean over texts of KL(arm) / KL(baseline); below 1 is better.
    improved, n_texts : int
        Texts on which the arm's KL is lower.
    """

    ratio: float
    improved: int
    n_texts: int


def change(arm: Sequence[float], baseline: Sequence[float]) -> Change:
    """Compare mean KL per text with a baseline's.

    Raises
    ------
    SettingError
        The texts differ, or a KL is not above zero: no ratio can be taken.
    """
    if len(arm) != len(baseline) or not arm or min(*arm, *baseline) <= 0:
        got = f"{len(arm)} and {len(baseline)} texts"
        raise SettingError(
            message("kl", "no ratio to the baseline", got=got, expected="the same, KL above 0")
        )
    logs = [math.log(a / b) for a, b in zip(arm, baseline, strict=True)]
    better = sum(a < b for a, b in zip(arm, baseline, strict=True))
    return Change(ratio=math.exp(sum(logs) / len(logs)), improved=better, n_texts=len(arm))
