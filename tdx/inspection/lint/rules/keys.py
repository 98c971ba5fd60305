"""TDX41x: keys that are missing, unused, dropped or undeclared."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace

from tdx.foundation.errors import did_you_mean, find_similar_names
from tdx.foundation.keys import NestedKey, format_key, normalize_key, split_key
from tdx.inspection.lint.context import ENV, LintContext, LintStage, StageVersion
from tdx.inspection.lint.rule import (
    Edit,
    Fix,
    Violation,
    change_arguments,
    move_stage,
    remove_stage,
    rule,
)

_DECLARED_ONLY = '''
import torch
from tdx import Transform, Unbounded

class Incomplete(Transform):
    """Declares a key but does not write it."""

    def transform_observation_spec(self, observation_spec):
        observation_spec = observation_spec.clone()
        observation_spec["speed"] = Unbounded((1,))
        return observation_spec

class Complete(Incomplete):
    """Writes what it declares."""

    def _call(self, next_tensordict):
        next_tensordict["speed"] = torch.zeros(*next_tensordict.batch_size, 1)
        return next_tensordict

    def _reset(self, tensordict, tensordict_reset):
        return self._call(tensordict_reset)
'''
_WRITTEN_ONLY = '''
import torch
from tdx import Transform, Unbounded

class Undeclared(Transform):
    """Writes a key but does not declare it."""

    def _call(self, next_tensordict):
        next_tensordict["speed"] = torch.zeros(*next_tensordict.batch_size, 1)
        return next_tensordict

    def _reset(self, tensordict, tensordict_reset):
        return self._call(tensordict_reset)

class Declared(Undeclared):
    """Declares what it writes."""

    def transform_observation_spec(self, observation_spec):
        observation_spec = observation_spec.clone()
        observation_spec["speed"] = Unbounded((1,))
        return observation_spec
'''


@rule(
    "TDX413",
    "in-key is never written",
    "error",
    why="""
    A stage reads a key that neither the env nor an earlier stage writes, so the first step
    fails. Common causes: the key is misspelled, the default `pixels` is used with an env that
    does not render, or the stage that writes the key comes later in the chain.
    """,
    wrong="""Pendulum-v1 -t 'ObservationNorm(0.0, 2.0, in_keys=["observations"])'""",
    right="""Pendulum-v1 -t 'ObservationNorm(0.0, 2.0, in_keys=["observation"])'""",
    replaces=True,
)
def in_key_without_producer(context: LintContext) -> Iterator[Violation]:
    """Find in-keys without a version."""
    for stage, key in _unavailable_in_keys(context):
        if _last_version(context, stage, key) is None:
            assert stage.before is not None
            known = [format_key(other) for other in stage.before.outputs]
            message = f"{format_key(key)!r} is not written by the env or an earlier stage"
            # The later stage that creates the key.
            later = next(
                (
                    other
                    for other in context.stages[stage.index + 1 :]
                    if key in other.out_keys and key not in other.in_keys
                ),
                None,
            )
            if key == "pixels" and not context.pipeline.env.from_pixels and later is None:
                hint = "set in_keys, or render the env: --from-pixels"
            elif later is not None:
                hint = f"move it after stage {later.index} ({later.name}), which writes the key"
            else:
                hint = did_you_mean(format_key(key), known) or f"available keys: {', '.join(known)}"
            fix = _fix_unknown_key(stage, key, later, stage.before.outputs)
            yield Violation(message, hint, stage.index, key, fix)


def _fix_unknown_key(
    stage: LintStage, key: NestedKey, later: LintStage | None, known: Iterable[NestedKey]
) -> Fix | None:
    """Return a fix: read after the writer, or read the only key with a similar name."""
    if later is not None:
        return move_stage(stage.index, later.index, stage.config, later.config)
    by_name = {format_key(other): other for other in known}
    similar = find_similar_names(format_key(key), by_name)
    return _replace_in_key(stage, key, by_name[similar[0]]) if len(similar) == 1 else None


@rule(
    "TDX414",
    "key is read after it was renamed or dropped",
    "error",
    why="""
    A stage reads a key that existed earlier in the chain. `RenameTransform` has renamed it, or
    `ExcludeTransform` or `SelectTransform` has dropped it.

    Read the key under its new name, or move the stage that drops it after the one that reads
    it.
    """,
    wrong="""Pendulum-v1 -t 'RenameTransform(["observation"], ["state"])'
    -t 'ObservationNorm(0.0, 2.0, in_keys=["observation"])'""",
    right="""Pendulum-v1 -t 'RenameTransform(["observation"], ["state"])'
    -t 'ObservationNorm(0.0, 2.0, in_keys=["state"])'""",
    replaces=True,
)
def stale_in_key(context: LintContext) -> Iterator[Violation]:
    """Find in-keys whose last version has ended."""
    for stage, key in _unavailable_in_keys(context):
        version = _last_version(context, stage, key)
        if version is None or version.ended_by is None:
            continue
        ender = context.stages[version.ended_by]
        place = f"stage {ender.index} ({ender.name})"
        if version.end_reason == "renamed":
            new = dict(zip(ender.in_keys, ender.out_keys, strict=True))[key]
            message = f"{format_key(key)!r} was renamed to {format_key(new)!r} by {place}"
            yield Violation(
                message,
                f"read {format_key(new)!r}",
                stage.index,
                key,
                _replace_in_key(stage, key, new),
            )
        else:
            message = f"{format_key(key)!r} was dropped by {place}"
            fix = move_stage(ender.index, stage.index, ender.config, stage.config)
            yield Violation(message, f"move {place} after it", stage.index, key, fix)


def _unavailable_in_keys(context: LintContext) -> Iterator[tuple[LintStage, NestedKey]]:
    for stage in context.stages:
        if stage.before is None or stage.transform is None or stage.is_opaque:
            continue
        if stage.transform.missing_tolerance:
            continue
        available = {split_key(key) for key in (*stage.before.outputs, *stage.before.inputs)}
        heads = {parts[:length] for parts in available for length in range(1, len(parts) + 1)}
        for key in stage.in_keys:
            if split_key(key) not in heads:
                yield stage, key


def _last_version(context: LintContext, stage: LintStage, key: NestedKey) -> StageVersion | None:
    ended = [
        version
        for version in context.versions
        if version.key == key and version.ended_by is not None and version.ended_by < stage.index
    ]
    return ended[-1] if ended else None


def _replace_in_key(stage: LintStage, old: NestedKey, new: NestedKey) -> Fix | None:
    if stage.info is None or stage.info.parameter("in_keys") is None:
        return None
    keys = tuple(new if key == old else key for key in stage.in_keys)
    return replace(change_arguments(stage.index, stage.config, in_keys=keys), safe=True)


@rule(
    "TDX415",
    "result is never read",
    "warning",
    why="""
    A stage computes a value, and a later stage overwrites or drops it before anything reads it.
    The work is wasted in each step. Either the stage is not needed, or the later stage was
    meant to read its result.
    """,
    wrong="""Pendulum-v1 -t RewardSum -t 'ExcludeTransform("episode_reward")'""",
    right="Pendulum-v1 -t RewardSum",
)
def unread_result(context: LintContext) -> Iterator[Violation]:
    """Find unread versions of stages that write nothing else."""
    for version in context.versions:
        if version.writer == ENV or version.ended_by is None or version.readers:
            continue
        writer, ender = context.stages[version.writer], context.stages[version.ended_by]
        if writer.is_opaque or (writer.info and writer.info.time_behavior == "control"):
            continue
        others = [version for version in context.versions if version.writer == writer.index]
        is_unused = all(version.ended_by is not None and not version.readers for version in others)
        key = format_key(version.key)
        verb = "overwrites" if version.end_reason == "overwritten" else "drops"
        message = f"stage {ender.index} ({ender.name}) {verb} {key!r} before it is read"
        hint = "remove the stage, or read its result"
        is_removable = is_unused and version.end_reason == "overwritten"
        fix = remove_stage(writer.index, writer.config) if is_removable else None
        yield Violation(message, hint, writer.index, version.key, fix)


@rule(
    "TDX416",
    "value of the env is overwritten before it is read",
    "warning",
    why="""
    A stage writes its result to a key of the env that nothing has read, so the env's value is
    lost. The out-key is usually misspelled or copied from another pipeline.
    """,
    wrong="""CartPole-v1 -t RewardSum -t
    'FlattenObservation(-1, -1, in_keys=["episode_reward"], out_keys=["observation"])'""",
    right="""CartPole-v1 -t RewardSum -t
    'FlattenObservation(-1, -1, in_keys=["episode_reward"], out_keys=["returns"])'""",
)
def env_entry_overwritten_unread(context: LintContext) -> Iterator[Violation]:
    """Find unread versions of the env that a stage overwrites."""
    for version in context.versions:
        if version.writer != ENV or version.end_reason != "overwritten" or version.readers:
            continue
        assert version.ended_by is not None
        stage = context.stages[version.ended_by]
        message = f"it overwrites {format_key(version.key)!r} of the env, which nothing has read"
        yield Violation(message, "choose another out-key", stage.index, version.key)


@rule(
    "TDX417",
    "reward is dropped",
    "warning",
    why="""
    The reward is missing after this stage. A learner cannot use the rollouts, and losses and
    returns fail because of the missing key.

    Remove the reward from `ExcludeTransform`, or omit `keep_rewards` of `SelectTransform`.
    """,
    wrong="""Pendulum-v1 -t 'ExcludeTransform("reward")'""",
    right="Pendulum-v1",
)
def reward_dropped(context: LintContext) -> Iterator[Violation]:
    """Find stages that drop the last reward."""
    for stage in _key_filters(context):
        assert stage.before is not None
        assert stage.after is not None
        if stage.before.rewards and not stage.after.rewards:
            key = next(iter(stage.before.rewards))
            fix = _keep_keys(stage, stage.before.rewards, "keep_rewards")
            yield Violation(
                f"{format_key(key)!r} is dropped", "keep the reward", stage.index, key, fix
            )


@rule(
    "TDX418",
    "done flag is dropped",
    "warning",
    why="""
    `done` marks the end of an episode, `terminated` an end by the rules of the task, and
    `truncated` an end by a time limit. Without `terminated`, a value estimate cannot tell a
    terminal state, whose value is zero, from a time limit, after which it has to bootstrap.
    Without `done`, resets are missed.
    """,
    wrong="""Pendulum-v1 -t 'ExcludeTransform("terminated")'""",
    right="Pendulum-v1",
)
def done_flag_dropped(context: LintContext) -> Iterator[Violation]:
    """Find stages that drop a done flag."""
    for stage in _key_filters(context):
        assert stage.before is not None
        assert stage.after is not None
        lost = [key for key in stage.before.done_keys if key not in stage.after.done_keys]
        if lost:
            fix = _keep_keys(stage, lost, "keep_dones")
            names = ", ".join(repr(format_key(key)) for key in lost)
            hint = "keep the done flags"
            yield Violation(
                f"{names} {'is' if len(lost) == 1 else 'are'} dropped",
                hint,
                stage.index,
                lost[0],
                fix,
            )


def _key_filters(context: LintContext) -> Iterator[LintStage]:
    for stage in context.stages_named("ExcludeTransform", "SelectTransform"):
        if stage.before is not None and stage.after is not None:
            yield stage


def _keep_keys(stage: LintStage, keys: Collection[NestedKey], switch: str) -> Fix | None:
    """Return a fix that keeps the keys."""
    if stage.name == "SelectTransform":
        return change_arguments(stage.index, stage.config, **{switch: None})
    kept = {split_key(key) for key in keys}
    excluded = [key for key in stage.config.args if split_key(normalize_key(key)) not in kept]
    if not excluded:
        return remove_stage(stage.index, stage.config)
    if len(excluded) == len(stage.config.args):
        return None
    config = replace(stage.config, args=tuple(excluded))
    return Fix(f"keep the keys in {stage.name}", (Edit("replace", stage.index, stage=config),))


def _report(context: LintContext, kind: str) -> Iterator[Violation]:
    for violation in context.spec_violations:
        if violation.code == kind:
            hint = violation.hint or "change the spec, or the value"
            yield Violation(
                violation.message,
                hint,
                violation.stage,
                violation.key,
                spec_violation=violation.code,
            )


@rule(
    "TDX411",
    "key is declared but not written",
    "error",
    why="""
    The specs after this stage declare a key that neither a reset nor a step writes. Code that
    relies on the specs, such as a replay buffer that allocates its storage from them or the
    next stage, fails later or reads uninitialized memory.

    Write the key in `_step` and `_reset`, or remove it from `transform_observation_spec`.
    """,
    wrong="Pendulum-v1 -t my_code:Incomplete",
    right="Pendulum-v1 -t my_code:Complete",
    python=_DECLARED_ONLY,
    uses_spec_violations=True,
)
def declared_and_not_written(context: LintContext) -> Iterator[Violation]:
    """Report spec violations of the kind ``missing``."""
    yield from _report(context, "missing")


@rule(
    "TDX412",
    "key is written but not declared",
    "error",
    why="""
    A reset or step writes a key that the specs do not declare. No check covers it, a storage
    that is allocated from the specs has no space for it, and a batched env may drop it.

    Declare the key in `transform_observation_spec`, or do not write it.
    """,
    wrong="Pendulum-v1 -t my_code:Undeclared",
    right="Pendulum-v1 -t my_code:Declared",
    python=_WRITTEN_ONLY,
    uses_spec_violations=True,
)
def written_and_not_declared(context: LintContext) -> Iterator[Violation]:
    """Report spec violations of the kind ``undeclared``."""
    yield from _report(context, "undeclared")
