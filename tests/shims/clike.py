"""Just enough C lexing to rewrite kernel signatures; line numbers never change."""

from __future__ import annotations

import re

_CLOSING = {"(": ")", "{": "}", "[": "]"}


def strip_comments(text: str) -> str:
    """Replace comments by blanks, keeping every newline."""

    def blank(found: re.Match[str]) -> str:
        return "\n" * found.group(0).count("\n") or " "

    return re.sub(r"//[^\n]*|/\*.*?\*/", blank, text, flags=re.DOTALL)


def match(text: str, start: int) -> int:
    """Return the index of the bracket that closes the one at ``start``."""
    opening = text[start]
    closing, depth = _CLOSING[opening], 0
    for i in range(start, len(text)):
        if text[i] == opening:
            depth += 1
        elif text[i] == closing:
            depth -= 1
            if depth == 0:
                return i
    raise SyntaxError(f"unbalanced {opening}")


def split(text: str) -> list[str]:
    """Split a parameter list at its top-level commas."""
    parts, depth, current = [], 0, ""
    for char in text:
        depth += (char in "([{<") - (char in ")]}>")
        if char == "," and depth == 0:
            parts.append(current.strip())
            current = ""
        else:
            current += char
    return [*parts, current.strip()] if current.strip() else parts
