"""The three architectures again, in float64, token by token and head by head: the engine's oracle.

Tensors come through the gguf package's own reader. Llama's rotary pairs are neighbouring rows
(2i, 2i + 1), as such files hold them; the other architectures pair rows i and i + D / 2.
"""

from __future__ import annotations

import math
from pathlib import Path

import gguf
import numpy as np
import tiny_gguf as tiny


class NaiveModel:
    """Logits of every position of a tiny model."""

    def __init__(self, path: Path) -> None:
        reader = gguf.GGUFReader(path)
        self.arch = reader.get_field("general.architecture").contents()
        self.tensors = {
            t.name: np.asarray(gguf.dequantize(t.data, t.tensor_type), np.float64)
            for t in reader.tensors
        }
        scaling = reader.get_field(f"{self.arch}.rope.scaling.factor")
        self.factor = 1.0 if scaling is None else scaling.contents()

    def local(self, layer: int) -> bool:
        return self.arch == "gemma3" and (layer + 1) % tiny.PERIOD != 0

    def norm(self, x, name):
        return x / math.sqrt(float(np.mean(x * x)) + tiny.EPS) * self.tensors[f"{name}.weight"]

    def turn(self, head, position, layer):
        """Rotate one head as complex numbers."""
        theta = tiny.LOCAL_THETA if self.local(layer) else tiny.THETA
        half = tiny.HEAD_DIM // 2
        pairs = [(2 * i, 2 * i + 1) if self.arch == "llama" else (i, i + half) for i in range(half)]
        divisors = self.tensors.get("rope_freqs.weight", np.ones(half))
        out = head.copy()
        for i, (a, b) in enumerate(pairs):
            angle = position * theta ** (-2 * i / tiny.HEAD_DIM) / divisors[i]
            angle /= 1.0 if self.local(layer) else self.factor
            turned = complex(head[a], head[b]) * complex(math.cos(angle), math.sin(angle))
            out[a], out[b] = turned.real, turned.imag
        return out

    def project(self, x, layer, which):
        rows = self.tensors[f"blk.{layer}.attn_{which}.weight"] @ x
        rows = rows + self.tensors.get(f"blk.{layer}.attn_{which}.bias", 0.0)
        heads = list(rows.reshape(-1, tiny.HEAD_DIM))
        if self.arch == "gemma3" and which != "v":
            heads = [self.norm(h, f"blk.{layer}.attn_{which}_norm") for h in heads]
        return heads

    def attention(self, xs, layer):
        past, out = [], []
        for p, x in enumerate(xs):
            x = self.norm(x, f"blk.{layer}.attn_norm")
            keys = [self.turn(h, p, layer) for h in self.project(x, layer, "k")]
            past.append((keys, self.project(x, layer, "v")))
            first = max(0, p - tiny.WINDOW + 1) if self.local(layer) else 0
            mixed = []
            for i, q in enumerate(self.project(x, layer, "q")):
                kv = i * tiny.KV_HEADS // tiny.HEADS
                q = self.turn(q, p, layer) / math.sqrt(tiny.HEAD_DIM)
                weights = [math.exp(float(q @ keys[kv])) for keys, _ in past[first:]]
                values = [w * v[kv] for w, (_, v) in zip(weights, past[first:], strict=True)]
                mixed.append(sum(values) / sum(weights))
            y = self.tensors[f"blk.{layer}.attn_output.weight"] @ np.concatenate(mixed)
            post = f"blk.{layer}.post_attention_norm"
            out.append(self.norm(y, post) if self.arch == "gemma3" else y)
        return out

    def feed_forward(self, x, layer):
        x = self.norm(x, f"blk.{layer}.ffn_norm")
        gate = self.tensors[f"blk.{layer}.ffn_gate.weight"] @ x
        if self.arch == "gemma3":
            inner = math.sqrt(2 / math.pi) * (gate + 0.044715 * gate**3)
            gate = gate / 2 * (1 + np.tanh(inner))
        else:
            gate = gate / (1 + np.exp(-gate))
        hidden = gate * (self.tensors[f"blk.{layer}.ffn_up.weight"] @ x)
        y = self.tensors[f"blk.{layer}.ffn_down.weight"] @ hidden
        return self.norm(y, f"blk.{layer}.post_ffw_norm") if self.arch == "gemma3" else y

    def logits(self, ids):
        scale = math.sqrt(tiny.WIDTH) if self.arch == "gemma3" else 1.0
        xs = [self.tensors["token_embd.weight"][i] * scale for i in ids]
        for layer in range(tiny.N_LAYERS):
            xs = [x + y for x, y in zip(xs, self.attention(xs, layer), strict=True)]
            xs = [x + self.feed_forward(x, layer) for x in xs]
        xs = [self.norm(x, "output_norm") for x in xs]
        head = self.tensors.get("output.weight", self.tensors["token_embd.weight"])
        return np.array([head @ x for x in xs])


def float32_bound(logits: np.ndarray) -> float:
    """Error of a float32 run: one rounding a term of every inner product on the longest path."""
    per_layer = tiny.WIDTH + tiny.HEADS * tiny.HEAD_DIM + tiny.CONTEXT + tiny.WIDTH + tiny.FFN
    terms = tiny.N_LAYERS * per_layer + tiny.WIDTH
    return terms * 2.0**-24 * float(np.abs(logits).max())
