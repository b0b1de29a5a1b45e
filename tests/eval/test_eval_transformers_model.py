"""SmolLM2 in transformers: float16 packed caches give the default cache's tokens."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="the extra torch is not installed")
transformers = pytest.importorskip("transformers", reason="the extra torch is not installed")
pytest.importorskip("accelerate", reason="transformers reads GGUF files with accelerate only")

from kvcore.lab.fetch import fetch  # noqa: E402
from kvcore.transformers import KVCoreCache, cache_argument, prepare  # noqa: E402

pytestmark = pytest.mark.model

PROMPTS = ("The history of the city begins with a small harbour, where", "def read_file(path):\n")


@pytest.fixture(scope="module")
def smollm2():
    path = fetch("smollm2")
    options = {"gguf_file": path.name}
    tokenizer = transformers.AutoTokenizer.from_pretrained(path.parent, **options)
    model = transformers.AutoModelForCausalLM.from_pretrained(
        path.parent, dtype=torch.float32, **options
    )
    return model.eval(), tokenizer


@pytest.mark.parametrize("prompt", PROMPTS)
def test_greedy_tokens_with_f16_are_the_default_caches(smollm2, prompt):
    model, tokenizer = smollm2
    ids = tokenizer(prompt, return_tensors="pt").input_ids
    model.set_attn_implementation("sdpa")
    expected = model.generate(ids, max_new_tokens=24, do_sample=False)
    prepare(model, "f16")
    cache = {cache_argument(model): KVCoreCache("f16")}
    assert torch.equal(expected, model.generate(ids, max_new_tokens=24, do_sample=False, **cache))
