"""A cache that keeps every cell in float32: the oracle the kvcore caches are compared with.

It shares no code with kvcore and does the plainest thing: all scores, a mask, a softmax.
"""

from __future__ import annotations

import numpy as np


class ExactCache:
    """Same calls as kvcore's KVCache; `k` and `v` of `attend` are what it holds anyway."""

    def __init__(self, layer: int, n_kv_heads: int, head_dim: int, capacity: int = 4096) -> None:
        self.k = np.empty((capacity, n_kv_heads, head_dim), np.float32)
        self.v = np.empty((capacity, n_kv_heads, head_dim), np.float32)
        self.n = 0

    def append(self, k, v) -> None:
        end = self.n + len(k)
        if end > len(self.k):
            raise ValueError(f"capacity: got {end} cells, expected at most {len(self.k)}")
        self.k[self.n : end], self.v[self.n : end] = k, v
        self.n = end

    def attend(self, q, k=None, v=None, scale=None, window=None):
        t, heads, dim = q.shape
        first = 0 if window is None else max(0, self.n - t - window + 1)
        keys, values = self.k[first : self.n], self.v[first : self.n]
        group = heads // keys.shape[1]
        position = np.arange(self.n - t, self.n)[:, None]
        cell = np.arange(first, self.n)[None]
        hidden = cell > position
        if window is not None:
            hidden |= cell <= position - window
        out = np.empty((t, heads, dim), np.float32)
        for h in range(keys.shape[1]):
            mine = slice(h * group, (h + 1) * group)
            queries = q[:, mine].reshape(t * group, dim) * np.float32(scale or dim**-0.5)
            scores = (queries @ keys[:, h].T).reshape(t, group, -1)
            np.copyto(scores, -np.inf, where=hidden[:, None])
            scores -= scores.max(-1, keepdims=True)
            np.exp(scores, out=scores)
            scores /= scores.sum(-1, keepdims=True)
            mixed = scores.reshape(t * group, -1) @ values[:, h]
            out[:, mine] = mixed.reshape(t, group, dim)
        return out

    def truncate(self, n: int) -> None:
        self.n = n

    def __len__(self) -> int:
        return self.n

    @property
    def nbytes(self) -> int:
        return self.k.nbytes + self.v.nbytes
