"""Windows and padding: what the masks of transformers say is what is read.

The truth is transformers' own eager attention over its DynamicCache, on tiny random models.
"""

from __future__ import annotations

import copy

import pytest

torch = pytest.importorskip("torch", reason="the extra torch is not installed")
transformers = pytest.importorskip("transformers", reason="the extra torch is not installed")

from kvcore.errors import ShapeError, UnsupportedError  # noqa: E402
from kvcore.transformers import KVCoreCache, cache_argument, prepare, refusals  # noqa: E402
from kvcore.transformers.attention import padding_mask  # noqa: E402
from tests.eval.tiny_models import (  # noqa: E402
    build,
    call,
    close,
    eager,
    lengths,
    prompt,
    tiny_gemma,
    tiny_llama,
    tiny_qwen,
)


@pytest.fixture(scope="module")
def llama():
    return tiny_llama()


@pytest.fixture(scope="module")
def gemma():
    return tiny_gemma()


# -- windows ----------------------------------------------------------------------------------


def phimoe():
    return build("Phimoe", num_local_experts=2, sliding_window=16, initializer_range=0.2)


@pytest.mark.parametrize("padded", [0, 7])
@pytest.mark.parametrize("make", [tiny_qwen, phimoe])
def test_a_window_that_only_the_mask_has_is_applied(make, padded):
    model, ids = make(), prompt(60, batch=2)
    if refusals(model):
        pytest.skip("PhiMoE of this transformers has no attention interface")
    mask = torch.ones_like(ids)
    mask[1, :padded] = 0
    cuts = [(0, 40), (40, 58), (58, 59), (59, 60)]
    calls = [(ids[:, a:b], mask[:, :b]) for a, b in cuts]
    expected = eager(model, *calls)
    cache = KVCoreCache("f32")
    for (part, seen), logits in zip(calls, expected, strict=True):
        got = call(model, cache, part, seen)
        close(got[0], logits[0])
        first = max(0, padded + part.shape[1] - seen.shape[1])
        close(got[1, first:], logits[1, first:])


@pytest.mark.parametrize("padded", [0, 7])
def test_layers_of_both_kinds_get_the_mask_of_their_kind(gemma, padded):
    ids = prompt(30, batch=2)
    mask = torch.ones_like(ids)
    mask[1, :padded] = 0
    calls = [(ids[:, :20], mask[:, :20]), (ids[:, 20:29], mask[:, :29]), (ids[:, 29:], mask)]
    expected = eager(gemma, *calls)
    cache = KVCoreCache("f32")
    for i, (part, seen) in enumerate(calls):
        got, first = call(gemma, cache, part, seen), 0 if i else padded
        close(got[0], expected[i][0])
        close(got[1, first:], expected[i][1, first:])


def test_a_mask_and_a_module_with_different_windows_are_refused(gemma):
    model, cache, ids = copy.deepcopy(gemma), KVCoreCache("f32"), prompt(30)
    call(gemma, cache, ids[:, :20])
    model.model.layers[2].self_attn.sliding_window = 5
    with pytest.raises(UnsupportedError, match="window of Gemma3Attention: got 5 cells, expected"):
        call(model, cache, ids[:, 20:])
    model.model.layers[2].self_attn.sliding_window = None  # then the mask alone says it
    assert lengths(cache) == [[20]] * 3
    close(call(model, cache, ids[:, 20:]), eager(gemma, (ids, None))[0][:, 20:])


def test_a_window_of_the_module_that_the_mask_lacks_is_refused(llama):
    model = copy.deepcopy(llama)
    model.model.layers[1].self_attn.sliding_window = 8
    cache = KVCoreCache("f32")
    close(call(model, cache, prompt(8)), eager(llama, (prompt(8), None))[0])
    with pytest.raises(UnsupportedError, match="got 8 cells, expected all cells"):
        call(model, cache, prompt(1))
    assert lengths(cache) == [[8]] * 3


def test_chunks_are_not_taken_for_a_window():
    def chunks(b, h, q, kv):
        return (kv <= q) & (kv // 8 == q // 8)

    for queries, offset in ((16, 0), (24, 8), (1, 31), (1, 15)):
        with pytest.raises(UnsupportedError, match="neither causal nor a sliding window"):
            padding_mask(1, queries, queries + offset, offset, mask_function=chunks)
    assert padding_mask(1, 8, 8, 0, mask_function=chunks) is None  # the first chunk is causal


# -- masks ------------------------------------------------------------------------------------


def test_a_mask_that_hides_stored_tokens_is_refused(llama):
    ids, cache = prompt(40), KVCoreCache("f32")
    call(llama, cache, ids[:, :30])
    mask = torch.ones_like(ids)
    mask[0, 5:10] = 0
    with pytest.raises(UnsupportedError, match="earlier columns are not those"):
        call(llama, cache, ids[:, 30:], mask)
    assert lengths(cache) == [[30]] * 3
    close(call(llama, cache, ids[:, 30:]), eager(llama, (ids, None))[0][:, 30:])


def test_a_mask_that_shows_padding_of_earlier_calls_is_refused(llama):
    ids, mask, cache = prompt(20), torch.ones(1, 20, dtype=torch.long), KVCoreCache("f32")
    mask[0, :6] = 0
    call(llama, cache, ids, mask)
    for wrong in (None, torch.ones(1, 21, dtype=torch.long)):
        with pytest.raises(UnsupportedError, match="earlier columns are not those"):
            call(llama, cache, prompt(1), wrong)


@pytest.mark.parametrize("width", [10, 39, 41])
def test_a_mask_of_other_columns_is_refused(llama, width):
    cache = KVCoreCache("f32")
    call(llama, cache, prompt(30))
    with pytest.raises(ShapeError, match=rf"shape of the mask: got \(1, {width}\).*\(1, 40\)"):
        call(llama, cache, prompt(10), torch.ones(1, width, dtype=torch.long))
    assert lengths(cache) == [[30]] * 3


@pytest.mark.parametrize("hidden", [slice(15, 20), slice(19, 20), slice(0, 20)])
def test_padding_in_the_last_column_is_refused(llama, hidden):
    ids, cache = prompt(20, batch=2), KVCoreCache("f32")
    mask = torch.ones_like(ids)
    mask[1, hidden] = 0
    with pytest.raises(UnsupportedError, match=r"padding in the last column \(of rows \[1\]\)"):
        call(llama, cache, ids, mask)
    assert lengths(cache) == []
    with pytest.raises(UnsupportedError, match="pad on the left"):
        prepare(llama).generate(
            ids, attention_mask=mask, max_new_tokens=2, do_sample=False,
            **{cache_argument(llama): cache},
        )  # fmt: skip
