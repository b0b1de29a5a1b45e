"""The weights of a model as float32 arrays, in the shape the engine multiplies with.

q, k and v share one matrix, and so do gate and up: one large product is faster than three small
ones. Llama files store the rows of q and k for interleaved rotary pairs; they are put back to the
split halves that every other file uses, so that a head's channels mean the same in every cache.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kvcore.errors import UnsupportedError, message
from kvcore.lab.config import ModelConfig
from kvcore.lab.gguf_file import GgufFile

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerWeights:
    """One layer; E width, F feed-forward width, Q and H query and KV heads, D head size.

    Attributes
    ----------
    attn_norm, ffn_norm : float32[E]
    qkv : float32[(Q + 2H) * D, E]
    qkv_bias : float32[(Q + 2H) * D] or None
    q_norm, k_norm : float32[D] or None
    attn_out : float32[E, Q * D]
    gate_up : float32[2F, E]
    ffn_down : float32[E, F]
    attn_post_norm, ffn_post_norm : float32[E] or None
        Gemma normalizes what a block adds.
    """

    attn_norm: Floats
    qkv: Floats
    qkv_bias: Floats | None
    q_norm: Floats | None
    k_norm: Floats | None
    attn_out: Floats
    attn_post_norm: Floats | None
    ffn_norm: Floats
    gate_up: Floats
    ffn_down: Floats
    ffn_post_norm: Floats | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """A whole model; V vocabulary.

    Attributes
    ----------
    embedding : float32[V, E]
    layers : tuple of LayerWeights
    norm : float32[E]
    head : float32[V, E]
        The embedding itself where the file ties them.
    rope_divisors : float32[D / 2] or None
        Llama 3.1 and later divide each rotary frequency of full-attention layers.
    """

    embedding: Floats
    layers: tuple[LayerWeights, ...]
    norm: Floats
    head: Floats
    rope_divisors: Floats | None

    @property
    def n_bytes(self) -> int:
        """Bytes of all matrices; a tied head counts once."""
        matrices = [m for w in self.layers for m in (w.qkv, w.attn_out, w.gate_up, w.ffn_down)]
        matrices += [self.embedding] if self.head is self.embedding else [self.embedding, self.head]
        return sum(m.nbytes for m in matrices)


def split_halves(rows: Floats, n_heads: int) -> Floats:
    """Put rows of interleaved rotary pairs back to split halves.

    Parameters
    ----------
    rows : float32[n_heads * D, ...]
        Row ``2i + j`` of a head holds half ``j`` of pair ``i``.
    n_heads : int

    Returns
    -------
    float32[n_heads * D, ...]
        Row ``j * D / 2 + i`` of a head holds half ``j`` of pair ``i``.
    """
    pairs = rows.reshape(n_heads, -1, 2, *rows.shape[1:])
    return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(rows.shape)


class _Reader:
    """Reads tensors of one file and remembers which."""

    def __init__(self, file: GgufFile, config: ModelConfig) -> None:
        self.file = file
        self.config = config
        self.seen: set[str] = set()

    def get(self, name: str, *shape: int) -> Floats:
        self.seen.add(name)
        return self.file.tensor(name, shape)

    def qkv(self, prefix: str, kind: str) -> Floats:
        """Stack q, k and v (``weight`` or ``bias``), rows in split-half order."""
        c = self.config
        tail = (c.width,) if kind == "weight" else ()
        parts = []
        for which, heads in (("q", c.n_heads), ("k", c.n_kv_heads), ("v", c.n_kv_heads)):
            part = self.get(f"{prefix}.attn_{which}.{kind}", heads * c.head_dim, *tail)
            interleaved = c.arch == "llama" and which != "v"
            parts.append(split_halves(part, heads) if interleaved else part)
        return np.concatenate(parts)

    def layer(self, index: int) -> LayerWeights:
        c, prefix = self.config, f"blk.{index}"
        gemma = c.is_gemma

        def norm(name: str, size: int, *, wanted: bool = True) -> Floats | None:
            return self.get(f"{prefix}.{name}.weight", size) if wanted else None

        gate = self.get(f"{prefix}.ffn_gate.weight", c.ffn_width, c.width)
        up = self.get(f"{prefix}.ffn_up.weight", c.ffn_width, c.width)
        return LayerWeights(
            attn_norm=self.get(f"{prefix}.attn_norm.weight", c.width),
            qkv=self.qkv(prefix, "weight"),
            qkv_bias=self.qkv(prefix, "bias") if c.has_qkv_bias else None,
            q_norm=norm("attn_q_norm", c.head_dim, wanted=gemma),
            k_norm=norm("attn_k_norm", c.head_dim, wanted=gemma),
            attn_out=self.get(f"{prefix}.attn_output.weight", c.width, c.n_heads * c.head_dim),
            attn_post_norm=norm("post_attention_norm", c.width, wanted=gemma),
            ffn_norm=self.get(f"{prefix}.ffn_norm.weight", c.width),
            gate_up=np.concatenate([gate, up]),
            ffn_down=self.get(f"{prefix}.ffn_down.weight", c.width, c.ffn_width),
            ffn_post_norm=norm("post_ffw_norm", c.width, wanted=gemma),
        )


def read_weights(
    file: GgufFile,
    config: ModelConfig,
    progress: Callable[[int, int], None] | None = None,
) -> Weights:
    """Read and dequantize every tensor of a model.

    Parameters
    ----------
    file : GgufFile
    config : ModelConfig
        Read from the same file.
    progress : callable (done, total), optional
        Called after each layer.

    Raises
    ------
    ModelFileError
        A tensor is missing or misshapen.
    UnsupportedError
        The file holds a tensor that this engine does not use: the numbers would be wrong.
    """
    reader = _Reader(file, config)
    c = config
    layers = []
    with ThreadPoolExecutor(min(4, os.cpu_count() or 1)) as pool:
        embedding = pool.submit(reader.get, "token_embd.weight", c.n_vocab, c.width)
        for weights in pool.map(reader.layer, range(c.n_layers)):
            layers.append(weights)
            if progress is not None:
                progress(len(layers), c.n_layers)
        table = embedding.result()
    tied = "output.weight" not in file.tensors
    divisors = None
    if c.arch == "llama" and "rope_freqs.weight" in file.tensors:
        divisors = reader.get("rope_freqs.weight", c.head_dim // 2)
    model = Weights(
        embedding=table,
        layers=tuple(layers),
        norm=reader.get("output_norm.weight", c.width),
        head=table if tied else reader.get("output.weight", c.n_vocab, c.width),
        rope_divisors=divisors,
    )
    unknown = sorted(set(file.tensors) - reader.seen)
    if unknown:
        what, fix = f"{file.path.name} holds tensors that {c.arch} has no use for", "use another"
        raise UnsupportedError(
            message("model", what, got=", ".join(unknown[:4]), expected="none", fix=fix)
        )
    return model
