"""Write a conversation the way a model was taught to read it.

One dialect is written: ChatML (SmolLM2, Qwen2), with the system message that the file's own
template starts with. Templates are Jinja programs; a file whose template is another dialect is
refused rather than answered with a guess.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from kvcore.errors import UnsupportedError, message

_TEMPLATE = "tokenizer.chat_template"
_SYSTEM = re.compile(r"<\|im_start\|>system(?:\n|\\n)([^'\"{}<]+)<\|im_end\|>")


def has_chat(metadata: Mapping[str, Any]) -> bool:
    """Whether `chat_prompt` can write a prompt for this file."""
    return "<|im_start|>" in str(metadata.get(_TEMPLATE, ""))


def chat_prompt(metadata: Mapping[str, Any], user: str, *, system: str | None = None) -> str:
    """Return the prompt for one question, up to where the model's answer starts.

    Parameters
    ----------
    metadata : mapping
        Of the model file.
    user : str
        The question.
    system : str, optional
        Replaces the system message of the file's template.

    Raises
    ------
    UnsupportedError
        The file has no chat template, or one of another dialect.
    """
    if not has_chat(metadata):
        got = "another dialect" if _TEMPLATE in metadata else "no template (a base model)"
        fix = "give a plain prompt instead"
        raise UnsupportedError(
            message("chat", "this model's chat template", got=got, expected="ChatML", fix=fix)
        )
    if system is None:
        default = _SYSTEM.search(metadata[_TEMPLATE])
        system = default.group(1) if default else None
    turns = [("system", system)] if system else []
    turns.append(("user", user))
    written = "".join(f"<|im_start|>{role}\n{text}<|im_end|>\n" for role, text in turns)
    return written + "<|im_start|>assistant\n"
