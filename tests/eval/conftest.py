"""A random model with heads of 64, a tokenizer of bytes, and a dump made of them."""

from __future__ import annotations

import numpy as np
import pytest

import kvcore
from kvcore.lab.config import LayerConfig, ModelConfig
from kvcore.lab.engine import Model
from kvcore.lab.load import LoadedModel
from kvcore.lab.texts import Text
from kvcore.lab.weights import LayerWeights, Weights

WIDTH, FFN, HEADS, KV_HEADS, DIM, LAYERS, VOCAB = 64, 96, 4, 2, 64, 2, 131


class Bytes:
    """A tokenizer whose ids are bytes plus one; 0 starts a text."""

    bos_id = 0
    stop_ids = frozenset()

    def encode(self, text, *, bos=True):
        ids = [b % (VOCAB - 1) + 1 for b in text.encode()]
        return [0, *ids] if bos else ids


def random_model(seed=0, sharpness=3.0):
    rng = np.random.default_rng(seed)

    def draw(*shape, scale=1.0):
        return (rng.standard_normal(shape) * scale).astype(np.float32)

    def layer():
        qkv = draw((HEADS + 2 * KV_HEADS) * DIM, WIDTH, scale=WIDTH**-0.5)
        qkv[: HEADS * DIM] *= sharpness  # sharp attention makes errors of K matter
        return LayerWeights(
            attn_norm=np.ones(WIDTH, np.float32), qkv=qkv, qkv_bias=None, q_norm=None, k_norm=None,
            attn_out=draw(WIDTH, HEADS * DIM, scale=(HEADS * DIM) ** -0.5), attn_post_norm=None,
            ffn_norm=np.ones(WIDTH, np.float32), gate_up=draw(2 * FFN, WIDTH, scale=WIDTH**-0.5),
            ffn_down=draw(WIDTH, FFN, scale=FFN**-0.5), ffn_post_norm=None,
        )  # fmt: skip

    embedding = draw(VOCAB, WIDTH)
    weights = Weights(
        embedding=embedding, layers=tuple(layer() for _ in range(LAYERS)),
        norm=np.ones(WIDTH, np.float32), head=draw(VOCAB, WIDTH, scale=0.3), rope_divisors=None,
    )  # fmt: skip
    config = ModelConfig(
        arch="llama", name="random", width=WIDTH, ffn_width=FFN, n_heads=HEADS,
        n_kv_heads=KV_HEADS, head_dim=DIM, n_vocab=VOCAB, context=4096, norm_eps=1e-5,
        softmax_scale=DIM**-0.5,
        layers=(LayerConfig(rope_theta=1e4), LayerConfig(rope_theta=1e4, window=70)),
    )  # fmt: skip
    return Model(config=config, weights=weights)


@pytest.fixture(scope="session")
def backend():
    return kvcore.get_backend("cpu")


@pytest.fixture(scope="session")
def loaded(tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "random.gguf"
    path.write_bytes(b"the model's file, for its hash")
    return LoadedModel(path=path, model=random_model(), tokenizer=Bytes(), metadata={})


@pytest.fixture(scope="session")
def body():
    words = np.random.default_rng(1).choice(["sea", "harbour", "lamp", "night", "of", "the"], 900)
    return Text(name="made", kind="document", body=" ".join(words) + ".")
