"""Write tiny random models as GGUF files, by the gguf package's own writer."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import gguf
import numpy as np

WIDTH, FFN, N_LAYERS, HEADS, KV_HEADS, HEAD_DIM, CONTEXT, EPS = 64, 96, 2, 4, 2, 16, 64, 1e-5
THETA, LOCAL_THETA, WINDOW, PERIOD = 10000.0, 500.0, 5, 2
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
SYSTEM = "You are a tiny model."
CHAT_TEMPLATE = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\n" + SYSTEM + "<|im_end|>\n' }}{% endif %}"
    "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
_PRINTABLE = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]


def byte_alphabet() -> list[str]:
    """GPT-2's printable character of every byte, in byte order."""
    spare = iter(range(256, 512))
    return [chr(b) if b in _PRINTABLE else chr(next(spare)) for b in range(256)]


def add_byte_level(writer: gguf.GGUFWriter, pre: str = "smollm") -> int:
    """Give the file a byte-level tokenizer with four merges; returns the vocabulary's size."""
    merges = ["l l", "h e", "he ll", "hell o"]
    pieces = [merge.replace(" ", "") for merge in merges]
    tokens = [*SPECIAL, *byte_alphabet(), *pieces]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types([3] * len(SPECIAL) + [1] * (len(tokens) - len(SPECIAL)))
    writer.add_token_merges(merges)
    writer.add_eos_token_id(2)
    writer.add_chat_template(CHAT_TEMPLATE)
    return len(tokens)


def add_sentence_piece(writer: gguf.GGUFWriter) -> int:
    """Give the file a SentencePiece tokenizer with byte fallback."""
    pieces = ["\u2581", *"abcdehlortw", "he", "ll", "hell", "hello", "\u2581w", "\u2581wo"]
    scores = [-20.0] * 12 + [-2.0, -1.0, -3.0, -4.0, -5.0, -6.0]
    control = ["<unk>", "<bos>", "<eos>"]
    tokens = [*control, *(f"<0x{b:02X}>" for b in range(256)), *pieces, "\n\n"]
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens)
    writer.add_token_scores([0.0] * (3 + 256) + scores + [0.0])
    writer.add_token_types([3] * 3 + [6] * 256 + [1] * len(pieces) + [4])
    writer.add_unk_token_id(0)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_add_bos_token(True)
    writer.add_add_space_prefix(False)
    return len(tokens)


@dataclass
class Tiny:
    """Knobs of a tiny file."""

    arch: str = "llama"
    declared: str = ""
    pre: str = "smollm"
    extra: dict[str, int | float | str] = field(default_factory=dict)
    without: str = ""
    extra_tensor: str = ""
    seed: int = 0


def write(path: Path, tiny: Tiny | None = None) -> Path:
    """Write a file; F32 everywhere but in the embedding, which is Q8_0."""
    t = tiny or Tiny()
    arch = t.declared or t.arch
    writer = gguf.GGUFWriter(path, arch)
    writer.add_name(f"tiny {arch}")
    writer.add_block_count(N_LAYERS)
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(WIDTH)
    writer.add_feed_forward_length(FFN)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_key_length(HEAD_DIM)
    writer.add_value_length(HEAD_DIM)
    writer.add_layer_norm_rms_eps(EPS)
    writer.add_rope_freq_base(THETA)
    if t.arch == "gemma3":
        n_vocab = add_sentence_piece(writer)
        writer.add_sliding_window(WINDOW)
        writer.add_uint32(f"{arch}.attention.sliding_window_pattern", PERIOD)
        writer.add_float32(f"{arch}.rope.freq_base_swa", LOCAL_THETA)
    else:
        n_vocab = add_byte_level(writer, t.pre)
    for key, value in t.extra.items():
        add = {int: writer.add_uint32, float: writer.add_float32, str: writer.add_string}
        add[type(value)](key, value)
    for name, shape in shapes(t.arch, n_vocab).items():
        if name != t.without:
            _add(
                writer, name, shape, np.random.default_rng([t.seed, len(name), sum(name.encode())])
            )
    if t.extra_tensor:
        writer.add_tensor(t.extra_tensor, np.ones(HEAD_DIM // 2, np.float32) * 2)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def shapes(arch: str, n_vocab: int) -> dict[str, tuple[int, ...]]:
    """Every tensor of a model and its shape, rows first."""
    q, kv = HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM
    out = {"token_embd.weight": (n_vocab, WIDTH), "output_norm.weight": (WIDTH,)}
    if arch == "llama":  # the other two tie the head to the embedding
        out["output.weight"] = (n_vocab, WIDTH)
    for i in range(N_LAYERS):
        layer = {
            "attn_norm.weight": (WIDTH,),
            "attn_q.weight": (q, WIDTH),
            "attn_k.weight": (kv, WIDTH),
            "attn_v.weight": (kv, WIDTH),
            "attn_output.weight": (WIDTH, q),
            "ffn_norm.weight": (WIDTH,),
            "ffn_gate.weight": (FFN, WIDTH),
            "ffn_up.weight": (FFN, WIDTH),
            "ffn_down.weight": (WIDTH, FFN),
        }
        if arch == "qwen2":
            layer |= {"attn_q.bias": (q,), "attn_k.bias": (kv,), "attn_v.bias": (kv,)}
        if arch == "gemma3":
            layer |= {"attn_q_norm.weight": (HEAD_DIM,), "attn_k_norm.weight": (HEAD_DIM,)}
            layer |= {"post_attention_norm.weight": (WIDTH,), "post_ffw_norm.weight": (WIDTH,)}
        out |= {f"blk.{i}.{name}": shape for name, shape in layer.items()}
    return out


def _add(writer: gguf.GGUFWriter, name: str, shape: tuple[int, ...], rng: np.random.Generator):
    values = rng.standard_normal(shape).astype(np.float32)
    if name == "token_embd.weight":
        block = gguf.GGMLQuantizationType.Q8_0
        writer.add_tensor(name, gguf.quantize(values, block), raw_dtype=block)
        return
    if len(shape) == 2:
        values /= np.float32(shape[1] ** 0.5)
    elif name.endswith("norm.weight"):
        values = np.float32(1) + np.float32(0.2) * values
    writer.add_tensor(name, values)
