"""The picture of a plan: bytes of all layers by context, one line per format."""

from __future__ import annotations

from pathlib import Path

from kvcore.cache_spec import CacheSpec
from kvcore.errors import FormatError
from kvcore.lab.plots import memory
from kvcore.memory_plan import plan
from kvcore.model_geometry import ModelGeometry

FORMATS = ("f16", "int8", "k8v4", "q4_0", "q2k", "q2")
SMALLEST = 1024


def write_picture(
    path: Path, format: str, g: ModelGeometry, context: int, batch: int, *, bare: bool
) -> None:
    """Write an SVG of contexts up to `context`.

    Parameters
    ----------
    path : Path
    format : str
        Drawn beside the usual ones.
    g : ModelGeometry
    context : int
        Cells of each sequence.
    batch : int
    bare : bool
        Without the formats' recipes.

    Raises
    ------
    UnsupportedError
        matplotlib is not installed.
    """
    contexts = [context]
    while contexts[-1] > 2 * SMALLEST and len(contexts) < 9:
        contexts.append(contexts[-1] // 2)
    totals = {}
    for name in dict.fromkeys((*FORMATS[:-1], format, FORMATS[-1])):
        try:
            spec = CacheSpec(
                format=name,
                n_kv_heads=g.n_kv_heads,
                head_dim=g.head_dim,
                head_dim_v=g.head_dim_v or None,
                recipe=None if bare else "format",
            )
        except FormatError:
            continue  # the format does not hold heads of this size: it has no line
        totals[name] = {
            float(n): float(plan(spec, g.layers, n, batch).total) for n in reversed(contexts)
        }
    path.write_text(memory(totals), encoding="utf-8")
