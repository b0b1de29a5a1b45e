"""Which models can attend over packed caches, said before the first token."""

from __future__ import annotations

import inspect
from typing import Any

import kvcore
from kvcore.errors import FormatError, UnsupportedError
from kvcore.transformers.attention import NAME

_SERVED = ("full_attention", "sliding_attention")

# Models whose config and attributes do not show why they do not fit, by model_type.
_MISFITS = {
    "diffllama": "its attention reads the values of the cache in two halves",
    "doge": "it makes a mask of its own from the values of every cached token",
}


def cache_argument(model: Any) -> str:
    """Return the name of the cache argument in this version: "cache" or "past_key_values"."""
    return "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"


def refusals(model: Any, spec: Any = None) -> list[str]:
    """Return every reason why a model cannot run over a KVCoreCache; empty if it can.

    Parameters
    ----------
    model : PreTrainedModel
    spec : CacheSpec, Format or str, optional
        Also check that it holds the model's heads.
    """
    config, out = model.config, []
    if getattr(config, "is_encoder_decoder", False):
        out.append("it is an encoder-decoder model: only decoder-only models are served")
    config = config.get_text_config(decoder=True)
    kinds = set(getattr(config, "layer_types", None) or ()) - set(_SERVED)
    if kinds:
        out.append(f"it has layers of kind {', '.join(sorted(kinds))}: served are "
                   f"{' and '.join(_SERVED)}")  # fmt: skip
    if getattr(config, "kv_sharing_modes", None) or getattr(config, "num_kv_shared_layers", 0):
        out.append("its layers share caches")
    out += _attention_refusals(model, config)
    if not getattr(model, "_supports_attention_backend", True):
        out.append("its code does not use transformers' attention interface")
    if spec is not None:
        out += _spec_refusals(config, spec)
    return out


def _attention_refusals(model: Any, config: Any) -> list[str]:
    """Return why its attention cannot run on what a KVCoreCache hands it."""
    out = []
    if getattr(config, "kv_lora_rank", None):
        out.append("it has latent attention (kv_lora_rank): its keys and values are computed "
                   "from what the cache returns")  # fmt: skip
    if any(getattr(module, "sinks", None) is not None for module in model.modules()):
        out.append("its attention has learned sinks")
    misfit = _MISFITS.get(getattr(config, "model_type", ""))
    return [*out, misfit] if misfit else out


def _spec_refusals(config: Any, spec: Any) -> list[str]:
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    if isinstance(spec, kvcore.CacheSpec):
        got, expected = (spec.n_kv_heads, spec.head_dim), (heads, dim)
        wrong = f"the spec is for KV heads and head size {got}, the model has {expected}"
        return [] if got == expected else [wrong]
    try:
        kvcore.CacheSpec(format=spec, n_kv_heads=heads, head_dim=dim)
    except FormatError as error:
        return [str(error)]
    return []


def prepare(model: Any, spec: Any = None) -> Any:
    """Check a model and make it attend over packed caches; returns the model.

    Parameters
    ----------
    model : PreTrainedModel
        From then on it needs a KVCoreCache in every call; ``model.set_attn_implementation("sdpa")``
        switches back.
    spec : CacheSpec, Format or str, optional
        Also check that it holds the model's heads.

    Raises
    ------
    UnsupportedError
        With every reason; the model is left as it was.
    """
    reasons = refusals(model, spec)
    if not reasons:
        try:
            model.set_attn_implementation(NAME)
        except (ValueError, AttributeError) as error:
            reasons.append(str(error))
    if reasons:
        lines = "\n".join(f"  - {r}" for r in reasons)
        raise UnsupportedError(
            f"[prepare] {type(model).__name__} cannot use a KVCoreCache:\n{lines}"
        )
    return model
