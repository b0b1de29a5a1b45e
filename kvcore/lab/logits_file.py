"""Logits of a run on disk, row by row, with a header that is true at every moment.

The header is written again after each row, in place, so the row count is what was written
however the run stops. Reading refuses what does not add up, by the name of the field.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from kvcore.lab.errors import DataFileError
from kvcore.lab.tensor_file import header_bytes, read, refuse
from kvcore.lab.weights import Floats

KIND, VERSION = "kvcore-logits", 1
_HEADER_BYTES = 4096
_BYTES_A_TARGET = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class LogitsMeta:
    """What rows belong to.

    Attributes
    ----------
    model_sha256, text, text_sha256, arm, mode, kvcore : str
    n_prompt : int
        Row i is the prediction after token ``n_prompt + i`` of the text.
    n_vocab : int
    """

    model_sha256: str
    text: str
    text_sha256: str
    arm: str
    mode: str
    kvcore: str
    n_prompt: int
    n_vocab: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Logits:
    """A checked file of logits.

    Attributes
    ----------
    meta : LogitsMeta
    rows : float32[N, V]
        Mapped from the file.
    targets : int64[N]
        The text's own next token of each row.
    """

    meta: LogitsMeta
    rows: Floats
    targets: npt.NDArray[np.int64]


class LogitsWriter:
    """Writes rows as they come. Use as a context manager, or call :meth:`close`.

    Parameters
    ----------
    path : Path
        Overwritten.
    meta : LogitsMeta
    max_rows : int
        Rows at most; the header's place is made for them.
    """

    def __init__(self, path: Path, meta: LogitsMeta, max_rows: int) -> None:
        if meta.n_vocab < 1:
            refuse(path, "n_vocab", got=meta.n_vocab, expected="1 or more")
        self.path, self.meta = path, meta
        self._targets: list[int] = []
        self._size = _HEADER_BYTES + _BYTES_A_TARGET * max_rows
        self._file: BinaryIO = path.open("wb")
        self._write_header()

    def _write_header(self) -> None:
        n = len(self._targets)
        metadata = {"kind": KIND, "version": VERSION, **asdict(self.meta)}
        metadata |= {"n_rows": n, "targets": self._targets}
        table = {"logits": ("F32", (n, self.meta.n_vocab))}
        header = header_bytes(table, metadata, self._size)
        if len(header) != self._size:
            refuse(self.path, "rows", got=n + 1, expected="at most the max_rows of its writer")
        self._file.seek(0)
        self._file.write(header)
        self._file.flush()

    def write(self, row: npt.ArrayLike, target: int) -> None:
        """Add one row [V] and the token that follows it.

        Raises
        ------
        DataFileError
            The row has another size; nothing is written.
        """
        values = np.asarray(row, "<f4")
        if values.shape != (self.meta.n_vocab,):
            expected = f"[{self.meta.n_vocab}]"
            refuse(self.path, "row shape", got=list(values.shape), expected=expected)
        self._file.seek(self._size + len(self._targets) * values.nbytes)
        self._file.write(values.tobytes())
        self._targets.append(int(target))
        self._write_header()

    def close(self) -> None:
        """Close the file; its header already says what it holds."""
        self._file.close()

    def __enter__(self) -> LogitsWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def read_logits(path: str | Path) -> Logits:
    """Read and check a file of logits.

    Raises
    ------
    DataFileError
        Naming the field: a zero vocabulary, no rows, a truncated body, a missing row, a row count
        or target that does not fit, non-finite logits, or one value for every token.
    """
    file = Path(path).expanduser()
    _check_counts(file)
    found = read(file)
    for name, expected in (("kind", KIND), ("version", VERSION)):
        if found.field(name) != expected:
            refuse(file, f"metadata {name}", got=found.field(name), expected=expected)
    values: dict[str, Any] = {f.name: found.field(f.name) for f in fields(LogitsMeta)}
    meta = LogitsMeta(**values)
    n, targets = found.field("n_rows"), np.asarray(found.field("targets"), np.int64)
    rows = found.tensor("logits")
    if rows.shape != (n, meta.n_vocab) or rows.dtype != np.float32:
        got = f"{rows.dtype}{list(rows.shape)}"
        refuse(file, "logits", got=got, expected=f"float32[{n}, {meta.n_vocab}]")
    if targets.shape != (n,):
        refuse(file, "targets", got=f"{targets.size} targets", expected=f"{n}, one a row")
    if targets.min() < 0 or targets.max() >= meta.n_vocab:
        refuse(file, "targets", got=int(targets.max()), expected=f"0 to {meta.n_vocab - 1}")
    bad = ~np.isfinite(rows).all(axis=1)
    if bad.any():
        refuse(file, f"row {int(bad.argmax())}", got="NaN or Inf", expected="finite logits")
    empty = rows.max(axis=1) == rows.min(axis=1)
    if empty.any() and meta.n_vocab > 1:
        what = f"row {int(empty.argmax())}"
        refuse(file, what, got="one value for every token", expected="logits")
    return Logits(meta=meta, rows=rows, targets=targets)


def _check_counts(file: Path) -> None:
    """Name a zero vocabulary or a missing row before the general checks call it a shape."""
    try:
        with file.open("rb") as f:
            size = int.from_bytes(f.read(8), "little")
            header = json.loads(f.read(min(size, 1 << 26)))
        rows, vocab = header["logits"]["shape"]
        metadata = header["__metadata__"]
        n, v = (int(metadata[name]) for name in ("n_rows", "n_vocab"))
    except (OSError, ValueError, KeyError, TypeError):
        return  # not of this kind, or damaged: the general checks say where
    if not v or not vocab:
        refuse(file, "n_vocab", got=0, expected="1 or more")
    if not n or not rows:
        refuse(file, "n_rows", got=0, expected="1 or more")
    body = file.stat().st_size - 8 - size
    if n != rows or (body % (4 * v) == 0 and body // (4 * v) != n):
        held = min(int(rows), body // (4 * v))
        refuse(file, "n_rows", got=f"{n}, but {held} are there", expected="every row")


__all__ = ["DataFileError", "Logits", "LogitsMeta", "LogitsWriter", "read_logits"]
