"""TDX48x: what a policy requires of its chain."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from copy import deepcopy

from tdx.foundation.errors import did_you_mean
from tdx.foundation.keys import NestedKey, format_key, normalize_key, split_key
from tdx.inspection.lint.context import LintContext, LintStage
from tdx.inspection.lint.rule import Violation, insert_stage, rule
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
misspelled = TensorDictModule(nn.Linear(3, 1), in_keys=["obs"], out_keys=["action"])
flat = TensorDictModule(
    lambda observation: observation[..., 0], in_keys=["observation"], out_keys=["action"]
)
"""
_PRIMER = (
    """-t 'TensorDictPrimer({"recurrent_state": Unbounded(shape=(1, 4))}, default_value=0.0)'"""
)


@rule(
    "TDX481",
    "recurrent policy has no primer",
    "error",
    why="""
    A recurrent module reads the state that it wrote in the previous step. The
    first step has no such state unless a `TensorDictPrimer` writes it in every reset and adds it
    to the specs.

    `get_primers_from_module(policy)` returns the matching primer.
    """,
    wrong="Pendulum-v1 --policy my_code:policy -t InitTracker",
    right=f"Pendulum-v1 --policy my_code:policy -t InitTracker {_PRIMER}",
    python=_RECURRENT,
)
def recurrent_without_primer(context: LintContext) -> Iterator[Violation]:
    """Find recurrent state of the policy that no reset writes."""
    available = _available_keys(context)
    for key in _recurrent_keys(context):
        if available is not None and key not in available:
            message = f"the policy reads {format_key(key)!r}, which no reset writes"
            hint = "add the TensorDictPrimer that get_primers_from_module(policy) returns"
            yield Violation(message, hint, key=key)


@rule(
    "TDX482",
    "recurrent policy has no InitTracker",
    "warning",
    why="""
    A recurrent module clears its state where `is_init` marks the start of an episode. Without
    `InitTracker` the state carries over to the next episode, and in training on stored data the
    module cannot tell episodes apart.
    """,
    wrong=f"Pendulum-v1 {_PRIMER}",
    right=f"Pendulum-v1 -t InitTracker {_PRIMER}",
)
def recurrent_without_tracker(context: LintContext) -> Iterator[Violation]:
    """Find recurrent state without ``is_init``."""
    available = _available_keys(context)
    if any(True for _ in context.stages_named("InitTracker")) or (
        available and "is_init" in available
    ):
        return
    primers: list[LintStage] = []
    for stage in context.stages_named("TensorDictPrimer"):
        written = stage.arguments.get("primers")
        names = (
            [*stage.arguments, *(written or {})] if hasattr(written, "keys") else stage.arguments
        )
        if any(split_key(normalize_key(name))[-1].startswith(_STATE) for name in names):
            primers.append(stage)
    if primers or _recurrent_keys(context):
        index = primers[0].index if primers else len(context.stages)
        hint = "add InitTracker"
        fix = insert_stage(index, StageConfig("InitTracker"))
        where = primers[0].index if primers else None
        yield Violation("'is_init' is not written", hint, where, "is_init", fix)


@rule(
    "TDX483",
    "policy reads a missing key",
    "error",
    why="""
    The specs after the chain do not contain an in-key of the policy: it is misspelled, renamed
    or dropped, or the stage that writes it is missing. The first step fails.
    """,
    wrong="Pendulum-v1 --policy my_code:misspelled",
    right="Pendulum-v1 --policy my_code:policy",
    python=_PLAIN,
)
def policy_in_key_without_producer(context: LintContext) -> Iterator[Violation]:
    """Find in-keys of the policy that the chain does not output."""
    available = _available_keys(context)
    if context.policy is None or available is None:
        return
    recurrent = {*_recurrent_keys(context), "is_init"}
    written = {normalize_key(key) for key in getattr(context.policy, "out_keys", ())}
    heads = {split_key(key)[:n] for key in available for n in range(1, len(split_key(key)) + 1)}
    for raw_key in getattr(context.policy, "in_keys", ()):
        key = normalize_key(raw_key)
        if split_key(key) not in heads and key not in recurrent and key not in written:
            known = [format_key(other) for other in available]
            hint = did_you_mean(format_key(key), known) or f"available keys: {', '.join(known)}"
            message = f"the policy reads {format_key(key)!r}, which is not written"
            yield Violation(message, hint, key=key)


@rule(
    "TDX484",
    "running statistics change during evaluation",
    "warning",
    why="""
    A pipeline with a policy runs it, and `VecNorm` starts available without statistics and
    keeps updating them. The policy receives other values than in training, and the results of a
    run depend on the previous ones.

    For evaluation, use the statistics from the end of training: an `ObservationNorm` with the
    `loc` and `scale` of the trained `VecNorm` (its `to_observation_norm`).
    """,
    wrong="""Pendulum-v1 --policy my_code:policy -t 'VecNorm(in_keys=["observation"])'""",
    right="""Pendulum-v1 --policy my_code:policy
    -t 'ObservationNorm(0.0, 0.5, in_keys=["observation"])'""",
    python=_PLAIN,
)
def statistics_in_evaluation(context: LintContext) -> Iterator[Violation]:
    """Find running normalizations in a pipeline with a policy."""
    policy = context.pipeline.policy
    if policy in (None, "random", "zero") or policy.startswith("sequence:"):
        return
    for stage in context.stages_named("VecNorm"):
        message = "its statistics start empty and change while the policy runs"
        hint = "use ObservationNorm with the statistics of the trained VecNorm"
        yield Violation(message, hint, stage.index, stage.in_keys[0] if stage.in_keys else None)


@rule(
    "TDX494",
    "policy writes actions without their last dim",
    "warning",
    why="""
    The action spec has a last dim of size 1, `[*B, 1]`, and the policy writes `[*B]`. A rollout
    adds the dim. Code that steps the env itself, a loss that compares the two shapes, or another
    library does not: `[N] - [N, 1]` is `[N, N]` by broadcasting.
    """,
    wrong="Pendulum-v1 --policy my_code:flat",
    right="Pendulum-v1 --policy my_code:policy",
    python=_PLAIN,
)
def action_without_last_dim(context: LintContext) -> Iterator[Violation]:
    """Find actions that lack only the last dim of their spec."""
    # Reading the rules must not import torch.
    import torch

    from tdx.core.envs.policies import as_policy

    env = context.env
    if env is None or context.policy is None:
        return
    with torch.random.fork_rng(devices=[]), torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            inputs = env.fake_tensordict().exclude("next", *env.action_keys)
            written = as_policy(deepcopy(context.policy), env)(inputs)
        except Exception:  # Other findings say why it does not run.
            return
    for key in env.action_keys:
        action, shape = written.get(key, None), env.full_action_spec[key].shape
        if isinstance(action, torch.Tensor) and (*action.shape, 1) == shape:
            written_shape = tuple(action.shape)
            message = f"the policy writes {written_shape}, the action spec says {tuple(shape)}"
            yield Violation(message, "end the policy with unsqueeze(-1)", key=key)


def _available_keys(context: LintContext) -> set[NestedKey] | None:
    """Return the keys that a policy receives, if known."""
    last = context.last
    return None if last is None else {*last.outputs, *last.inputs} - set(last.actions)


def _recurrent_keys(context: LintContext) -> list[NestedKey]:
    """Return the keys that the modules of the policy write for their next step."""
    if context.policy is None:
        return []
    factories = (
        getattr(module, "make_tensordict_primer", None) for module in context.policy.modules()
    )
    primers = [make() for make in factories if make is not None]
    return [normalize_key(key) for primer in primers for key in primer.primers.keys(True, True)]
