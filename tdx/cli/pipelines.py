"""From options to a pipeline, its env and its policy."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from tdx.cli.completion import complete_policy
from tdx.cli.options import PipelineOptions, TargetOptions, configured_values, given_options
from tdx.cli.runtime import third_party_code
from tdx.foundation.errors import ArgumentError, PipelineError, TdxError
from tdx.foundation.files import PIPELINE_SUFFIXES

if TYPE_CHECKING:
    from tdx.envs import EnvBase
    from tdx.pipeline import EnvConfig, Pipeline, PipelineFile, StageConfig
    from tdx.stacks import Stack
    from tdx.stacks.checkpoints import Checkpoint


_CONFIGURABLE = ("seed", "num_envs", "device")
"""Options of the env with defaults in the user's settings."""
_SHOWN_FILES = 3
_MAX_DUMP_SAMPLES = 10_000


PolicyName = Annotated[
    str | None,
    typer.Option(
        "--policy",
        metavar="POLICY",
        autocompletion=complete_policy,
        help="random, zero, sequence:FILE (actions in .npy, .json or a dump), mlp:FILE (weights in "
        ".safetensors), or with --allow-code module:FILE (a saved TensorDictModule, TorchScript or "
        "torch.export) and module:name.",
    ),
]


def read_pipeline(options: PipelineOptions, *, tolerant: bool = False) -> Pipeline:
    """Read the pipeline of a target, or of ``--env`` or ``--pipeline``, and of ``--t``.

    Options of the env override the file, and stages from ``--t`` are added after those of the file.

    Args:
        options: Options of the pipeline.
        tolerant: If True, ignore settings of the user that cannot be read.

    Raises:
        ArgumentError: Neither an env nor a file is given, or both are.
        PipelineError: The file or a stage is invalid.
    """
    return read_source(options, tolerant=tolerant)[0]


def find_checkpoint(options: TargetOptions) -> Checkpoint | None:
    """Read the policy checkpoint that a target names; ``None`` if it names something else.

    Raises:
        ArgumentError: Stages are added to a checkpoint.
        StorageError: The checkpoint cannot be read.
    """
    from tdx.stacks.checkpoints import is_checkpoint, read_checkpoint

    target = options.target or options.pipeline
    if target is None or not is_checkpoint(target):
        return None
    if options.transforms:
        raise ArgumentError(
            "-t does not apply to a policy checkpoint", hint="its processors are its stages"
        )
    return read_checkpoint(target)


def read_source(
    options: PipelineOptions, *, tolerant: bool = False
) -> tuple[Pipeline, PipelineFile | None]:
    """Read a pipeline like :func:`read_pipeline`; also return the file that contains it."""
    from tdx.pipeline.model import EnvConfig, Pipeline

    options = with_target(options)
    stages = read_stages(options.transforms or [])
    file = None
    if options.pipeline is not None:
        if options.env is not None or options.env_kwargs is not None:
            option = "--env" if options.env is not None else "--env-kwargs"
            raise ArgumentError(
                f"{option} and --pipeline cannot be combined",
                hint="the file names the env: remove one of them",
            )
        pipeline, file = _load_pipeline(options.pipeline)
        stages = (*pipeline.transforms, *stages)
    elif options.env is not None:
        pipeline = Pipeline(EnvConfig(options.env, kwargs=parse_env_kwargs(options.env_kwargs)))
    else:
        raise ArgumentError(
            "no env is given",
            hint="name an env (`tdx list envs` lists them), a pipeline file or a dump",
        )
    env = _override(pipeline.env, options, tolerant=tolerant)
    return replace(pipeline, env=env, transforms=stages), file


def _load_pipeline(path: str) -> tuple[Pipeline, PipelineFile | None]:
    """Read a pipeline file, or the pipeline of a dump, which has no file of its own."""
    if Path(path).is_dir():
        from tdx.rollouts import open_dump

        return open_dump(path).pipeline, None
    from tdx.pipeline import PipelineFile

    if Path(path).suffix == ".py":
        names = _find_functions(Path(path)) or ["FUNCTION"]
        raise ArgumentError(
            f"{path} is Python code, and no function is named",
            hint=f"name the function that returns the env: {path}:{names[0]} --allow-code",
        )
    file = PipelineFile.load(path)
    return file.pipeline, file


def with_target(options: PipelineOptions, target: str | None = None) -> PipelineOptions:
    """Return the options with the env or the file that a target names.

    Args:
        options: Options of the pipeline.
        target: Target. ``None``: that of the options, if there is one.

    Raises:
        ArgumentError: ``--env`` or ``--pipeline`` is given too.
    """
    if isinstance(options, TargetOptions):
        target, options = target or options.target, replace(options, target=None)
    if target is None:
        return options
    other = "--env" if options.env is not None else "--pipeline"
    if options.env is not None or options.pipeline is not None:
        raise ArgumentError(f"{target} and {other} cannot be combined", hint="remove one of them")
    from tdx.stacks.checkpoints import is_checkpoint, is_dataset

    if is_checkpoint(target) or is_dataset(target):
        return replace(options, env=target)
    if is_file_target(target):
        return replace(options, pipeline=target)
    _check_no_folder(target)
    return replace(options, env=target)


def _check_no_folder(target: str) -> None:
    """Raise an error for a folder that is no dump, unless an env is named like it."""
    from tdx.envs.gym.registry import find_env

    path = Path(target)
    if not path.is_dir() or ":" in target:
        return
    with suppress(TdxError):
        find_env(target)
        return
    files = sorted(str(file) for file in path.iterdir() if file.suffix in PIPELINE_SUFFIXES)
    shown = ", ".join(files[:_SHOWN_FILES])
    hint = f"name a file in it: {shown}" if files else "name an env, a pipeline file or a dump"
    raise ArgumentError(f"{target} is a folder without a dump", hint=hint)


def _find_functions(path: Path) -> list[str]:
    """Return the functions of a Python file that need no arguments, without running it."""
    try:
        tree = ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return []
    return [
        statement.name
        for statement in tree.body
        if isinstance(statement, ast.FunctionDef)
        and len(statement.args.args) == len(statement.args.defaults)
        and not statement.name.startswith("_")
    ]


def command_words(command: str, options: PipelineOptions, config: Pipeline) -> list[str]:
    """Return a command that runs a pipeline again, with its seed and the target as an argument.

    Args:
        command: Command, such as ``tdx report``.
        options: Options that the user passed.
        config: Pipeline that was read from them.

    Example:
        >>> from tdx.pipeline import Pipeline
        >>> options = PipelineOptions(env="Pendulum-v1", transforms=["RewardSum"], seed=3)
        >>> command_words("tdx check", options, Pipeline.of("Pendulum-v1"))
        ['tdx', 'check', 'Pendulum-v1', '-t', 'RewardSum', '--seed', '3']
    """
    from tdx.pipeline import to_flags

    options = with_target(options)
    if options.pipeline == "-":
        words = to_flags(config)
        return [*command.split(), *words[1:]]
    missing = [name for name in _CONFIGURABLE if getattr(options, name) is None]
    configured = configured_values(missing, tolerant=True)
    used = {name: v for name, v in configured.items() if getattr(config.env, name) == v}
    options = replace(options, **used)
    if options.seed is None:
        options = replace(options, seed=config.env.seed)
    words = [*command.split(), options.env or options.pipeline or ""]
    for name, value in given_options(replace(options, env=None, pipeline=None)):
        words += ["-t" if name == "--t" else name, *([] if value is None else [value])]
    return words


def is_file_target(target: str) -> bool:
    """Return True if a target names a pipeline file, stdin or a dump, rather than an env.

    Example:
        >>> is_file_target("old.yaml"), is_file_target("-"), is_file_target("ALE/Pong-v5")
        (True, True, False)
    """
    path = Path(target)
    is_file = path.suffix in PIPELINE_SUFFIXES or path.is_file()
    # A folder without a manifest may be named like an env.
    return target == "-" or is_file or (path / "manifest.json").exists()


def read_stages(calls: list[str]) -> tuple[StageConfig, ...]:
    """Parse the stages from ``--t``.

    Raises:
        PipelineError: A stage is invalid; the error says which.
    """
    from tdx.pipeline import parse_stage

    stages = []
    for index, call in enumerate(calls):
        try:
            stages.append(parse_stage(call))
        except TdxError as error:
            raise error.at(stage=index) from None
    return tuple(stages)


def parse_env_kwargs(text: str | None) -> dict[str, Any]:
    """Parse the value of ``--env-kwargs``.

    Raises:
        ArgumentError: It is not a list of named values.
    """
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


def _override(env: EnvConfig, options: PipelineOptions, *, tolerant: bool) -> EnvConfig:
    """Return the env with the values of options, and with configured defaults for the rest."""
    values: dict[str, Any] = {
        "num_envs": options.num_envs,
        "batching": None if options.batching is None else options.batching.value,
        "device": options.device,
        "seed": options.seed,
        "worker_timeout": options.worker_timeout,
        "from_pixels": options.from_pixels or None,
    }
    env = replace(env, **{name: value for name, value in values.items() if value is not None})
    missing = [name for name in _CONFIGURABLE if getattr(env, name) is None]
    return replace(env, **configured_values(missing, tolerant=tolerant))


@contextmanager
def open_env(pipeline: Pipeline, options: PipelineOptions) -> Iterator[EnvBase]:
    """Build the env of a pipeline with its chain, and close it at the end."""
    from tdx.envs.gym.gym_env import log_mujoco_warnings
    from tdx.stacks.building import build_env

    with third_party_code():
        env = build_env(pipeline, allow_code=options.allow_code)
        try:
            with log_mujoco_warnings():
                yield env
        finally:
            env.close()


@contextmanager
def open_stack(
    pipeline: Pipeline,
    options: PipelineOptions,
    *,
    is_measured: bool = False,
    samples: str | None = None,
) -> Iterator[Stack]:
    """Build the env of a pipeline as a stack, and close it at the end.

    Its stages are those that :func:`~tdx.stacks.building.build_stack` finds: of a chain of tdx, or
    the wrappers that a factory returns.

    Args:
        pipeline: The pipeline.
        options: Options of the command.
        is_measured: Leave worker processes as they are, so that the times are those of the env.
            Otherwise their sub-envs are created in this process, where all stages are seen.
        samples: Value of ``--samples``.
    """
    from tdx.envs.gym.gym_env import log_mujoco_warnings
    from tdx.stacks.building import build_stack

    with third_party_code():
        recorded = None if samples is None else read_samples(samples)
        stack = build_stack(pipeline, options.allow_code, recorded)
        try:
            with nullcontext(stack) if is_measured else stack.in_this_process() as shown:
                for note in shown.notes:
                    print(f"note: {note}", file=sys.stderr)
                with log_mujoco_warnings():
                    yield shown
        finally:
            stack.close()


def read_samples(path: str) -> Sequence[Mapping[str, object]]:
    """Read the samples that ``--samples`` names: a file, a LeRobot dataset or a dump.

    Raises:
        StorageError: They cannot be read.
    """
    from tdx.stacks import recordings
    from tdx.stacks.checkpoints import is_dataset, read_dataset
    from tdx.stacks.checkpoints.dataset import DatasetSamples

    if is_dataset(path):
        return DatasetSamples(read_dataset(path))
    if (Path(path) / "manifest.json").exists():
        return _read_dump_samples(path)
    return recordings.read_samples(path)


def _read_dump_samples(path: str) -> list[Mapping[str, object]]:
    """Return the first steps of a dump; each row of a batch is a sample."""
    from tdx.foundation.keys import format_key
    from tdx.rollouts import open_dump

    dump = open_dump(path)
    samples: list[Mapping[str, object]] = []
    for index in range(min(len(dump), _MAX_DUMP_SAMPLES)):
        step = dump[index]
        for row in step.reshape(-1) if step.batch_dims else [step]:
            # What a step returned is read by the next one.
            leaves = row.exclude("next").items(include_nested=True, leaves_only=True)
            samples.append({format_key(key): value.numpy() for key, value in leaves})
    return samples
