"""How much a format changes what a model says: teacher-forced top-1 agreement and KL divergence.

Both runs read the same text. The prompt is read in chunks and stored; then the text's own tokens
are fed one at a time, every cell read as it is stored, and the two next-token distributions are
compared after each. Compare formats on the same text: a change of one code re-rolls the rest, so
one text's KL varies by tens of per cent where its order does not.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kvcore.errors import message
from kvcore.lab.engine import PREFILL_CHUNK, CacheFactory, Model, Session
from kvcore.lab.errors import SettingError

Doubles = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """Two runs of one text compared over `n_steps` positions.

    Attributes
    ----------
    n_prompt, n_steps : int
        Tokens read before, and compared.
    top1 : float
        Share of positions at which both prefer the same token.
    mean_kl, max_kl : float
        KL(reference || format) of the next token, in nats.
    nll_reference, nll : float
        Mean negative log likelihood of the text's own next token, in nats.
    """

    n_prompt: int
    n_steps: int
    top1: float
    mean_kl: float
    max_kl: float
    nll_reference: float
    nll: float


def agreement(
    model: Model,
    ids: Sequence[int],
    cache_factory: CacheFactory,
    reference_factory: CacheFactory,
    *,
    n_prompt: int,
    chunk: int = PREFILL_CHUNK,
    progress: Callable[[int, int], None] | None = None,
) -> Agreement:
    """Compare the caches of `cache_factory` with exact ones on a text.

    Parameters
    ----------
    model : Model
    ids : sequence of int
        The text, ``n_prompt + n_steps + 1`` tokens; the last one is only a target.
    cache_factory, reference_factory : callable
        Make the caches measured, and float32 ones.
    n_prompt : int
        Tokens read as the prompt.
    chunk : int
        Prompt tokens per pass: of these the own cells are read exactly.
    progress : callable (done, total), optional
        Called after each compared token.

    Raises
    ------
    SettingError
        The text is too short for the prompt.
    """
    n_steps = len(ids) - n_prompt - 1
    if n_prompt < 1 or n_steps < 1:
        got = f"{len(ids)} tokens, {n_prompt} of them prompt"
        expected = "a prompt, a step and a target at least"
        raise SettingError(message("agreement", "the text", got=got, expected=expected))
    reference, measured = Session(model, reference_factory), Session(model, cache_factory)
    reference.prefill(ids[:n_prompt], chunk=chunk)
    measured.prefill(ids[:n_prompt], chunk=chunk)
    # Exact caches give one pass and single steps the same answer; the pass is faster.
    hidden = reference.extend(ids[n_prompt:-1])
    rows = []
    for i in range(n_steps):
        exact = log_softmax(model.logits(hidden[i : i + 1])[0])
        coarse = log_softmax(measured.step(ids[n_prompt + i]))
        target = ids[n_prompt + i + 1]
        rows.append(
            (
                exact.argmax() == coarse.argmax(),
                kl_divergence(exact, coarse),
                -exact[target],
                -coarse[target],
            )
        )
        if progress is not None:
            progress(i + 1, n_steps)
    same, kl, nll_reference, nll = np.array(rows, np.float64).T
    return Agreement(
        n_prompt=n_prompt,
        n_steps=n_steps,
        top1=float(same.mean()),
        mean_kl=float(kl.mean()),
        max_kl=float(kl.max()),
        nll_reference=float(nll_reference.mean()),
        nll=float(nll.mean()),
    )


def log_softmax(scores: npt.ArrayLike) -> Doubles:
    """Log probabilities [V] of scores [V], in float64."""
    values: Doubles = np.asarray(scores, np.float64)
    values = values - values.max()
    values -= math.log(float(np.exp(values).sum()))
    return values


def kl_divergence(p: Doubles, q: Doubles) -> float:
    """KL(p || q) in nats of two vectors of log probabilities."""
    return float(np.sum(np.exp(p) * (p - q)))
