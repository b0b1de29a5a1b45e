"""Results on disk, one line each, so that a long measurement continues where it stopped."""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Callable, Mapping
from functools import cache
from importlib import metadata, resources
from pathlib import Path
from typing import Any

import numpy as np

import kvcore
from kvcore.lab.errors import DataFileError


class Journal:
    """What has been measured: a key of plain data to a value of plain data.

    Parameters
    ----------
    path : Path or None
        A file of JSON lines; None keeps results in memory only.

    Attributes
    ----------
    sources : set of str
        :func:`source_digest` of the kvcore that measured each result that was asked for.

    Raises
    ------
    DataFileError
        A line is no result. A last line without its end was cut by a stop, and is measured anew.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._known: dict[str, Any] = {}
        self._source: dict[str, str] = {}
        self.sources: set[str] = set()
        if path is None:
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists():
            self._read(path)

    def _read(self, path: Path) -> None:
        whole, _, cut = path.read_bytes().rpartition(b"\n")
        for i, line in enumerate(filter(None, whole.split(b"\n"))):
            try:
                found = json.loads(line)
                self._known[_name(found["key"])] = found["value"]
                self._source[_name(found["key"])] = found.get("source", "unrecorded")
            except (ValueError, KeyError, TypeError) as error:
                raise DataFileError(
                    f"[journal] line {i + 1} of {path.name} is no result: got "
                    f"{line[:60]!r}, expected a key and a value; delete the file"
                ) from error
        if cut:
            path.write_bytes(whole + b"\n" if whole else b"")

    def get(self, key: Mapping[str, Any], measure: Callable[[], Any]) -> Any:
        """Return the value of a key; measure and keep it if it is not known.

        Parameters
        ----------
        key : mapping
            Everything that the value depends on, as plain data.
        measure : callable () -> plain data
        """
        name = _name(key)
        if name not in self._known:
            value = measure()
            self._source[name] = source_digest()
            if self._path is not None:
                record = {"key": dict(key), "value": value, "source": source_digest()}
                line = json.dumps(record, ensure_ascii=False)
                with self._path.open("a", encoding="utf-8") as f:
                    f.write(line + "\n")
            self._known[name] = json.loads(json.dumps(value))
        self.sources.add(self._source[name])
        return self._known[name]

    def __contains__(self, key: Mapping[str, Any]) -> bool:
        return _name(key) in self._known

    def __len__(self) -> int:
        return len(self._known)


def _name(key: Mapping[str, Any]) -> str:
    return json.dumps(dict(key), sort_keys=True, ensure_ascii=False)


@cache
def source_digest() -> str:
    """Return a hash of kvcore's own source files, to tell builds of one version apart."""
    digest = hashlib.sha256()
    for package in ("kvcore", "kvcore.backends"):
        root = resources.files(package)
        if isinstance(root, Path):
            files = [p for s in ("*.py", "*.c", "*.h") for p in root.rglob(s)]
            for path in sorted(files):
                digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


def versions() -> dict[str, str]:
    """Return the versions that numbers depend on."""
    found = {
        "kvcore": kvcore.__version__,
        "source": source_digest(),
        "python": platform.python_version(),
        "numpy": np.__version__,
    }
    for name in ("numba", "tokenizers", "gguf"):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = "none"
    return found
