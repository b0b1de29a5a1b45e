"""Ask for facts back over caches of each arm, float16 beside them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from kvcore.errors import message
from kvcore.lab.arms import Arm, parse_arm
from kvcore.lab.divergence import log_softmax
from kvcore.lab.dump import file_sha256
from kvcore.lab.engine import LayerCache, Session
from kvcore.lab.errors import SettingError
from kvcore.lab.eval_kl import Prompt, arm_caches, read_prompt
from kvcore.lab.exact import OneByOne
from kvcore.lab.journal import Journal, versions
from kvcore.lab.load import LoadedModel
from kvcore.lab.recall import INSIDE, Document, Fact, has_loop, make_document
from kvcore.lab.texts import Text

Progress = Callable[[str, int, int], None]

REFERENCE = "f16"
WINDOW = 128
LOOP_TOKENS = 64
_DEMOTED_BY = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What an arm says to one question.

    Attributes
    ----------
    kind, place : str
        Of the fact.
    start, end, length : int
        Its cells, and the document's.
    hits : list of bool
        Each token of the answer is the arm's favourite, given those before it: all of them is
        what greedy decoding would say.
    nll : float
        Mean negative log likelihood of the answer's tokens.
    """

    kind: str
    place: str
    start: int
    end: int
    length: int
    hits: list[bool]
    nll: float

    @property
    def recalled(self) -> bool:
        """The whole answer is right."""
        return all(self.hits)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recall:
    """An arm on one document.

    Attributes
    ----------
    arm : str
    length : int
        Of the document.
    answers : list of Answer
    quoted, demoted : float
        Share of a word list's tokens said right when the list lies in the window, and after more
        text has pushed all of it out.
    loops : bool
        The text that the arm goes on with ends in a loop.
    """

    arm: str
    length: int
    answers: list[Answer]
    quoted: float
    demoted: float
    loops: bool


class RecallSuite:
    """Measures arms on documents with one model and one backend.

    Parameters
    ----------
    loaded : LoadedModel
    backend : Backend
    journal : Journal
    text : Text
        What the documents are made of.
    per_place : int
        Facts of each kind at every depth.
    seed : int
    progress : callable (what, done, total), optional
    """

    def __init__(
        self,
        loaded: LoadedModel,
        backend: Any,
        journal: Journal,
        text: Text,
        *,
        per_place: int = 2,
        seed: int = 0,
        progress: Progress | None = None,
    ) -> None:
        self.loaded, self.backend, self.journal, self.text = loaded, backend, journal, text
        self.per_place, self.seed, self.progress = per_place, seed, progress
        self._sha256 = file_sha256(loaded.path)

    def run(self, lengths: Sequence[int], arms: Sequence[Arm]) -> list[Recall]:
        """Return float16's results and every arm's, length by length.

        Raises
        ------
        SettingError
            A length has no room for the facts, or an arm wants a calibrated centre.
        """
        out = []
        every = [parse_arm(REFERENCE), *arms]
        wanting = ", ".join(a.name for a in arms if a.calibrated)
        if wanting:
            what = "an arm with a calibrated centre, which recall does not measure"
            raise SettingError(message("recall", what, got=wanting, expected="k_center=auto"))
        documents = [  # all of them first: a length that cannot be is refused before hours of work
            make_document(
                self.loaded.tokenizer,
                self.text.body,
                n_tokens=length,
                per_place=self.per_place,
                window=WINDOW,
                seed=self.seed,
            )
            for length in lengths
        ]
        for i, document in enumerate(documents):
            asked = _Asked(self, document)
            for j, arm in enumerate(every):
                out.append(self._known(arm, document, asked))
                if self.progress is not None:
                    self.progress("recall", i * len(every) + j + 1, len(every) * len(lengths))
        return out

    def origin(self) -> dict[str, str]:
        """Return what the numbers belong to: model, text and backend."""
        return {
            "model": self.loaded.model.config.name,
            "model_sha256": self._sha256,
            "text_sha256": self.text.sha256,
            "backend": self.backend.name,
        }

    def _known(self, arm: Arm, document: Document, asked: _Asked) -> Recall:
        key = {
            "what": "recall",
            "model": self._sha256,
            "text": self.text.sha256,
            "length": len(document.ids),
            "per_place": self.per_place,
            "seed": self.seed,
            "arm": arm.name,
            "backend": self.backend.name,
            **{k: versions()[k] for k in ("kvcore", "numpy")},
        }
        found = self.journal.get(key, lambda: asdict(asked.measure(arm)))
        answers = [Answer(**a) for a in found["answers"]]
        return Recall(**{**found, "answers": answers})


class _Asked:
    """One document, read exactly when the first arm needs it."""

    def __init__(self, suite: RecallSuite, document: Document) -> None:
        self.suite, self.document = suite, document
        self._prompt: Prompt | None = None

    @property
    def prompt(self) -> Prompt:
        if self._prompt is None:
            ids = self.document.ids
            self._prompt = read_prompt(self.suite.loaded.model, ids, len(ids))
        return self._prompt

    def measure(self, arm: Arm) -> Recall:
        """Ask an arm everything."""
        document, facts = self.document, self.document.facts
        quote = next(f for f in facts if f.place == INSIDE and f.kind == "words")
        filler = self._filler()
        return Recall(
            arm=arm.name,
            length=len(document.ids),
            answers=[self._answer(arm, fact) for fact in facts],
            quoted=float(np.mean(self._answer(arm, quote).hits)),
            demoted=float(np.mean(self._answer(arm, quote, filler).hits)),
            loops=self._loops(arm),
        )

    def _filler(self) -> list[int]:
        """Return text that pushes every cell of the document's end out of the window."""
        n = self.document.window + _DEMOTED_BY
        ids = self.suite.loaded.tokenizer.encode(self.suite.text.body, bos=False)
        return ids[-n:]

    def _caches(self, arm: Arm, more: int) -> list[LayerCache]:
        """Return an arm's caches with the document stored in them, and room for more tokens."""
        model = self.suite.loaded.model
        caches = arm_caches(model, arm, self.suite.backend, len(self.document.ids) + more)
        for cache, k, v in zip(caches, self.prompt.k, self.prompt.v, strict=True):
            cache.append(k, v)
        return caches

    def _answer(self, arm: Arm, fact: Fact, before: Sequence[int] = ()) -> Answer:
        """Read more text and the question as a prompt's chunks, then the answer step by step."""
        model = self.suite.loaded.model
        asked = [*before, *fact.question]
        caches = self._caches(arm, len(asked) + len(fact.answer))
        Session(model, lambda layer, heads, dim: caches[layer]).prefill(asked[:-1])
        session = Session(model, lambda layer, heads, dim: OneByOne(caches[layer], arm.together))
        forced = [fact.question[-1], *fact.answer[:-1]]
        hidden = session.extend(forced, as_stored=True)
        rows = log_softmax(model.logits(hidden))
        hits = [bool(row.argmax() == t) for row, t in zip(rows, fact.answer, strict=True)]
        nll = -float(np.mean([row[t] for row, t in zip(rows, fact.answer, strict=True)]))
        return Answer(
            kind=fact.kind,
            place=fact.place,
            start=fact.start,
            end=fact.end,
            length=len(self.document.ids),
            hits=hits,
            nll=nll,
        )

    def _loops(self, arm: Arm) -> bool:
        """Go on greedily from the document and look for a loop."""
        caches = self._caches(arm, LOOP_TOKENS + 1)
        session = Session(self.suite.loaded.model, lambda layer, heads, dim: caches[layer])
        token, said = self.document.ids[-1], []
        for _ in range(LOOP_TOKENS):
            token = int(session.step(token).argmax())
            said.append(token)
        return has_loop(said)
