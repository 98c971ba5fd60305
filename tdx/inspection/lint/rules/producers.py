"""In-keys that nobody writes."""

from __future__ import annotations

from collections.abc import Iterator

from tdx.errors import did_you_mean
from tdx.inspection.lint.context import LintContext, LintStage
from tdx.inspection.lint.fix import Fix, changed, moved
from tdx.inspection.lint.lineage import StageVersion
from tdx.inspection.lint.rule import Found, rule
from tdx.keys import NestedKey, format_key, split_key


@rule(
    "TDX413",
    "an in-key that nobody produces",
    "error",
    why="""
    A stage reads an entry that neither the env nor any stage before it writes, so the first step
    fails. Most often the name is misspelt, the default `pixels` is meant for an env that has no
    pictures, or the stage that writes the entry comes later in the chain.
    """,
    wrong="""--env Pendulum-v1 --t 'ObservationNorm(0.0, 2.0, in_keys=["observations"])'""",
    right="""--env Pendulum-v1 --t 'ObservationNorm(0.0, 2.0, in_keys=["observation"])'""",
    replaces=True,
)
def in_key_without_producer(context: LintContext) -> Iterator[Found]:
    """In-keys that have never been there."""
    for stage, key in _missing(context):
        if _last_version(context, stage, key) is None:
            assert stage.before is not None
            known = [format_key(each) for each in stage.before.output]
            message = f"it reads {format_key(key)!r}, which nothing before it writes"
            later = _later_writer(context, stage, key)
            if key == "pixels" and not context.pipeline.env.from_pixels and later is None:
                hint = "give it in_keys, or have the env render: --from-pixels"
            elif later is not None:
                hint = f"put it behind stage {later.index} ({later.name}), which writes it"
            else:
                hint = did_you_mean(format_key(key), known) or f"keys there: {', '.join(known)}"
            fix = (
                None
                if later is None
                else moved(stage.index, later.index, stage.config, later.config)
            )
            yield Found(message, hint, stage.index, key, fix)


@rule(
    "TDX414",
    "a key that is read after it was renamed or dropped",
    "error",
    why="""
    A stage reads an entry under a name that it had earlier in the chain. `RenameTransform` gave
    it another one, or `ExcludeTransform` or `SelectTransform` dropped it, so it is no longer there.

    Read it under its new name, or put the stage that drops it behind the one that reads it.
    """,
    wrong="""--env Pendulum-v1 --t 'RenameTransform(["observation"], ["state"])'
    --t 'ObservationNorm(0.0, 2.0, in_keys=["observation"])'""",
    right="""--env Pendulum-v1 --t 'RenameTransform(["observation"], ["state"])'
    --t 'ObservationNorm(0.0, 2.0, in_keys=["state"])'""",
    replaces=True,
)
def read_under_its_old_name(context: LintContext) -> Iterator[Found]:
    """In-keys that were there once."""
    for stage, key in _missing(context):
        version = _last_version(context, stage, key)
        if version is None or version.ended_by is None:
            continue
        ender = context.stages[version.ended_by]
        place = f"stage {ender.index} ({ender.name})"
        if version.how == "renamed":
            new = dict(zip(ender.in_keys, ender.out_keys, strict=True))[key]
            message = f"it reads {format_key(key)!r}, which {place} renamed to {format_key(new)!r}"
            yield Found(
                message,
                f"read {format_key(new)!r}",
                stage.index,
                key,
                _reading(stage, key, new),
            )
        else:
            message = f"it reads {format_key(key)!r}, which {place} dropped"
            fix = moved(ender.index, stage.index, ender.config, stage.config)
            yield Found(message, f"put {place} behind it", stage.index, key, fix)


def _missing(context: LintContext) -> Iterator[tuple[LintStage, NestedKey]]:
    for stage in context.stages:
        if stage.before is None or stage.transform is None or stage.opaque:
            continue
        if stage.transform.missing_tolerance:
            continue
        there = {split_key(key) for key in (*stage.before.output, *stage.before.given)}
        heads = {parts[:length] for parts in there for length in range(1, len(parts) + 1)}
        for key in stage.in_keys:
            if split_key(key) not in heads:
                yield stage, key


def _last_version(context: LintContext, stage: LintStage, key: NestedKey) -> StageVersion | None:
    ended = [
        version
        for version in context.lineage.of_key(key)
        if version.ended_by is not None and version.ended_by < stage.index
    ]
    return ended[-1] if ended else None


def _later_writer(context: LintContext, stage: LintStage, key: NestedKey) -> LintStage | None:
    """The stage behind this one that makes the entry out of others."""
    for later in context.stages[stage.index + 1 :]:
        if key in later.out_keys and key not in later.in_keys:
            return later
    return None


def _reading(stage: LintStage, old: NestedKey, new: NestedKey) -> Fix | None:
    if stage.info is None or stage.info.parameter("in_keys") is None:
        return None
    keys = tuple(new if key == old else key for key in stage.in_keys)
    return changed(stage.index, stage.config, in_keys=keys)
