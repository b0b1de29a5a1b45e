"""The dump of a real KV cache: K after RoPE, V, real queries, and where all of it came from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from kvcore.errors import message
from kvcore.lab.errors import DataFileError, SettingError
from kvcore.lab.tensor_file import TensorFile, read, refuse, write
from kvcore.lab.weights import Floats

KIND, VERSION = "kvcore-dump", 1


@dataclass(frozen=True, slots=True, kw_only=True)
class DumpMeta:
    """Where a dump came from and what shape it has.

    Attributes
    ----------
    model, model_sha256, arch : str
    text, text_sha256 : str
    n_layers : int
        Of the model.
    layers : list of int
        Those in the dump.
    windows : list of int
        Sliding window of each of them in cells; 0 if it has none.
    thetas : list of float
        Rotary base of each of them.
    n_heads, n_kv_heads, head_dim : int
    scale : float
        Of the scores.
    n_cells, n_queries : int
        Cells, and the last positions whose queries are kept.
    kvcore : str
        Version that made it.
    """

    model: str
    model_sha256: str
    arch: str
    text: str
    text_sha256: str
    n_layers: int
    layers: list[int]
    windows: list[int]
    thetas: list[float]
    n_heads: int
    n_kv_heads: int
    head_dim: int
    scale: float
    n_cells: int
    n_queries: int
    kvcore: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DumpLayer:
    """One layer of a dump.

    Attributes
    ----------
    index : int
    k, v : float32[T, H, D]
        The values a float16 cache holds.
    q : float32[N, Q, D]
        Of the last N positions.
    window : int or None
        In cells.
    scale : float
    """

    index: int
    k: Floats
    v: Floats
    q: Floats
    window: int | None
    scale: float

    @property
    def label(self) -> str:
        """Return L and the number, with an s for a sliding window."""
        return f"L{self.index}{'s' if self.window else ''}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Dump:
    """A checked dump; layers are read from the file when asked for."""

    meta: DumpMeta
    file: TensorFile

    def layer(self, index: int) -> DumpLayer:
        """Return one layer.

        Raises
        ------
        SettingError
            The dump does not hold it.
        """
        if index not in self.meta.layers:
            held = ", ".join(map(str, self.meta.layers))
            what = f"a layer that {self.file.path.name} does not hold"
            raise SettingError(message("layers", what, got=index, expected=f"some of {held}"))
        place = self.meta.layers.index(index)
        k, v, q = (
            np.asarray(self.file.tensor(f"{name}_{index}"), np.float32) for name in ("k", "v", "q")
        )
        window = self.meta.windows[place] or None
        return DumpLayer(index=index, k=k, v=v, q=q, window=window, scale=self.meta.scale)


def save_dump(
    path: Path,
    meta: DumpMeta,
    ids: npt.NDArray[np.int32],
    layers: Mapping[int, tuple[Floats, Floats, Floats]],
) -> None:
    """Write a dump: layers maps an index to K, V (stored as float16) and queries."""
    n = meta.n_cells
    tensors: dict[str, npt.NDArray[Any]] = {
        "ids": ids.astype(np.int32),
        "positions": np.arange(n, dtype=np.int32),
        "query_positions": np.arange(n - meta.n_queries, n, dtype=np.int32),
    }
    for index, (k, v, q) in layers.items():
        tensors[f"k_{index}"] = k.astype(np.float16)
        tensors[f"v_{index}"] = v.astype(np.float16)
        tensors[f"q_{index}"] = q.astype(np.float32)
    write(path, tensors, {"kind": KIND, "version": VERSION, **asdict(meta)})


def read_dump(path: str | Path) -> Dump:
    """Read and check a dump, every tensor against the geometry.

    Raises
    ------
    DataFileError
        Naming the field that is missing, empty, truncated, of the wrong type or shape, or holds
        non-finite values.
    """
    file = read(path)
    for name, expected in (("kind", KIND), ("version", VERSION)):
        got = file.field(name)
        if got != expected:
            refuse(file.path, f"metadata {name}", got=got, expected=expected)
    meta = _meta(file)
    _check_meta(file.path, meta)
    _check_tensors(file, meta)
    return Dump(meta=meta, file=file)


def _meta(file: TensorFile) -> DumpMeta:
    values = {}
    types: dict[str, Any] = {"str": str, "int": int, "float": (float, int), "list": list}
    for f in fields(DumpMeta):
        value, want = file.field(f.name), str(f.type).partition("[")[0]
        if not isinstance(value, types[want]) or isinstance(value, bool):
            refuse(file.path, f"metadata {f.name}", got=repr(value), expected=f.type)
        values[f.name] = value
    return DumpMeta(**values)


def _check_meta(path: Path, m: DumpMeta) -> None:
    for name in ("n_layers", "n_heads", "n_kv_heads", "head_dim", "n_cells", "n_queries"):
        if getattr(m, name) < 1:
            refuse(path, f"metadata {name}", got=getattr(m, name), expected="1 or more")
    if m.n_heads % m.n_kv_heads:
        expected = f"a multiple of n_kv_heads={m.n_kv_heads}"
        refuse(path, "metadata n_heads", got=m.n_heads, expected=expected)
    if m.n_queries > m.n_cells:
        refuse(path, "metadata n_queries", got=m.n_queries, expected=f"<= {m.n_cells} cells")
    if not m.layers or len(set(m.layers)) != len(m.layers):
        refuse(path, "metadata layers", got=m.layers, expected="different layers, at least one")
    if min(m.layers) < 0 or max(m.layers) >= m.n_layers:
        refuse(path, "metadata layers", got=m.layers, expected=f"0 to {m.n_layers - 1}")
    for name in ("windows", "thetas"):
        if len(getattr(m, name)) != len(m.layers):
            got = f"{len(getattr(m, name))} values"
            refuse(path, f"metadata {name}", got=got, expected=f"{len(m.layers)}, one a layer")


def _check_tensors(file: TensorFile, m: DumpMeta) -> None:
    kv, q = (m.n_cells, m.n_kv_heads, m.head_dim), (m.n_queries, m.n_heads, m.head_dim)
    wanted: dict[str, tuple[str, tuple[int, ...]]] = {
        "ids": ("<i4", (m.n_cells,)),
        "positions": ("<i4", (m.n_cells,)),
        "query_positions": ("<i4", (m.n_queries,)),
    }
    for i in m.layers:
        wanted |= {f"k_{i}": ("<f2", kv), f"v_{i}": ("<f2", kv), f"q_{i}": ("<f4", q)}
    for name, (dtype, shape) in wanted.items():
        entry = file.entries.get(name)
        if entry is None:
            refuse(file.path, f"tensor {name}", got="none", expected="one")
        if entry.shape != shape:
            refuse(file.path, f"shape of {name}", got=list(entry.shape), expected=list(shape))
        if entry.dtype != dtype:
            refuse(file.path, f"dtype of {name}", got=entry.dtype, expected=dtype)
        if dtype != "<i4" and not np.isfinite(file.tensor(name)).all():
            refuse(file.path, f"values of {name}", got="NaN or Inf", expected="finite ones")
    extra = sorted(set(file.entries) - set(wanted))
    if extra:
        refuse(file.path, "tensors", got=", ".join(extra), expected="only those of its layers")
    positions = file.tensor("positions")
    if (np.diff(positions) != 1).any() or positions[0] != 0:
        refuse(file.path, "positions", got="not 0, 1, 2, ...", expected="every cell's position")
    readers = file.tensor("query_positions")
    last = np.arange(m.n_cells - m.n_queries, m.n_cells)
    if (readers != last).any():
        got = f"{int(readers[0])} to {int(readers[-1])}"
        expected = f"the last {m.n_queries}: {last[0]} to {last[-1]}"
        refuse(file.path, "query_positions", got=got, expected=expected)


__all__ = ["DataFileError", "Dump", "DumpLayer", "DumpMeta", "read_dump", "save_dump"]
