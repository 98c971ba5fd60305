"""What a policy needs of its chain."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tdx.errors import did_you_mean
from tdx.inspection.lint.context import LintContext
from tdx.inspection.lint.fix import inserted
from tdx.inspection.lint.rule import Found, rule
from tdx.keys import NestedKey, format_key, key_parts, normal_key
from tdx.pipeline.values import StageConfig

_STATE = "recurrent_state"
_RECURRENT = """
from tdx import GRUModule

policy = GRUModule(input_size=3, hidden_size=4, in_key="observation", out_key="features")
"""
_PLAIN = """
from tensordict.nn import TensorDictModule
from torch import nn

policy = TensorDictModule(nn.Linear(3, 1), in_keys=["observation"], out_keys=["action"])
lost = TensorDictModule(nn.Linear(3, 1), in_keys=["obs"], out_keys=["action"])
"""
_PRIMER = (
    """--t 'TensorDictPrimer({"recurrent_state": Unbounded(shape=(1, 4))}, default_value=0.0)'"""
)


@rule(
    "TDX481",
    "a recurrent policy without a primer",
    "error",
    why="""
    A recurrent module reads the state that it wrote a step ago. At the first step nobody has
    written it, unless a `TensorDictPrimer` puts it into every reset and lets it through the specs.

    `get_primers_from_module(policy)` makes the primer that fits.
    """,
    wrong="--env Pendulum-v1 --policy my_code:policy --t InitTracker",
    right=f"--env Pendulum-v1 --policy my_code:policy --t InitTracker {_PRIMER}",
    python=_RECURRENT,
)
def recurrent_without_primer(context: LintContext) -> Iterator[Found]:
    """State that the policy carries and nobody primes."""
    there = _there(context)
    for key in _carried(context):
        if there is not None and key not in there:
            message = f"the policy carries {format_key(key)!r}, which no reset writes"
            hint = "add the TensorDictPrimer that get_primers_from_module(policy) makes"
            yield Found(message, hint, key=key)


@rule(
    "TDX482",
    "a recurrent policy that is not told where episodes begin",
    "warning",
    why="""
    A recurrent module clears its state where `is_init` says that an episode begins. Without
    `InitTracker` the state of the last episode goes on into the next one, and in training on
    stored data the module cannot tell episodes apart at all.
    """,
    wrong=f"--env Pendulum-v1 {_PRIMER}",
    right=f"--env Pendulum-v1 --t InitTracker {_PRIMER}",
)
def recurrent_without_tracker(context: LintContext) -> Iterator[Found]:
    """Recurrent state and nobody who writes ``is_init``."""
    there = _there(context)
    if any(True for _ in context.named("InitTracker")) or (there and "is_init" in there):
        return
    primers = [stage for stage in context.named("TensorDictPrimer") if _primes_state(stage)]
    if primers or _carried(context):
        index = primers[0].index if primers else len(context.stages)
        hint = "add InitTracker"
        fix = inserted(index, StageConfig("InitTracker"))
        where = primers[0].index if primers else None
        yield Found("nothing writes 'is_init'", hint, where, "is_init", fix)


@rule(
    "TDX483",
    "a policy reads what the chain does not write",
    "error",
    why="""
    An in-key of the policy is in none of the specs at the end of the chain: it is misspelt,
    renamed, dropped, or the stage that makes it is missing. The first step fails.
    """,
    wrong="--env Pendulum-v1 --policy my_code:lost",
    right="--env Pendulum-v1 --policy my_code:policy",
    python=_PLAIN,
)
def policy_in_key_without_producer(context: LintContext) -> Iterator[Found]:
    """In-keys of the policy that are not there."""
    there = _there(context)
    if context.policy is None or there is None:
        return
    own = {*_carried(context), "is_init"}
    made = {normal_key(key) for key in getattr(context.policy, "out_keys", ())}
    heads = {key_parts(key)[:n] for key in there for n in range(1, len(key_parts(key)) + 1)}
    for raw_key in getattr(context.policy, "in_keys", ()):
        key = normal_key(raw_key)
        if key_parts(key) not in heads and key not in own and key not in made:
            known = [format_key(each) for each in there]
            hint = did_you_mean(format_key(key), known) or f"keys there: {', '.join(known)}"
            message = f"the policy reads {format_key(key)!r}, which nothing writes"
            yield Found(message, hint, key=key)


@rule(
    "TDX484",
    "running statistics go on while a policy is judged",
    "warning",
    why="""
    A pipeline that names a policy runs it, and `VecNorm` begins there with no statistics and goes
    on changing them. The policy sees other numbers than those it was trained on, and two runs
    differ by what was run before.

    For evaluation take the numbers that training ended with: an `ObservationNorm` with the `loc`
    and `scale` of the trained `VecNorm` (its `to_observation_norm`).
    """,
    wrong="""--env Pendulum-v1 --policy my_code:policy --t 'VecNorm(in_keys=["observation"])'""",
    right="""--env Pendulum-v1 --policy my_code:policy
    --t 'ObservationNorm(0.0, 0.5, in_keys=["observation"])'""",
    python=_PLAIN,
)
def statistics_in_evaluation(context: LintContext) -> Iterator[Found]:
    """Running normalisations in a pipeline with a policy of its own."""
    policy = context.pipeline.policy
    if policy in (None, "random", "zero") or policy.startswith("sequence:"):
        return
    for stage in context.named("VecNorm"):
        message = "its statistics begin anew and go on changing while the policy runs"
        hint = "use ObservationNorm with the numbers of the trained VecNorm"
        yield Found(message, hint, stage.index, stage.in_keys[0] if stage.in_keys else None)


def _there(context: LintContext) -> set[NestedKey] | None:
    """What a policy finds at a step, as far as it is known."""
    last = context.last
    return None if last is None else {*last.output, *last.given} - set(last.actions)


def _carried(context: LintContext) -> list[NestedKey]:
    """What the modules of the policy write for their own next step."""
    if context.policy is None:
        return []
    makers = (getattr(each, "make_tensordict_primer", None) for each in context.policy.modules())
    primers = [make() for make in makers if make is not None]
    return [normal_key(key) for primer in primers for key in primer.primers.keys(True, True)]


def _primes_state(stage: Any) -> bool:
    primers = stage.arguments.get("primers")
    names = [*(primers or {}), *stage.arguments] if hasattr(primers, "keys") else stage.arguments
    return any(key_parts(normal_key(name))[-1].startswith(_STATE) for name in names)
