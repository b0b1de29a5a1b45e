"""kvcore as the KV cache of Hugging Face transformers.

``prepare(model)`` checks that a model can attend over packed caches and switches its attention;
``KVCoreCache(spec)`` is then the cache argument of ``model(...)`` and ``model.generate(...)``.
"""

from __future__ import annotations

from kvcore.errors import UnsupportedError, message

try:
    import torch as _torch  # noqa: F401
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.cache_utils import Cache, CacheLayerMixin  # noqa: F401
except ImportError as error:
    raise UnsupportedError(
        message(
            "transformers",
            "transformers with its attention interface is needed",
            got=error,
            expected="torch and transformers >= 5",
            fix="pip install 'kvcore[torch]'",
        )
    ) from error

from kvcore.transformers.attention import NAME, attention
from kvcore.transformers.cache import KVCoreCache
from kvcore.transformers.mask import padding_mask
from kvcore.transformers.support import cache_argument, prepare, refusals

AttentionInterface.register(NAME, attention)
AttentionMaskInterface.register(NAME, padding_mask)

__all__ = ["KVCoreCache", "cache_argument", "prepare", "refusals"]
