"""What kvcore.transformers refuses, and that a refused call leaves no trace.

The truth is transformers' own eager attention over its DynamicCache, on tiny random models.
"""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the extra torch is not installed")
transformers = pytest.importorskip("transformers", reason="the extra torch is not installed")

import kvcore.transformers.layer as layers  # noqa: E402
from kvcore.errors import RangeError, ShapeError, UnsupportedError  # noqa: E402
from kvcore.transformers import KVCoreCache, cache_argument, prepare, refusals  # noqa: E402
from kvcore.transformers.attention import attention  # noqa: E402
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


# -- refusals leave no trace ------------------------------------------------------------------


def test_a_full_cache_works_on_as_before_the_refused_call(llama):
    ids, more = prompt(40), prompt(8, seed=1)
    cache = KVCoreCache("f32", capacity=48)
    call(llama, cache, ids)
    room = cache.layers[0].rows[0].capacity - 40
    with pytest.raises(RangeError, match="the cache is full: got"):
        call(llama, cache, prompt(room + 1, seed=2))
    assert [layer.get_seq_length() for layer in cache.layers] == [40] * 3
    assert lengths(cache) == [[40]] * 3
    expected = eager(llama, (ids, None), (more, None))[1]
    close(call(llama, cache, more), expected)


def test_no_row_is_stored_when_another_has_no_room(llama):
    cache = KVCoreCache("f32", capacity=48)
    ids, mask = prompt(40, batch=2), torch.ones(2, 40, dtype=torch.long)
    mask[0, :30] = 0
    call(llama, cache, ids, mask)
    new = cache.layers[0].rows[0].capacity - 39
    wide = torch.cat([mask, torch.ones(2, new, dtype=torch.long)], 1)
    with pytest.raises(RangeError, match="full"):
        call(llama, cache, prompt(new, batch=2), wide)
    assert lengths(cache) == [[10, 40]] * 3
    more = prompt(5, batch=2, seed=3)
    expected = eager(llama, (ids, mask), (more, wide[:, :45]))[1]
    close(call(llama, cache, more, wide[:, :45]), expected)


@pytest.mark.parametrize("error", [MemoryError, KeyboardInterrupt])
def test_an_error_in_the_middle_takes_back_every_row_of_every_layer(llama, monkeypatch, error):
    cache, ids, more = KVCoreCache("f32"), prompt(40, batch=2), prompt(20, batch=2, seed=1)
    call(llama, cache, ids)
    original, calls = layers.KVCoreLayer._row, []

    def fails(self, *args):
        calls.append(self)
        out = original(self, *args)
        if len(calls) == 4:  # the second row of the second layer
            raise error
        return out

    with monkeypatch.context() as patch:
        patch.setattr(layers.KVCoreLayer, "_row", fails)
        with pytest.raises(error):
            call(llama, cache, more)
    assert lengths(cache) == [[40, 40]] * 3
    close(call(llama, cache, more), eager(llama, (ids, None), (more, None))[1])


def test_a_call_that_the_models_own_code_ended_is_taken_back(llama, monkeypatch):
    cache, ids, more = KVCoreCache("f32"), prompt(40), prompt(9, seed=1)
    call(llama, cache, ids)

    def fails(*args):
        raise ZeroDivisionError

    with monkeypatch.context() as patch:
        patch.setattr(llama.model.layers[1].mlp, "forward", fails)
        with pytest.raises(ZeroDivisionError):
            call(llama, cache, more)
    assert cache.get_seq_length() == 40
    mask = torch.ones(1, 49, dtype=torch.long)
    with pytest.raises(ShapeError, match=r"did not end.* 49 and 49 and 40 columns.*40 columns are"):
        call(llama, cache, more, mask)
    close(call(llama, cache, more, mask), eager(llama, (ids, None), (more, None))[1])


def test_a_first_call_that_the_models_own_code_ended_is_never_read(llama, monkeypatch):
    cache = KVCoreCache("f32")

    def fails(*args):
        raise ZeroDivisionError

    with monkeypatch.context() as patch:
        patch.setattr(llama.model.layers[1].mlp, "forward", fails)
        with pytest.raises(ZeroDivisionError):
            call(llama, cache, prompt())
    with pytest.raises(ShapeError, match=r"columns of layer 2: got 0, expected 40.*reset\(\)"):
        call(llama, cache, prompt())
    cache.reset()
    close(call(llama, cache, prompt()), eager(llama, (prompt(), None))[0])


def refused(llama, how, cache):
    ids = prompt(9, batch=2)
    if how == "unprepared":
        llama.set_attn_implementation("sdpa")
        one = ids[:1, :1]  # of more tokens sdpa itself says that its mask is too wide
        with torch.no_grad(), pytest.raises(UnsupportedError, match="prepare"):
            llama(one, **{cache_argument(llama): cache})
    elif how == "weights":
        with pytest.raises(UnsupportedError, match="attention weights"):
            call(llama, cache, ids[:1], output_attentions=True)
    elif how == "4-D mask":
        with pytest.raises(UnsupportedError, match="mask of shape"):
            call(llama, cache, ids[:1], torch.ones(1, 1, 9, 49, dtype=torch.bool))
    elif how == "late":
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(llama.model.layers[2].self_attn, "is_causal", False)
            with pytest.raises(UnsupportedError, match="not causal"):
                call(llama, cache, ids[:1])
    elif how == "batch":
        if cache.layers:
            with pytest.raises(ShapeError, match="batch"):
                call(llama, cache, ids)
        else:  # the first call's two sequences are forgotten with it
            with pytest.raises(UnsupportedError, match="attention weights"):
                call(llama, cache, ids, output_attentions=True)


@pytest.mark.parametrize("before", [0, 40])
@pytest.mark.parametrize("how", ["unprepared", "weights", "4-D mask", "late", "batch"])
def test_after_a_refusal_nothing_is_stored_and_the_next_call_works(llama, how, before):
    cache, calls = KVCoreCache("f32"), []
    if before:
        calls.append((prompt(before), None))
        call(llama, cache, *calls[0])
    refused(llama, how, cache)
    assert not cache.waits
    assert lengths(cache) == ([[before]] * 3 if before else [])
    calls.append((prompt(9, seed=5), None))
    close(call(llama, cache, *calls[-1]), eager(llama, *calls)[-1])


def test_an_unprepared_models_own_error_leaves_no_trace(llama):
    cache, calls = KVCoreCache("f32"), [(prompt(), None), (prompt(9, seed=1), None)]
    call(llama, cache, *calls[0])
    llama.set_attn_implementation("eager")
    with torch.no_grad(), pytest.raises(RuntimeError, match=r"size of tensor|prepare"):
        llama(calls[1][0], **{cache_argument(llama): cache})
    close(call(llama, cache, *calls[1]), eager(llama, *calls)[1])


def test_one_unprepared_layer_is_noticed_by_the_next_call():
    model, cache = build("Llama", head_dim=64, num_hidden_layers=1), KVCoreCache("f32")
    with torch.no_grad():
        model(prompt(), **{cache_argument(model): cache})
        with pytest.raises(ShapeError, match="prepare"):
            model(prompt(1), **{cache_argument(model): cache})
    close(call(model, cache, prompt()), eager(model, (prompt(), None))[0])


# -- models -----------------------------------------------------------------------------------


def deepseek():
    return build(
        "DeepseekV3", kv_lora_rank=64, q_lora_rank=None, qk_rope_head_dim=32, qk_nope_head_dim=32,
        v_head_dim=64, moe_intermediate_size=32, n_routed_experts=4, num_experts_per_tok=2,
        n_group=1, topk_group=1, first_k_dense_replace=3, num_key_value_heads=2,
    )  # fmt: skip


MISFITS = {
    "DeepseekV3": (deepseek, "latent attention"),
    "DiffLlama": (lambda: build("DiffLlama", num_key_value_heads=2), "two halves"),
    "Doge": (lambda: build("Doge"), "a mask of its own"),
    "GptOss": (
        lambda: build("GptOss", head_dim=64, num_local_experts=2, num_experts_per_tok=1),
        "learned sinks",
    ),
}


@pytest.mark.parametrize("name", MISFITS)
def test_models_that_no_forward_serves_are_refused_before(name):
    make, reason = MISFITS[name]
    model = make()
    before = model.config._attn_implementation
    with pytest.raises(UnsupportedError, match=reason):
        prepare(model)
    assert model.config._attn_implementation == before


def test_models_that_fit_have_no_reasons(llama, gemma):
    assert [refusals(m) for m in (llama, gemma, tiny_qwen())] == [[], [], []]


def states(seed=0, heads=2):
    return torch.randn(1, heads, 20, 64, generator=torch.Generator().manual_seed(seed))


class OddAttention(torch.nn.Identity):
    pass


@pytest.mark.parametrize(
    ("what", "change"),
    [("other keys", (0.5, 1.0)), ("other values", (1.0, 0.5)), ("a second call", (1.0, 1.0))],
)
def test_a_model_that_changes_what_the_cache_returned_is_named(what, change):
    cache = KVCoreCache("f32")
    key, value = cache.update(states(1), states(2), 0)
    key, value = (x if f == 1 else x * f for x, f in zip((key, value), change, strict=True))
    if what == "a second call":
        attention(OddAttention(), states(), key, value, None)
    with pytest.raises(UnsupportedError, match=f"OddAttention does not attend once.*{what}"):
        attention(OddAttention(), states(), key, value, None)
    assert not cache.waits
    assert lengths(cache) == []


# -- training, capacity, copies ---------------------------------------------------------------


def test_training_is_refused_and_no_grad_is_not(llama):
    prepare(llama)
    name, cache = cache_argument(llama), KVCoreCache("f32")
    with pytest.raises(UnsupportedError, match=r"gradients.*no_grad"):
        llama(prompt(), **{name: cache})
    assert lengths(cache) == []
    with torch.inference_mode():
        got = llama(prompt(), **{name: cache}).logits
    close(got, eager(llama, (prompt(), None))[0])


@pytest.mark.parametrize("capacity", [0, -1, True, 48.0, "48"])
def test_a_capacity_that_is_none_is_refused(capacity):
    with pytest.raises(RangeError, match="capacity"):
        KVCoreCache("f32", capacity=capacity)


def test_any_integer_is_a_capacity():
    assert KVCoreCache("f32", capacity=np.int64(64)).get_max_length() == 64


def test_pickle_says_what_to_do_and_copy_forks(llama):
    cache = KVCoreCache("f32")
    call(llama, cache, prompt())
    for held in (cache, cache.layers[0]):
        with pytest.raises(TypeError, match=r"cache.fork\(\).*snapshot"):
            pickle.dumps(held)
    twin = copy.copy(cache)
    call(llama, twin, prompt(3))
    assert (lengths(cache), lengths(twin)) == ([[40]] * 3, [[43]] * 3)


@pytest.mark.parametrize(
    "indices",
    [[3], [0, -4], [], [True, False], [False, False, False]],
)
def test_sequences_that_are_not_there_are_refused(llama, indices):
    cache = KVCoreCache("f32")
    ids = prompt(batch=3)
    call(llama, cache, ids)
    chosen = torch.tensor(indices, dtype=None if indices else torch.long)
    with pytest.raises(RangeError, match="sequences"):
        cache.batch_select_indices(chosen)
    more = prompt(2, batch=3, seed=1)
    close(call(llama, cache, more), eager(llama, (ids, None), (more, None))[1])


def test_a_sequence_chosen_from_both_ends_is_two(llama):
    cache = KVCoreCache("f32")
    ids = prompt(batch=2)
    call(llama, cache, ids)
    cache.batch_select_indices(torch.tensor([1, -1]))
    more = prompt(5, batch=2, seed=1)
    expected = eager(llama, (ids[[1, 1]], None), (more, None))[1]
    close(call(llama, cache, more), expected)
