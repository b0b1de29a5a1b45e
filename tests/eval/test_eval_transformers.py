"""kvcore.transformers: every generation mode over packed caches, against transformers' own cache.

Models are tiny and random; nothing is downloaded. float16 caches of a float32 model are not exact,
so the tiny models are made with well separated logits and tokens are compared.
"""

from __future__ import annotations

import copy

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the extra torch is not installed")
transformers = pytest.importorskip("transformers", reason="the extra torch is not installed")

import kvcore  # noqa: E402
from kvcore.errors import RangeError, ShapeError, UnsupportedError  # noqa: E402
from kvcore.transformers import KVCoreCache, cache_argument, prepare, refusals  # noqa: E402
from kvcore.transformers.attention import attention, padding_mask  # noqa: E402

FORMATS = ("f16", "int8", "k8v4", "q4_0", "q2k", "q2")
VOCAB, NEW = 89, 24


@pytest.fixture(scope="module")
def llama():
    config = transformers.LlamaConfig(
        vocab_size=VOCAB, hidden_size=128, intermediate_size=192, num_hidden_layers=3,
        num_attention_heads=4, num_key_value_heads=2, head_dim=64, max_position_embeddings=512,
        bos_token_id=None, eos_token_id=None, pad_token_id=0, initializer_range=0.4,
    )  # fmt: skip
    torch.manual_seed(0)
    return transformers.LlamaForCausalLM(config).eval()


@pytest.fixture(scope="module")
def gemma():
    config = transformers.Gemma3TextConfig(
        vocab_size=VOCAB, hidden_size=128, intermediate_size=192, num_hidden_layers=4,
        num_attention_heads=4, num_key_value_heads=1, head_dim=64, sliding_window=12,
        layer_types=["sliding_attention", "sliding_attention", "full_attention"] * 1
        + ["sliding_attention"],
        max_position_embeddings=512, bos_token_id=None, eos_token_id=None, pad_token_id=0,
        initializer_range=0.4,
    )  # fmt: skip
    torch.manual_seed(1)
    return transformers.Gemma3ForCausalLM(config).eval()


def prompt(n=40, batch=1, seed=0):
    return torch.from_numpy(np.random.default_rng(seed).integers(1, VOCAB, (batch, n)))


def generate(model, ids, cache=None, **options):
    options = {"max_new_tokens": NEW, "do_sample": False, "pad_token_id": 0, **options}
    if cache is None:
        model.set_attn_implementation("sdpa")
    else:
        prepare(model)
        options[cache_argument(model)] = cache
    return model.generate(ids, **options)


def test_greedy_tokens_with_f16_are_those_of_the_default_cache(llama):
    ids = prompt()
    assert torch.equal(generate(llama, ids), generate(llama, ids, KVCoreCache("f16")))


def test_greedy_tokens_with_sliding_windows_are_those_of_the_default_cache(gemma):
    ids = prompt()
    assert torch.equal(generate(gemma, ids), generate(gemma, ids, KVCoreCache("f16")))


def test_logits_of_a_prompt_and_of_steps_equal_the_default_caches(llama, gemma):
    for model in (llama, gemma):
        ids = prompt(48)
        model.set_attn_implementation("sdpa")
        with torch.no_grad():
            exact = model(ids).logits
            prepare(model)
            cache = KVCoreCache("f32")
            name = cache_argument(model)
            got = [model(ids[:, :31], **{name: cache}).logits]
            got += [model(ids[:, i : i + 1], **{name: cache}).logits for i in range(31, 48)]
        # float32 stores are exact; what differs is the order of float32 sums of 3 layers.
        torch.testing.assert_close(torch.cat(got, 1), exact, rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize("format", FORMATS)
def test_every_mode_runs_with(llama, format):
    ids = prompt(batch=2)
    for options in ({}, {"do_sample": True, "top_k": 5}, {"num_beams": 3}):
        torch.manual_seed(0)
        out = generate(llama, ids, KVCoreCache(format), **options)
        assert out.shape == (2, 40 + NEW)
    one = ids[:1]
    # transformers before 5.15 looks prompts up only with an end of text; this one never comes.
    lookup = {"prompt_lookup_num_tokens": 4, "eos_token_id": 10**6}
    out = generate(llama, one, KVCoreCache(format), **lookup)
    assert out.shape == (1, 40 + NEW)


def test_beam_search_with_f16_finds_the_default_caches_beams(llama):
    ids = prompt(batch=2)
    expected = generate(llama, ids, num_beams=3)
    assert torch.equal(expected, generate(llama, ids, KVCoreCache("f16"), num_beams=3))


def test_sampling_with_f16_draws_the_default_caches_tokens(llama):
    ids, drawn = prompt(), []
    for cache in (None, KVCoreCache("f16")):
        torch.manual_seed(3)
        drawn.append(generate(llama, ids, cache, do_sample=True, top_k=4))
    assert torch.equal(*drawn)


@pytest.mark.parametrize("format", ["f16", "q4_0", "q2k"])
def test_assisted_decoding_gives_the_tokens_of_plain_decoding(llama, format):
    torch.manual_seed(5)
    assistant = transformers.LlamaForCausalLM(copy.deepcopy(llama.config)).eval()
    ids = prompt()
    plain = generate(llama, ids, KVCoreCache(format))
    assistant.set_attn_implementation("sdpa")
    cache = KVCoreCache(format)
    assisted = generate(llama, ids, cache, assistant_model=assistant)
    assert torch.equal(plain, assisted)


@pytest.mark.parametrize("model_name", ["llama", "gemma"])
def test_a_padded_batch_gives_each_sequence_its_own_tokens(model_name, request):
    model = request.getfixturevalue(model_name)
    long, short = prompt(40, seed=1), prompt(23, seed=2)
    batch = torch.cat([long, torch.cat([torch.zeros(1, 17, dtype=torch.long), short], 1)])
    mask = (batch != 0).long()
    out = generate(model, batch, KVCoreCache("f16"), attention_mask=mask)
    for row, alone in ((0, long), (1, short)):
        expected = generate(model, alone, KVCoreCache("f16"))
        assert torch.equal(out[row, -NEW:], expected[0, -NEW:])


def test_padding_is_not_stored(llama):
    prepare(llama)
    ids = prompt(20, batch=2)
    mask = torch.ones_like(ids)
    mask[1, :9] = 0
    cache = KVCoreCache("q2k")
    with torch.no_grad():
        llama(ids, attention_mask=mask, **{cache_argument(llama): cache})
    assert [len(row) for row in cache.layers[0].rows] == [20, 11]
    assert cache.get_seq_length() == 20


@pytest.mark.parametrize("format", ["f16", "q2k"])
def test_a_prefix_is_reused_and_left_as_it_was(llama, format):
    prepare(llama)
    name, prefix, more = cache_argument(llama), prompt(37), prompt(9, seed=4)
    shared = KVCoreCache(format)
    with torch.no_grad():
        llama(prefix, **{name: shared})
    whole = torch.cat([prefix, more], 1)
    first = generate(llama, whole, copy.deepcopy(shared))
    again = generate(llama, whole, copy.deepcopy(shared))
    assert torch.equal(first, again)
    assert shared.get_seq_length() == 37
    if format == "f16":
        assert torch.equal(first, generate(llama, whole))


def test_crop_of_recorded_drafts_leaves_the_bytes_of_plain_decoding():
    gen = torch.Generator().manual_seed(0)
    cells, wrong = (torch.randn(1, 2, 80, 64, generator=gen) for _ in range(2))
    plain, spoken = KVCoreCache("q2k"), KVCoreCache("q2k")

    def feed(cache, k):
        key, _ = cache.update(k, k, 0)
        query = torch.randn(1, 4, k.shape[2], 64, generator=gen)
        attention(torch.nn.Identity(), query, key, k, None, scaling=0.125)

    for cache in (plain, spoken):
        feed(cache, cells[:, :, :28])
    spoken.activate_past_recording()
    for i in range(28, 80):
        feed(plain, cells[:, :, i : i + 1])
        feed(spoken, torch.cat([cells[:, :, i : i + 1], wrong[:, :, i : i + 5]], 2))
        spoken.crop(-(min(6, 81 - i) - 1))
    row, other = plain.layers[0].rows[0], spoken.layers[0].rows[0]
    assert len(row) == len(other) == 80
    for exact, got in zip(row.read(), other.read(), strict=True):
        np.testing.assert_array_equal(exact, got)


@pytest.mark.parametrize(("given", "left"), [(0, 40), (-7, 33), (33, 33), (99, 40), (-40, 0)])
def test_crop_takes_what_to_drop_or_what_to_keep(llama, given, left):
    prepare(llama)
    cache = KVCoreCache("f16")
    with torch.no_grad():
        llama(prompt(), **{cache_argument(llama): cache})
    cache.crop(given)
    assert cache.get_seq_length() == len(cache.layers[2].rows[0]) == left
    with pytest.raises(RangeError, match="tokens_to_remove"):
        cache.crop(-41)
    assert cache.get_seq_length() == left


def test_the_cache_is_attended_packed_and_takes_the_bytes_of_the_plan(llama):
    prepare(llama)
    cache = KVCoreCache("q2k", capacity=256)
    generate(llama, prompt(200), cache)
    spec = kvcore.CacheSpec(format="q2k", n_kv_heads=2, head_dim=64)
    assert cache.nbytes == kvcore.plan(spec, layers=3, context=256).total
    assert all(layer.keys is None for layer in cache.layers)


def test_an_empty_cache_knows_its_length_and_capacity():
    assert (KVCoreCache("q2k").get_max_length(), KVCoreCache("q2k").get_seq_length()) == (-1, 0)
    assert KVCoreCache("q2k", capacity=64).get_max_length() == 64


def test_a_full_cache_refuses_the_next_token_and_keeps_what_it_has(llama):
    prepare(llama)
    name, cache = cache_argument(llama), KVCoreCache("q2k", capacity=32)
    with torch.no_grad():
        llama(prompt(32), **{name: cache})
        with pytest.raises(RangeError, match="full"):
            llama(prompt(1), **{name: cache})
    assert {len(layer.rows[0]) for layer in cache.layers} == {32}


def test_another_attention_is_refused_in_the_first_forward(llama):
    llama.set_attn_implementation("sdpa")
    with pytest.raises(UnsupportedError, match="prepare"):
        llama.generate(prompt(), max_new_tokens=1, **{cache_argument(llama): KVCoreCache("q2k")})


def test_a_prepared_model_without_a_kvcore_cache_is_refused(llama):
    prepare(llama)
    with pytest.raises(UnsupportedError, match="KVCoreCache"):
        llama.generate(prompt(), max_new_tokens=1)


def test_a_four_dimensional_mask_is_refused(llama):
    prepare(llama)
    mask = torch.ones(1, 1, 40, 40, dtype=torch.bool).tril()
    with pytest.raises(UnsupportedError, match="mask of shape"):
        llama(prompt(), attention_mask=mask, **{cache_argument(llama): KVCoreCache("f16")})


def test_masks_that_are_neither_causal_nor_a_window_are_refused():
    def causal(b, h, q, kv):
        return kv <= q

    def window(b, h, q, kv):
        return (kv <= q) & (kv > q - 5)

    def packed(b, h, q, kv):
        return (kv <= q) & (kv // 8 == q // 8) & (kv % 3 != 1)

    assert padding_mask(2, 7, 20, 13, mask_function=causal) is None
    assert padding_mask(2, 7, 20, 13, mask_function=window).tolist() == [[-5] * 20] * 2
    with pytest.raises(UnsupportedError, match="packed sequences"):
        padding_mask(2, 7, 20, 13, mask_function=packed)


def test_heads_that_do_not_fit_are_refused_before_anything_is_stored(llama):
    spec = kvcore.CacheSpec(format="q4_0", n_kv_heads=4, head_dim=64)
    assert "4, 64" in refusals(llama, spec)[0]
    with pytest.raises(UnsupportedError, match="the spec is for"):
        prepare(llama, spec)
    prepare(llama)
    with pytest.raises(ShapeError, match="KV heads and head sizes"):
        llama(prompt(), **{cache_argument(llama): KVCoreCache(spec)})


def test_models_that_cannot_are_refused_with_every_reason():
    config = transformers.T5Config(
        vocab_size=VOCAB, d_model=32, d_kv=16, d_ff=32, num_layers=1, num_heads=2
    )
    model = transformers.T5ForConditionalGeneration(config)
    with pytest.raises(UnsupportedError, match="encoder-decoder"):
        prepare(model)


def test_both_forms_of_what_transformers_asks_for_give_the_same():
    """Positions of the queries before transformers 5.4, their number since."""
    layer = KVCoreCache("f16")._make()
    layer._seen = np.ones((2, 7), np.bool_)
    assert layer.get_mask_sizes(torch.arange(7, 12)) == layer.get_mask_sizes(5) == (12, 0)
    assert layer.get_max_cache_shape() == layer.get_max_length() == -1
    padded = torch.ones(2, 12, dtype=torch.long)
    padded[1, :3] = 0
    common = {"kv_length": 12, "mask_function": causal, "attention_mask": padded}
    old = padding_mask(2, cache_position=torch.arange(7, 12), **common)
    new = padding_mask(2, 5, q_offset=7, **common)
    assert torch.equal(old, new)
    assert torch.equal(new, padded.bool())
    off = {**common, "mask_function": lambda b, h, q, kv: kv <= q + 1}
    for how in ({"cache_position": torch.arange(6, 11)}, {"q_length": 5, "q_offset": 6}):
        with pytest.raises(UnsupportedError, match="neither causal"):
            padding_mask(2, **how, **off)


def causal(b, h, q, kv):
    return kv <= q
