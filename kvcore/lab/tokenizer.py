"""Text to token ids and back, by the `tokenizers` library, from what a GGUF file holds.

Two families: ``gpt2`` (byte-level BPE with the file's own merges; SmolLM2, Llama 3, Qwen2) and
``llama`` (SentencePiece BPE with scores and byte fallback; Llama 2, Gemma). Decoding goes through
the bytes of each token, so that a stream can hold back half a character.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Mapping
from typing import Any

from tokenizers import AddedToken, Regex
from tokenizers import Tokenizer as Library
from tokenizers.models import BPE
from tokenizers.normalizers import Prepend, Replace
from tokenizers.normalizers import Sequence as Normalizers
from tokenizers.pre_tokenizers import ByteLevel, Digits, PreTokenizer, Split
from tokenizers.pre_tokenizers import Sequence as PreTokenizers

from kvcore.errors import RangeError, UnsupportedError, message
from kvcore.lab.errors import ModelFileError

_NORMAL, _CONTROL, _USER, _BYTE = 1, 3, 4, 6  # tokenizer.ggml.token_type
_SPACE = "\u2581"  # SentencePiece writes a space so
_QWEN2 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|"
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_LLAMA3 = _QWEN2.replace(r"|\p{N}|", r"|\p{N}{1,3}|")
_END_NAMES = ("<|endoftext|>", "<|im_end|>", "<|eot_id|>", "<|end_of_text|>", "<end_of_turn>")


class Tokenizer:
    """The tokenizer of one model file.

    Parameters
    ----------
    metadata : mapping
        The ``tokenizer.*`` values of a GGUF file.

    Attributes
    ----------
    bos_id : int or None
        Put before a text, if the file asks for one.
    stop_ids : frozenset of int
        Tokens that end a reply.

    Raises
    ------
    UnsupportedError
        A tokenizer or pre-tokenizer that is not built here, by name.
    ModelFileError
        Metadata that is missing or contradicts itself.
    """

    def __init__(self, metadata: Mapping[str, Any]) -> None:
        tokens: list[str] = _need(metadata, "tokens")
        types = [int(t) for t in metadata.get("tokenizer.ggml.token_type", ())]
        types = types or [_NORMAL] * len(tokens)
        if len(types) != len(tokens):
            got = f"{len(types)} types for {len(tokens)} tokens"
            raise ModelFileError(
                message("tokenizer", "token types", got=got, expected="one each", fix=_REMAKE)
            )
        family = _need(metadata, "model")
        if family not in ("gpt2", "llama"):
            expected = "gpt2 or llama"
            raise UnsupportedError(
                message("tokenizer", "family not supported", got=family, expected=expected)
            )
        self._tokens = tokens
        self._types = types
        self._byte_level = family == "gpt2"
        self._library = (_byte_level if self._byte_level else _sentence_piece)(
            metadata, tokens, types
        )
        self._library.add_tokens(
            [
                AddedToken(text, special=kind == _CONTROL, normalized=False)
                for text, kind in zip(tokens, types, strict=True)
                if kind in (_CONTROL, _USER) and text
            ]
        )
        # A file that does not say so starts with BOS if it is of the SentencePiece family.
        add_bos = metadata.get("tokenizer.ggml.add_bos_token", not self._byte_level)
        bos = metadata.get("tokenizer.ggml.bos_token_id")
        self.bos_id: int | None = int(bos) if add_bos and bos is not None else None
        self.stop_ids = _stop_ids(metadata, tokens, types)

    def __len__(self) -> int:
        return len(self._tokens)

    def encode(self, text: str, *, bos: bool = True) -> list[int]:
        """Return the token ids of a text; names of special tokens in it are those tokens.

        Parameters
        ----------
        text : str
        bos : bool
            Start with the file's BOS token, if it asks for one.
        """
        ids: list[int] = self._library.encode(text, add_special_tokens=False).ids
        starts_with_bos = bool(ids) and ids[0] == self.bos_id
        return (
            [self.bos_id, *ids] if bos and self.bos_id is not None and not starts_with_bos else ids
        )

    def decode(self, ids: Iterable[int], *, special: bool = False) -> str:
        """Return the text of token ids; bytes that are no UTF-8 become U+FFFD.

        Parameters
        ----------
        ids : iterable of int
        special : bool
            Write control tokens by name instead of leaving them out.
        """
        stream = self.stream(special=special)
        return "".join([stream.feed(i) for i in ids]) + stream.finish()

    def stream(self, *, special: bool = False) -> TextStream:
        """Return a decoder that is fed one token at a time."""
        return TextStream(self, special=special)

    def bytes_of(self, token: int, *, special: bool = False) -> bytes:
        """Return the bytes that one token stands for.

        Raises
        ------
        RangeError
            The token is not in the vocabulary.
        """
        if not 0 <= token < len(self._tokens):
            expected = f"0 to {len(self._tokens) - 1}"
            raise RangeError(message("tokenizer", "token", got=token, expected=expected))
        text, kind = self._tokens[token], self._types[token]
        if kind == _CONTROL:
            return text.encode() if special else b""
        if kind == _USER:
            return text.encode()
        if self._byte_level:
            return b"".join(_BYTE_OF.get(c) or c.encode() for c in text)
        if kind == _BYTE:
            return bytes([int(text[3:5], 16)])
        return text.replace(_SPACE, " ").encode()


class TextStream:
    """Decodes token by token and never shows half a character."""

    def __init__(self, tokenizer: Tokenizer, *, special: bool) -> None:
        self._tokenizer = tokenizer
        self._special = special
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def feed(self, token: int) -> str:
        """Return the text that this token completes; may be empty."""
        return self._decoder.decode(self._tokenizer.bytes_of(token, special=self._special))

    def finish(self) -> str:
        """Return what is left of an unfinished character."""
        return self._decoder.decode(b"", final=True)


_REMAKE = "convert the file again"


def _need(metadata: Mapping[str, Any], name: str) -> Any:
    key = f"tokenizer.ggml.{name}"
    if key not in metadata:
        raise ModelFileError(
            message("tokenizer", f"metadata {key}", got="nothing", expected="a value", fix=_REMAKE)
        )
    return metadata[key]


def _stop_ids(metadata: Mapping[str, Any], tokens: list[str], types: list[int]) -> frozenset[int]:
    keys = ("eos_token_id", "eot_token_id", "eom_token_id")
    named = [metadata.get(f"tokenizer.ggml.{key}") for key in keys]
    control = [i for i, kind in enumerate(types) if kind == _CONTROL and tokens[i] in _END_NAMES]
    return frozenset([int(i) for i in named if i is not None] + control)


def _byte_chars() -> dict[str, bytes]:
    """The printable character that byte-level BPE writes for each byte."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [b for b in range(256) if b not in printable]
    chars = {chr(b): bytes([b]) for b in printable}
    return chars | {chr(256 + i): bytes([b]) for i, b in enumerate(others)}


_BYTE_OF = _byte_chars()


def _pre_tokenizer(name: str) -> PreTokenizer:
    """The splitting rule that a byte-level file names."""
    if name == "smollm":
        return PreTokenizers(
            [Digits(individual_digits=True), ByteLevel(add_prefix_space=False, use_regex=True)]
        )
    if name in ("gpt-2", "default"):
        return ByteLevel(add_prefix_space=False, use_regex=True)
    patterns = {"qwen2": _QWEN2, "llama-bpe": _LLAMA3}
    if name not in patterns:
        expected = "smollm, gpt-2, qwen2 or llama-bpe"
        raise UnsupportedError(
            message("tokenizer", "pre-tokenizer not supported", got=name, expected=expected)
        )
    split = Split(Regex(patterns[name]), behavior="isolated")
    return PreTokenizers([split, ByteLevel(add_prefix_space=False, use_regex=False)])


def _byte_level(metadata: Mapping[str, Any], tokens: list[str], types: list[int]) -> Library:
    """BPE over the printable stand-ins of bytes, with the merges of the file."""
    name = metadata.get("tokenizer.ggml.pre", "default")
    merges = [tuple(merge.split(" ")) for merge in _need(metadata, "merges")]
    vocab = {text: i for i, text in enumerate(tokens)}
    bad = next((m for m in merges if len(m) != 2 or "".join(m) not in vocab), None)
    if bad is not None:
        raise ModelFileError(
            message("tokenizer", "a merge", got=bad, expected="two known pieces", fix=_REMAKE)
        )
    library = Library(BPE(vocab, merges, ignore_merges=name == "llama-bpe"))
    library.pre_tokenizer = _pre_tokenizer(name)
    return library


def _sentence_piece(metadata: Mapping[str, Any], tokens: list[str], types: list[int]) -> Library:
    """BPE whose merges are every split of a piece into two pieces, best score first."""
    scores = [float(s) for s in _need(metadata, "scores")]
    vocab = {text: i for i, text in enumerate(tokens)}
    pieces = {tokens[i] for i, kind in enumerate(types) if kind == _NORMAL}
    order = sorted(
        (i for i, kind in enumerate(types) if kind == _NORMAL), key=scores.__getitem__, reverse=True
    )
    merges = [
        (text[:cut], text[cut:])
        for text in map(tokens.__getitem__, order)
        for cut in range(1, len(text))
        if text[:cut] in pieces and text[cut:] in pieces
    ]
    unknown = metadata.get("tokenizer.ggml.unknown_token_id")
    library = Library(
        BPE(
            vocab,
            merges,
            unk_token=None if unknown is None else tokens[int(unknown)],
            fuse_unk=True,
            byte_fallback=_BYTE in types,
        )
    )
    prefix = [Prepend(_SPACE)] if metadata.get("tokenizer.ggml.add_space_prefix", True) else []
    library.normalizer = Normalizers([*prefix, Replace(" ", _SPACE)])
    return library
