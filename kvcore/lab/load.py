"""From a name or a path to a model that is ready to run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvcore.lab.config import read_config
from kvcore.lab.engine import Model
from kvcore.lab.fetch import Progress, fetch
from kvcore.lab.gguf_file import GgufFile
from kvcore.lab.tokenizer import Tokenizer
from kvcore.lab.weights import read_weights


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedModel:
    """A model in memory.

    Attributes
    ----------
    path : Path
        The file it was read from.
    model : Model
        Configuration and weights.
    tokenizer : Tokenizer
    metadata : mapping
        Of the file; the chat template is in it.
    """

    path: Path
    model: Model
    tokenizer: Tokenizer
    metadata: Mapping[str, Any]


def load(
    name: str = "smollm2",
    *,
    gguf: str | Path | None = None,
    progress: Progress | None = None,
    notice: Callable[[str], None] | None = None,
) -> LoadedModel:
    """Load a model by name, or from a GGUF file.

    Parameters
    ----------
    name : str
        A key of `models.MODELS`; fetched on first use.
    gguf : path, optional
        Read this file instead.
    progress : callable (what, done, total), optional
        Told about bytes downloaded and layers read.
    notice : callable (text), optional
        Given the licence before a download.

    Raises
    ------
    UnknownModelError, FetchError, ModelFileError, UnsupportedError
        See `fetch.fetch`, `gguf_file.GgufFile`, `config.read_config` and `weights.read_weights`.
    """
    path = fetch(name, progress=progress, notice=notice) if gguf is None else Path(gguf)
    file = GgufFile(path)
    config = read_config(file)
    tokenizer = Tokenizer(file.metadata)

    def layers(done: int, total: int) -> None:
        if progress is not None:
            progress(f"reading {config.name}", done, total)

    return LoadedModel(
        path=file.path,
        model=Model(config=config, weights=read_weights(file, config, layers)),
        tokenizer=tokenizer,
        metadata=file.metadata,
    )
