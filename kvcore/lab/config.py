"""What a model file says about its own architecture, as one frozen value.

Three architectures are computed: ``llama`` (Llama, SmolLM2 and their kin), ``qwen2`` (the same
with biases on q, k and v) and ``gemma3``. Any other is refused by name, and so is any setting
that would change the numbers and is not computed here: a wrong answer must not look like one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NoReturn

from kvcore.errors import UnsupportedError, message
from kvcore.lab.errors import ModelFileError
from kvcore.lab.gguf_file import GgufFile

ARCHITECTURES = ("llama", "qwen2", "gemma3")
_GEMMA_PATTERN = 6  # every sixth layer of Gemma 3 attends to everything
_GEMMA_LOCAL_THETA = 10000.0
_GEMMA_27B_LAYERS = 62  # the one size whose query scale is not 1 / sqrt(head_dim)


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerConfig:
    """What may differ from layer to layer.

    Attributes
    ----------
    rope_theta : float
        Base of the rotary frequencies.
    rope_factor : float
        Positions are divided by it (linear scaling); 1 where the model has none.
    window : int or None
        A query sees this many cells, itself included; None means all.
    """

    rope_theta: float
    rope_factor: float = 1.0
    window: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """Sizes and constants of a decoder-only model; sizes count values, not bytes."""

    arch: str
    name: str
    width: int
    ffn_width: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    n_vocab: int
    context: int
    norm_eps: float
    softmax_scale: float
    layers: tuple[LayerConfig, ...]

    @property
    def n_layers(self) -> int:
        """Number of layers, each with a cache of its own."""
        return len(self.layers)

    @property
    def is_gemma(self) -> bool:
        """Gemma scales embeddings, normalizes q, k and block outputs, and gates with GELU."""
        return self.arch == "gemma3"

    @property
    def has_qkv_bias(self) -> bool:
        """Whether q, k and v carry a bias."""
        return self.arch == "qwen2"


def _refuse(file: GgufFile, what: str, *, got: object, expected: object) -> NoReturn:
    what, fix = f"{file.path.name}: {what}", "use another model"
    raise UnsupportedError(message("model", what, got=got, expected=expected, fix=fix))


def read_config(file: GgufFile) -> ModelConfig:
    """Derive the configuration of a model file.

    Raises
    ------
    UnsupportedError
        The architecture, or a setting of it, is not computed here.
    ModelFileError
        A value is missing or the sizes contradict each other.
    """
    arch = file.require("general.architecture", str)
    if arch not in ARCHITECTURES:
        _refuse(file, "architecture not supported", got=arch, expected=" or ".join(ARCHITECTURES))
    width = _size(file, "embedding_length")
    n_heads, n_kv_heads = _size(file, "attention.head_count"), _kv_heads(file)
    head_dim = int(file.get(f"{arch}.attention.key_length", width // n_heads))
    _check(file, head_dim=head_dim, n_heads=n_heads, n_kv_heads=n_kv_heads)
    n_layers = _size(file, "block_count")
    scale_dim = head_dim
    if arch == "gemma3" and n_layers == _GEMMA_27B_LAYERS:
        scale_dim = width // n_heads
    return ModelConfig(
        arch=arch,
        name=str(file.get("general.name", file.path.stem)),
        width=width,
        ffn_width=_size(file, "feed_forward_length"),
        n_heads=n_heads,
        n_kv_heads=n_kv_heads,
        head_dim=head_dim,
        n_vocab=len(file.require("tokenizer.ggml.tokens", list)),
        context=_size(file, "context_length"),
        norm_eps=float(file.require(f"{arch}.attention.layer_norm_rms_epsilon", float)),
        softmax_scale=scale_dim**-0.5,
        layers=_layers(file, n_layers),
    )


def _size(file: GgufFile, key: str) -> int:
    """Read a positive count of this architecture."""
    name = f"{file.get('general.architecture')}.{key}"
    value = int(file.require(name, int))
    if value <= 0:
        what, fix = f"metadata {name} of {file.path.name}", "convert the file again"
        raise ModelFileError(message("model", what, got=value, expected="1 or more", fix=fix))
    return value


def _kv_heads(file: GgufFile) -> int:
    """Read the KV head count; files without one have as many as query heads."""
    if f"{file.get('general.architecture')}.attention.head_count_kv" not in file.metadata:
        return _size(file, "attention.head_count")
    return _size(file, "attention.head_count_kv")


def _check(file: GgufFile, *, head_dim: int, n_heads: int, n_kv_heads: int) -> None:
    """Refuse what this engine would compute wrongly."""
    arch = file.get("general.architecture")
    if n_heads % n_kv_heads:
        got = f"{n_heads} query and {n_kv_heads} KV heads"
        _refuse(file, "heads", got=got, expected="query heads in multiples of KV heads")
    if head_dim % 2:
        _refuse(file, "head size", got=head_dim, expected="an even number")
    for key in ("attention.value_length", "rope.dimension_count"):
        value = file.get(f"{arch}.{key}", head_dim)
        if value != head_dim:
            _refuse(file, f"{arch}.{key}", got=value, expected=f"the head size {head_dim}")
    if file.get(f"{arch}.expert_count", 0):
        _refuse(file, "experts", got=file.get(f"{arch}.expert_count"), expected="none")
    for key in ("attn_logit_softcapping", "final_logit_softcapping"):
        if file.get(f"{arch}.{key}", 0.0):
            _refuse(file, f"{arch}.{key}", got=file.get(f"{arch}.{key}"), expected="none")


def _layers(file: GgufFile, n_layers: int) -> tuple[LayerConfig, ...]:
    """Rotary base, scaling and window of every layer."""
    arch = file.get("general.architecture")
    theta = float(file.get(f"{arch}.rope.freq_base", 10000.0))
    scaling = file.get(f"{arch}.rope.scaling.type", "none")
    if scaling not in ("none", "linear"):
        _refuse(file, "rotary scaling", got=scaling, expected="none or linear")
    factor = float(file.get(f"{arch}.rope.scaling.factor", 1.0)) if scaling == "linear" else 1.0
    full = LayerConfig(rope_theta=theta, rope_factor=factor)
    window = int(file.get(f"{arch}.attention.sliding_window", 0))
    if arch != "gemma3":
        if window:
            _refuse(file, f"{arch} with a sliding window", got=window, expected="none")
        return (full,) * n_layers
    pattern = file.get(f"{arch}.attention.sliding_window_pattern", _GEMMA_PATTERN)
    if not isinstance(pattern, int) or pattern < 1 or window < 1:
        got = f"window {window}, pattern {pattern}"
        _refuse(file, "sliding window", got=got, expected="a window and a period in layers")
    local_theta = float(file.get(f"{arch}.rope.freq_base_swa", _GEMMA_LOCAL_THETA))
    local = LayerConfig(rope_theta=local_theta, window=window)
    return tuple(full if (i + 1) % pattern == 0 else local for i in range(n_layers))
