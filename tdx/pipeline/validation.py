"""Find in a pipeline what would fail later: first in its text, then in the specs of its env."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from tdx.errors import ChainError, TdxError, Where, one_line
from tdx.keys import NestedKey, key_parts, normal_key
from tdx.pipeline.arguments import bind_stage, code_references
from tdx.pipeline.env_plan import env_errors
from tdx.pipeline.model import Pipeline, StageConfig
from tdx.pipeline.policy_source import parse_policy
from tdx.pipeline.realise import code_not_allowed

if TYPE_CHECKING:
    from tdx.core import StageSpecs, TransformedEnv
    from tdx.core.transforms import Transform
    from tdx.envs import EnvBase
    from tdx.specs import Composite

_ALLOCATION = re.compile(r"tried to allocate (\d{1,30}) bytes")
_SMALLER = "choose smaller sizes or numbers in its arguments"
_PARTS = ("full_observation_spec", "full_reward_spec", "full_done_spec")


def check_arguments(pipeline: Pipeline, allow_code: bool = False) -> list[TdxError]:
    """What is wrong with a pipeline as it is written; loads no torch and makes no env.

    Example:
        >>> [str(error) for error in check_arguments(Pipeline.of("Pendulum-v1", "StepCouter"))]
        ['stage 0 (StepCouter): unknown transform StepCouter (did you mean StepCounter?)']
    """
    errors = [error.at(file=pipeline.file) for error in env_errors(pipeline.env, allow_code)]
    for index, stage in enumerate(pipeline.transforms):
        errors += [located(error, pipeline, index) for error in _stage_errors(stage, allow_code)]
    return errors


def policy_errors(pipeline: Pipeline, allow_code: bool = False) -> list[TdxError]:
    """What is wrong with the name of a pipeline's policy; its file is not opened.

    Args:
        pipeline: The pipeline.
        allow_code: Whether the policy may be code.

    Example:
        >>> from dataclasses import replace
        >>> pipeline = replace(Pipeline.of("Pendulum-v1"), policy="module:policy.pt2")
        >>> [error.code for error in policy_errors(pipeline)]
        ['TDX204']
    """
    try:
        parse_policy(pipeline.policy or "random").check_allowed(allow_code)
    except TdxError as error:
        return [error.at(file=pipeline.file)]
    return []


def check_specs(env: TransformedEnv, pipeline: Pipeline | None = None) -> list[TdxError]:
    """What the specs of an env show that would fail in a step; nothing is stepped.

    Stages that the env itself has come first, so the errors' indices count from the innermost
    stage.

    Args:
        env: the env with its chain.
        pipeline: where it comes from, for the lines of its file.
    """
    from tdx.core import stage_specs

    inner = env._first_stage
    try:
        stages = stage_specs(env)
    except TdxError as error:
        return [_placed(error, pipeline, error.where.stage, inner)]
    except Exception as error:
        return [_placed(*_failed_stage(env, error, pipeline), inner)]
    first = inner + 1
    errors: list[TdxError] = []
    for index in range(first, len(stages)):
        before, stage = stages[index - 1], stages[index]
        found = (*_missing_keys(stage, before), *_clashes(stage))
        errors += [
            _placed(each.at(transform=stage.name), pipeline, index - 1, inner) for each in found
        ]
    return errors


def located(error: TdxError, pipeline: Pipeline, index: int) -> TdxError:
    """The error with the stage, and its line in the file."""
    stage = pipeline.transforms[index]
    return error.at(stage=index, transform=stage.name, file=pipeline.file, line=stage.line)


def add_line(error: TdxError, pipeline: Pipeline, env: EnvBase) -> TdxError:
    """Add the file and line of the stage that an error names; return the error.

    Args:
        error: The error; its stage counts from the innermost stage of the env.
        pipeline: The pipeline.
        env: Env of the pipeline, with its chain.
    """
    inner: int = getattr(env, "_first_stage", 0)
    return _placed(error, pipeline, error.where.stage, inner)


def _placed(error: TdxError, pipeline: Pipeline | None, index: int | None, inner: int) -> TdxError:
    """Add the stage and its line to an error.

    Args:
        error: The error.
        pipeline: The pipeline, if the chain comes from one.
        index: Index of the stage in the whole chain.
        inner: Number of stages that the env has before those of the pipeline.
    """
    if index is None:
        return error
    if pipeline is None or not inner <= index < inner + len(pipeline.transforms):
        return error.at(stage=index)
    stage = pipeline.transforms[index - inner]
    return error.at(stage=index, file=pipeline.file, line=stage.line)


def _stage_errors(stage: StageConfig, allow_code: bool) -> Iterator[TdxError]:
    if stage.code is not None and not allow_code:
        yield code_not_allowed(stage.code)
        return
    bound = bind_stage(stage)
    yield from bound.errors
    if not allow_code:
        for reference in code_references([*bound.args, *bound.kwargs.values()]):
            yield code_not_allowed(reference)


def _failed_stage(
    env: TransformedEnv, error: Exception, pipeline: Pipeline | None
) -> tuple[TdxError, Pipeline | None, int | None]:
    """An error that is not of the family, as one, with the stage that raised it."""
    from tdx.core import TransformedEnv
    from tdx.core.transforms import Compose

    failed = _not_computed(error)
    failed.__cause__ = error
    for index in range(len(env.stages)):
        part = Compose(*(stage.clone() for stage in env.stages[: index + 1]))
        try:
            _ = TransformedEnv(env.base_env, part).output_spec
        except Exception:
            failed.at(transform=type(env.stages[index]).__name__)
            return failed, pipeline, env._first_stage + index
    return failed, pipeline, None


def _not_computed(error: Exception) -> ChainError:
    wanted = _ALLOCATION.search(str(error))
    if isinstance(error, MemoryError) or wanted:
        size = f" ({int(wanted[1]):,} bytes)" if wanted else ""
        return ChainError(f"its specs need more memory than there is{size}", hint=_SMALLER)
    return ChainError(
        f"its specs cannot be computed: {one_line(error)}", hint="look at its arguments"
    )


def _missing_keys(stage: StageSpecs, before: StageSpecs) -> Iterator[TdxError]:
    """In-keys that the env before a stage neither writes nor takes."""
    from tdx.core.transforms.keys import missing_key_error

    transform = stage.transform
    if transform is None or transform.missing_tolerance or _is_compose(transform):
        return
    output, given = _leaves(before.output_spec), _leaves(before.input_spec)
    for key in _absent(transform.in_keys, {*output, *given}):
        yield missing_key_error(key, [*output, *given], "the env at this stage")
    for key in _absent(transform.in_keys_inv, {*given, *output}):
        yield missing_key_error(key, given, "the env at this stage")


def _is_compose(transform: Transform) -> bool:
    from tdx.core.transforms import Compose

    return isinstance(transform, Compose)


def _leaves(spec: Composite) -> list[NestedKey]:
    parts = [spec[part] for part in spec.keys() if spec[part] is not None]
    return [normal_key(key) for part in parts for key in part.keys(True, True)]


def _absent(keys: Iterable[NestedKey], known: Iterable[NestedKey]) -> list[NestedKey]:
    there = {key_parts(key) for key in known}
    prefixes = {parts[:length] for parts in there for length in range(1, len(parts) + 1)}
    return [key for key in keys if key_parts(key) not in prefixes]


def _clashes(stage: StageSpecs) -> Iterator[TdxError]:
    """Keys that a stage writes twice, or in two parts of the output."""
    out_keys = list(stage.transform.out_keys) if stage.transform is not None else []
    if stage.transform is not None and not _is_compose(stage.transform):
        for key in dict.fromkeys(key for key in out_keys if out_keys.count(key) > 1):
            hint = "give each its own out-key"
            yield ChainError("two in-keys go to this key", hint=hint, where=Where(key=key))
    owner: dict[NestedKey, str] = {}
    for part in _PARTS:
        spec = stage.output_spec.get(part, None)
        for key in spec.keys(True, True) if spec is not None else ():
            name = part.removeprefix("full_").removesuffix("_spec")
            first = owner.setdefault(normal_key(key), name)
            if first != name:
                message = f"this key is both {first} and {name} after this stage"
                yield ChainError(message, hint="choose another out-key", where=Where(key=key))
