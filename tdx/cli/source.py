"""The pipeline that the options describe."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from tdx.cli.defaults import PIPELINE_SETTINGS, pipeline_settings
from tdx.cli.foreign_code import foreign_code
from tdx.cli.options import PipelineOptions
from tdx.errors import ArgumentError, PipelineError, TdxError

if TYPE_CHECKING:
    from tdx.envs import EnvBase
    from tdx.pipeline import EnvConfig, Pipeline, PipelineFile, StageConfig


def read_pipeline(options: PipelineOptions, *, tolerant: bool = False) -> Pipeline:
    """The pipeline of ``--pipeline FILE``, or of ``--env`` and ``--t``.

    Options that say how the env runs go before what the file says, and stages given with ``--t``
    stand after those of the file.

    Args:
        options: the options.
        tolerant: whether settings of the user that cannot be read are passed over.

    Raises:
        ArgumentError: neither an env nor a file is given, or both.
        PipelineError: the file or a stage cannot be read.
    """
    return read_source(options, tolerant=tolerant)[0]


def with_file(options: PipelineOptions, file: str | None) -> PipelineOptions:
    """The options with a pipeline file that is given as an argument.

    Raises:
        ArgumentError: ``--pipeline`` names one too.
    """
    if file is None:
        return options
    if options.pipeline is not None:
        raise ArgumentError(
            f"{file} and --pipeline cannot be given together", hint="leave one of them out"
        )
    return replace(options, pipeline=file)


def read_source(
    options: PipelineOptions, *, tolerant: bool = False
) -> tuple[Pipeline, PipelineFile | None]:
    """The pipeline as :func:`read_pipeline` gives it, and the file that it comes from, if any."""
    from tdx.pipeline import EnvConfig, Pipeline
    from tdx.pipeline.file.pipeline_file import PipelineFile

    stages = read_stages(options.transforms or [])
    file = None
    if options.pipeline is not None:
        if options.env is not None or options.env_kwargs is not None:
            given = "--env" if options.env is not None else "--env-kwargs"
            raise ArgumentError(
                f"{given} and --pipeline cannot be given together",
                hint="the file names the env: leave one of them out",
            )
        file = PipelineFile.load(options.pipeline)
        pipeline = file.pipeline
        stages = (*pipeline.transforms, *stages)
    elif options.env is not None:
        pipeline = Pipeline(EnvConfig(options.env, kwargs=_env_kwargs(options.env_kwargs)))
    else:
        raise ArgumentError(
            "no env is given", hint="add --env ID (`tdx list envs` has them) or --pipeline FILE"
        )
    env = _with_options(pipeline.env, options, tolerant)
    return replace(pipeline, env=env, transforms=stages), file


def read_stages(texts: list[str]) -> tuple[StageConfig, ...]:
    """The stages that are given with ``--t``.

    Raises:
        PipelineError: one cannot be read; says which.
    """
    from tdx.pipeline import parse_stage

    stages = []
    for index, text in enumerate(texts):
        try:
            stages.append(parse_stage(text))
        except TdxError as error:
            raise error.at(stage=index) from None
    return tuple(stages)


def _env_kwargs(text: str | None) -> dict[str, Any]:
    from tdx.pipeline import parse_kwargs

    if text is None:
        return {}
    try:
        return cast("dict[str, Any]", parse_kwargs(text))
    except PipelineError as error:
        hint = """write --env-kwargs '{"name": value}'"""
        raise ArgumentError(
            f"--env-kwargs: {error.message}", hint=hint, where=error.where
        ) from None


def _with_options(env: EnvConfig, options: PipelineOptions, tolerant: bool) -> EnvConfig:
    """The env with what was given on the command line in the place of what the file says."""
    given: dict[str, Any] = {
        "num_envs": options.num_envs,
        "batching": None if options.batching is None else options.batching.value,
        "device": options.device,
        "seed": options.seed,
        "worker_timeout": options.worker_timeout,
        "from_pixels": options.from_pixels or None,
    }
    env = replace(env, **{name: value for name, value in given.items() if value is not None})
    open_ones = {name: getattr(env, name) for name in PIPELINE_SETTINGS}
    return replace(env, **pipeline_settings(open_ones, tolerant=tolerant))


@contextmanager
def built_env(pipeline: Pipeline, options: PipelineOptions) -> Iterator[EnvBase]:
    """The env of a pipeline with its chain, closed at the end."""
    from tdx.pipeline import build_env

    with foreign_code():
        env = build_env(pipeline, allow_code=options.allow_code)
        try:
            yield env
        finally:
            env.close()
