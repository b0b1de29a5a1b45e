"""What a case is: an op, the codecs it concerns and a function that yields differences."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from kvcore.conformance.twin import Bench
from kvcore.spec import Format


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """One thing a backend must do as the reference does.

    Attributes
    ----------
    op : str
    title : str
        What it does, unique among the cases of its op and format.
    run : callable
        Takes a :class:`Bench`, yields a line per difference.
    format : Format or None
        None for an op that does not depend on how a store is encoded.
    quick : bool
        Part of the short run.
    refusal : bool
        It tries bad operands only, so that passing it does not mean that the op works.
    """

    op: str
    title: str
    run: Callable[[Bench], Iterator[str]]
    format: Format | None = None
    quick: bool = False
    refusal: bool = False

    @property
    def codecs(self) -> tuple[str, ...]:
        """Names of the codecs of K and V, or nothing."""
        return (self.format.k.name, self.format.v.name) if self.format else ()
