"""A GGUF file as typed metadata and float32 tensors.

Block formats are dequantized by the `gguf` package; the head of the file is read by
`gguf_header`. The file stays memory-mapped: a tensor costs memory when it is read.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from gguf.constants import GGMLQuantizationType
from gguf.quants import dequantize

from kvcore.errors import UnsupportedError, message
from kvcore.lab.errors import ModelFileError
from kvcore.lab.gguf_header import TensorInfo, read_header

_PLAIN: dict[GGMLQuantizationType, str] = {
    GGMLQuantizationType.F32: "<f4",
    GGMLQuantizationType.F16: "<f2",
}


class GgufFile:
    """An open GGUF file.

    Parameters
    ----------
    path : str or Path
        The file.

    Attributes
    ----------
    path : Path
    metadata : dict
        Values by key: str, int, float, bool, list of str or a NumPy array.
    tensors : dict
        `TensorInfo` by name.

    Raises
    ------
    ModelFileError
        No such file, not a GGUF file, or a truncated one.
    UnsupportedError
        A GGUF version or byte order that is not read here.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path).expanduser()
        if not self.path.is_file() or self.path.stat().st_size == 0:
            fix = "check the path"
            expected = "a readable, non-empty GGUF file"
            raise ModelFileError(
                message("gguf", "nothing to read", got=self.path, expected=expected, fix=fix)
            )
        self._data: npt.NDArray[np.uint8] = np.memmap(self.path, dtype=np.uint8, mode="r")
        header = read_header(self.path, self._data)
        self.metadata = header.metadata
        self.tensors = header.tensors

    def get(self, key: str, default: Any = None) -> Any:
        """Return a metadata value, or `default` where the file has none."""
        return self.metadata.get(key, default)

    def require(self, key: str, kind: type) -> Any:
        """Return a metadata value of a given kind (`int` is accepted where `float` is asked).

        Raises
        ------
        ModelFileError
            The value is missing or of another kind.
        """
        value = self.metadata.get(key)
        if kind is float and type(value) is int:
            value = float(value)
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            got = "nothing" if value is None else f"a {type(value).__name__}"
            what = f"metadata {key} of {self.path.name}"
            fix = "convert the file again with a current converter"
            raise ModelFileError(
                message("gguf", what, got=got, expected=f"a {kind.__name__}", fix=fix)
            )
        return value

    def tensor(self, name: str, shape: tuple[int, ...]) -> npt.NDArray[np.float32]:
        """Return a tensor as float32.

        Parameters
        ----------
        name : str
            Name in the file, such as ``blk.0.attn_q.weight``.
        shape : tuple of int
            The shape it must have, rows first.

        Returns
        -------
        float32[shape]
            A copy; the caller may change it.

        Raises
        ------
        ModelFileError
            The file has no such tensor, or it has another shape.
        UnsupportedError
            The `gguf` package cannot dequantize its block type.
        """
        info = self.tensors.get(name)
        if info is None or info.shape != shape:
            got = "no such tensor" if info is None else f"shape {info.shape}"
            what = f"tensor {name} of {self.path.name}"
            raise ModelFileError(
                message("gguf", what, got=got, expected=f"shape {shape}", fix="use another file")
            )
        return self._read(info)

    def _read(self, info: TensorInfo) -> npt.NDArray[np.float32]:
        raw = self._data[info.start : info.start + info.n_bytes]
        if info.block in _PLAIN:
            values = np.frombuffer(raw, dtype=_PLAIN[info.block])
            return values.reshape(info.shape).astype(np.float32)
        rows = raw.reshape(*info.shape[:-1], -1)
        try:
            values = dequantize(rows, info.block)
        except NotImplementedError as error:
            got = f"{info.block.name} in {info.name}"
            what, fix = "a block type that is not read", "use a file with another quantization"
            raise UnsupportedError(
                message("gguf", what, got=got, expected="one the gguf package decodes", fix=fix)
            ) from error
        return np.asarray(values, dtype=np.float32).reshape(info.shape)
