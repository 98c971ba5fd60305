"""The pipeline on a command line: its options, their completion, and what is built from them."""

from __future__ import annotations

import itertools
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from tdx.cli.completion import (
    Completion,
    cached_names,
    complete_device,
    complete_env,
    complete_last,
    complete_policy,
    complete_target,
    complete_transform,
)
from tdx.cli.options import (
    Batching,
    choice_option,
    configured_values,
    integer_option,
    seconds_parser,
)
from tdx.cli.runtime import third_party_code
from tdx.foundation.errors import ArgumentError, PipelineError, TdxError
from tdx.foundation.files import PIPELINE_SUFFIXES, missing_file_error
from tdx.foundation.untrusted import MAX_ENVS

if TYPE_CHECKING:
    from tdx.envs import EnvBase
    from tdx.inspection.dataset_check import DatasetFacts
    from tdx.pipeline import EnvConfig, Pipeline, PipelineFile, StageConfig
    from tdx.stacks import Stack
    from tdx.stacks.checkpoints import Checkpoint
    from tdx.stacks.descriptors import Descriptor


_CODE_TARGET = re.compile(r"(.+?\.py)(:.*)?", re.DOTALL)
_FILE_TARGET = re.compile(r"\.{0,2}[/\\].*|~.*|.*[/\\].*[/\\].*|.*\\.*|.*\.[A-Za-z]\w*", re.DOTALL)
"""A path, or a name with a suffix. Env ids have at most one slash: ``ALE/Pong-v5``."""
_CONFIGURABLE = ("seed", "num_envs", "device")
"""Options of the env with defaults in the user's settings."""
_SHOWN_FILES = 3
_MAX_FOLDERS = 200


_PIPELINE = "Pipeline"


_LIST = re.compile(
    r"""(?P<before>.*\b(?P<name>\w*keys\w*)\s*=\s*\[(?:[^\[\]]*,)?\s*)(?P<quote>["']?)(?P<word>[\w.]*)"""
)
"""A stage that ends inside a list of keys, before the quote that closes a key."""


def complete_stage(ctx: typer.Context, incomplete: str) -> list[Completion]:
    """Complete a stage like :func:`complete_transform`, and the keys in its lists of keys.

    The keys in ``CatFrames(in_keys=["obs`` are those of the env and of the chain so far.
    """
    completed = complete_transform(incomplete)
    match = _LIST.fullmatch(incomplete)
    if completed or match is None or match["name"].startswith("out_"):
        return completed
    # The quote that does not end the word on the command line.
    line = os.environ.get("COMP_WORDS") or os.environ.get("_TYPER_COMPLETE_ARGS") or ""
    start = line.rfind(incomplete)
    other = '"' if start > 0 and line[start - 1] == "'" else "'"
    quote = match["quote"] or other
    taken = set(re.findall(r"[\w.]+", match["before"].rpartition("[")[2]))
    stages = [
        f"{match['before']}{quote}{key}{quote}"
        for key in _keys(ctx, _chain_keys)
        if key.startswith(match["word"]) and key not in taken and "." not in key
    ]
    # A shell closes the quotes after a single completion; a second one keeps them open.
    stages += [f"{stages[0]}]"] if len(stages) == 1 else []
    return [(stage, "key") for stage in stages]


def complete_policy_key(ctx: typer.Context, incomplete: str) -> list[str]:
    """Complete the keys that a policy can read from the env."""
    return [key for key in _keys(ctx, _policy_keys) if key.startswith(incomplete)]


def complete_key(ctx: typer.Context, incomplete: str) -> list[str]:
    """Complete keys of the env and of its chain."""
    return [key for key in _keys(ctx, _chain_keys) if key.startswith(incomplete)]


def complete_stored_keys(ctx: typer.Context, incomplete: str) -> list[str]:
    """Complete the last of a comma-separated list of entries that a rollout can store."""
    return complete_last(incomplete, _keys(ctx, _rollout_keys))


def _policy_keys(env: EnvBase) -> list[str]:
    from tdx.foundation.keys import format_key
    from tdx.inspection.plan_report import policy_keys

    return [format_key(key) for key in policy_keys(env)]


def _chain_keys(env: EnvBase) -> list[str]:
    from tdx.inspection.lineage import inspect_keys

    return inspect_keys(env).keys()


def _rollout_keys(env: EnvBase) -> list[str]:
    from tdx.rollouts.dump.entries import key_names, list_keys

    names = [name for key in list_keys(env.fake_tensordict()) for name in key_names(key)]
    return list(dict.fromkeys(names))


def _keys(ctx: typer.Context, find_keys: Callable[[EnvBase], list[str]]) -> list[str]:
    """Return keys of the env that the command line names; empty if it names none."""
    values: dict[str, Any] = {
        field.name: ctx.params[field.name]
        for field in fields(PipelineOptions)
        if field.name in ctx.params
    }
    if not (values.get("env") or values.get("pipeline")):
        # Typer does not parse the words after an option without a value.
        several = (*(ctx.params.get("words") or ()), *(ctx.params.get("targets") or ()))
        words = [ctx.params.get("target"), *several, *ctx.args]
        words = [word for word in words if word and not word.startswith("-")]
        values["target"] = next(iter(words), None)

    def find() -> list[str]:
        options = with_target(TargetOptions(**values))
        if options.pipeline == "-":
            return []
        with open_env(read_pipeline(options), options) as env:
            return find_keys(env)

    return cached_names([find_keys.__name__, values], find)


AllowCode = Annotated[
    bool,
    typer.Option(
        "--allow-code", help="Allow a pipeline to import Python objects, named module:name."
    ),
]


@dataclass(frozen=True, slots=True)
class PipelineOptions:
    """The env and the chain of transforms.

    Arguments of the commands name the env; ``--env`` and ``--pipeline`` do so too, and no help
    shows them.
    """

    env: Annotated[
        str | None,
        typer.Option("--env", metavar="ID", autocompletion=complete_env, hidden=True),
    ] = None
    env_kwargs: Annotated[
        str | None,
        typer.Option(
            "--env-kwargs",
            metavar="KWARGS",
            help="Arguments of the env: 'g=9.8' or '{\"g\": 9.8}'.",
            rich_help_panel=_PIPELINE,
        ),
    ] = None
    transforms: Annotated[
        list[str] | None,
        typer.Option(
            "-t",
            metavar="CALL",
            autocompletion=complete_stage,
            help='Add a stage to the chain: RewardSum or "RewardClipping(-1, 1)". '
            "Can be repeated; the order matters.",
            rich_help_panel=_PIPELINE,
        ),
    ] = None
    pipeline: Annotated[str | None, typer.Option("--pipeline", metavar="FILE", hidden=True)] = None
    num_envs: Annotated[
        int | None,
        integer_option(
            *("--num-envs", 1, "Number of copies of the env."),
            maximum=MAX_ENVS,
            panel=_PIPELINE,
        ),
    ] = None
    from_pixels: Annotated[
        bool,
        typer.Option(
            "--from-pixels",
            help="Add the rendered frame as the observation `pixels`.",
            rich_help_panel=_PIPELINE,
        ),
    ] = False
    batching: Annotated[
        Batching | None,
        choice_option(
            *("--batching", Batching),
            "How the copies run: vector (a batched env), serial (one after another) or "
            "parallel (in worker processes).",
            metavar="HOW",
            panel=_PIPELINE,
        ),
    ] = None
    device: Annotated[
        str | None,
        typer.Option(
            "--device",
            metavar="DEVICE",
            autocompletion=complete_device,
            help="Device of the tensors: cpu, cuda, cuda:1, mps; for profile also simulated.",
            rich_help_panel=_PIPELINE,
        ),
    ] = None
    seed: Annotated[
        int | None,
        integer_option("--seed", 0, "Seed of the env.", panel=_PIPELINE),
    ] = None
    worker_timeout: Annotated[
        float | None,
        typer.Option(
            "--worker-timeout",
            metavar="SECONDS",
            parser=seconds_parser("--worker-timeout"),
            help="With --batching parallel: seconds to wait for a worker that does not respond; "
            "120 by default.",
            rich_help_panel=_PIPELINE,
        ),
    ] = None
    allow_code: Annotated[
        bool,
        typer.Option(
            "--allow-code",
            help="Allow a pipeline to import Python objects, named module:name, and arguments in a "
            "file to name other files, modules and addresses.",
            rich_help_panel=_PIPELINE,
        ),
    ] = False
    allow_download: Annotated[
        bool,
        typer.Option(
            "--allow-download",
            help="Allow a pipeline file to download weights.",
            rich_help_panel=_PIPELINE,
        ),
    ] = False


TARGET_HELP = (
    "Env id, pipeline file (- reads stdin), folder of a dump or of a robot policy, or with "
    "--allow-code a function that returns an env: module:function, file.py:function, or with "
    "arguments 'file.py:make_env(CartPole-v1, 0)'."
)


Samples = Annotated[
    str | None,
    typer.Option(
        "--samples",
        metavar="FILE",
        help="Samples for a data pipeline without an env, or for the processors of a policy (drawn "
        "at random by default): .npz or .safetensors with arrays [N, ...] by key, a LeRobot or "
        "Minari dataset, or a dump.",
        rich_help_panel=_PIPELINE,
    ),
]
Shrink = Annotated[
    str | None,
    typer.Option(
        "--shrink",
        metavar="FOLDER",
        help="Write the smallest case of the first difference: a contract of the fewest stages, "
        "steps and sub-envs, the values that are expected and obtained, and a script that runs "
        "the check again.",
    ),
]
Page = Annotated[
    str | None,
    typer.Option(
        *("-o", "--out"),
        metavar="FILE",
        help="Also write a self-contained HTML page. Beside it, a folder has the smallest case of "
        "the first difference, as of --shrink.",
    ),
]
ForcePage = Annotated[
    bool, typer.Option("--force", help="Replace an existing page and its folder.")
]


@dataclass(frozen=True, slots=True)
class ArgumentOptions(PipelineOptions):
    """An env and a chain, for commands whose arguments name envs: by functions too."""

    args: Annotated[
        str | None,
        typer.Option(
            "--args",
            metavar="ARGS",
            help="Arguments of the function that a target names, as in a call: "
            "'CartPole-v1, 0, run_name=test'.",
            rich_help_panel=_PIPELINE,
        ),
    ] = None


@dataclass(frozen=True, slots=True)
class TargetOptions(ArgumentOptions):
    """The env and the chain of transforms, for commands whose argument names the env."""

    target: Annotated[
        str | None,
        typer.Argument(metavar="TARGET", help=TARGET_HELP, autocompletion=complete_target),
    ] = None


def given_options(options: PipelineOptions) -> Iterator[tuple[str, str | None]]:
    """Yield the name and the value of each option that is given; a flag has no value.

    Example:
        >>> list(given_options(PipelineOptions(env="Pendulum-v1", from_pixels=True)))
        [('--env', 'Pendulum-v1'), ('--from-pixels', None)]
    """
    for field in fields(PipelineOptions):
        name = "-t" if field.name == "transforms" else f"--{field.name.replace('_', '-')}"
        value = getattr(options, field.name)
        if value is True:
            yield name, None
        elif value is not None and value is not False:
            for item in value if isinstance(value, list) else [value]:
                yield name, str(item)


PolicyName = Annotated[
    str | None,
    typer.Option(
        "--policy",
        metavar="POLICY",
        autocompletion=complete_policy,
        help="random, zero, sequence:FILE (actions in .npy, .json or a dump), mlp:FILE (weights in "
        ".safetensors), or with --allow-code module:FILE (a saved TensorDictModule, TorchScript or "
        "torch.export), sb3:FILE (a Stable-Baselines3 model; deterministic unless "
        "'sb3(\"FILE\", deterministic=False)'), lerobot:FOLDER (a checkpoint) and module:name.",
    ),
]


def read_pipeline(options: PipelineOptions, *, tolerant: bool = False) -> Pipeline:
    """Read the pipeline of a target, or of ``--env`` or ``--pipeline``, and of ``-t``.

    Options of the env override the file, and stages from ``-t`` are added after those of the file.

    Args:
        options: Options of the pipeline.
        tolerant: If True, ignore settings of the user that cannot be read.

    Raises:
        ArgumentError: Neither an env nor a file is given, or both are.
        PipelineError: The file or a stage is invalid.
    """
    return read_source(options, tolerant=tolerant)[0]


def find_checkpoint(options: TargetOptions) -> Checkpoint | None:
    """Read the policy checkpoint that a target names; ``None`` if it names something else."""
    from tdx.stacks.checkpoints import is_checkpoint, read_checkpoint

    target = options.target or options.pipeline
    if target is None or not is_checkpoint(target):
        return None
    if options.transforms:
        raise ArgumentError(
            "-t does not apply to a policy checkpoint", hint="its processors are its stages"
        )
    return read_checkpoint(target)


def find_descriptor(options: TargetOptions) -> Descriptor | None:
    """Read the deployment descriptor that a target names; ``None`` if it names something else."""
    from tdx.stacks.descriptors import is_descriptor, read_descriptor

    target = options.target or options.pipeline
    if target is None or not is_descriptor(target):
        return None
    if options.transforms:
        raise ArgumentError("-t does not apply to a deployment descriptor")
    return read_descriptor(target)


def compute_facts(
    path: str,
    key: str | None = None,
    numbers: Sequence[str] | None = None,
    *,
    has_results: bool = False,
) -> DatasetFacts:
    """Read a dataset and compute its statistics, with a progress line on stderr.

    ``numbers`` are the numeric features to read; ``has_results`` adds the rewards and flags of a
    dump.
    """
    from tdx.cli.progress import activity_on
    from tdx.inspection.dataset_check import read_facts
    from tdx.rollouts.datasets import read_data

    dataset = read_data(path, has_results=has_results)
    if key is not None:
        dataset = dataset.only(key)
    with activity_on(sys.stderr) as show:
        progress = None if show is None else partial(show, "reading steps")
        return read_facts(dataset, numbers, on_progress=progress)


def read_reference(path: str) -> Descriptor:
    """Read the descriptor or the contract that a deployment descriptor is compared with."""
    from tdx.contracts.storage import load_contract
    from tdx.foundation.files import is_contract
    from tdx.inspection.contract_descriptor import describe_contract
    from tdx.stacks.descriptors import is_descriptor, read_descriptor

    if is_contract(path):
        return describe_contract(load_contract(path), path)
    if not is_descriptor(path):
        raise ArgumentError(
            f"{path} is neither a deployment descriptor nor a contract",
            hint="compare a descriptor with an ONNX file of mjlab, the IO descriptors of Isaac "
            "Lab, or a folder of `tdx contract record`",
        )
    return read_descriptor(path)


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

    file = PipelineFile.load(path)
    return file.pipeline, file


def with_target(options: PipelineOptions, target: str | None = None) -> PipelineOptions:
    """Return the options with the env or the file that a target names."""
    if isinstance(options, TargetOptions):
        target, options = target or options.target, replace(options, target=None)
    if isinstance(options, ArgumentOptions) and options.args is not None:
        if target is None and options.env is not None:
            target, options = options.env, replace(options, env=None)
        target, options = _add_arguments(target, options.args or ""), replace(options, args=None)
    _check_missing_file(target or options.env)
    if target is None:
        return options
    other = "--env" if options.env is not None else "--pipeline"
    if options.env is not None or options.pipeline is not None:
        raise ArgumentError(f"{target} and {other} cannot be combined", hint="remove one of them")
    from tdx.stacks.checkpoints import is_checkpoint, is_dataset
    from tdx.stacks.descriptors import is_descriptor

    if is_checkpoint(target) or is_dataset(target):
        return replace(options, env=target)
    if is_descriptor(target):
        raise ArgumentError(
            f"{target} is a deployment descriptor, which this command does not take",
            hint="use tdx inspect spec, tdx check, or tdx contract check --against another "
            "descriptor",
        )
    if Path(target).suffix == ".py":
        from tdx.pipeline.factories import choose_function

        return replace(options, env=choose_function(target))
    if target.endswith(")"):
        return _with_call(options, target)
    if is_file_target(target):
        return replace(options, pipeline=target)
    _check_no_folder(target)
    return replace(options, env=target)


def _check_missing_file(target: str | None) -> None:
    """Raise an error for a file that does not exist, before it is looked up as the id of an env.

    Missing pipeline files are left to whoever reads or creates them.
    """
    if target is None or os.path.exists(target):
        return
    if (code := _CODE_TARGET.fullmatch(target)) is not None:
        if not os.path.exists(code[1]):
            raise missing_file_error(code[1], code[2] or "")
    elif ":" not in target and _FILE_TARGET.fullmatch(target) and not is_file_target(target):
        raise missing_file_error(target)


def _add_arguments(target: str | None, args: str) -> str:
    """Return the call of the function that a target names."""
    from tdx.pipeline.factories import choose_function
    from tdx.pipeline.values import CodeReference

    if target is not None and Path(target).suffix == ".py":
        target = choose_function(target, args)
    if target is None or CodeReference.of(target) is None:
        raise ArgumentError(
            f"--args are the arguments of a function, and {target or 'no target'} is none",
            hint="name one, such as file.py:make_env; arguments of an env id are --env-kwargs",
        )
    return f"{target}({args})"


def _with_call(options: PipelineOptions, target: str) -> PipelineOptions:
    """Return the options with the env and the arguments of ``file.py:make_env(CartPole-v1, 0)``."""
    from tdx.pipeline.factories import parse_call
    from tdx.pipeline.grammar import format_arguments

    call = parse_call(target)
    if call is None:
        return replace(options, env=target)
    if options.env_kwargs is not None:
        raise ArgumentError(
            f"{target} and --env-kwargs cannot be combined", hint="write all arguments in one"
        )
    reference, arguments = call
    kwargs = format_arguments((), arguments) if arguments else None
    return replace(options, env=reference, env_kwargs=kwargs)


def _check_no_folder(target: str) -> None:
    """Raise an error for a folder that is no dump, unless an env is named like it."""
    from tdx.envs.gym.registry import find_env
    from tdx.pipeline.policies import model_hint
    from tdx.stacks.checkpoints import is_checkpoint

    path = Path(target)
    if not path.is_dir() or ":" in target:
        return
    with suppress(TdxError):
        find_env(target)
        return
    files = sorted(str(file) for file in path.iterdir() if file.suffix in PIPELINE_SUFFIXES)
    # Trainings write a folder for each checkpoint, some with the policy in a folder below it.
    folders = itertools.islice(itertools.chain(path.glob("*/"), path.glob("*/*/")), _MAX_FOLDERS)
    checkpoints = sorted(str(folder) for folder in folders if is_checkpoint(folder))
    hint = "name an env, a pipeline file, a dump or a checkpoint"
    if models := sorted(path.glob("*.zip")):
        hint = model_hint(str(models[0]))
    for kind, found in (("file", files), ("checkpoint", checkpoints)):
        if found:
            hint = f"name a {kind} in it: {', '.join(found[:_SHOWN_FILES])}"
            break
    raise ArgumentError(f"{target} is a folder without a dump or a checkpoint", hint=hint)


def command_words(command: str, options: PipelineOptions, config: Pipeline) -> list[str]:
    """Return a command that runs a pipeline again, with its seed and the target as an argument.

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
        words += [name, *([] if value is None else [value])]
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
    """Parse the stages from ``-t``."""
    from tdx.pipeline import parse_stage

    stages = []
    for index, call in enumerate(calls):
        try:
            stages.append(parse_stage(call))
        except TdxError as error:
            raise error.at(stage=index) from None
    return tuple(stages)


def parse_env_kwargs(text: str | None) -> dict[str, Any]:
    """Parse the value of ``--env-kwargs``."""
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
def open_pipeline(
    pipeline: Pipeline,
    options: PipelineOptions,
    *,
    is_measured: bool = False,
    samples: str | None = None,
) -> Iterator[Stack]:
    """Build the env of a pipeline as a stack, and close it at the end.

    Its stages are those that :func:`~tdx.stacks.building.build_stack` finds: of a chain of tdx, or
    the wrappers that a factory returns.

    ``is_measured`` leaves worker processes as they are, so that the times are those of the env;
    otherwise their sub-envs are created in this process, where all stages are seen.
    """
    from tdx.envs.gym.gym_env import log_mujoco_warnings
    from tdx.rollouts.samples import read_samples
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
