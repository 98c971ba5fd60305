"""Conditions to stop by, held against the keys that an env has before it is stepped."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from tdx.core.tracing import Stop, parse_stop
from tdx.core.tracing.stop_parser import keys_of

if TYPE_CHECKING:
    from tdx.core.tracing import Tracer
    from tdx.keys import NestedKey


def checked_stop(text: str, tracer: Tracer) -> Stop:
    """A condition in the words of :func:`~tdx.core.tracing.parse_stop`, on keys that there are.

    Args:
        text: the condition.
        tracer: whose env it is for.

    Raises:
        ArgumentError: it is no condition.
        KeyNotFoundError: it is on a key that is not there; the hint says which is near.

    Example:
        >>> from tdx import PendulumEnv, StepCounter, Tracer, TransformedEnv
        >>> tracer = Tracer(TransformedEnv(PendulumEnv(), StepCounter()))
        >>> type(checked_stop("reward > -0.1 and step_count >= 10", tracer)).__name__
        'AllOf'
    """
    stop = parse_stop(text)
    known = dict.fromkeys(_keys(tracer))
    for each in keys_of(stop):
        each.check_key(known)
    return stop


def _keys(tracer: Tracer) -> Iterator[NestedKey]:
    """The keys of a trace, also of one that is still to come."""
    env, last = tracer.env, tracer.last
    for spec in (env.full_observation_spec, env.full_reward_spec, env.full_done_spec):
        yield from spec.keys(True, True)
    for spec in (env.full_action_spec, env.full_state_spec):
        yield from spec.keys(True, True)
    if last is not None:
        yield from last.env_tensordict.keys(True, True)
        yield from last.tensordict.keys(True, True)
