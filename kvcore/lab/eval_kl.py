"""Teacher-forced decode: what a format changes in what a real model says next.

The prompt is read once, exactly, and stored in each arm's caches by one append. Then the text's
own tokens follow one by one: each step appends its cell and reads every cell as stored. The
exact run does the same with float16 caches, so that a difference is the format's and nothing
else's; running it twice must give exactly zero.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import kvcore
from kvcore.errors import message
from kvcore.lab.arms import Arm, parse_arm
from kvcore.lab.divergence import Divergence, compare
from kvcore.lab.engine import LayerCache, Model, Session
from kvcore.lab.errors import SettingError
from kvcore.lab.exact import ExactCache, OneByOne
from kvcore.lab.logits_file import Logits, LogitsMeta, LogitsWriter
from kvcore.lab.weights import Floats

REFERENCE = "f16"
CONTROL = "f16 again"
MODES = ("decode", "prompt")
_LOGIT_ROWS = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """A text cut into prompt and forced tokens, the prompt read exactly.

    Attributes
    ----------
    ids : list of int
        Prompt, forced tokens, and one more as the last target.
    n_prompt : int
    k, v : list of float32[n_prompt, H, D]
        Of every layer.
    """

    ids: list[int]
    n_prompt: int
    k: list[Floats]
    v: list[Floats]

    @property
    def forced(self) -> list[int]:
        """Tokens that are fed one by one."""
        return self.ids[self.n_prompt : -1]

    @property
    def targets(self) -> list[int]:
        """The token that follows each of them."""
        return self.ids[self.n_prompt + 1 :]


def cut(ids: Sequence[int], n_prompt: int, n_forced: int) -> list[int]:
    """Return prompt, forced tokens and a target from the start of a text.

    Raises
    ------
    SettingError
        The text is too short, or a count below 1.
    """
    need = n_prompt + n_forced + 1
    if n_prompt < 1 or n_forced < 1 or len(ids) < need:
        got = f"{len(ids)} tokens for {n_prompt} + {n_forced} + 1"
        raise SettingError(message("kl", "the text is too short", got=got, expected=f">= {need}"))
    return list(ids[:need])


def read_prompt(model: Model, ids: Sequence[int], n_prompt: int) -> Prompt:
    """Read the first `n_prompt` tokens exactly and keep K and V of every layer."""
    session = Session(model, ExactCache)
    session.prefill(ids[:n_prompt])
    caches = [c for c in session.caches if isinstance(c, ExactCache)]
    return Prompt(
        ids=list(ids), n_prompt=n_prompt, k=[c.k for c in caches], v=[c.v for c in caches]
    )


def arm_caches(
    model: Model,
    arm: Arm,
    backend: Any,
    capacity: int,
    centres: Mapping[int, Floats] | None = None,
) -> list[LayerCache]:
    """Return one empty cache per layer."""
    c = model.config
    return [
        arm.cache(
            backend,
            n_kv_heads=c.n_kv_heads,
            head_dim=c.head_dim,
            capacity=capacity,
            centre=(centres or {}).get(i),
        )
        for i in range(c.n_layers)
    ]


def forced_logits(
    model: Model,
    prompt: Prompt,
    arm: Arm,
    backend: Any,
    centres: Mapping[int, Floats] | None = None,
) -> Floats:
    """Return the logits after each forced token, float32[N, V], in decode mode."""
    caches = arm_caches(model, arm, backend, len(prompt.ids), centres)
    for cache, k, v in zip(caches, prompt.k, prompt.v, strict=True):
        cache.append(k, v)
    session = Session(model, lambda layer, heads, dim: OneByOne(caches[layer], arm.together))
    hidden = session.extend(prompt.forced, as_stored=True)
    return _logits(model, hidden)


def prompt_logits(
    model: Model,
    prompt: Prompt,
    arm: Arm,
    backend: Any,
    centres: Mapping[int, Floats] | None = None,
) -> Floats:
    """Return the same rows in prompt mode: one pass in which every cell is read as stored.

    All cells of a layer are stored by one append before anyone reads, and a reader's own cell is
    read from the store too. Windows cannot cover readers this far back: an arm's window only
    helps its last cells.
    """
    caches = arm_caches(model, arm, backend, len(prompt.ids), centres)
    session = Session(model, lambda layer, heads, dim: caches[layer])
    hidden = session.extend(prompt.ids[:-1], as_stored=True)
    return _logits(model, hidden[prompt.n_prompt :])


def _logits(model: Model, hidden: Floats) -> Floats:
    rows = [model.logits(hidden[i : i + _LOGIT_ROWS]) for i in range(0, len(hidden), _LOGIT_ROWS)]
    return np.concatenate(rows)


RUN = {"decode": forced_logits, "prompt": prompt_logits}


def run_text(
    model: Model,
    prompt: Prompt,
    arms: Sequence[Arm],
    backend: Any,
    *,
    mode: str = "decode",
    centres: Mapping[int, Floats] | None = None,
    keep: Callable[[str, Floats], None] | None = None,
) -> Iterator[tuple[str, Divergence]]:
    """Run the exact caches, then again as the control, then each arm; yield what is measured.

    Parameters
    ----------
    model : Model
    prompt : Prompt
    arms : sequence of Arm
    backend : Backend
    mode : {"decode", "prompt"}
    centres : mapping of layer to float32[H, D], optional
        For calibrated arms.
    keep : callable (name, logits), optional
        Given every run's logits, the exact one's first.

    Yields
    ------
    name, Divergence
        The control's name is :data:`CONTROL`; its KL must be exactly 0.
    """
    run, reference = RUN[mode], parse_arm(REFERENCE)
    exact = run(model, prompt, reference, backend)
    if keep is not None:
        keep(REFERENCE, exact)
    yield CONTROL, compare(exact, run(model, prompt, reference, backend), prompt.targets)
    for arm in arms:
        rows = run(model, prompt, arm, backend, centres)
        if keep is not None:
            keep(arm.name, rows)
        yield arm.name, compare(exact, rows, prompt.targets)


def save_rows(path: Path, meta: LogitsMeta, rows: Floats, targets: Sequence[int]) -> None:
    """Write a run's logits."""
    with LogitsWriter(path, meta, len(rows)) as out:
        for row, target in zip(rows, targets, strict=True):
            out.write(row, target)


def compare_files(exact: Logits, other: Logits) -> Divergence:
    """Compare two saved runs of the same text.

    Raises
    ------
    SettingError
        They are of another model, text, mode, start, vocabulary or length; the field is named. Or
        they are swapped: the float16 run comes first.
    """
    if other.meta.arm == REFERENCE != exact.meta.arm:
        got, fix = f"{exact.meta.arm} first", "swap the files"
        raise SettingError(message("kl", "the exact run", got=got, expected=REFERENCE, fix=fix))
    for name in ("model_sha256", "text_sha256", "mode", "n_prompt", "n_vocab"):
        a, b = getattr(exact.meta, name), getattr(other.meta, name)
        if a != b:
            raise SettingError(message("kl", f"the files differ in {name}", got=b, expected=a))
    if len(exact.rows) != len(other.rows):
        n = min(len(exact.rows), len(other.rows))
        raise SettingError(
            message(
                "kl",
                f"row {n} is missing in one file",
                got=f"{len(other.rows)} rows",
                expected=len(exact.rows),
            )
        )
    if (exact.targets != other.targets).any():
        raise SettingError(
            message("kl", "the files differ in targets", got="other tokens", expected="the same")
        )
    return compare(exact.rows, other.rows, [int(t) for t in exact.targets])


def mean_keys(model: Model, ids: Sequence[int]) -> dict[int, Floats]:
    """Return a calibration: every layer's mean K over a text's cells, float32[H, D]."""
    session = Session(model, ExactCache)
    session.prefill(ids)
    caches = [c for c in session.caches if isinstance(c, ExactCache)]
    return {i: c.k.mean(0, dtype=np.float64).astype(np.float32) for i, c in enumerate(caches)}


def logits_meta(
    *, model_sha256: str, text: str, text_sha256: str, arm: str, mode: str, prompt: Prompt, v: int
) -> LogitsMeta:
    """Return the metadata of one run's file."""
    return LogitsMeta(
        model_sha256=model_sha256,
        text=text,
        text_sha256=text_sha256,
        arm=arm,
        mode=mode,
        kvcore=kvcore.__version__,
        n_prompt=prompt.n_prompt,
        n_vocab=v,
    )
