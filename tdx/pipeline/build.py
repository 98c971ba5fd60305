"""Check a pipeline, build its env, and relate the stages of the two."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from tdx.foundation.errors import ChainError, TdxError, Where, summarize_error
from tdx.foundation.keys import NestedKey, normalize_key, split_key
from tdx.foundation.processes import total_memory
from tdx.foundation.untrusted import MAX_ALL_REPEATS
from tdx.pipeline.arguments import (
    BoundStage,
    ValueResolver,
    bind_stage,
    find_code_references,
    find_inner_stages,
)
from tdx.pipeline.envs import Convert, find_env_errors, make_env
from tdx.pipeline.limits import count_repeats, find_excess
from tdx.pipeline.model import Pipeline
from tdx.pipeline.policies import parse_policy
from tdx.pipeline.references import find_stage_references
from tdx.pipeline.values import FileArguments, StageConfig, code_not_allowed_error

if TYPE_CHECKING:
    from tdx.core import StageSpecs, TransformedEnv
    from tdx.core.transforms import Transform
    from tdx.envs import EnvBase


_ALLOCATION = re.compile(r"tried to allocate (\d{1,30}) bytes")
_MEMORY_HINT = "pass smaller sizes or numbers"
_SPEC_PARTS = ("full_observation_spec", "full_reward_spec", "full_done_spec")


def check_arguments(pipeline: Pipeline, allow_code: bool = False) -> list[TdxError]:
    """Return the problems of a pipeline's text; loads no torch and creates no env.

    Example:
        >>> [str(error) for error in check_arguments(Pipeline.of("Pendulum-v1", "StepCouter"))]
        ['stage 0 (StepCouter): unknown transform StepCouter (did you mean StepCounter?)']
    """
    errors = [error.at(file=pipeline.file) for error in find_env_errors(pipeline.env, allow_code)]
    for index, stage in enumerate(pipeline.transforms):
        errors += [
            with_location(error, pipeline, index) for error in _find_stage_errors(stage, allow_code)
        ]
    if errors:
        return errors
    stages = [part for stage in pipeline.transforms for part in _all_parts(bind_stage(stage))]
    repeats = count_repeats(stages, pipeline.env.kwargs)
    if repeats > MAX_ALL_REPEATS:
        error = ChainError(
            f"one step takes up to {repeats:,} steps of the env, the limit is {MAX_ALL_REPEATS:,}",
            hint="skip fewer frames, or take fewer no-op steps",
        )
        errors.append(error.at(file=pipeline.file))
    return errors


def _all_parts(bound: BoundStage) -> Iterator[BoundStage]:
    yield bound
    yield from find_inner_stages(bound.values)


def check_policy(pipeline: Pipeline, allow_code: bool = False) -> list[TdxError]:
    """Return the problems of a pipeline's policy name; its file is not opened."""
    if pipeline.policy is None:
        return []
    try:
        parse_policy(pipeline.policy).check_allowed(allow_code)
    except TdxError as error:
        return [error.at(file=pipeline.file)]
    return []


def check_specs(env: TransformedEnv, pipeline: Pipeline | None = None) -> list[TdxError]:
    """Return errors visible in the specs of an env that would make a step fail; nothing is stepped.

    Stages that are part of the env itself come first, so stage indices count from the innermost
    stage.

    Args:
        env: Env with its chain.
        pipeline: Pipeline the env was built from, for the line numbers of its file.
    """
    from tdx.core import stage_specs

    inner = env.first_stage_index
    try:
        stages = stage_specs(env)
    except TdxError as error:
        return [_with_stage_location(error, pipeline, error.where.stage, inner)]
    except Exception as error:
        failed, failed_index = _locate_failure(env, error)
        index = None if failed_index is None else inner + failed_index
        return [_with_stage_location(failed, pipeline, index, inner)]
    first = inner + 1
    errors: list[TdxError] = []
    for index in range(first, len(stages)):
        before, stage = stages[index - 1], stages[index]
        problems = (
            *_find_missing_keys(stage, before),
            *_find_key_clashes(stage),
            *_find_large_entries(stage),
        )
        errors += [
            _with_stage_location(error.at(transform=stage.name), pipeline, index - 1, inner)
            for error in problems
        ]
    return errors


def with_location(error: TdxError, pipeline: Pipeline, index: int) -> TdxError:
    """Add the stage, and its line in the file, to an error."""
    stage = pipeline.transforms[index]
    return error.at(stage=index, transform=stage.name, file=pipeline.file, line=stage.line)


def add_source_line(error: TdxError, pipeline: Pipeline, env: EnvBase) -> TdxError:
    """Add the file and line of the stage, from the innermost one on, that an error names."""
    from tdx.core import TransformedEnv

    inner: int = env.first_stage_index if isinstance(env, TransformedEnv) else 0
    return _with_stage_location(error, pipeline, error.where.stage, inner)


def _with_stage_location(
    error: TdxError, pipeline: Pipeline | None, index: int | None, inner: int
) -> TdxError:
    """Add a stage of the whole chain to an error; ``inner`` stages come before the pipeline's."""
    if index is None:
        return error
    if pipeline is None or not inner <= index < inner + len(pipeline.transforms):
        return error.at(stage=index)
    stage = pipeline.transforms[index - inner]
    return error.at(stage=index, file=pipeline.file, line=stage.line)


def _find_stage_errors(stage: StageConfig, allow_code: bool) -> Iterator[TdxError]:
    """Yield the errors of a stage's name and arguments."""
    if stage.code is not None and not allow_code:
        yield code_not_allowed_error(stage.code)
        return
    bound = bind_stage(stage)
    yield from bound.errors
    if not allow_code:
        for reference in find_code_references(bound.values):
            yield code_not_allowed_error(reference)
        if isinstance(stage.kwargs, FileArguments):
            for part in _all_parts(bound):
                yield from find_stage_references(part)
    for part in _all_parts(bound):
        yield from find_excess(part)


def _locate_failure(env: TransformedEnv, error: Exception) -> tuple[TdxError, int | None]:
    """Convert an exception to a :class:`ChainError` and find the stage that raised it."""
    from tdx.core import TransformedEnv
    from tdx.core.transforms import Compose

    match = _ALLOCATION.search(str(error))
    if isinstance(error, MemoryError) or match:
        size = f" ({int(match[1]):,} bytes)" if match else ""
        message = f"its specs need more memory than is available{size}"
        failed = ChainError(message, hint=_MEMORY_HINT)
    else:
        message = f"its specs cannot be computed: {summarize_error(error)}"
        failed = ChainError(message, hint="check its arguments")
    failed.__cause__ = error
    for index in range(len(env.stages)):
        part = Compose(*(stage.clone() for stage in env.stages[: index + 1]))
        try:
            _ = TransformedEnv(env.base_env, part).output_spec
        except Exception:
            failed.at(transform=type(env.stages[index]).__name__)
            return failed, index
    return failed, None


def _find_missing_keys(stage: StageSpecs, before: StageSpecs) -> Iterator[TdxError]:
    """Yield errors for in-keys that the env before a stage neither returns nor takes."""
    from tdx.core.transforms.spec_maps import missing_key_error
    from tdx.specs.composite import all_leaves

    transform = stage.transform
    if transform is None or transform.missing_tolerance or _is_compose(transform):
        return
    output, given = list(all_leaves(before.output_spec)), list(all_leaves(before.input_spec))
    for key in _filter_unknown(transform.in_keys, {*output, *given}):
        yield missing_key_error(key, [*output, *given], "the env at this stage")
    for key in _filter_unknown(transform.in_keys_inv, {*given, *output}):
        yield missing_key_error(key, given, "the env at this stage")


def _is_compose(transform: Transform) -> bool:
    from tdx.core.transforms import Compose

    return isinstance(transform, Compose)


def _filter_unknown(keys: Iterable[NestedKey], known: Iterable[NestedKey]) -> list[NestedKey]:
    known = set(known)
    keys = [key for key in keys if key not in known]
    if not keys:
        return []
    known_parts = {split_key(key) for key in known}
    prefixes = {parts[:length] for parts in known_parts for length in range(1, len(parts) + 1)}
    return [key for key in keys if split_key(key) not in prefixes]


def _find_key_clashes(stage: StageSpecs) -> Iterator[TdxError]:
    """Yield errors for keys that a stage writes twice, or in two parts of the output."""
    out_keys = list(stage.transform.out_keys) if stage.transform is not None else []
    if stage.transform is not None and not _is_compose(stage.transform):
        for key in dict.fromkeys(key for key in out_keys if out_keys.count(key) > 1):
            hint = "give each in-key its own out-key"
            yield ChainError("two in-keys map to this key", hint=hint, where=Where(key=key))
    owner: dict[NestedKey, str] = {}
    for part in _SPEC_PARTS:
        spec = stage.output_spec.get(part, None)
        for key in spec.keys(True, True) if spec is not None else ():
            name = part.removeprefix("full_").removesuffix("_spec")
            first = owner.setdefault(normalize_key(key), name)
            if first != name:
                message = f"this key is both {first} and {name} after this stage"
                yield ChainError(message, hint="choose another out-key", where=Where(key=key))


def _find_large_entries(stage: StageSpecs) -> Iterator[TdxError]:
    """Yield an error for each entry of which this machine cannot hold two: a step has two."""
    memory = total_memory()
    if memory is None:
        return
    for spec in (stage.output_spec, stage.input_spec):
        for key, leaf in spec.items(True, True):
            if leaf is None or leaf.dtype is None:
                continue
            size = math.prod(leaf.shape) * leaf.dtype.itemsize
            if size > memory // 2:
                yield ChainError(
                    f"each value has {size:,} bytes, which is more than this machine holds",
                    hint=_MEMORY_HINT,
                    where=Where(key=key),
                )


def build_checked_env(
    pipeline: Pipeline,
    allow_code: bool = False,
    base: EnvBase | None = None,
    convert: Convert | None = None,
) -> TransformedEnv:
    """Build the env of a pipeline with its chain; specs are checked, nothing is stepped.

    Args:
        pipeline: The pipeline.
        allow_code: Allow importing Python objects that the pipeline names, ``module:name``.
        base: Env that the pipeline names, if it exists already; it is closed if the build fails.
        convert: Converts what a factory returns, if it belongs to another library than Gymnasium.

    Raises:
        TdxError: First problem of the pipeline, with stage, key and line in the file.

    Example:
        >>> from tdx.pipeline import Pipeline, build_checked_env
        >>> env = build_checked_env(Pipeline.of("Pendulum-v1", "StepCounter(max_steps=200)"))
        >>> "step_count" in env.observation_spec.keys()
        True
    """
    for error in check_arguments(pipeline, allow_code):
        raise error
    try:
        env = assemble_env(pipeline, allow_code, base, convert)
    except BaseException:
        if base is not None:
            base.close()
        raise
    errors = check_specs(env, pipeline)
    if errors:
        env.close()
        raise errors[0]
    return env


def validate(pipeline: Pipeline, allow_code: bool = False) -> list[TdxError]:
    """Return all problems of a pipeline that can be found without a step.

    The text is checked first. Only if it has no errors, the env is built and the specs after each
    stage are checked.

    Args:
        pipeline: The pipeline.
        allow_code: Allow importing Python objects that the pipeline names.
    """
    errors = check_arguments(pipeline, allow_code)
    if errors:
        return errors
    try:
        env = assemble_env(pipeline, allow_code)
    except TdxError as error:
        return [error]
    try:
        return check_specs(env, pipeline)
    finally:
        env.close()


def assemble_env(
    pipeline: Pipeline,
    allow_code: bool = False,
    base: EnvBase | None = None,
    convert: Convert | None = None,
) -> TransformedEnv:
    """Create the env with its chain, without checks; see :func:`build_checked_env`.

    If a stage cannot be created, a ``base`` that the caller passed stays open.
    """
    from tdx.core import TransformedEnv
    from tdx.core.transforms import Compose

    is_own = base is None
    try:
        if base is None:
            base = make_env(pipeline.env, allow_code, convert)
        elif pipeline.env.seed is not None:
            base.set_seed(pipeline.env.seed)
    except TdxError as error:
        raise error.at(file=pipeline.file) from error.__cause__
    chain, resolver = Compose(), ValueResolver(allow_code)
    try:
        for index, stage in enumerate(pipeline.transforms):
            try:
                # Not `append`, which would add the stages of a nested chain: an entry of the
                # pipeline is one stage, so that its index is the same everywhere.
                chain.insert(len(chain), resolver.build_transform(stage))
            except TdxError as error:
                raise with_location(error, pipeline, index) from error.__cause__
        return TransformedEnv(base, chain)
    except BaseException:
        if is_own:
            base.close()
        raise


def count_env_stages(env: EnvBase, pipeline: Pipeline) -> int:
    """Return the number of stages that the env itself has.

    A function that makes the env may return a ``TransformedEnv``. Its stages come first, so this is
    the index of the pipeline's first stage in the whole chain.
    """
    from tdx.core.chain import chain_stages

    return max(len(chain_stages(env)) - len(pipeline.transforms), 0)
