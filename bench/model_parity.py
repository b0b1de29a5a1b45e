"""A real model on another backend against the CPU: the same tokens, the same stored bytes.

    python bench/model_parity.py --backend sycl [--gguf PATH] [--tokens 24] [--formats int8 q2k]

For f32 the greedy tokens must be equal. For each quantized format the K and V that the model
made of the prompt on the CPU are appended to both backends in the same calls, and every plane,
exact cell, centre and mark must be equal byte for byte. How many stay equal when each backend runs
the whole model itself is printed too: attention sums round differently, so codes may flip.
Exit code 1 on a difference.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

import numpy as np

import kvcore
from kvcore.lab.caches import cache_factory, spec_for
from kvcore.lab.engine import Session
from kvcore.lab.load import LoadedModel, load

PROMPT = (
    "The lighthouse keeper wrote every evening what the sea had brought: planks, a bottle, once a "
    "whole piano. In the spring of that year he began to number the waves, and by autumn he had "
    "found that every seventh one came back with something that it had taken from another shore. "
    "He told nobody but the gulls, who already knew. When the supply boat came in October the "
    "mate asked him why the lamp had burned at noon. He said that a lamp does not choose its hour, "
    "and that noon over the reef had been as dark as a cellar since the second week of September. "
    "The mate looked at the reef, which lay in plain sunlight, and wrote down: lamp in good order. "
    "That night the keeper opened the bottle. There was no letter in it, only a little water that "
    "tasted of another sea, and a thread of red wool such as mothers tie around a wrist. He put it "
    "in the book between two pages of numbers, and the next morning the piano was gone."
)


class Recorder:
    """Passes everything on to a cache and keeps what was appended."""

    def __init__(self, cache: Any) -> None:
        self.cache = cache
        self.calls: list[tuple[Any, Any]] = []

    def append(self, k: Any, v: Any) -> None:
        self.calls.append((k.copy(), v.copy()))
        self.cache.append(k, v)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.cache, name)

    def __len__(self) -> int:
        return len(self.cache)


def greedy(model: LoadedModel, factory: Any, ids: list[int], n: int) -> tuple[list[int], Session]:
    engine = Session(model.model, factory)
    scores = engine.prefill(ids)
    out = []
    for _ in range(n):
        out.append(int(np.argmax(scores)))
        scores = engine.step(out[-1])
    return out, engine


def held(cache: kvcore.KVCache) -> dict[str, bytes]:
    """Return every byte of a cache by name."""
    be = cache.backend
    arrays = {name: be.to_host(a) for name, a in cache.pool.planes.items()}
    arrays |= {n: be.to_host(getattr(cache.state, n)) for n in ("k", "v", "centre", "marks")}
    return {name: np.ascontiguousarray(a).tobytes() for name, a in arrays.items()}


def compare(model: LoadedModel, cpu: Any, other: Any, fmt: str, ids: list[int]) -> tuple[int, str]:
    """Return the number of differing arrays, and a line about the free run."""
    spec = spec_for(model.model.config, fmt)
    capacity = len(ids) + 32
    make_cpu = cache_factory(model.model.config, spec, cpu, capacity)
    recorders: list[Recorder] = []

    def recording(layer: int, heads: int, dim: int) -> Recorder:
        recorders.append(Recorder(make_cpu(layer, heads, dim)))
        return recorders[-1]

    Session(model.model, recording).prefill(ids)
    bad = 0
    free = Session(model.model, cache_factory(model.model.config, spec, other, capacity))
    free.prefill(ids)
    same = total = 0
    for recorder, own in zip(recorders, free.caches, strict=True):
        twin = other.cache(spec, capacity)
        for k, v in recorder.calls:
            twin.append(k, v)
        want, got, ran = held(recorder.cache.cache), held(twin), held(own.cache)
        bad += sum(want[name] != got[name] for name in want)
        same += sum(want[name] == ran[name] for name in want)
        total += len(want)
    return bad, f"{same} of {total} arrays equal when it runs the whole model itself"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backend", required=True)
    parser.add_argument("--gguf")
    parser.add_argument("--tokens", type=int, default=24)
    parser.add_argument("--formats", nargs="*", default=["int8", "q4_0", "q2k"])
    options = parser.parse_args()
    model = load(gguf=options.gguf)
    cpu, other = kvcore.get_backend("cpu"), kvcore.get_backend(options.backend)
    config = model.model.config
    ids = model.tokenizer.encode(PROMPT)
    print(f"{config.name}, {config.n_layers} layers; {other.name}: {other.device}; against cpu")
    spec = spec_for(config, "f32")
    runs = [
        greedy(model, cache_factory(config, spec, be, len(ids) + 64), ids, options.tokens)[0]
        for be in (cpu, other)
    ]
    failures = int(runs[0] != runs[1])
    print(f"f32: {options.tokens} greedy tokens {'equal' if not failures else 'DIFFER'}")
    for fmt in options.formats:
        bad, line = compare(model, cpu, other, fmt, ids)
        failures += bad
        verdict = "every stored byte equal" if not bad else f"{bad} arrays DIFFER"
        print(f"{fmt}: {len(ids)} prompt tokens, {verdict}; {line}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
