"""Stop conditions as people write them: ``"done or reward > 0.5"``."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from typing import Any, Self

from torch import Tensor

from tdx.engine.traced.stops import AnyOf, Done, NotFinite, OutOfSpec, Stop, StopReason, Truncated
from tdx.engine.traced.traces import StepTrace
from tdx.errors import ArgumentError, KeyNotFoundError, did_you_mean
from tdx.keys import NestedKey, format_key, normal_key

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
    r"\s*(?P<key>[^\s<>=!]+)\s*(?P<op>>=|<=|==|!=|>|<)\s*"
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
        self.key, self.op, self.number = normal_key(key), op, number

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
        return cls(normal_key(tuple(parts)), match["op"], float(match["number"]))

    def check(self, trace: StepTrace) -> StopReason | None:
        value = self._value(trace)
        if value is None:
            return None
        met = _OPERATORS[self.op](value, self.number)
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
        known = [format_key(normal_key(key)) for key in trace.env_tensordict.keys(True, True)]
        name = format_key(self.key)
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
    """A condition from text: a word, or a comparison; several with ``or`` between.

    The words are ``done``, ``terminated``, ``truncated``, ``nan`` and ``spec``.

    Args:
        text: such as ``"done or reward > 0.5"``. It is parsed, never evaluated.

    Raises:
        ArgumentError: it is neither.

    Example:
        >>> [type(stop).__name__ for stop in parse_stop("nan or reward > 0.5").stops]
        ['NotFinite', 'KeyIs']
    """
    parts = re.split(r"\s+or\s+", text.strip())
    stops = [_parsed(part) for part in parts]
    return stops[0] if len(stops) == 1 else AnyOf(*stops)


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
