"""How many layers, KV heads and values a head a model has, read from its files.

Reads the header of a GGUF file, or the ``config.json`` that transformers keeps beside weights.
Refuses models whose layers differ in heads: one spec could not describe them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from kvcore.errors import FormatError, UnsupportedError, message


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelGeometry:
    """What a memory plan needs to know of a model.

    Attributes
    ----------
    name : str
    layers : int
        Layers that keep a KV cache.
    n_kv_heads : int
    head_dim, head_dim_v : int
        Head sizes of K and V.
    context : int
        Longest context the model was made for; 0 if the file does not say.
    """

    name: str
    layers: int
    n_kv_heads: int
    head_dim: int
    head_dim_v: int
    context: int = 0


def read_geometry(path: str | Path) -> ModelGeometry:
    """Read a model's geometry.

    Parameters
    ----------
    path : str or Path
        A ``.gguf`` file, a transformers ``config.json``, or a folder that holds one.

    Raises
    ------
    FormatError
        If the file cannot be read or lacks a field; the message names it.
    UnsupportedError
        If layers differ in heads, or the package that reads GGUF is missing.
    """
    file = Path(path).expanduser()
    if file.is_dir():
        file = file / "config.json"
    if not file.is_file():
        _refuse(file, "no such file", got="nothing", expected="a .gguf file or a config.json")
    return _from_config(file) if file.suffix == ".json" else _from_gguf(file)


def _refuse(file: Path, what: str, *, got: object, expected: object) -> NoReturn:
    raise FormatError(message("model", f"{file.name}: {what}", got=got, expected=expected))


def _whole(file: Path, name: str, value: Any, least: int = 1) -> int:
    whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
    if not whole or value < least:
        _refuse(file, name, got=value, expected=f"a whole number >= {least}")
    return int(value)


def _from_gguf(file: Path) -> ModelGeometry:
    try:
        from kvcore.lab.gguf_file import GgufFile
    except ImportError as error:
        raise UnsupportedError(
            message(
                "model",
                "GGUF files are read by the gguf package",
                got=error,
                expected="the package",
                fix="pip install 'kvcore[lab]'",
            )
        ) from error
    header = GgufFile(file)
    arch = header.get("general.architecture")

    def value(key: str, default: Any = None) -> Any:
        return header.get(f"{arch}.{key}", default)

    blocks = _whole(file, f"{arch}.block_count", value("block_count"))
    heads = value("attention.head_count")
    layers, n_kv_heads = _kv_heads(file, value("attention.head_count_kv", heads), blocks)
    head_dim = value("attention.key_length")
    if head_dim is None:
        width = _whole(file, f"{arch}.embedding_length", value("embedding_length"))
        head_dim = width // _kv_heads(file, heads, blocks)[1]
    head_dim = _whole(file, f"{arch}.attention.key_length", head_dim)
    return ModelGeometry(
        name=str(header.get("general.name", file.stem)),
        layers=layers,
        n_kv_heads=n_kv_heads,
        head_dim=head_dim,
        head_dim_v=int(value("attention.value_length", head_dim)),
        context=int(value("context_length", 0)),
    )


def _kv_heads(file: Path, value: Any, blocks: int) -> tuple[int, int]:
    """Return the layers that keep a cache and their KV heads; a list has one entry per layer."""
    if isinstance(value, list | np.ndarray):
        counts = [int(n) for n in value if int(n) > 0]
        if len(set(counts)) != 1:
            raise UnsupportedError(
                message(
                    "model",
                    f"{file.name}: layers differ in KV heads",
                    got=sorted(set(counts)),
                    expected="one count for all that keep a cache",
                    fix="plan each kind of layer on its own with --heads, --head-dim and --layers",
                )
            )
        return len(counts), counts[0]
    return blocks, _whole(file, "KV heads", value)


def _from_config(file: Path) -> ModelGeometry:
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        _refuse(file, "not JSON", got=error, expected="a transformers config.json")
    if not isinstance(config, dict):
        _refuse(file, "not a configuration", got=type(config).__name__, expected="an object")
    text: Mapping[str, Any] = config
    if isinstance(config.get("text_config"), dict):
        text = config["text_config"]
    layers = _whole(file, "num_hidden_layers", text.get("num_hidden_layers"))
    heads = _whole(file, "num_attention_heads", text.get("num_attention_heads"))
    kv_heads = text.get("num_key_value_heads")
    head_dim = text.get("head_dim")
    if head_dim is None:
        head_dim = _whole(file, "hidden_size", text.get("hidden_size")) // heads
    head_dim = _whole(file, "head_dim", head_dim)
    return ModelGeometry(
        name=str(config.get("_name_or_path") or config.get("model_type") or file.parent.name),
        layers=layers,
        n_kv_heads=_whole(file, "num_key_value_heads", heads if kv_heads is None else kv_heads),
        head_dim=head_dim,
        head_dim_v=int(text.get("v_head_dim") or head_dim),
        context=int(text.get("max_position_embeddings") or 0),
    )
