"""Documents with facts at known cells, and the questions that ask for them back.

Two kinds of fact. A code belongs to a key ("the code of the amber vault is 4821"): it counts only
if the key asked for gives its own code. A list of random words is to be copied from its first
words on; copying needs attention to exact places and fails long before codes do.
"""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass

from kvcore.errors import message
from kvcore.lab.errors import SettingError
from kvcore.lab.tokenizer import Tokenizer

KINDS = ("code", "words")
INSIDE = "in window"
DEPTHS = (0.1, 0.5, 0.9)

_KEYS = (
    "amber",
    "cedar",
    "copper",
    "ivory",
    "maple",
    "onyx",
    "pearl",
    "silver",
    "violet",
    "walnut",
)
_WORDS = re.findall(
    r"\w+",
    "river stone paper cloud tiger lemon chair window garden ocean pencil rocket bridge candle "
    "forest mirror button castle dragon engine feather guitar hammer island jacket kettle ladder "
    "magnet needle orange pillow queen ribbon saddle ticket umbrella violin wagon yellow zebra "
    "anchor basket carpet dinner eagle finger glove helmet insect jungle kitten lantern marble "
    "napkin oyster parrot quilt rabbit sailor",
)
_LIST_WORDS, _CUE_WORDS = 12, 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """One fact.

    Attributes
    ----------
    kind : {"code", "words"}
    place : str
        A depth such as "0.5", or "in window".
    start, end : int
        Its cells in the document.
    question, answer : list of int
        Tokens that ask, and those that a model which remembers says next.
    """

    kind: str
    place: str
    start: int
    end: int
    question: list[int]
    answer: list[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """A text with facts in it.

    Attributes
    ----------
    ids : list of int
    facts : list of Fact
    window : int
        Facts "in window" start among the last `window` cells of the last answer's query; all
        others end before the last `window` cells of the document, whatever is asked.
    """

    ids: list[int]
    facts: list[Fact]
    window: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Draft:
    kind: str
    place: str
    body: list[int]
    question: list[int]
    answer: list[int]


def make_document(
    tokenizer: Tokenizer, body: str, *, n_tokens: int, per_place: int, window: int, seed: int = 0
) -> Document:
    """Put facts between the paragraphs of a text.

    Parameters
    ----------
    tokenizer : Tokenizer
    body : str
        The text.
    n_tokens : int
        Length of the document in tokens, about.
    per_place : int
        Facts of each kind at every depth; one of each kind more lies in the window.
    window : int
        Cells that the window of the formats holds.
    seed : int

    Raises
    ------
    SettingError
        The facts leave no room for text, or do not fit the window.
    """
    drafts = _drafts(tokenizer, per_place, seed)
    inside = [d for d in drafts if d.place == INSIDE]
    spread = [d for d in drafts if d.place != INSIDE]
    facts_spread = sum(len(d.body) for d in spread)
    rest = n_tokens - window - facts_spread
    tail = sum(len(d.body) for d in inside)
    asked = max(len(d.question) + len(d.answer) for d in inside)
    if tail + asked > window:
        what = "the facts do not fit the window"
        raise SettingError(message("recall", what, got=window, expected=f">= {tail + asked} cells"))
    if rest < n_tokens // 4:
        least = next(n for n in itertools.count(n_tokens) if n - window - facts_spread >= n // 4)
        what, fix = "the facts do not fit the document", "ask for longer --lengths"
        raise SettingError(
            message("recall", what, got=f"{n_tokens} tokens", expected=f">= {least}", fix=fix)
        )
    paragraphs = _paragraphs(tokenizer, body, rest + window)
    # The text after the last depth is a window long at least: those facts are provably outside.
    ids, facts = _assemble(tokenizer, paragraphs, spread, rest)
    for d in inside:
        facts.append(_placed(d, len(ids)))
        ids += d.body
    return Document(ids=ids, facts=facts, window=window)


def _assemble(
    tokenizer: Tokenizer, paragraphs: Sequence[list[int]], drafts: Sequence[_Draft], room: int
) -> tuple[list[int], list[Fact]]:
    """Join paragraphs, each depth's facts where it is reached, before `room` tokens of text."""
    ids = [] if tokenizer.bos_id is None else [tokenizer.bos_id]
    waiting, facts, read = sorted(drafts, key=lambda d: float(d.place)), [], 0
    for paragraph in paragraphs:
        while waiting and read >= float(waiting[0].place) * room * 0.98:
            d = waiting.pop(0)
            facts.append(_placed(d, len(ids)))
            ids += d.body
        ids += paragraph
        read += len(paragraph)
    if waiting:
        raise SettingError(
            message("recall", "the text is too short", got=f"{read} tokens", expected=room)
        )
    return ids, facts


def _placed(d: _Draft, start: int) -> Fact:
    return Fact(
        kind=d.kind,
        place=d.place,
        start=start,
        end=start + len(d.body),
        question=d.question,
        answer=d.answer,
    )


def _paragraphs(tokenizer: Tokenizer, body: str, n: int) -> list[list[int]]:
    """Return a text's paragraphs as tokens, `n` in all, the last one cut to fit."""
    out: list[list[int]] = []
    left = n
    for paragraph in re.split(r"\n\n+", body):
        ids = tokenizer.encode(paragraph + "\n\n", bos=False)[:left]
        # Short pieces let facts lie close to the depth that was asked for.
        out += [ids[i : i + 64] for i in range(0, len(ids), 64)]
        left -= len(ids)
        if left <= 0:
            return out
    raise SettingError(
        message("recall", "the text is too short", got=f"{n - left} tokens", expected=n)
    )


def _drafts(tokenizer: Tokenizer, per_place: int, seed: int) -> list[_Draft]:
    rng = random.Random(seed)
    places = [f"{d:g}" for d in DEPTHS for _ in range(per_place)] + [INSIDE]
    if len(places) > len(_KEYS):
        got, expected = f"{len(places)} codes", f"at most {len(_KEYS)} keys"
        raise SettingError(message("recall", "too many facts", got=got, expected=expected))
    keys, codes = rng.sample(_KEYS, len(places)), rng.sample(range(1000, 10000), len(places))
    out = []
    for place, key, code in zip(places, keys, codes, strict=True):
        begin = f"The code of the {key} vault is"
        ask = f"Question: what is the code of the {key} vault?\nAnswer: {begin}"
        said = f"{begin} {code}. Remember it.\n\n"
        out.append(_draft(tokenizer, "code", place, said, ask, f" {code}"))
    for place in places:
        words = rng.sample(_WORDS, _LIST_WORDS)
        cue, rest = " ".join(words[:_CUE_WORDS]), " " + " ".join(words[_CUE_WORDS:])
        out.append(_draft(tokenizer, "words", place, " ".join(words) + ".\n\n", cue, rest))
    return out


def _draft(tokenizer: Tokenizer, kind: str, place: str, said: str, ask: str, answer: str) -> _Draft:
    question = tokenizer.encode(ask, bos=False)
    whole = tokenizer.encode(ask + answer, bos=False)
    if whole[: len(question)] != question:  # the cut falls inside a token of this tokenizer
        answer_ids = tokenizer.encode(answer, bos=False)
    else:
        answer_ids = whole[len(question) :]
    body = tokenizer.encode(said, bos=False)
    return _Draft(kind=kind, place=place, body=body, question=question, answer=answer_ids)


def has_loop(ids: Sequence[int], *, longest: int = 16, span: int = 40) -> bool:
    """Return whether the end of a text repeats itself.

    Parameters
    ----------
    ids : sequence of int
    longest : int
        Period in tokens at most.
    span : int
        Tokens at the end that must follow the period.
    """
    tail = list(ids[-span:])
    if len(tail) < span:
        return False
    return any(tail[p:] == tail[:-p] for p in range(1, longest + 1))
