"""Make a dump: run a real text through a model and keep what its KV caches hold."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

import kvcore
from kvcore.errors import message
from kvcore.lab.config import ModelConfig
from kvcore.lab.dump_file import DumpMeta, save_dump
from kvcore.lab.engine import PREFILL_CHUNK, Session
from kvcore.lab.errors import SettingError
from kvcore.lab.exact import ExactCache
from kvcore.lab.load import LoadedModel
from kvcore.lab.outputs import check_file
from kvcore.lab.texts import Text

N_QUERIES = 64


def file_sha256(path: Path) -> str:
    """Return the hash of a file."""
    digest = hashlib.sha256()
    with path.open("rb") as f:
        while block := f.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def default_layers(config: ModelConfig) -> tuple[int, ...]:
    """Return layers that span a model's depth, with every full layer of a model with windows."""
    n = config.n_layers
    spread = {0, n // 8, n // 3, n // 2, 2 * n // 3, n - 1}
    windows = [layer.window for layer in config.layers]
    if any(windows):
        spread |= {i for i, window in enumerate(windows) if not window}
    return tuple(sorted(spread))


def dump(
    loaded: LoadedModel,
    text: Text,
    path: Path,
    *,
    n_cells: int = 2048,
    n_queries: int = N_QUERIES,
    layers: Sequence[int] | None = None,
    progress: Callable[[str, int, int], None] | None = None,
) -> DumpMeta:
    """Read a text exactly and write K after RoPE, V and the last queries of chosen layers.

    Parameters
    ----------
    loaded : LoadedModel
    text : Text
    path : Path
        A safetensors file; written under another name first.
    n_cells : int
        Tokens of the text.
    n_queries : int
        Of the last positions.
    layers : sequence of int, optional
        :func:`default_layers` unless given.
    progress : callable (what, done, total), optional

    Raises
    ------
    SettingError
        The text is shorter than `n_cells`, a number is out of range, or nothing can be written
        to `path`; nothing has run then.
    """
    check_file("dump", path)
    config = loaded.model.config
    chosen = default_layers(config) if layers is None else tuple(sorted(set(layers)))
    ids = loaded.tokenizer.encode(text.body)[: max(n_cells, 0)]
    _check(config, len(ids), n_cells, n_queries, chosen)
    session = Session(loaded.model, ExactCache)
    caches = [c for c in session.caches if isinstance(c, ExactCache)]
    end = len(ids)
    for start in range(0, end - n_queries, PREFILL_CHUNK):
        session.extend(ids[start : min(start + PREFILL_CHUNK, end - n_queries)])
        if progress is not None:
            progress("reading the text", start, end)
    for i in chosen:
        caches[i].keep_queries = True
    session.extend(ids[end - n_queries :])
    meta = DumpMeta(
        model=config.name,
        model_sha256=file_sha256(loaded.path),
        arch=config.arch,
        text=text.name,
        text_sha256=text.sha256,
        n_layers=config.n_layers,
        layers=list(chosen),
        windows=[config.layers[i].window or 0 for i in chosen],
        thetas=[config.layers[i].rope_theta for i in chosen],
        n_heads=config.n_heads,
        n_kv_heads=config.n_kv_heads,
        head_dim=config.head_dim,
        scale=config.softmax_scale,
        n_cells=end,
        n_queries=n_queries,
        kvcore=kvcore.__version__,
    )
    kept = {i: (caches[i].k, caches[i].v, np.concatenate(caches[i].queries)) for i in chosen}
    save_dump(path, meta, np.asarray(ids, np.int32), kept)
    return meta


def _check(
    config: ModelConfig, n_ids: int, n_cells: int, n_queries: int, layers: Sequence[int]
) -> None:
    def refuse(what: str, got: object, expected: str, fix: str = "") -> None:
        raise SettingError(message("dump", what, got=got, expected=expected, fix=fix))

    if not 1 <= n_queries < n_cells:
        fix = "give fewer --queries or more --cells"
        refuse(f"queries of {n_cells} cells", n_queries, f"1 to {n_cells - 1}", fix)
    if n_cells > config.context:
        refuse("cells", n_cells, f"at most the model's context of {config.context}")
    if n_ids < n_cells:
        refuse("the text is too short", f"{n_ids} tokens", f"{n_cells}", "ask for fewer cells")
    if not layers or min(layers) < 0 or max(layers) >= config.n_layers:
        refuse("layers", list(layers), f"some of 0 to {config.n_layers - 1}")
