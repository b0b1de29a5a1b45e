"""How many layers, KV heads and values a head a model has, read from its files.

Reads the header of a GGUF file, or the ``config.json`` that transformers keeps beside weights.
Layers without a KV cache (linear attention, state spaces, those that share another's) are not
counted. What one spec cannot describe is refused: layers that differ in heads, latent attention.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
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
        Layers that keep a KV cache; a sliding layer counts as one that keeps every cell.
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


_NAMES: dict[str, tuple[str, ...]] = {
    "num_hidden_layers": ("n_layer", "n_layers", "num_layers"),
    "num_attention_heads": ("n_head", "n_heads"),
    "num_key_value_heads": ("num_key_value_heads_per_layer", "num_kv_heads", "n_head_kv"),
    "hidden_size": ("n_embd", "d_model"),
    "head_dim": ("kv_channels", "attention_head_dim"),
    "max_position_embeddings": ("n_positions", "n_ctx", "seq_length", "max_seq_len"),
}
"""What a field of a config.json is called by other models."""

_KEEP = {"attention", "full_attention", "sliding_attention", "chunked_attention", "hybrid"}
_KEEP_NOT = {"linear_attention", "mamba", "mamba2", "recurrent", "conv", "mlp", "moe"}
_LETTERS = {"*": "attention", "M": "mamba", "-": "mlp", "E": "moe"}
_STATEFUL = ("mamba_", "ssm_", "linear_num_", "linear_conv_", "linear_attn", "attn_type_list")
"""Fields of models that keep another state than a KV cache in some layers, or in all."""

_UNLIKE = {
    "global_head_dim": "head_dim",
    "swa_head_dim": "head_dim",
    "num_global_key_value_heads": "n_kv_heads",
    "swa_num_key_value_heads": "n_kv_heads",
}
"""Fields that give some layers other heads than the rest."""

_BY_HAND = "plan each kind of layer on its own with --heads, --head-dim and --layers"


def read_geometry(
    path: str | Path,
    *,
    layers: int | None = None,
    n_kv_heads: int | None = None,
    head_dim: int | None = None,
    head_dim_v: int | None = None,
) -> ModelGeometry:
    """Read a model's geometry.

    Parameters
    ----------
    path : str or Path
        A ``.gguf`` file, a transformers ``config.json``, or a folder that holds one.
    layers, n_kv_heads, head_dim, head_dim_v : int, optional
        Taken instead of the file's, which need not be understood then.

    Raises
    ------
    FormatError
        If the file cannot be read or lacks a field; the message names it.
    UnsupportedError
        If layers differ in heads, attention is latent, it cannot be told which layers keep a
        cache, or the package that reads GGUF is missing.
    """
    file = Path(path).expanduser()
    if file.is_dir():
        file = file / "config.json"
    if not file.is_file():
        _refuse(file, "no such file", got="nothing", expected="a .gguf file or a config.json")
    asked = {
        "layers": layers,
        "n_kv_heads": n_kv_heads,
        "head_dim": head_dim,
        "head_dim_v": head_dim_v,
    }
    given = {name: value for name, value in asked.items() if value is not None}
    return _from_config(file, given) if file.suffix == ".json" else _from_gguf(file, given)


def _refuse(file: Path, what: str, *, got: object, expected: object) -> NoReturn:
    raise FormatError(message("model", f"{file.name}: {what}", got=got, expected=expected))


def _unsupported(file: Path, what: str, *, got: object, expected: object, fix: str) -> NoReturn:
    raise UnsupportedError(
        message("model", f"{file.name}: {what}", got=got, expected=expected, fix=fix)
    )


def _whole(file: Path, name: str, value: Any, least: int = 1) -> int:
    whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
    if not whole or value < least:
        got = "none" if value is None else repr(value)
        _refuse(file, name, got=got, expected=f"a whole number >= {least}")
    return int(value)


def _latent(file: Path, rank: Any, sizes: str) -> NoReturn:
    _unsupported(
        file,
        "latent attention",
        got=f"a KV rank of {rank}",
        expected="keys and values of their own for every KV head",
        fix=f"give {sizes} for an engine that stores expanded heads",
    )


def _from_gguf(file: Path, given: Mapping[str, int]) -> ModelGeometry:
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

    if value("attention.kv_lora_rank") and not {"n_kv_heads", "head_dim"} <= given.keys():
        _latent(file, value("attention.kv_lora_rank"), "--heads, --head-dim and --head-dim-v")
    blocks = _whole(file, f"{arch}.block_count", value("block_count"))
    heads = value("attention.head_count")
    counts = value("attention.head_count_kv", heads)
    shared = _whole(file, "shared_kv_layers", value("attention.shared_kv_layers", 0), 0)
    layers, n_kv_heads = _kv_heads(file, counts, blocks, shared, given)
    if "layers" not in given and not isinstance(counts, list | np.ndarray):
        every = value("full_attention_interval")
        if every is not None:
            layers = blocks // _whole(file, f"{arch}.full_attention_interval", every)
        elif value("ssm.state_size") is not None and arch != "falcon-h1":
            _uncounted(file, f"{arch}.ssm.state_size")
    head_dim = given.get("head_dim", value("attention.key_length"))
    if head_dim is None:
        width = _whole(file, f"{arch}.embedding_length", value("embedding_length"))
        head_dim = width // _kv_heads(file, heads, blocks)[1]
    head_dim = _whole(file, f"{arch}.attention.key_length", head_dim)
    own_v = head_dim if "head_dim" in given else value("attention.value_length", head_dim)
    return ModelGeometry(
        name=str(header.get("general.name", file.stem)),
        layers=given.get("layers", layers),
        n_kv_heads=n_kv_heads,
        head_dim=head_dim,
        head_dim_v=given.get("head_dim_v", int(own_v)),
        context=int(value("context_length", 0)),
    )


def _kv_heads(
    file: Path, value: Any, blocks: int, shared: int = 0, given: Mapping[str, int] | None = None
) -> tuple[int, int]:
    """Return the layers that keep a cache and their KV heads; a list has one entry per layer.

    The last `shared` layers read another's cache.
    """
    asked = (given or {}).get("n_kv_heads")
    if isinstance(value, list | np.ndarray):
        own = value[: len(value) - shared]
        counts = [n for n in (_whole(file, "KV heads", n, 0) for n in own) if n > 0]
        if asked is None and len(set(counts)) != 1:
            _unsupported(
                file,
                "layers differ in KV heads",
                got=sorted(set(counts)),
                expected="one count for all that keep a cache",
                fix=_BY_HAND,
            )
        return len(counts), asked or counts[0]
    return blocks - shared, asked or _whole(file, "KV heads", value)


def _uncounted(file: Path, field: str) -> NoReturn:
    _unsupported(
        file,
        "layers without a KV cache",
        got=field,
        expected="a list of the layers' kinds",
        fix="give --layers: those that keep a KV cache",
    )


def _from_config(file: Path, given: Mapping[str, int]) -> ModelGeometry:
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        _refuse(file, "not JSON", got=error, expected="a transformers config.json")
    if not isinstance(config, dict):
        _refuse(file, "not a configuration", got=type(config).__name__, expected="an object")
    text: Mapping[str, Any] = config
    if isinstance(config.get("text_config"), dict):
        text = config["text_config"]
    layers = given.get("layers") or _cached_layers(file, text)
    if not {"n_kv_heads", "head_dim"} <= given.keys() and text.get("kv_lora_rank"):
        k = (text.get("qk_nope_head_dim") or 0) + (text.get("qk_rope_head_dim") or 0)
        heads, v = text.get("num_attention_heads"), text.get("v_head_dim")
        sizes = f"--heads {heads} --head-dim {k} --head-dim-v {v}"
        _latent(file, text["kv_lora_rank"], sizes)
    n_kv_heads = given.get("n_kv_heads") or _config_kv_heads(file, text)
    head_dim = given.get("head_dim") or _config_head_dim(file, text)
    own_v = None if "head_dim" in given else text.get("v_head_dim")
    head_dim_v = given.get("head_dim_v") or _whole(file, "v_head_dim", own_v or head_dim)
    _check_alike(file, text, {"head_dim": head_dim, "n_kv_heads": n_kv_heads}, given)
    return ModelGeometry(
        name=str(config.get("_name_or_path") or config.get("model_type") or file.parent.name),
        layers=layers,
        n_kv_heads=n_kv_heads,
        head_dim=head_dim,
        head_dim_v=head_dim_v,
        context=int(_field(text, "max_position_embeddings") or 0),
    )


def _field(text: Mapping[str, Any], name: str) -> Any:
    """Return a field by any of its names; None where the file has none."""
    names = (name, *_NAMES[name])
    return next((text[n] for n in names if text.get(n) is not None), None)


def _cached_layers(file: Path, text: Mapping[str, Any]) -> int:
    """Return how many layers keep a KV cache of the context."""
    if text.get("is_encoder_decoder") or text.get("cross_attention_layers"):
        _unsupported(
            file,
            "cross-attention",
            got="caches of another input",
            expected="layers that keep the context's K and V",
            fix=_BY_HAND,
        )
    n = _whole(file, "num_hidden_layers", _field(text, "num_hidden_layers"))
    kinds = _kinds(file, text, n)
    if kinds is None:
        marks = [name for name in text if name.startswith(_STATEFUL) and text[name] is not None]
        if marks and text.get("model_type") != "falcon_h1":  # its every layer keeps both
            _uncounted(file, marks[0])
        kinds = ["attention"] * n
    if len(kinds) != n:
        _refuse(file, "kinds of layers", got=f"{len(kinds)}", expected=f"{n}, one a layer")
    unknown = sorted({str(kind) for kind in kinds} - _KEEP - _KEEP_NOT)
    if unknown:
        _unsupported(
            file,
            "a kind of layer",
            got=", ".join(unknown),
            expected=f"one of {', '.join(sorted(_KEEP | _KEEP_NOT))}",
            fix="give --layers: those that keep a KV cache",
        )
    shared = _whole(file, "num_kv_shared_layers", text.get("num_kv_shared_layers") or 0, 0)
    kept = sum(kind in _KEEP for kind in kinds[: n - shared])
    return _whole(file, "layers that keep a KV cache", kept)


def _kinds(file: Path, text: Mapping[str, Any], n: int) -> list[str] | None:
    """Return each layer's kind as the file lists or spells it; None if it does neither."""
    for name in ("layer_types", "layers_block_type"):
        if isinstance(text.get(name), list):
            return list(text[name])
    if text.get("block_types"):  # a pattern that repeats
        return list(itertools.islice(itertools.cycle(text["block_types"]), n))
    if isinstance(text.get("hybrid_override_pattern"), str):
        return [_LETTERS.get(c, c) for c in text["hybrid_override_pattern"]]
    indices: Sequence[int] | None = None
    for name in ("attn_layer_indices", "full_attn_idxs"):
        indices = text.get(name) if isinstance(text.get(name), list) else indices
    if text.get("full_attention_interval") is not None:
        step = _whole(file, "full_attention_interval", text["full_attention_interval"])
        indices = range(step - 1, n, step)
    if text.get("attn_layer_period") is not None:
        step = _whole(file, "attn_layer_period", text["attn_layer_period"])
        indices = range(
            _whole(file, "attn_layer_offset", text.get("attn_layer_offset"), 0), n, step
        )
    if indices is None:
        return None
    return ["attention" if i in indices else "recurrent" for i in range(n)]


def _config_kv_heads(file: Path, text: Mapping[str, Any]) -> int:
    """Return the KV heads; all of the query heads' count where the file names none."""
    heads = _whole(file, "num_attention_heads", _field(text, "num_attention_heads"))
    own = _field(text, "num_key_value_heads")
    nested = text.get("attn_config")
    if isinstance(nested, dict):
        own = nested.get("kv_n_heads", own)
    if "multi_query_attention" in text:
        own = text.get("multi_query_group_num", 1) if text["multi_query_attention"] else heads
    if not text.get("new_decoder_architecture") and "n_head_kv" not in text:
        # Falcon's files name as many KV as query heads and keep one where this is set.
        if text.get("multi_query"):
            own = 1
        elif text.get("model_type") == "falcon":
            own = heads
    if isinstance(own, list):
        return _kv_heads(file, own, len(own))[1]
    return _whole(file, "num_key_value_heads", heads if own is None else own)


def _config_head_dim(file: Path, text: Mapping[str, Any]) -> int:
    head_dim = _field(text, "head_dim")
    if head_dim is not None:
        return _whole(file, "head_dim", head_dim)
    heads = _whole(file, "num_attention_heads", _field(text, "num_attention_heads"))
    width = _whole(file, "hidden_size", _field(text, "hidden_size"))
    if width % heads:
        got = f"none, and a hidden_size of {width} for {heads} heads"
        _refuse(file, "head_dim", got=got, expected="a head size")
    return width // heads


def _check_alike(
    file: Path, text: Mapping[str, Any], found: Mapping[str, int], given: Mapping[str, int]
) -> None:
    """Refuse a file that gives some layers other heads, unless the caller said which are meant."""
    for name, usual in _UNLIKE.items():
        if usual not in given and text.get(name) not in (None, found[usual]):
            _unsupported(
                file,
                f"layers differ in heads: {name}",
                got=text[name],
                expected=f"{found[usual]} as in the others",
                fix=_BY_HAND,
            )
