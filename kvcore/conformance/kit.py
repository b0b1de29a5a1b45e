"""Run every case of every op and codec on a backend and report."""

from __future__ import annotations

import contextlib
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np

from kvcore.backend import Backend
from kvcore.codecs import get as get_codec
from kvcore.conformance.append_cases import append_cases
from kvcore.conformance.attention_cases import attention_cases
from kvcore.conformance.case import Case
from kvcore.conformance.plain_cases import plain_cases
from kvcore.conformance.read_cases import read_cases
from kvcore.conformance.refusal_cases import refusal_cases
from kvcore.conformance.report import Outcome, Report, Status
from kvcore.conformance.twin import Bench
from kvcore.dispatch import get_backend
from kvcore.errors import FormatError, KvcoreError, UnsupportedError, message
from kvcore.formats import get as get_format
from kvcore.formats import names as format_names
from kvcore.ops import declared
from kvcore.reference import Reference
from kvcore.registry import gaps_of, link
from kvcore.spec import Format

Progress = Callable[[int, int, str], None]

SHOWN = 4
"""Differences kept of one case."""

PAIRS = (("f32", "q2c"), ("q8_0", "q1t"), ("q1c", "q2t"), ("q2t", "q1c"), ("bf16", "q4_64"))
"""Codecs of K and V that no format of ours pairs: any K goes with any V."""


COVERED = frozenset(
    {"rotate", "append", "gather", "attention", "restore"}
    | {"ring_table", "move", "resolve", "select"}
)
"""Ops that the cases of this package try."""

MoreCases = Callable[[Sequence[Format]], Iterable[Case]]

_added: dict[str, MoreCases] = {}


def add_cases(op: str, cases: MoreCases) -> None:
    """Give the kit cases for an op that was added at run time.

    Parameters
    ----------
    op : str
    cases : callable
        Takes the formats of a run, returns cases of that op.
    """
    _added[op] = cases


def remove_cases(op: str) -> None:
    """Forget the cases that :func:`add_cases` added."""
    _added.pop(op, None)


def all_cases(names: Iterable[str | Format], pairs: bool) -> Iterator[Case]:
    """Yield every case for the given formats.

    Parameters
    ----------
    names : iterable of str or Format
    pairs : bool
        Also a few codec pairs that no format has.
    """
    yield from plain_cases()
    chosen = [n if isinstance(n, Format) else get_format(n) for n in names]
    if pairs:
        chosen += [Format(k=get_codec(k), v=get_codec(v), rotate="none") for k, v in PAIRS]
    for fmt in chosen:
        for cases in (append_cases, read_cases, attention_cases, refusal_cases):
            yield from cases(fmt)
    for added in _added.values():
        yield from added(chosen)


def check(
    backend: Backend | str,
    ops: Iterable[str] | None = None,
    formats: Iterable[str | Format] | None = None,
    progress: Progress | None = None,
    seed: int = 0,
    quick: bool = False,
) -> Report:
    """Compare a backend with the reference: every op, every codec, on this machine.

    Parameters
    ----------
    backend : Backend or str
        In the tree or out of it; a name is opened first.
    ops : iterable of str, optional
        Only these ops.
    formats : iterable of str or Format, optional
        Only these formats; otherwise every known one, those registered at run time included, and
        some codec pairs that no format has.
    progress : callable, optional
        Called before each case with (cases done, cases in all, what comes next).
    seed : int
        Of all random values. The same seed draws the same values on every machine.
    quick : bool
        A subset that still touches every op and codec.

    Returns
    -------
    Report
        ``report.ok`` is True if every stored byte, mark, gathered and rotated bit equals the
        reference's, attention lies within its derived bound, every undeclared case works and
        every declared gap refuses.

    Raises
    ------
    BackendUnavailable
        If a named backend cannot run here.
    LinkError
        If the backend's table differs from the declared ops.
    FormatError
        If an op or a format is unknown.
    """
    if isinstance(backend, str):
        backend = get_backend(backend)
    link(type(backend))
    wanted = None if ops is None else set(ops)
    if wanted is not None and wanted - declared().keys():
        raise FormatError(
            message("check", "unknown op", got=sorted(wanted), expected=", ".join(declared()))
        )
    names = list(format_names()) if formats is None else list(formats)
    cases = [
        case
        for case in all_cases(names, pairs=formats is None and not quick)
        if (wanted is None or case.op in wanted) and (case.quick or not quick)
    ]
    outcomes = [
        _untried(op, seed)
        for op in sorted(declared().keys() - COVERED - _added.keys())
        if wanted is None or op in wanted
    ]
    for done, case in enumerate(cases):
        if progress is not None:
            name = case.format.name if case.format else ""
            progress(done, len(cases), f"{case.op} {name}".strip())
        outcomes.append(run_case(backend, case, seed))
    if progress is not None:
        progress(len(cases), len(cases), "done")
    return Report(backend=backend.name, device=backend.device, seed=seed, outcomes=tuple(outcomes))


def _settle(backend: Backend) -> None:
    """Let what a failed case left behind surface now: it is that case's, not the next one's."""
    with contextlib.suppress(KvcoreError):
        backend.synchronize()


def _untried(op: str, seed: int) -> Outcome:
    """Return the red outcome of a declared op that nothing tries: never silence."""
    return Outcome(
        op=op,
        format="",
        codecs=(),
        title="no case tries this op",
        seed=seed,
        status=Status.ERROR,
        detail="give it cases with kvcore.conformance.add_cases",
    )


def run_case(backend: Backend, case: Case, seed: int = 0) -> Outcome:
    """Run one case and say how it ended; never raises what the backend raises."""
    name = case.format.name if case.format else ""
    key = zlib.crc32(f"{case.op}/{name}/{case.title}".encode())
    bench = Bench(be=backend, ref=Reference(), rng=np.random.default_rng([seed, key]))
    reasons = [
        reason
        for (op, codec), reason in gaps_of(type(backend)).items()
        if op == case.op and codec in (*case.codecs, "*")
    ]
    status, detail = Status.PASS, ""
    try:
        found = list(case.run(bench))
        backend.synchronize()
        if found:
            status = Status.MISMATCH
            detail = "\n    ".join(found[:SHOWN])
    except UnsupportedError as error:
        status, detail = Status.ERROR, f"undeclared gap: {error}"
        if reasons:
            status, detail = Status.GAP, "; ".join(reasons)
    except Exception as error:  # what a foreign backend raises is the finding, whatever it is
        status, detail = Status.ERROR, f"{type(error).__name__}: {error}"
    if status is Status.ERROR:
        _settle(backend)
    if reasons and status in (Status.PASS, Status.MISMATCH):
        status = Status.GAP_WORKS if status is Status.PASS else Status.GAP_SILENT
        status = Status.GAP if case.refusal else status
        detail = "; ".join(reasons)
    return Outcome(
        op=case.op,
        format=name,
        codecs=case.codecs,
        title=case.title,
        seed=seed,
        status=status,
        detail=detail,
    )
