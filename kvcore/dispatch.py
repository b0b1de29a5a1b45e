"""Choose a backend, say why, and refuse rather than fall back in silence."""

from __future__ import annotations

import importlib
import os
import threading
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import metadata

from kvcore.backend import Availability, Backend
from kvcore.cache_spec import CacheSpec
from kvcore.errors import BackendUnavailable
from kvcore.formats import get as get_format
from kvcore.formats import names as format_names
from kvcore.ops import declared
from kvcore.registry import gaps_of, link

ENTRY_POINTS = "kvcore.backends"

IN_TREE = {
    "cuda": "kvcore.backends.cuda",
    "metal": "kvcore.backends.metal",
    "sycl": "kvcore.backends.sycl",
    "opencl": "kvcore.backends.sycl.opencl",
    "cpu": "kvcore.backends.cpu",
    "reference": "kvcore.reference",
}
"""Modules of the backends in order of preference; each has one ``BACKEND``."""

NEVER_CHOSEN = ("reference",)

PLANNED: dict[str, str] = {}
"""Backends declared but not yet written: name -> reason."""

_lock = threading.Lock()
_classes: dict[str, type[Backend]] = {}
_open: dict[str, Backend] = {}
_probed: dict[str, Availability] = {}
_fallbacks: Counter[str] = Counter()


@dataclass(frozen=True, kw_only=True, slots=True)
class BackendInfo:
    """One row of :func:`backends`.

    Attributes
    ----------
    name : str
    available : bool
    device, kind, version, reason : str
        See :class:`kvcore.backend.Availability`.
    source : str
        "kvcore" or the distribution that registered it.
    """

    name: str
    available: bool
    device: str
    kind: str
    version: str
    reason: str
    source: str


def _entry_points() -> dict[str, metadata.EntryPoint]:
    return {e.name: e for e in metadata.entry_points(group=ENTRY_POINTS) if e.name not in IN_TREE}


def names() -> list[str]:
    """Return every known backend's name in order of preference, out-of-tree ones last."""
    return [*IN_TREE, *_entry_points()]


def backend_class(name: str) -> type[Backend]:
    """Import a backend and check its table; no driver is touched.

    Raises
    ------
    BackendUnavailable
        If there is none of that name, or it is only planned.
    LinkError
        If its table differs from the declared ops.
    """
    if name in _classes:
        return _classes[name]
    if name in PLANNED:
        raise BackendUnavailable(f"[backend] {name} is planned, not written: {PLANNED[name]}")
    if name in IN_TREE:
        found: type[Backend] = importlib.import_module(IN_TREE[name]).BACKEND
    else:
        entry = _entry_points().get(name)
        if entry is None:
            raise BackendUnavailable(
                f"[backend] unknown backend: got {name!r}, expected one of {', '.join(names())}"
            )
        loaded = entry.load()
        found = loaded if isinstance(loaded, type) else loaded.BACKEND
    _classes[name] = link(found)
    return found


def probe(name: str) -> Availability:
    """Return whether a backend can run here; the answer is kept for the process."""
    if name not in _probed:
        try:
            _probed[name] = backend_class(name).probe()
        except BackendUnavailable as error:
            return Availability(available=False, reason=str(error))
    return _probed[name]


def backends() -> list[BackendInfo]:
    """Return every known backend, available or not, with its device or the reason.

    Raises
    ------
    LinkError
        If a backend's table differs from the declared ops: that is a bug, not an absence.
    """
    rows = []
    outside = _entry_points()
    for name in names():
        a = probe(name)
        dist = outside[name].dist if name in outside else None
        rows.append(
            BackendInfo(
                name=name,
                available=a.available,
                device=a.device,
                kind=a.kind,
                version=a.version,
                reason=a.reason,
                source="kvcore" if name in IN_TREE else (dist.name if dist else "entry point"),
            )
        )
    return rows


def get_backend(name: str | None = None, fallback: str | None = None) -> Backend:
    """Return a backend, the best available one unless named.

    Parameters
    ----------
    name : str, optional
        Forces one; so does the environment variable KVCORE_BACKEND. Otherwise the first
        available of cuda, metal, sycl and opencl on a GPU, then cpu, then out-of-tree ones.
    fallback : str, optional
        Backend to use if the named one is not available. Counted; see :func:`fallback_counts`.

    Raises
    ------
    BackendUnavailable
        With the reason of every candidate that failed.
    """
    wanted = name or os.environ.get("KVCORE_BACKEND") or None
    if wanted is None:
        return _open_one(_best())
    a = probe(wanted)
    if a.available:
        return _open_one(wanted)
    if fallback is None:
        raise BackendUnavailable(f"[backend] {wanted} is not available: {a.reason}")
    with _lock:
        _fallbacks[f"{wanted} -> {fallback}"] += 1
    return get_backend(fallback)


def _best() -> str:
    reasons = []
    order = [n for n in names() if n not in NEVER_CHOSEN]
    first = [n for n in order if n in IN_TREE and n != "cpu"]
    rest = ["cpu", *(n for n in order if n not in IN_TREE)]
    for candidate in first:
        a = probe(candidate)
        if a.available and a.kind == "gpu":
            return candidate
        reasons.append(f"{candidate}: {a.reason or f'{a.device} is no GPU'}")
    for candidate in [*rest, *first]:
        a = probe(candidate)
        if a.available:
            return candidate
        reasons.append(f"{candidate}: {a.reason}")
    lines = "\n".join(f"  - {r}" for r in dict.fromkeys(reasons))
    raise BackendUnavailable(f"[backend] no backend is available here:\n{lines}")


def _open_one(name: str) -> Backend:
    with _lock:
        if name not in _open:
            _open[name] = backend_class(name)()
        return _open[name]


def fallback_counts() -> dict[str, int]:
    """Return how often a fallback that the caller asked for was taken, by "from -> to"."""
    return dict(_fallbacks)


def forget() -> None:
    """Drop what is known of backends, for tests and after installing a driver."""
    with _lock:
        for memo in (_classes, _open, _probed):
            memo.clear()
        _fallbacks.clear()


@dataclass(frozen=True, kw_only=True, slots=True)
class Choice:
    """What would run for one op on one backend.

    Attributes
    ----------
    op, backend, kernel : str
        `kernel` is "" if the op is refused.
    reason : str
        Why this kernel, or why not.
    """

    op: str
    backend: str
    kernel: str
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Explanation:
    """Which kernels would run for a spec, and why others would not.

    Attributes
    ----------
    spec : CacheSpec
    backend : str
        The backend that would be used; "" if none can.
    choices : tuple of Choice
        One per op on that backend.
    refusals : tuple of str
        A line per reason on every other backend.
    fallbacks : dict of str to int
    """

    spec: CacheSpec
    backend: str
    choices: tuple[Choice, ...]
    refusals: tuple[str, ...]
    fallbacks: dict[str, int]

    def __str__(self) -> str:
        lines = [f"{self.spec.format.name} on {self.backend or 'no backend'}"]
        lines += [f"  {c.op:<12} {c.kernel or 'refused':<32} {c.reason}" for c in self.choices]
        lines += [f"  not {r}" for r in self.refusals]
        lines += [f"  fallback {k}: {n} times" for k, n in self.fallbacks.items()]
        return "\n".join(lines)


def explain(spec: CacheSpec, backend: str | None = None) -> Explanation:
    """Return which kernel would run for each op of a spec and why; reasons for each refusal.

    Parameters
    ----------
    spec : CacheSpec
    backend : str, optional
        Look at this backend instead of the one that :func:`get_backend` would choose.
    """
    refusals: list[str] = []
    chosen = ""
    if backend is not None:
        a = probe(backend)
        chosen = backend if a.available else ""
        refusals += [] if a.available else [f"{backend}: {a.reason}"]
    else:
        try:
            chosen = os.environ.get("KVCORE_BACKEND") or _best()
        except BackendUnavailable as error:
            refusals.append(str(error))
        for name in names():
            a = probe(name)
            if name != chosen:
                refusals.append(f"{name}: {_why_not(name, a, chosen)}")
    choices = tuple(_choices(chosen, spec)) if chosen else ()
    return Explanation(
        spec=spec,
        backend=chosen,
        choices=choices,
        refusals=tuple(refusals),
        fallbacks=fallback_counts(),
    )


def _why_not(name: str, a: Availability, chosen: str) -> str:
    if not a.available:
        return a.reason
    if name in NEVER_CHOSEN:
        return "the oracle, used only when asked for by name"
    return f"available ({a.device}), but {chosen} is preferred"


def _choices(name: str, spec: CacheSpec) -> Iterable[Choice]:
    be = get_backend(name)
    gaps = gaps_of(type(be))
    used = ("*", spec.format.k.name, spec.format.v.name)
    for op in declared():
        reasons = [gaps[op, c] for c in used if (op, c) in gaps]
        yield Choice(
            op=op,
            backend=name,
            kernel="" if reasons else be.kernel_name(op, spec),
            reason="; ".join(reasons) or be.device,
        )


def nearest(spec: CacheSpec) -> str:
    """Return a sentence naming backends that serve `spec`, else formats of about its size."""
    able = [n for n in names() if probe(n).available and not gaps_hit(n, spec)]
    if able:
        return f"nearest: the same format on {', '.join(able)}"
    size = spec.bytes_per_cell
    options = sorted(
        format_names(),
        key=lambda n: abs(
            get_format(n).bytes_per_cell(spec.n_kv_heads, spec.head_dim, spec.head_dim_v) - size
        ),
    )
    return f"nearest formats by size: {', '.join(options[:3])}"


def gaps_hit(name: str, spec: CacheSpec) -> bool:
    """Return True if a declared gap of a backend concerns `spec`."""
    used = {"*", spec.format.k.name, spec.format.v.name}
    return any(codec in used for _, codec in gaps_of(backend_class(name)))


def fall_back(name: str, fallback: str, spec: CacheSpec) -> Backend:
    """Return the backend `fallback` for a spec that `name` declares a gap for; counted."""
    with _lock:
        _fallbacks[f"{name} -> {fallback} ({spec.format.name})"] += 1
    return get_backend(fallback)
