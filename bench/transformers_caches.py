"""transformers' own caches and kvcore's, side by side on one model: bytes, decode speed, KL.

Run it where torch, transformers, optimum-quanto and hqq are installed:

    python bench/transformers_caches.py --gguf MODEL.gguf --out bench/results

Every cache reads the same prompt and then the same forced tokens one at a time; KL is against
transformers' default cache in float32. Bytes are those of all tensors a cache holds at the end.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, DynamicCache
from transformers.cache_utils import QuantizedCache
from transformers.utils import logging

import kvcore
from kvcore.lab.divergence import compare
from kvcore.lab.texts import text
from kvcore.transformers import KVCoreCache, cache_argument, prepare

FORMATS = ("f16", "int8", "q4_0", "q2k", "k4v2c")
WARM_UP = 200


def tensor_bytes(value: Any, seen: set[int] | None = None) -> int:
    """Return the bytes of every tensor reachable from a cache, each storage once."""
    seen = set() if seen is None else seen
    if isinstance(value, KVCoreCache):
        return value.nbytes
    if isinstance(value, torch.Tensor):
        inner = [getattr(value, n) for n in ("_data", "_scale", "_shift") if hasattr(value, n)]
        if inner:
            return sum(tensor_bytes(x, seen) for x in inner)
        storage = value.untyped_storage()
        if storage.data_ptr() in seen:
            return 0
        seen.add(storage.data_ptr())
        return storage.nbytes()
    if isinstance(value, dict):
        return sum(tensor_bytes(x, seen) for x in value.values())
    if isinstance(value, list | tuple):
        return sum(tensor_bytes(x, seen) for x in value)
    if hasattr(value, "__dict__") and type(value).__module__.startswith(
        ("transformers", "optimum")
    ):
        return sum(tensor_bytes(x, seen) for x in vars(value).values())
    return 0


def caches(model: Any, cells: int) -> dict[str, tuple[str, Callable[[], Any]]]:
    """Return each cache's attention implementation and maker."""
    config = model.config
    out: dict[str, tuple[str, Callable[[], Any]]] = {
        "default (float32)": ("sdpa", lambda: DynamicCache(config=config))
    }
    for backend, bits in (("quanto", 4), ("quanto", 2), ("hqq", 4), ("hqq", 2)):
        options = {"axis_key": 0, "axis_value": 0} if backend == "quanto" else {
            "axis_key": 1, "axis_value": 1}  # fmt: skip
        out[f"QuantizedCache {backend} {bits} bit"] = (
            "sdpa",
            lambda b=backend, n=bits, o=options: QuantizedCache(
                b, config, nbits=n, q_group_size=64, residual_length=128, **o
            ),
        )
    for name in FORMATS:
        out[f"KVCoreCache {name}"] = (
            "kvcore",
            lambda f=name: KVCoreCache(f, capacity=cells),
        )
    return out


@torch.no_grad()
def forced(model: Any, ids: list[int], n_prompt: int, cache: Any) -> tuple[torch.Tensor, float]:
    """Return logits after each forced token, and the decode steps' seconds."""
    name = cache_argument(model)
    model(torch.tensor([ids[:n_prompt]]), logits_to_keep=1, **{name: cache})
    rows, start = [], time.perf_counter()
    for token in ids[n_prompt:-1]:
        rows.append(model(torch.tensor([[token]]), **{name: cache}).logits[0, -1])
    return torch.stack(rows), time.perf_counter() - start


def measure(model: Any, ids: list[int], n_prompt: int) -> list[dict[str, Any]]:
    """Run every cache; a cache that cannot run is a row with its reason."""
    exact, rows = None, []
    for name, (implementation, make) in caches(model, len(ids)).items():
        if implementation == "kvcore":
            prepare(model)
        else:
            model.set_attn_implementation(implementation)
        try:
            forced(model, ids[:WARM_UP], WARM_UP - 8, make())  # some compile on their first steps
            cache = make()
            got, seconds = forced(model, ids, n_prompt, cache)
        except (ImportError, ValueError, RuntimeError) as error:
            rows.append({"cache": name, "reason": f"{type(error).__name__}: {error}"[:300]})
            print(name, rows[-1]["reason"], flush=True)
            continue
        exact = got if exact is None else exact
        found = compare(exact.numpy(), got.numpy(), ids[n_prompt + 1 :])
        rows.append(
            {
                "cache": name,
                "bytes": tensor_bytes(cache),
                "steps_per_second": (len(ids) - n_prompt - 1) / seconds,
                "mean_kl": found.mean_kl,
                "top1": sum(found.same) / len(found.same),
            }
        )
        print(rows[-1], flush=True)
    return rows


def main() -> None:
    """Run and write transformers_caches.json and .md."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gguf", type=Path, required=True)
    parser.add_argument("--text", default="doc-objects")
    parser.add_argument("--prompt", type=int, default=512)
    parser.add_argument("--forced", type=int, default=160)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path("bench/results"))
    a = parser.parse_args()
    logging.disable_progress_bar()
    torch.set_num_threads(a.threads)
    options = {"gguf_file": a.gguf.name}
    tokenizer = AutoTokenizer.from_pretrained(a.gguf.parent, **options)
    model = AutoModelForCausalLM.from_pretrained(a.gguf.parent, dtype=torch.float32, **options)
    ids = tokenizer(text(a.text).body).input_ids[: a.prompt + a.forced + 1]
    rows = measure(model.eval(), ids, a.prompt)
    names = ("torch", "transformers", "optimum-quanto", "hqq", "numpy", "numba")
    about = {
        "command": f"python bench/transformers_caches.py --gguf {a.gguf.name} "
        f"--prompt {a.prompt} --forced {a.forced} --threads {a.threads}",
        "text": a.text,
        "machine": platform.machine(),
        "python": platform.python_version(),
        "versions": {"kvcore": kvcore.__version__, **{n: metadata.version(n) for n in names}},
    }
    a.out.mkdir(parents=True, exist_ok=True)
    data = json.dumps({**about, "rows": rows}, indent=1) + "\n"
    (a.out / "transformers_caches.json").write_text(data, encoding="utf-8")
    (a.out / "transformers_caches.md").write_text(markdown(about, rows), encoding="utf-8")


def markdown(about: dict[str, Any], rows: list[dict[str, Any]]) -> str:
    """Return the table, with the ratio of bytes to the default cache's."""
    base = rows[0]["bytes"]
    lines = [
        "# transformers' caches and kvcore's on one model",
        "",
        f"`{about['command']}`; text {about['text']}; versions "
        + ", ".join(f"{k} {v}" for k, v in about["versions"].items()),
        "",
        "Bytes: all tensors of the cache after the last step; for float16 models the default "
        "cache takes half of the first row. Speed depends on the machine and on what else runs on "
        "it. KL against the default cache, forced tokens one at a time.",
        "",
        "| cache | bytes | of float32 | decode steps/s | mean KL | top-1 % |",
        "|---|---|---|---|---|---|",
    ]
    for r in rows:
        if "reason" in r:
            lines.append(f"| {r['cache']} | not run: {r['reason']} | | | | |")
        else:
            lines.append(
                f"| {r['cache']} | {r['bytes']} | {100 * r['bytes'] / base:.1f} % "
                f"| {r['steps_per_second']:.2f} | {r['mean_kl']:.5f} | {100 * r['top1']:.1f} |"
            )
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
