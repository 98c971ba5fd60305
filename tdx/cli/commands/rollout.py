"""``tdx rollout``."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tdx.cli.choices import number_option
from tdx.cli.env_completion import complete_stored_keys
from tdx.cli.options import FileArgument, OutputOptions, PipelineOptions
from tdx.cli.pipelines import PolicyName
from tdx.errors import ArgumentError, TdxError
from tdx.untrusted import MAX_WORKERS

if TYPE_CHECKING:
    from tdx.pipeline import Pipeline
    from tdx.rollouts import DumpRequest, Goal, Manifest

Steps = Annotated[
    int | None,
    number_option("--steps", 1, "How many steps each env makes."),
]
Episodes = Annotated[
    int | None,
    number_option(
        "--episodes", 1, "How many episodes all envs make together, in the place of --steps."
    ),
]
Out = Annotated[
    str | None, typer.Option("--out", "-o", metavar="DIR", help="The folder of the dump.")
]
Keys = Annotated[
    list[str] | None,
    typer.Option(
        "--keys",
        metavar="KEYS",
        autocompletion=complete_stored_keys,
        help="Store these entries only: observation,next.reward. Without `next.` both are meant.",
    ),
]
ChunkSteps = Annotated[
    int | None,
    number_option(
        "--chunk", 1, "Write N steps at a time; by default as many as take 32 MiB, 10,000 at most."
    ),
]
Workers = Annotated[
    int | None,
    number_option(
        "--workers", 1, "Run N copies of the env in a process each.", at_most=MAX_WORKERS
    ),
]
Raw = Annotated[
    bool,
    typer.Option(
        "--raw", help="Store what the env itself gives too, so that `tdx replay` can use it."
    ),
]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Write nothing; show how large the dump would be.")
]
Force = Annotated[bool, typer.Option("--force", help="Overwrite a dump that is there.")]
Resume = Annotated[
    bool,
    typer.Option("--resume", help="Go on with a dump that was interrupted; needs --out alone."),
]

_KEPT_BY_RESUME = {"allow_code"}


def rollout(
    pipeline: PipelineOptions,
    output: OutputOptions,
    file: FileArgument = None,
    steps: Steps = None,
    episodes: Episodes = None,
    policy: PolicyName = None,
    out: Out = None,
    keys: Keys = None,
    chunk: ChunkSteps = None,
    workers: Workers = None,
    raw: Raw = False,
    dry_run: DryRun = False,
    force: Force = False,
    resume: Resume = False,
) -> None:
    """Roll a pipeline out into a dump on disk, chunk by chunk in constant memory.

    Whatever happens, the dump opens with every finished chunk, and --resume goes on with it.

    tdx rollout --env Pendulum-v1 --t RewardSum --steps 10000 --seed 0 --out pendulum
    """
    from tdx.cli.pipelines import read_pipeline, with_file
    from tdx.rollouts import DumpRequest

    if resume:
        given = (file, steps, episodes, keys, chunk, workers, raw, dry_run, force)
        _resume(pipeline, output, out, policy, any(given))
        return
    if steps is not None and episodes is not None:
        raise ArgumentError(
            "--steps and --episodes cannot be given together", hint="leave one of them out"
        )
    if out is None and not dry_run:
        raise ArgumentError("no folder is given", hint="add --out DIR, or --dry-run")
    config = _in_processes(read_pipeline(with_file(pipeline, file)), workers)
    request = DumpRequest(
        config,
        _goal(steps, episodes),
        policy=policy,
        keys=_listed(keys),
        chunk_steps=chunk,
        raw=raw,
        allow_code=pipeline.allow_code,
    )
    if dry_run:
        _estimate(request, out, output, force)
        return
    assert out is not None
    _roll_out(request, Path(out), output, force)


def _goal(steps: int | None, episodes: int | None) -> Goal | None:
    from tdx.rollouts import Goal

    return None if steps is None and episodes is None else Goal(steps, episodes)


def _listed(keys: list[str] | None) -> tuple[str, ...] | None:
    names = [name.strip() for text in keys or () for name in text.split(",") if name.strip()]
    return tuple(names) or None


def _in_processes(config: Pipeline, workers: int | None) -> Pipeline:
    if workers is None:
        return config
    env = config.env
    if env.num_envs not in (None, workers):
        raise ArgumentError(
            f"--workers {workers} and {env.num_envs} envs do not go together",
            hint="each worker runs one env: leave one of them out",
        )
    return replace(config, env=replace(env, num_envs=workers, batching="parallel"))


def _estimate(request: DumpRequest, out: str | None, output: OutputOptions, force: bool) -> None:
    from tdx.cli.interrupts import foreign_code
    from tdx.cli.output.write import write
    from tdx.cli.views.dumps import estimate_view
    from tdx.rollouts import estimate

    with foreign_code():
        found = estimate(request, Path(out or "dump"), force=force or out is None)
    write(estimate_view(found), output)


def _roll_out(request: DumpRequest, folder: Path, output: OutputOptions, force: bool) -> None:
    from tdx.cli.interrupts import foreign_code
    from tdx.cli.progress import progress_on
    from tdx.rollouts import roll_out

    with _what_is_left(folder), foreign_code(), progress_on(sys.stderr) as on_chunk:
        manifest = roll_out(request, folder, force=force, on_chunk=on_chunk)
    _show(folder, manifest, output)


def _resume(
    pipeline: PipelineOptions,
    output: OutputOptions,
    out: str | None,
    policy: str | None,
    other: bool,
) -> None:
    from tdx.cli.interrupts import foreign_code
    from tdx.cli.progress import progress_on
    from tdx.rollouts import resume

    values = {
        field.name: getattr(pipeline, field.name) != field.default for field in fields(pipeline)
    }
    if other or any(given for name, given in values.items() if name not in _KEPT_BY_RESUME):
        raise ArgumentError(
            "--resume takes the pipeline and all else from the dump",
            hint="give --out DIR --resume, and no more",
        )
    if out is None:
        raise ArgumentError("no dump is given", hint="add --out DIR")
    folder = Path(out)
    with _what_is_left(folder), foreign_code(), progress_on(sys.stderr) as on_chunk:
        manifest = resume(folder, policy=policy, allow_code=pipeline.allow_code, on_chunk=on_chunk)
    _show(folder, manifest, output)


def _show(folder: Path, manifest: Manifest, output: OutputOptions) -> None:
    from tdx.cli.output.write import write
    from tdx.cli.views.dumps import summary_view

    write(summary_view(str(folder), manifest), output)


@contextmanager
def _what_is_left(folder: Path) -> Iterator[None]:
    """Where the rollout is cut short, say what is on the disk."""
    try:
        yield
    except TdxError as error:
        kept = _kept(folder)
        if kept and "--resume" not in (error.hint or ""):
            error.hint = f"{error.hint}; {kept}" if error.hint else kept
        raise
    except KeyboardInterrupt:
        print(f"interrupted{_interrupted(folder)}", file=sys.stderr)
        raise


def _interrupted(folder: Path) -> str:
    """What to say of a dump whose rollout was interrupted."""
    from tdx.rollouts import Manifest

    try:
        manifest = Manifest.load(folder)
    except TdxError:
        return " before the first chunk; nothing was written"
    if not manifest.steps:
        return f" before the first chunk; {folder} holds no steps, --force replaces it"
    kept = _kept(folder)
    return "" if kept is None else f": {kept}"


def _kept(folder: Path) -> str | None:
    from tdx.rollouts import Manifest

    try:
        manifest = Manifest.load(folder)
    except TdxError:
        return None
    if not manifest.steps or manifest.complete:
        return None
    steps = f"{manifest.steps:,} step{'' if manifest.steps == 1 else 's'}"
    return f"{folder} has {steps}, --resume goes on"
