"""kvcore with PyTorch tensors: in and out without a copy where memory allows it.

A tensor of the backend's device comes in through DLPack; float32 ones on the CPU are read where
they lie. An output of a backend becomes a tensor that shares its memory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from kvcore.errors import ShapeError, UnsupportedError, message

try:
    import torch
except ImportError as error:
    raise UnsupportedError(
        message(
            "torch",
            "PyTorch is needed",
            got=error,
            expected="torch",
            fix="pip install 'kvcore[torch]'",
        )
    ) from error

if TYPE_CHECKING:
    from kvcore.cache import KVCache


def as_tensor(array: Any) -> torch.Tensor:
    """Return a backend's array as a tensor that shares its memory.

    Parameters
    ----------
    array : array
        NumPy, or anything with DLPack.

    Raises
    ------
    ShapeError
        It is neither.
    """
    if isinstance(array, torch.Tensor):
        return array
    if isinstance(array, np.ndarray):
        # A read-only array would let a tensor write into memory that is promised not to change.
        return torch.from_numpy(array if array.flags.writeable else array.copy())
    if hasattr(array, "__dlpack__"):
        return torch.from_dlpack(array)
    got = type(array).__name__
    raise ShapeError(message("torch", "no array", got=got, expected="NumPy or DLPack"))


def as_array(tensor: torch.Tensor) -> Any:
    """Return a tensor as what kvcore's backends take, sharing its memory.

    Parameters
    ----------
    tensor : Tensor
        On the CPU: a NumPy array over the same memory (bfloat16 is converted, NumPy has none).
        On another device: the tensor itself, which a backend reads through DLPack.
    """
    tensor = tensor.detach()
    if tensor.device.type != "cpu":
        return tensor
    return (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy()


class TorchCache:
    """A :class:`kvcore.KVCache` that takes and returns tensors.

    Parameters
    ----------
    cache : KVCache
        Made by ``backend.cache(spec, capacity)``; the tensors live on its device.
    """

    def __init__(self, cache: KVCache) -> None:
        self.cache = cache

    def __len__(self) -> int:
        return len(self.cache)

    def append(self, k: torch.Tensor, v: torch.Tensor, draft: bool = False) -> None:
        """Store the next T cells: k, v [T, H, D] after RoPE. See ``KVCache.append``."""
        self.cache.append(as_array(k), as_array(v), draft=draft)

    def attend(
        self,
        q: torch.Tensor,
        k: torch.Tensor | None = None,
        v: torch.Tensor | None = None,
        **options: Any,
    ) -> torch.Tensor:
        """Attend from q [T, Q, D]; float32 [T, Q, D]. Options are those of ``KVCache.attend``."""
        own = {n: as_array(x) for n, x in (("k", k), ("v", v)) if x is not None}
        return as_tensor(self.cache.attend(as_array(q), **own, **options))

    def read(self, ids: Any = None) -> tuple[torch.Tensor, torch.Tensor]:
        """Return K and V of cells as the next query would read them. See ``KVCache.read``."""
        k, v = self.cache.read(ids)
        return as_tensor(k), as_tensor(v)


__all__ = ["TorchCache", "as_array", "as_tensor"]
