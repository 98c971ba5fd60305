"""Parser of stop conditions: ``"done or reward > 0.5 and step_count >= 10"``."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from tdx.core.tracing.stops import AllOf, AnyOf, Done, KeyIs, NotFinite, OutOfSpec, Stop, Truncated
from tdx.foundation.errors import ArgumentError, did_you_mean

_WORDS: dict[str, Callable[[], Stop]] = {
    "done": Done,
    "nan": NotFinite,
    "spec": OutOfSpec,
    "terminated": lambda: Done("terminated"),
    "truncated": Truncated,
}


def parse_stop(text: str) -> Stop:
    """Parse a stop condition: words and comparisons, joined by ``and``, ``or`` and parentheses.

    The words are ``done``, ``terminated``, ``truncated``, ``nan`` and ``spec``. ``and`` binds
    tighter than ``or``; in a batch both of its sides have to be met in the same env.

    Args:
        text: Condition such as ``"done or reward > 0.5 and steps >= 10"``; never evaluated.

    Raises:
        ArgumentError: ``text`` is not a condition.

    Example:
        >>> [type(stop).__name__ for stop in parse_stop("nan or reward > 0.5").stops]
        ['NotFinite', 'KeyIs']
    """
    return _Parser(text).parse()


def keys_of(stop: Stop) -> Iterator[KeyIs]:
    """Yield every comparison with a key in a condition."""
    if isinstance(stop, KeyIs):
        yield stop
    elif isinstance(stop, AnyOf):
        for inner in stop.stops:
            yield from keys_of(inner)


# Operators are separate words, so that a key may start with "and".
_OPERATORS = re.compile(r"([()]|(?<![^\s()])(?:and|or)(?![^\s()]))")


class _Parser:
    """Recursive-descent parser of one condition."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.rest = [part.strip() for part in _OPERATORS.split(text) if part.strip()]
        self.previous = ""

    def parse(self) -> Stop:
        stop = self._any()
        if self.rest[:1] == [")"]:
            raise ArgumentError(
                f"unmatched closing parenthesis in {self.text!r}",
                hint="remove it, or add an opening parenthesis",
            )
        if self.rest:
            hint = "join conditions with 'and' or 'or'"
            raise ArgumentError(f"expected 'and' or 'or' before {self.rest[0]!r}", hint=hint)
        return stop

    def _any(self) -> Stop:
        stops = [self._all()]
        while self._accept("or"):
            stops.append(self._all())
        return stops[0] if len(stops) == 1 else AnyOf(*stops)

    def _all(self) -> Stop:
        stops = [self._one()]
        while self._accept("and"):
            stops.append(self._one())
        return stops[0] if len(stops) == 1 else AllOf(*stops)

    def _one(self) -> Stop:
        if self._accept("("):
            stop = self._any()
            if not self._accept(")"):
                raise ArgumentError(
                    f"unmatched opening parenthesis in {self.text!r}",
                    hint="add a closing parenthesis",
                )
            return stop
        if self.rest and self.rest[0] not in ("and", "or", ")"):
            self.previous = self.rest.pop(0)
            return _parse_term(self.previous)
        if not self.previous and not self.rest:
            return _parse_term("")
        place = f"after {self.previous!r}" if self.previous else f"before {self.rest[0]!r}"
        hint = "such as 'reward > 0.5 and step_count >= 10'"
        raise ArgumentError(f"missing condition {place}", hint=hint)

    def _accept(self, part: str) -> bool:
        if self.rest[:1] != [part]:
            return False
        self.previous = self.rest.pop(0)
        return True


def _parse_term(text: str) -> Stop:
    word = _WORDS.get(text)
    if word is not None:
        return word()
    if re.search("[<>=!]", text):
        return KeyIs.parse(text)
    hint = did_you_mean(
        text, _WORDS, otherwise=f"write {', '.join(_WORDS)}, or a condition such as 'reward > 0.5'"
    )
    raise ArgumentError(f"unknown stop condition {text!r}", hint=hint)
