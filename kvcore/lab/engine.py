"""A decoder-only language model in NumPy that keeps its KV only in the caches it is given.

`Model` is the immutable part and can be shared; `Session` is one sequence: a cache per layer and
nothing else. Whoever makes the caches decides the format, the backend and the capacity.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from kvcore.errors import RangeError, ShapeError, message
from kvcore.lab.config import LayerConfig, ModelConfig
from kvcore.lab.errors import SettingError
from kvcore.lab.layers import Rotation, gated, linear, rms_norm, rotate, rotation
from kvcore.lab.weights import Floats, LayerWeights, Weights

PREFILL_CHUNK = 512


class LayerCache(Protocol):
    """What the engine needs of one layer's cache; `kvcore`'s KVCache has it."""

    def append(self, k: Floats, v: Floats) -> Any:
        """Store the cells of k and v [T, H, D]."""

    def attend(
        self,
        q: Floats,
        *,
        k: Floats | None = None,
        v: Floats | None = None,
        scale: float | None = None,
        window: int | None = None,
    ) -> Any:
        """Attend from q [T, Q, D], the last T positions; k and v read the own chunk exactly."""

    def truncate(self, n: int) -> Any:
        """Drop the cells from n on."""

    def __len__(self) -> int: ...

    @property
    def nbytes(self) -> int:
        """Bytes it holds."""


CacheFactory = Callable[[int, int, int], LayerCache]
"""Makes the cache of one layer from (layer index, KV heads, head size)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """Configuration and weights."""

    config: ModelConfig
    weights: Weights

    def logits(self, hidden: Floats) -> Floats:
        """Scores of every token: hidden [T, E], as `Session.extend` returns it -> [T, V]."""
        return linear(hidden, self.weights.head)


class Session:
    """One sequence of a model.

    Parameters
    ----------
    model : Model
    cache_factory : callable (layer_index, n_kv_heads, head_dim) -> cache
        Called once per layer; see `LayerCache`.

    Attributes
    ----------
    caches : tuple of LayerCache
        One per layer.
    """

    def __init__(self, model: Model, cache_factory: CacheFactory) -> None:
        c = model.config
        self.model = model
        self.caches = tuple(cache_factory(i, c.n_kv_heads, c.head_dim) for i in range(c.n_layers))

    def __len__(self) -> int:
        return len(self.caches[0])

    def truncate(self, n: int) -> None:
        """Forget the tokens from n on, in every layer."""
        for cache in self.caches:
            cache.truncate(n)

    def prefill(
        self,
        ids: Sequence[int],
        *,
        chunk: int = PREFILL_CHUNK,
        progress: Callable[[int, int], None] | None = None,
    ) -> Floats:
        """Read a prompt and return the scores [V] of the token after it.

        Parameters
        ----------
        ids : sequence of int
            At least one token.
        chunk : int
            Tokens per pass. A chunk sees its own cells exactly and earlier ones as stored.
        progress : callable (done, total), optional
            Called after each chunk, in tokens.
        """
        if chunk < 1:
            raise SettingError(message("prefill", "chunk", got=chunk, expected="1 or more"))
        hidden = np.empty((0, self.model.config.width), np.float32)
        for start in range(0, max(len(ids), 1), chunk):
            hidden = self.extend(ids[start : start + chunk])
            if progress is not None:
                progress(min(start + chunk, len(ids)), len(ids))
        scores: Floats = self.model.logits(hidden[-1:])[0]
        return scores

    def step(self, token: int) -> Floats:
        """Read one token, every cell as stored (its own too), and return the next scores [V]."""
        scores: Floats = self.model.logits(self.extend([token], as_stored=True))[0]
        return scores

    def extend(self, ids: Sequence[int], *, as_stored: bool = False) -> Floats:
        """Append tokens and return their last hidden states, normalized.

        Parameters
        ----------
        ids : sequence of int
            At least one token.
        as_stored : bool
            Read this call's own cells from the store too, as a decode step does.

        Returns
        -------
        float32[T, E]

        Raises
        ------
        RangeError
            A token outside the vocabulary; nothing is appended.
        ShapeError
            No tokens, or the caches differ in length (an earlier call was interrupted).
        """
        tokens = self._tokens(ids)
        config, weights = self.model.config, self.model.weights
        start = self._length()
        turns = self._rotations(start, len(tokens))
        x = weights.embedding[tokens]
        if config.is_gemma:
            x = x * np.float32(config.width**0.5)
        for layer, w, cache in zip(config.layers, weights.layers, self.caches, strict=True):
            turn = turns[layer]
            x = x + self._attention(x, w, cache, layer=layer, turn=turn, as_stored=as_stored)
            x = x + _feed_forward(x, w, config)
        return rms_norm(x, weights.norm, config.norm_eps)

    def _attention(
        self,
        x: Floats,
        w: LayerWeights,
        cache: LayerCache,
        *,
        layer: LayerConfig,
        turn: Rotation,
        as_stored: bool,
    ) -> Floats:
        """What a layer's attention adds to x [T, E]."""
        c = self.model.config
        qkv = linear(rms_norm(x, w.attn_norm, c.norm_eps), w.qkv, w.qkv_bias)
        heads = qkv.reshape(len(x), -1, c.head_dim)
        q, k, v = np.split(heads, [c.n_heads, c.n_heads + c.n_kv_heads], axis=1)
        if w.q_norm is not None and w.k_norm is not None:
            q, k = rms_norm(q, w.q_norm, c.norm_eps), rms_norm(k, w.k_norm, c.norm_eps)
        q, k, v = rotate(q, turn), rotate(k, turn), np.ascontiguousarray(v)
        cache.append(k, v)
        own = {} if as_stored else {"k": k, "v": v}
        mixed: Floats = cache.attend(q, scale=c.softmax_scale, window=layer.window, **own)
        out = linear(mixed.reshape(len(x), -1), w.attn_out)
        return out if w.attn_post_norm is None else rms_norm(out, w.attn_post_norm, c.norm_eps)

    def _rotations(self, start: int, count: int) -> dict[LayerConfig, Rotation]:
        """Rotary angles, made once per kind of layer."""
        c, divisors = self.model.config, self.model.weights.rope_divisors
        return {
            kind: rotation(
                start,
                count,
                head_dim=c.head_dim,
                theta=kind.rope_theta,
                factor=kind.rope_factor,
                divisors=divisors if kind.window is None else None,
            )
            for kind in set(c.layers)
        }

    def _length(self) -> int:
        lengths = {len(cache) for cache in self.caches}
        if len(lengths) != 1:
            got = f"{min(lengths)} to {max(lengths)} cells"
            fix = f"call truncate({min(lengths)})"
            raise ShapeError(
                message("extend", "the caches differ", got=got, expected="one length", fix=fix)
            )
        return lengths.pop()

    def _tokens(self, ids: Sequence[int]) -> npt.NDArray[np.int64]:
        tokens = np.asarray(ids, dtype=np.int64)
        n_vocab = self.model.config.n_vocab
        if tokens.ndim != 1 or tokens.size == 0:
            raise ShapeError(
                message("extend", "tokens", got=f"shape {tokens.shape}", expected="[T], T >= 1")
            )
        if tokens.min() < 0 or tokens.max() >= n_vocab:
            got = f"{tokens.min()} to {tokens.max()}"
            raise RangeError(message("extend", "tokens", got=got, expected=f"0 to {n_vocab - 1}"))
        return tokens


def _feed_forward(x: Floats, w: LayerWeights, c: ModelConfig) -> Floats:
    """What a layer's feed-forward block adds to x [T, E]."""
    hidden = gated(rms_norm(x, w.ffn_norm, c.norm_eps), w.gate_up, gelu=c.is_gemma)
    out = linear(hidden, w.ffn_down)
    return out if w.ffn_post_norm is None else rms_norm(out, w.ffn_post_norm, c.norm_eps)
