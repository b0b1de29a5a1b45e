"""The model's basis and the stored one: operands of a cache checked and rotated."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from kvcore.cache_spec import CacheSpec
from kvcore.errors import ShapeError, message
from kvcore.numerics import F32

if TYPE_CHECKING:
    from kvcore.backend import Backend


@dataclass(frozen=True, kw_only=True, slots=True)
class Basis:
    """Takes K, V and queries of the model into a spec's stored basis, and outputs back.

    Attributes
    ----------
    backend : Backend
    spec : CacheSpec
    """

    backend: Backend
    spec: CacheSpec

    def chunk(self, op: str, k: Any, v: Any) -> tuple[Any, Any]:
        """Return K and V as f32[T, H, D] arrays of the backend, or raise ShapeError."""
        asarray, spec = self.backend.arrays.asarray, self.spec
        k, v = asarray(k, "float", op, "k"), asarray(v, "float", op, "v")
        for a, name, d in ((k, "k", spec.head_dim), (v, "v", spec.head_dim_v)):
            shape = tuple(a.shape)
            if len(shape) != 3 or shape[1:] != (spec.n_kv_heads, d):
                raise ShapeError(
                    message(
                        op,
                        f"{name} has the wrong shape",
                        got=shape,
                        expected=f"[T, {spec.n_kv_heads}, {d}]",
                    )
                )
        if k.shape[0] != v.shape[0]:
            raise ShapeError(
                message(
                    op,
                    "k and v differ in tokens",
                    got=int(v.shape[0]),
                    expected=int(k.shape[0]),
                )
            )
        return k, v

    def stored(self, k: Any, v: Any) -> tuple[Any, Any]:
        """Rotate K and V as the format does."""
        fmt, be = self.spec.format, self.backend
        return (
            be.rotate(k) if fmt.rotate_k else k,
            be.rotate(v) if fmt.rotate_v else v,
        )

    def empty(self) -> tuple[Any, Any]:
        """Return K and V of no cell."""
        h = self.spec.n_kv_heads
        return self.chunk(
            "append",
            np.zeros((0, h, self.spec.head_dim), np.float32),
            np.zeros((0, h, self.spec.head_dim_v), np.float32),
        )

    def query(self, q: Any) -> Any:
        """Return queries as f32[T, Q, Dk], rotated as K is, or raise ShapeError."""
        q = self.backend.arrays.asarray(q, "float", "attend", "q")
        if len(q.shape) != 3:
            raise ShapeError(
                message(
                    "attend",
                    "q has the wrong shape",
                    got=tuple(q.shape),
                    expected=f"[T, Q, {self.spec.head_dim}]",
                )
            )
        turn = self.spec.format.rotate_k and q.shape[-1] == self.spec.head_dim
        return self.backend.rotate(q) if turn else q

    def output(self, out: Any) -> Any:
        """Return an attention output in the model's basis."""
        return self.backend.rotate(out) if self.spec.format.rotate_v else out

    def centre(self) -> F32 | None:
        """Return a calibrated centre in the stored basis, f32[H, Dk]; None if there is none."""
        centre = self.spec.k_center
        if isinstance(centre, str):
            return None
        if self.spec.format.rotate_k:
            be = self.backend
            centre = be.to_host(be.rotate(be.arrays.asarray(centre, "float", "cache", "k_center")))
        return np.asarray(centre, np.float32)
