"""Stop conditions as people write them: ``"done or reward > 0.5 and step_count >= 10"``."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Self

from torch import Tensor

from tdx.core.tracing.stops import (
    AllOf,
    AnyOf,
    Done,
    NotFinite,
    OutOfSpec,
    Stop,
    StopReason,
    Truncated,
)
from tdx.core.tracing.traces import StepTrace
from tdx.errors import ArgumentError, KeyNotFoundError, did_you_mean
from tdx.keys import NestedKey, format_key, normalize_key

Compare = Callable[[Any, Any], Any]
_OPERATORS: dict[str, Compare] = {
    ">=": operator.ge,
    "<=": operator.le,
    "==": operator.eq,
    "!=": operator.ne,
    ">": operator.gt,
    "<": operator.lt,
}
_COMPARISON = re.compile(
    r"\s*(?P<key>[^\s<>=!()]+)\s*(?P<op>>=|<=|==|!=|>|<)\s*"
    r"(?P<number>[+-]?(?:\d+\.?\d*(?:[eE][+-]?\d+)?|\.\d+(?:[eE][+-]?\d+)?|inf|nan))\s*"
)


class KeyIs(Stop):
    """Stops where any element of a key compares with a number as is said.

    The key is looked for in what came out of the chain, then in what went in.

    Args:
        key: the key.
        op: one of ``>``, ``>=``, ``<``, ``<=``, ``==``, ``!=``.
        number: what it is compared with.

    Raises:
        ArgumentError: there is no such comparison.

    Example:
        >>> KeyIs.parse("agents.reward > 0.5").key
        ('agents', 'reward')
    """

    def __init__(self, key: NestedKey, op: str, number: float) -> None:
        if op not in _OPERATORS:
            raise ArgumentError(f"no comparison {op!r}", hint=f"one of {' '.join(_OPERATORS)}")
        self.key, self.op, self.number = normalize_key(key), op, number

    @classmethod
    def parse(cls, text: str) -> Self:
        """A condition written as ``key op number``, such as ``"reward > 0.5"``.

        Raises:
            ArgumentError: the text is no such condition.
        """
        match = _COMPARISON.fullmatch(text)
        parts = match["key"].split(".") if match else []
        if match is None or not all(parts):
            raise ArgumentError(
                f"{text!r} is no condition on a key",
                hint="write key, comparison and number: 'reward > 0.5', 'agents.count == 3'",
            )
        return cls(normalize_key(tuple(parts)), match["op"], float(match["number"]))

    def check(self, trace: StepTrace) -> StopReason | None:
        value = self._value(trace)
        return None if value is None else self._told(trace, value, self._compare(value))

    def rows(self, trace: StepTrace) -> Tensor | None:
        value, count = self._value(trace), trace.tensordict.batch_size.numel()
        if value is None or value.shape[: trace.tensordict.ndim] != trace.tensordict.batch_size:
            return None
        return self._compare(value).reshape(count, -1).any(1)

    def reason_in(self, trace: StepTrace, rows: Tensor) -> StopReason | None:
        value = self._value(trace)
        if value is None or self.rows(trace) is None:
            return self.check(trace)
        value = value.reshape(len(rows), -1)[rows]
        return self._told(trace, value, self._compare(value))

    def _compare(self, value: Tensor) -> Tensor:
        met: Tensor = _OPERATORS[self.op](value, self.number)
        return met

    def _told(self, trace: StepTrace, value: Tensor, met: Tensor) -> StopReason | None:
        if not bool(met.any()):
            return None
        first = value[met].reshape(-1)[0].item()
        name = format_key(self.key)
        message = f"{name} is {first:g}, {name} {self.op} {self.number:g}"
        return self._reason(trace, message, trace.writer(self.key), self.key)

    def _value(self, trace: StepTrace) -> Tensor | None:
        for level in (trace.env_tensordict, trace.tensordict):
            value = level.get(self.key, None)
            if isinstance(value, Tensor):
                return value
        if trace.phase == "reset":
            # Rewards, for one, come with the first step.
            return None
        self.check_key(normalize_key(key) for key in trace.env_tensordict.keys(True, True))
        return None

    def check_key(self, keys: Iterable[NestedKey]) -> None:
        """Complain where the key is none of those that there are.

        Raises:
            KeyNotFoundError: it is not; the hint says which is near.
        """
        known = [format_key(key) for key in keys]
        name = format_key(self.key)
        if name not in known:
            hint = did_you_mean(name, known, otherwise=f"the keys are {', '.join(known)}")
            raise KeyNotFoundError(f"a run is to stop by {name!r}, which is no key", hint=hint)


_WORDS: dict[str, Callable[[], Stop]] = {
    "done": Done,
    "nan": NotFinite,
    "spec": OutOfSpec,
    "terminated": lambda: Done("terminated"),
    "truncated": Truncated,
}


def parse_stop(text: str) -> Stop:
    """A condition from text: words and comparisons, with ``and``, ``or`` and brackets between.

    The words are ``done``, ``terminated``, ``truncated``, ``nan`` and ``spec``. ``and`` binds
    closer than ``or``; of a batch both of its sides have to be met in the same env.

    Args:
        text: such as ``"done or reward > 0.5 and steps >= 10"``. It is parsed, never evaluated.

    Raises:
        ArgumentError: it is none.

    Example:
        >>> [type(stop).__name__ for stop in parse_stop("nan or reward > 0.5").stops]
        ['NotFinite', 'KeyIs']
    """
    return _Reading(text).whole()


def keys_of(stop: Stop) -> Iterator[KeyIs]:
    """Every comparison on a key in a condition."""
    if isinstance(stop, KeyIs):
        yield stop
    elif isinstance(stop, AnyOf):
        for each in stop.stops:
            yield from keys_of(each)


# Words stand alone, so that a key may begin with "and".
_JOINTS = re.compile(r"([()]|(?<![^\s()])(?:and|or)(?![^\s()]))")


class _Reading:
    """Reads a condition from left to right."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.left = [part.strip() for part in _JOINTS.split(text) if part.strip()]
        self.before = ""

    def whole(self) -> Stop:
        stop = self._any()
        if self.left[:1] == [")"]:
            raise ArgumentError(
                f"a bracket is closed that was not opened: {self.text!r}",
                hint="remove it, or add an opening bracket",
            )
        if self.left:
            hint = "join conditions by 'and' or 'or'"
            raise ArgumentError(f"what joins {self.left[0]!r} to what is before it?", hint=hint)
        return stop

    def _any(self) -> Stop:
        stops = [self._all()]
        while self._took("or"):
            stops.append(self._all())
        return stops[0] if len(stops) == 1 else AnyOf(*stops)

    def _all(self) -> Stop:
        stops = [self._one()]
        while self._took("and"):
            stops.append(self._one())
        return stops[0] if len(stops) == 1 else AllOf(*stops)

    def _one(self) -> Stop:
        if self._took("("):
            stop = self._any()
            if not self._took(")"):
                raise ArgumentError(
                    f"a bracket is not closed: {self.text!r}", hint="add a closing bracket"
                )
            return stop
        if self.left and self.left[0] not in ("and", "or", ")"):
            self.before = self.left.pop(0)
            return _parsed(self.before)
        if not self.before and not self.left:
            return _parsed("")
        place = f"behind {self.before!r}" if self.before else f"before {self.left[0]!r}"
        hint = "such as 'reward > 0.5 and step_count >= 10'"
        raise ArgumentError(f"a condition is missing {place}", hint=hint)

    def _took(self, part: str) -> bool:
        if self.left[:1] != [part]:
            return False
        self.before = self.left.pop(0)
        return True


def _parsed(text: str) -> Stop:
    word = _WORDS.get(text)
    if word is not None:
        return word()
    if re.search("[<>=!]", text):
        return KeyIs.parse(text)
    hint = did_you_mean(
        text, _WORDS, otherwise=f"write {', '.join(_WORDS)}, or a condition such as 'reward > 0.5'"
    )
    raise ArgumentError(f"{text!r} is no condition to stop by", hint=hint)
