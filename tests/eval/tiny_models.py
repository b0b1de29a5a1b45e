"""Tiny random models of transformers, and how the tests call them."""

from __future__ import annotations

import numpy as np
import torch
import transformers

from kvcore.transformers import cache_argument, prepare

VOCAB = 89
SIZES = {
    "vocab_size": VOCAB, "hidden_size": 128, "intermediate_size": 96, "num_hidden_layers": 3,
    "num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 512,
    "bos_token_id": None, "eos_token_id": None, "pad_token_id": 0, "initializer_range": 0.4,
}  # fmt: skip


def build(name, **options):
    torch.manual_seed(0)
    config = getattr(transformers, f"{name}Config")(**{**SIZES, **options})
    return getattr(transformers, f"{name}ForCausalLM")(config).eval()


def tiny_llama():
    return build("Llama", head_dim=64)


def tiny_gemma():
    """Three layers, the middle one without a window."""
    torch.manual_seed(1)
    kinds = ["sliding_attention", "full_attention", "sliding_attention"]
    config = transformers.Gemma3TextConfig(
        **SIZES, head_dim=64, sliding_window=12, layer_types=kinds
    )
    return transformers.Gemma3ForCausalLM(config).eval()


def tiny_qwen():
    """A model of every version of transformers, with its window in the mask only."""
    model = build(
        "Qwen2",
        sliding_window=16,
        use_sliding_window=True,
        max_window_layers=0,
        initializer_range=0.2,
    )
    assert set(model.config.layer_types) == {"sliding_attention"}
    for layer in model.model.layers:
        layer.self_attn.sliding_window = None
    return model


def prompt(n=40, batch=1, seed=0):
    return torch.from_numpy(np.random.default_rng(seed).integers(1, VOCAB, (batch, n)))


@torch.no_grad()
def call(model, cache, ids, mask=None, **options):
    """One forward pass over a prepared model."""
    prepare(model)
    return model(ids, attention_mask=mask, **{cache_argument(model): cache}, **options).logits


@torch.no_grad()
def eager(model, *calls):
    """The logits of calls (ids, mask) over one DynamicCache, by eager attention."""
    model.set_attn_implementation("eager")
    own = {cache_argument(model): transformers.DynamicCache()}
    return [model(ids, attention_mask=mask, **own).logits for ids, mask in calls]


def close(got, expected):
    # float32 stores are exact; what differs is the order of float32 sums of 3 layers.
    torch.testing.assert_close(got, expected, rtol=2e-4, atol=2e-4)


def lengths(cache):
    return [[len(row) for row in layer.rows] for layer in cache.layers]
