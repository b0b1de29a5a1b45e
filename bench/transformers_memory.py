"""Peak memory of decoding with a KVCoreCache, against weights plus plan (Linux).

    python bench/transformers_memory.py --gguf MODEL.gguf --out bench/results

The process's resident memory is taken after imports and after the kernels are compiled; the peak
is reset by the kernel's own switch before the decode steps, so that loading does not count.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import os
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

import gguf  # noqa: F401  (what loading imports is no part of the model)
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM
from transformers.utils import logging

import kvcore
from kvcore.transformers import KVCoreCache, cache_argument, prepare

LIMIT = 1.10


def status(field: str) -> int:
    """Return a field of this process's status in bytes."""
    for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    raise LookupError(field)


@torch.no_grad()
def decode(model: torch.nn.Module, cache: KVCoreCache, n_prompt: int, n: int) -> int:
    """Read a prompt in pieces, then decode; returns the peak of the decode steps."""
    name = cache_argument(model)
    ids = torch.randint(3, model.config.vocab_size, (1, n_prompt), generator=torch.manual_seed(0))
    for start in range(0, n_prompt, 256):
        model(ids[:, start : start + 256], logits_to_keep=1, **{name: cache})
    trim()
    Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")
    for _ in range(n):
        model(ids[:, :1], **{name: cache})
    return status("VmHWM")


def trim() -> None:
    """Give freed heap back to the system, so that what loading left behind does not count."""
    gc.collect()
    ctypes.CDLL("libc.so.6").malloc_trim(0)


def warm_up(format: str) -> None:
    """Compile every kernel on a tiny model."""
    config = LlamaConfig(
        vocab_size=50, hidden_size=64, intermediate_size=64, num_hidden_layers=1,
        num_attention_heads=4, num_key_value_heads=2, head_dim=64,
    )  # fmt: skip
    model = prepare(LlamaForCausalLM(config).eval())
    decode(model, KVCoreCache(format, capacity=600), 300, 140)
    import transformers.modeling_gguf_pytorch_utils  # noqa: F401


def main() -> int:
    """Measure, write transformers_memory.md, and return 1 above the limit."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gguf", type=Path, required=True)
    parser.add_argument("--format", default="q2k")
    parser.add_argument("--prompt", type=int, default=4096)
    parser.add_argument("--steps", type=int, default=32)
    parser.add_argument("--out", type=Path, default=Path("bench/results"))
    a = parser.parse_args()
    logging.disable_progress_bar()
    warm_up(a.format)
    trim()
    base = status("VmRSS")
    model = AutoModelForCausalLM.from_pretrained(
        a.gguf.parent, gguf_file=a.gguf.name, dtype=torch.float32
    ).eval()
    prepare(model, a.format)
    trim()
    loaded = status("VmRSS") - base
    c = model.config
    cells = a.prompt + a.steps
    spec = kvcore.CacheSpec(
        format=a.format, n_kv_heads=c.num_key_value_heads,
        head_dim=getattr(c, "head_dim", None) or c.hidden_size // c.num_attention_heads,
    )  # fmt: skip
    planned = kvcore.plan(spec, layers=c.num_hidden_layers, context=cells).total
    weights = sum(
        t.untyped_storage().nbytes()
        for t in {t.data_ptr(): t for t in model.state_dict().values()}.values()
    )
    cache = KVCoreCache(a.format, capacity=cells)
    peak = decode(model, cache, a.prompt, a.steps) - base
    share = peak / (weights + planned)
    text = (
        "# Peak memory of decoding with a KVCoreCache\n\n"
        f"`python bench/transformers_memory.py --gguf {a.gguf.name} --format {a.format} "
        f"--prompt {a.prompt} --steps {a.steps}`\n\n"
        f"- weights (float32): {weights} bytes\n"
        f"- resident after loading, above the process before it: {loaded} bytes\n"
        f"- plan of {cells} cells: {planned} bytes; the cache says {cache.nbytes}\n"
        f"- peak over the decode steps above the process before loading: {peak} bytes\n"
        f"- peak / (weights + plan): {share:.3f}, limit {LIMIT}\n"
    )
    a.out.mkdir(parents=True, exist_ok=True)
    (a.out / "transformers_memory.md").write_text(text, encoding="utf-8")
    print(text)
    return 0 if share <= LIMIT and cache.nbytes == planned else 1


if __name__ == "__main__":
    raise SystemExit(main())
