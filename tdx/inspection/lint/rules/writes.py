"""Writes that get lost."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace

from tdx.inspection.lint.context import LintContext, LintStage
from tdx.inspection.lint.fix import Edit, Fix, changed, removed
from tdx.inspection.lint.lineage import ENV
from tdx.inspection.lint.rule import Found, rule
from tdx.keys import NestedKey, format_key, normalize_key, split_key


@rule(
    "TDX415",
    "a write that nobody reads",
    "warning",
    why="""
    A stage computes an entry, and a later stage overwrites or drops it before anything has read
    it: the work is done in every step and thrown away. Either the stage is not needed, or the
    later one should have read its result.
    """,
    wrong="""--env Pendulum-v1 --t RewardSum --t 'ExcludeTransform("episode_reward")'""",
    right="--env Pendulum-v1 --t RewardSum",
)
def write_that_nobody_reads(context: LintContext) -> Iterator[Found]:
    """Versions that end unread, of stages that do nothing else."""
    for version in context.lineage.versions:
        if version.writer == ENV or version.ended_by is None or version.readers:
            continue
        writer, ender = context.stages[version.writer], context.stages[version.ended_by]
        if writer.opaque or (writer.info and writer.info.time_behaviour == "control"):
            continue
        others = [each for each in context.lineage.versions if each.writer == writer.index]
        useless = all(each.ended_by is not None and not each.readers for each in others)
        key = format_key(version.key)
        message = f"stage {ender.index} ({ender.name}) {_past(version.how)} {key!r} unread"
        hint = "remove it, or read what it writes"
        lonely = useless and version.how == "overwritten"
        fix = removed(writer.index, writer.config) if lonely else None
        yield Found(message, hint, writer.index, version.key, fix)


@rule(
    "TDX416",
    "an entry of the env that is overwritten unread",
    "warning",
    why="""
    A stage reads one entry and writes its result over another one that the env gave and nobody
    has read. The env's own entry is lost. Usually an out-key is misspelt or was taken over from
    another pipeline.
    """,
    wrong="""--env CartPole-v1 --t RewardSum --t
    'FlattenObservation(-1, -1, in_keys=["episode_reward"], out_keys=["observation"])'""",
    right="""--env CartPole-v1 --t RewardSum --t
    'FlattenObservation(-1, -1, in_keys=["episode_reward"], out_keys=["returns"])'""",
)
def env_entry_overwritten_unread(context: LintContext) -> Iterator[Found]:
    """Versions of the env that end under somebody else's out-key."""
    for version in context.lineage.versions:
        if version.writer != ENV or version.how != "overwritten" or version.readers:
            continue
        assert version.ended_by is not None
        stage = context.stages[version.ended_by]
        message = f"it writes over the env's {format_key(version.key)!r}, which nobody has read"
        yield Found(message, "choose another out-key", stage.index, version.key)


@rule(
    "TDX417",
    "the reward is dropped",
    "warning",
    why="""
    No reward is left behind this stage. What comes out of a rollout cannot be learnt from, and
    losses and returns fail with a missing key.

    Take the reward out of `ExcludeTransform`, or leave `keep_rewards` of `SelectTransform` as it
    is.
    """,
    wrong="""--env Pendulum-v1 --t 'ExcludeTransform("reward")'""",
    right="--env Pendulum-v1",
)
def reward_dropped(context: LintContext) -> Iterator[Found]:
    """Stages behind which no reward is left."""
    for stage in _droppers(context):
        assert stage.before is not None
        assert stage.after is not None
        if stage.before.rewards and not stage.after.rewards:
            key = next(iter(stage.before.rewards))
            fix = _keeping(stage, stage.before.rewards, "keep_rewards")
            yield Found(f"{format_key(key)!r} is dropped", "keep it", stage.index, key, fix)


@rule(
    "TDX418",
    "a done flag is dropped",
    "warning",
    why="""
    `done` says that an episode is over, `terminated` that it ended by its rules, and `truncated`
    that it was cut off. Without `terminated` a value estimate cannot tell an end that is worth
    nothing from a time limit, behind which it has to go on; without `done` resets are missed.
    """,
    wrong="""--env Pendulum-v1 --t 'ExcludeTransform("terminated")'""",
    right="--env Pendulum-v1",
)
def done_flag_dropped(context: LintContext) -> Iterator[Found]:
    """Stages behind which a flag is missing."""
    for stage in _droppers(context):
        assert stage.before is not None
        assert stage.after is not None
        lost = [key for key in stage.before.flags if key not in stage.after.flags]
        if lost:
            fix = _keeping(stage, lost, "keep_dones")
            names = ", ".join(repr(format_key(key)) for key in lost)
            hint = "keep the flags that tell how an episode ended"
            yield Found(f"{names} {_is(lost)} dropped", hint, stage.index, lost[0], fix)


def _droppers(context: LintContext) -> Iterator[LintStage]:
    for stage in context.named("ExcludeTransform", "SelectTransform"):
        if stage.before is not None and stage.after is not None:
            yield stage


def _keeping(stage: LintStage, keys: Collection[NestedKey], switch: str) -> Fix | None:
    """The stage with those keys kept."""
    if stage.name == "SelectTransform":
        return changed(stage.index, stage.config, **{switch: None})
    kept_out = {split_key(key) for key in keys}
    left = [key for key in stage.config.args if split_key(normalize_key(key)) not in kept_out]
    if not left:
        return removed(stage.index, stage.config)
    if len(left) == len(stage.config.args):
        return None
    config = replace(stage.config, args=tuple(left))
    return Fix(f"keep them in {stage.name}", (Edit("replace", stage.index, stage=config),))


def _past(how: str | None) -> str:
    return {"overwritten": "overwrites", "dropped": "drops"}.get(how or "", "ends")


def _is(several: list[NestedKey]) -> str:
    return "is" if len(several) == 1 else "are"
