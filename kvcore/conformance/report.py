"""What a conformance run found: one outcome per case, counted by op and codec."""

from __future__ import annotations

import enum
from collections import Counter
from dataclasses import dataclass
from typing import Any


class Status(enum.Enum):
    """How a case ended."""

    PASS = "pass"
    MISMATCH = "mismatch"
    ERROR = "error"
    GAP = "declared gap"
    GAP_WORKS = "declared gap that works"
    GAP_SILENT = "declared gap that does not refuse"

    @property
    def red(self) -> bool:
        """True if it makes the report fail."""
        return self not in (Status.PASS, Status.GAP)


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """One case on one backend.

    Attributes
    ----------
    op : str
    format : str
        "" for an op that does not depend on how a store is encoded.
    codecs : tuple of str
        Codecs of K and V.
    title : str
        What the case does.
    seed : int
    status : Status
    detail : str
        The first differences, the error, or the declared reason.
    """

    op: str
    format: str
    codecs: tuple[str, ...]
    title: str
    seed: int
    status: Status
    detail: str = ""

    @property
    def reproduce(self) -> str:
        """A call that runs this case again."""
        formats = f", formats=[{self.format!r}]" if self.format else ""
        return f"kvcore.check(backend, ops=[{self.op!r}]{formats}, seed={self.seed})"

    def __str__(self) -> str:
        where = f"{self.op} {self.format}".strip()
        return (
            f"{where}: {self.title}: {self.status.value}\n    {self.detail}\n    {self.reproduce}"
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Report:
    """The outcomes of one run of :func:`kvcore.check`.

    Attributes
    ----------
    backend, device : str
    seed : int
    outcomes : tuple of Outcome
    """

    backend: str
    device: str
    seed: int
    outcomes: tuple[Outcome, ...]

    @property
    def ok(self) -> bool:
        """True if nothing is red and something was run."""
        return bool(self.outcomes) and not self.failures

    @property
    def failures(self) -> tuple[Outcome, ...]:
        """Every red outcome: mismatches, undeclared gaps, gaps that work or do not refuse."""
        return tuple(o for o in self.outcomes if o.status.red)

    @property
    def gaps(self) -> tuple[Outcome, ...]:
        """Outcomes of declared gaps that were refused as declared."""
        return tuple(o for o in self.outcomes if o.status is Status.GAP)

    def counts(self) -> dict[tuple[str, str], Counter[str]]:
        """Return how many cases ended how, by (op, codec); "-" where no codec matters.

        A case counts once for each codec it uses.
        """
        found: dict[tuple[str, str], Counter[str]] = {}
        for o in self.outcomes:
            for codec in dict.fromkeys(o.codecs) or ("-",):
                found.setdefault((o.op, codec), Counter())[o.status.value] += 1
        return found

    def as_dict(self) -> dict[str, Any]:
        """Return the report as plain values, for ``--json``."""
        return {
            "backend": self.backend,
            "device": self.device,
            "seed": self.seed,
            "ok": self.ok,
            "cases": len(self.outcomes),
            "counts": [
                {"op": op, "codec": codec, **counts}
                for (op, codec), counts in sorted(self.counts().items())
            ],
            "failures": [
                {
                    "op": o.op,
                    "format": o.format,
                    "case": o.title,
                    "status": o.status.value,
                    "detail": o.detail,
                    "reproduce": o.reproduce,
                }
                for o in self.failures
            ],
            "gaps": [
                {"op": o.op, "format": o.format, "case": o.title, "reason": o.detail}
                for o in self.gaps
            ],
        }

    def __str__(self) -> str:
        total = Counter(o.status.value for o in self.outcomes)
        lines = [
            f"{self.backend} ({self.device}): {'ok' if self.ok else 'NOT ok'}, seed {self.seed}"
        ]
        lines += [f"  {n:>5} {status}" for status, n in total.most_common()]
        for (op, codec), counts in sorted(self.counts().items()):
            good = counts[Status.PASS.value]
            other = ", ".join(f"{n} {s}" for s, n in counts.items() if s != Status.PASS.value)
            lines.append(f"  {op:<12} {codec:<8} {good:>4} pass{', ' + other if other else ''}")
        lines += [f"  - {o}" for o in self.failures]
        return "\n".join(lines)
