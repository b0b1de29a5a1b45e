"""Make expected_ids.json: greedy tokens of transformers in float32, the oracle of the lab engine.

Run once, in an environment of its own (the test environment needs neither torch nor transformers):

    pip install torch transformers accelerate gguf
    python make_expected_ids.py path/to/SmolLM2-135M-Instruct.Q4_1.gguf expected_ids.json

The loop below takes the arg-max itself, so no generation setting and no stop token can change it.
`min_margin` is the smallest gap between the best and the second logit: it says how far from a tie
each run stayed, so a different token can be told from rounding.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import platform
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import AutoModelForCausalLM, AutoTokenizer

N_TOKENS = 48
RAW_PROMPTS = (
    "The capital of France is",
    "def fibonacci(n):\n",
    "Once upon a time, in a small village by the sea, there lived",
)
CHAT_PROMPT = "Why is the sky blue? Answer in two sentences."


def greedy(model: Any, ids: list[int], n_tokens: int) -> tuple[list[int], float]:
    """Arg-max continuation of `ids` and the smallest margin seen on the way."""
    out: list[int] = []
    margin = float("inf")
    past = None
    step = torch.tensor([ids])
    with torch.no_grad():
        for _ in range(n_tokens):
            result = model(step, past_key_values=past, use_cache=True)
            past = result.past_key_values
            best = result.logits[0, -1].float().topk(2)
            margin = min(margin, float(best.values[0] - best.values[1]))
            out.append(int(best.indices[0]))
            step = torch.tensor([[out[-1]]])
    return out, margin


def main() -> None:
    """Write the oracle file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("gguf", type=Path)
    parser.add_argument("out", type=Path)
    args = parser.parse_args()

    torch.use_deterministic_algorithms(mode=True)
    source = {"gguf_file": args.gguf.name}
    tokenizer = AutoTokenizer.from_pretrained(args.gguf.parent, **source)
    model = AutoModelForCausalLM.from_pretrained(args.gguf.parent, dtype=torch.float32, **source)
    model.eval()

    prompts = [{"kind": "raw", "text": text} for text in RAW_PROMPTS]
    if tokenizer.chat_template:
        turns = [{"role": "user", "content": CHAT_PROMPT}]
        text = tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
        prompts.append({"kind": "chat", "user": CHAT_PROMPT, "text": text})

    runs = []
    for prompt in prompts:
        ids = tokenizer(prompt["text"])["input_ids"]
        out, margin = greedy(model, ids, N_TOKENS)
        runs.append(
            {
                **prompt,
                "prompt_ids": ids,
                "expected_ids": out,
                "expected_text": tokenizer.decode(out),
                "min_margin": round(margin, 5),
            }
        )
        print(repr(runs[-1]["expected_text"]), margin)

    record = {
        "made_by": "tests/lab/make_expected_ids.py",
        "gguf": args.gguf.name,
        "gguf_sha256": hashlib.sha256(args.gguf.read_bytes()).hexdigest(),
        "dtype": "float32",
        "decoding": "greedy arg-max, stop tokens ignored",
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "transformers": transformers.__version__,
        },
        "runs": runs,
    }
    args.out.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
