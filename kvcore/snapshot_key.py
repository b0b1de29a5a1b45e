"""The key of a snapshot: everything of a spec that changes bytes, as text, and back."""

from __future__ import annotations

import enum
import json
from dataclasses import fields, is_dataclass
from typing import Any

from kvcore.cache_spec import CacheSpec
from kvcore.codecs import all_codecs
from kvcore.container import strict_json
from kvcore.errors import FormatError, message
from kvcore.formats import get, names
from kvcore.numerics import Array
from kvcore.spec import ROTATE, Codec, Format

LAYOUT_VERSION = 1
"""Raised when a plane, a packing or a mark changes its meaning."""

LIMITS = {
    "n_kv_heads": 1 << 16,
    "head_dim": 1 << 16,
    "head_dim_v": 1 << 16,
    "page_size": 1 << 20,
    "window": (1 << 31) - 1,
    "sinks": (1 << 31) - 1,
    "center_cells": (1 << 31) - 1,
}


def key_of(spec: CacheSpec) -> dict[str, Any]:
    """Return the key of a spec: plain JSON values by field."""
    return {
        "layout_version": LAYOUT_VERSION,
        "byte_order": "little",
        "format": spec.format.name,
        "k_codec": _plain(spec.format.k),
        "v_codec": _plain(spec.format.v),
        "rotate": spec.format.rotate,
        "k_gain": spec.k_gain,
        "rule": spec.rule,
        "grouping": spec.grouping,
        "k_center": spec.center_key,
        **{name: getattr(spec, name) for name in LIMITS},
    }


def _plain(value: Any) -> Any:
    if is_dataclass(value):
        return {f.name: _plain(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, enum.Enum):
        return value.name
    return list(value) if isinstance(value, tuple) else value


def to_text(key: dict[str, Any]) -> str:
    """Return a key as one line of JSON."""
    return json.dumps(key, separators=(",", ":"), sort_keys=True)


def parse(text: str) -> dict[str, Any]:
    """Return a key from its text, with its names and counts checked.

    Raises
    ------
    FormatError
        Naming the field.
    """
    key = strict_json(text, "key")
    if not isinstance(key, dict):
        raise FormatError("[snapshot] key: not a JSON object")
    version = key.get("layout_version")
    if type(version) is not int or version != LAYOUT_VERSION:
        raise FormatError(
            message(
                "snapshot",
                "layout_version",
                got=version,
                expected=LAYOUT_VERSION,
                fix="save it again with this version of the library",
            )
        )
    if key.get("byte_order") != "little":
        raise FormatError(
            message("snapshot", "byte_order", got=key.get("byte_order"), expected="little")
        )
    if not isinstance(key.get("format"), str):
        raise FormatError(message("snapshot", "format", got=key.get("format"), expected="a name"))
    for name, top in LIMITS.items():
        value = key.get(name)
        if type(value) is not int or not 0 <= value <= top:
            raise FormatError(message("snapshot", name, got=value, expected=f"0 to {top}"))
    return key


def compare(saved: dict[str, Any], spec: CacheSpec) -> None:
    """Raise FormatError naming the fields in which a saved key differs from a spec's.

    The format's name is not one of them: formats of equal codecs and rotation are the same.
    """
    wanted = key_of(spec)
    skip = {"format"}
    differ = [n for n in sorted({*saved, *wanted} - skip) if saved.get(n) != wanted.get(n)]
    if differ:
        got = ", ".join(f"{n}={_short(saved.get(n))}" for n in differ)
        expected = ", ".join(f"{n}={_short(wanted.get(n))}" for n in differ)
        raise FormatError(
            message(
                "snapshot",
                f"{', '.join(differ)} of the snapshot and of the cache differ",
                got=got,
                expected=expected,
                fix="load it with backend.load, or into a cache of the same spec",
            )
        )


def _short(value: Any) -> Any:
    if isinstance(value, dict):
        return value.get("name")
    return value


def spec_of(key: dict[str, Any], k_center: Array | None) -> CacheSpec:
    """Return the spec a key describes; codecs must be known here under the saved name.

    Parameters
    ----------
    key : dict
        From :func:`parse`.
    k_center : f32[H, Dk] or None
        The calibrated centre the file carries.

    Raises
    ------
    FormatError
        Naming the field.
    """
    mode = key.get("k_center")
    calibrated = isinstance(mode, str) and mode.startswith("calibrated:")
    if calibrated != (k_center is not None):
        raise FormatError("[snapshot] k_center: the vector and the key disagree")
    spec = CacheSpec(
        format=_format(key),
        recipe=None,
        k_center=k_center if calibrated else mode,
        k_gain=key.get("k_gain"),
        rule=key.get("rule"),  # type: ignore[arg-type]
        grouping=key.get("grouping"),
        **{n: key[n] for n in LIMITS if n != "center_cells" or mode == "auto"},
    )
    compare(key, spec)
    return spec


def _format(key: dict[str, Any]) -> Format:
    name, rotate = key["format"], key.get("rotate")
    if rotate not in ROTATE:
        raise FormatError(message("snapshot", "rotate", got=repr(rotate), expected=ROTATE))
    k, v = _codec(key, "k_codec"), _codec(key, "v_codec")
    fmt = Format(k=k, v=v, rotate=rotate, name=name)
    if name in names():
        known = get(name)
        if (known.k, known.v, known.rotate) == (k, v, rotate):
            fmt = known
    try:
        fmt.check_dims(key["head_dim"], key["head_dim_v"])
    except FormatError as error:
        raise FormatError(f"[snapshot] head_dim or head_dim_v: {error}") from error
    return fmt


def _codec(key: dict[str, Any], field: str) -> Codec:
    saved = key.get(field)
    name = saved.get("name") if isinstance(saved, dict) else None
    known = [*all_codecs().values(), *(c for n in names() for c in (get(n).k, get(n).v))]
    for codec in known:
        if codec.name == name and _plain(codec) == saved:
            return codec
    raise FormatError(
        message(
            "snapshot",
            field,
            got=f"{name!r}, unknown here or with other rules",
            expected=f"one of {', '.join(sorted({c.name for c in known}))}",
            fix="register the format first",
        )
    )
