"""What a stage declares and what it writes."""

from __future__ import annotations

from collections.abc import Iterator

from tdx.inspection.lint.context import LintContext
from tdx.inspection.lint.rule import Found, rule

_SILENT = '''
import torch
from tdx import Transform, Unbounded

class Silent(Transform):
    """Declares a key and never writes it."""

    def transform_observation_spec(self, observation_spec):
        observation_spec = observation_spec.clone()
        observation_spec["speed"] = Unbounded((1,))
        return observation_spec

class Honest(Silent):
    """Writes what it declares."""

    def _call(self, next_tensordict):
        next_tensordict["speed"] = torch.zeros(*next_tensordict.batch_size, 1)
        return next_tensordict

    def _reset(self, tensordict, tensordict_reset):
        return self._call(tensordict_reset)
'''
_HIDDEN = '''
import torch
from tdx import Transform, Unbounded

class Hidden(Transform):
    """Writes a key and does not declare it."""

    def _call(self, next_tensordict):
        next_tensordict["speed"] = torch.zeros(*next_tensordict.batch_size, 1)
        return next_tensordict

    def _reset(self, tensordict, tensordict_reset):
        return self._call(tensordict_reset)

class Open(Hidden):
    """Declares what it writes."""

    def transform_observation_spec(self, observation_spec):
        observation_spec = observation_spec.clone()
        observation_spec["speed"] = Unbounded((1,))
        return observation_spec
'''


def _lies(context: LintContext, kind: str) -> Iterator[Found]:
    for lie in context.lies:
        if lie.code == kind:
            hint = lie.hint or "mend the spec, or what is written"
            yield Found(lie.message, hint, lie.stage, lie.key, lie=lie.code)


@rule(
    "TDX411",
    "a key that is declared and not written",
    "error",
    why="""
    The specs after this stage promise an entry that neither a reset nor a step writes. Whoever
    trusts the specs, such as a replay buffer that allocates its storage from them or the stage
    that comes next, fails far away from here, or reads memory that nobody has filled.

    Write the entry in `_step` and in `_reset`, or take it out of `transform_observation_spec`.
    """,
    wrong="--env Pendulum-v1 --t my_code:Silent",
    right="--env Pendulum-v1 --t my_code:Honest",
    python=_SILENT,
    follows_lies=True,
)
def declared_and_not_written(context: LintContext) -> Iterator[Found]:
    """Lies of the kind ``missing``."""
    yield from _lies(context, "missing")


@rule(
    "TDX412",
    "a key that is written and not declared",
    "error",
    why="""
    A reset or a step writes an entry that the specs do not know. It takes part in no check, gets
    no place in a storage that is made from the specs, and a batch of such envs may drop it.

    Declare it in `transform_observation_spec`, or do not write it.
    """,
    wrong="--env Pendulum-v1 --t my_code:Hidden",
    right="--env Pendulum-v1 --t my_code:Open",
    python=_HIDDEN,
    follows_lies=True,
)
def written_and_not_declared(context: LintContext) -> Iterator[Found]:
    """Lies of the kind ``undeclared``."""
    yield from _lies(context, "undeclared")
