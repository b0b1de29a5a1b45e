"""Source -> program: a memo in the process and, for compilers that give binaries, a disk cache.

The cache is safe under concurrent processes (entries appear whole, by an atomic rename) and under
corruption (each entry carries the hash of its content; a bad one is deleted and built again).
"""

from __future__ import annotations

import hashlib
import os
import re
import tempfile
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from kvcore.compiler.render import Source
from kvcore.errors import BuildError

_MAGIC = b"kvcore-binary-1\n"
P = TypeVar("P")
P_co = TypeVar("P_co", covariant=True)


class Compiler(Protocol[P_co]):
    """What a device gives to a :class:`Builder`."""

    @property
    def identity(self) -> str:
        """Compiler, its version, the device and its driver: whatever changes a binary."""

    def compile(self, source: Source) -> bytes:
        """Return a binary; raises BuildError."""

    def load(self, source: Source, binary: bytes) -> P_co:
        """Return the program of a binary; raises BuildError if the driver refuses it."""


class DiskCache:
    """Binaries by key in one folder.

    Parameters
    ----------
    root : Path, optional
        Default: ``$KVCORE_CACHE``, else ``$XDG_CACHE_HOME/kvcore``, else ``~/.cache/kvcore``.
    """

    def __init__(self, root: Path | None = None) -> None:
        self.root = (root or cache_root()) / "programs"

    def path(self, key: str) -> Path:
        """Return where the entry of a key lives."""
        return self.root / key[:2] / f"{key[2:]}.bin"

    def get(self, key: str) -> bytes | None:
        """Return an intact entry; a damaged one is deleted and counts as absent."""
        path = self.path(key)
        try:
            raw = path.read_bytes()
        except OSError:
            return None
        start = len(_MAGIC) + 32
        payload = raw[start:]
        if raw[: len(_MAGIC)] == _MAGIC and raw[len(_MAGIC) : start] == _digest(payload):
            return payload
        self.drop(key)
        return None

    def put(self, key: str, payload: bytes) -> None:
        """Store an entry; a folder that cannot be written is reported once, as a warning."""
        path = self.path(key)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            handle, name = tempfile.mkstemp(dir=path.parent, suffix=".part")
        except OSError as error:
            warnings.warn(
                f"[build] the cache folder {self.root} cannot be written ({error}); every process "
                "compiles anew; set KVCORE_CACHE to a writable folder",
                RuntimeWarning,
                stacklevel=2,
            )
            return
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(_MAGIC + _digest(payload) + payload)
            Path(name).replace(path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise

    def drop(self, key: str) -> None:
        """Forget an entry."""
        self.path(key).unlink(missing_ok=True)


class Builder(Generic[P]):
    """Builds each source once per process, and once per machine where binaries exist.

    Parameters
    ----------
    compiler : Compiler
    cache : DiskCache, optional
        None: nothing is kept between processes.
    """

    def __init__(self, compiler: Compiler[P], cache: DiskCache | None) -> None:
        self._compiler = compiler
        self._cache = cache
        self._memo = Memo[P](self._build)

    def __call__(self, source: Source) -> P:
        """Return the program of a source."""
        return self._memo(source)

    def _build(self, source: Source) -> P:
        if self._cache is None:
            return self._compiler.load(source, self._compiler.compile(source))
        key = build_key(source, self._compiler.identity)
        binary = self._cache.get(key)
        if binary is not None:
            try:
                return self._compiler.load(source, binary)
            except BuildError:
                # A driver may refuse an intact binary (it was updated in place): build it again.
                self._cache.drop(key)
        binary = self._compiler.compile(source)
        program = self._compiler.load(source, binary)
        self._cache.put(key, binary)
        return program


class Memo(Generic[P]):
    """A thread-safe memo of programs by the source's key."""

    def __init__(self, make: Callable[[Source], P]) -> None:
        self._make = make
        self._known: dict[tuple[str, tuple[str, ...]], P] = {}
        self._lock = threading.Lock()

    def __call__(self, source: Source) -> P:
        """Return the program, made on the first call; a failure is not remembered."""
        key = (source.key, source.target.flags)
        program = self._known.get(key)
        if program is None:
            with self._lock:
                program = self._known.get(key)
                if program is None:
                    program = self._known[key] = self._make(source)
        return program


def cache_root() -> Path:
    """Return the folder of everything that kvcore caches for the user."""
    if chosen := os.environ.get("KVCORE_CACHE"):
        return Path(chosen)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "kvcore"


def build_key(source: Source, identity: str) -> str:
    """Return the key of a binary: text, flags, and the compiler with its device."""
    parts = (source.text, *source.target.flags, "", identity)
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def build_error(source: Source, compiler: str, log: str) -> BuildError:
    """Return the error of a failed build; diagnostics read ``file:line`` whatever the compiler."""
    log = re.sub(r"^(\S+?)\((\d+)\): ", r"\1:\2: ", log.replace("\0", ""), flags=re.MULTILINE)
    names = ", ".join(source.entries)
    return BuildError(
        f"[build] {source.label} ({names}) does not compile for {source.target.language} "
        f"with {compiler}",
        log=log.strip() or "(the compiler wrote no log)",
        source=source.text,
    )


def _digest(payload: bytes) -> bytes:
    return hashlib.sha256(payload).digest()
