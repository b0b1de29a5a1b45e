"""The commands that measure a section's numbers again, one by one."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from kvcore.lab.config import ModelConfig
from kvcore.lab.kl_suite import Plan

DUMP = "dump.safetensors"


@dataclass(frozen=True, slots=True, kw_only=True)
class Commands:
    """Writes command lines for one model and backend.

    Attributes
    ----------
    source : tuple of str
        How the model is named: ``("--model", "smollm2")`` or ``("--gguf", "FILE")``.
    backend : str
    """

    source: tuple[str, ...]
    backend: str

    def report(self, folder: str, *, quick: bool, only: Sequence[str]) -> str:
        """Return what makes the whole page, into a folder of that name."""
        parts = ["kvcore", "report", *self.source, *(["--quick"] if quick else [])]
        parts += ["--backend", self.backend, "--out", folder]
        return shlex.join([*parts, *_each("--section", only)])

    def dump(self, text: str, n_cells: int, n_queries: int, layers: Sequence[int]) -> str:
        """Return what writes the dump that attention errors are measured on."""
        return shlex.join(
            ["kvcore", "dump", DUMP, *self.source, "--text", text, "--cells", str(n_cells),
             "--queries", str(n_queries), "--layers", ",".join(map(str, layers))]
        )  # fmt: skip

    def error(self) -> str:
        """Return what measures attention errors on that dump."""
        return shlex.join(["kvcore", "eval", "error", DUMP, "--backend", self.backend])

    def kl(self, texts: Iterable[str], plan: Plan, arms: Iterable[str], baseline: str = "") -> str:
        """Return what measures arms' KL."""
        parts = ["kvcore", "eval", "kl", *self.source, "--backend", self.backend]
        parts += ["--texts", ",".join(texts), "--prompt", str(plan.n_prompt)]
        parts += ["--forced", str(plan.n_forced), "--mode", plan.mode]
        parts += ["--baseline", baseline] if baseline else []
        return shlex.join([*parts, *_each("--arm", arms)])

    def recall(
        self, text: str, lengths: Sequence[int], per_place: int, seed: int, arms: Iterable[str]
    ) -> str:
        """Return what asks for facts."""
        parts = ["kvcore", "eval", "recall", *self.source, "--backend", self.backend]
        parts += ["--text", text, "--lengths", ",".join(map(str, lengths))]
        parts += ["--facts", str(per_place), "--seed", str(seed)]
        return shlex.join([*parts, *_each("--arm", arms)])


def plan_commands(
    config: ModelConfig, formats: Iterable[str], contexts: Sequence[int]
) -> list[str]:
    """Return what plans a model's memory in each format and at each context."""
    shape = ["--heads", str(config.n_kv_heads), "--head-dim", str(config.head_dim)]
    shape += ["--layers", str(config.n_layers)]
    return [
        shlex.join(["kvcore", "plan", "--format", f, *shape, "--context", str(n)])
        for f in formats
        for n in contexts
    ]


def _each(option: str, values: Iterable[str]) -> list[str]:
    return [part for value in values for part in (option, value)]
