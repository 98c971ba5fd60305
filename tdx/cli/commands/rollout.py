"""``tdx rollout``, ``replay`` and ``verify``."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tdx.cli.completion import DUMP, complete_transform
from tdx.cli.options import (
    Functions,
    OutputOptions,
    integer_option,
    split_list,
)
from tdx.cli.pipelines import (
    AllowCode,
    PipelineOptions,
    PolicyName,
    TargetOptions,
    complete_stored_keys,
)
from tdx.cli.runtime import report_interrupt
from tdx.cli.shard_runs import ShardOptions, check_sharding, resume_sharded, roll_out_sharded
from tdx.foundation.errors import ArgumentError, ExitCode, TdxError
from tdx.foundation.untrusted import MAX_WORKERS

if TYPE_CHECKING:
    from tdx.cli.contract_runs import ReportFiles
    from tdx.rollouts import Dump, DumpRequest, Manifest

Steps = Annotated[
    int | None,
    integer_option("--steps", 1, "Number of steps of each env."),
]
Episodes = Annotated[
    int | None,
    integer_option("--episodes", 1, "Number of episodes of all envs together, instead of --steps."),
]
Out = Annotated[
    str | None,
    typer.Option("-o", "--out", metavar="DIR", help="Folder of the new dump; a URL with --shards."),
]
Keys = Annotated[
    list[str] | None,
    typer.Option(
        "--keys",
        metavar="KEYS",
        autocompletion=complete_stored_keys,
        help="Store only these entries: observation,next.reward. Without `next.`, both are stored.",
    ),
]
ChunkSteps = Annotated[
    int | None,
    integer_option(
        "--chunk", 1, "Write N steps at a time; by default 32 MiB, at most 10,000 steps."
    ),
]
Workers = Annotated[
    int | None,
    integer_option(
        *("--workers", 1),
        "Run the envs in N processes, by default N envs; with --shards, record N shards at a time.",
        maximum=MAX_WORKERS,
    ),
]
Raw = Annotated[
    bool,
    typer.Option(
        "--raw", help="Also store the output of the env before the chain, for `tdx replay`."
    ),
]
DryRun = Annotated[
    bool,
    typer.Option(
        "--dry-run", help="Write nothing; estimate the size of the dump and the time to record it."
    ),
]
Force = Annotated[bool, typer.Option("--force", help="Replace an existing dump.")]
Resume = Annotated[
    bool,
    typer.Option("--resume", help="Continue an interrupted dump; needs only --out."),
]
Folder = Annotated[str, DUMP]
Stages = Annotated[
    list[str] | None,
    typer.Option(
        "-t",
        metavar="CALL",
        autocompletion=complete_transform,
        help="Add a stage to the chain: RewardSum. Can be repeated; the order matters.",
    ),
]
ReplayOut = Annotated[
    str | None,
    typer.Option("-o", "--out", metavar="DIR", help="Write the result to a new dump."),
]
CompareReplay = Annotated[
    bool, typer.Option("--compare", help="Show what differs from the dump, and in what way.")
]

ReplayPage = Annotated[
    str | None,
    typer.Option(
        "--html",
        metavar="FILE",
        help="With --compare, also write a self-contained HTML page. Beside it, a folder has the "
        "smallest case of the first difference, and a script that shows it.",
    ),
]

_ALLOWED_WITH_RESUME = {"allow_code"}


def rollout(
    pipeline: TargetOptions,
    sharding: ShardOptions,
    output: OutputOptions,
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
) -> int | None:
    """Run a pipeline and write the steps to a dump.

    Steps are written in chunks, in constant memory.

    After an interruption, the dump contains every finished chunk, and --resume continues it. With
    --shards, run the same command again to record the missing shards.

    tdx rollout Pendulum-v1 -t RewardSum --steps 10000 --seed 0 --out runs/new

    tdx rollout pendulum.yaml --steps 1000000 --dry-run
    """
    from tdx.cli.pipelines import read_pipeline
    from tdx.rollouts import DumpRequest, Goal, is_url

    if resume:
        others = (steps, episodes, keys, chunk, raw, dry_run, force)
        return _resume(pipeline, sharding, output, out, policy, workers, any(others))
    check_sharding(sharding, force)
    if steps is not None and episodes is not None:
        raise ArgumentError("--steps and --episodes cannot be combined", hint="remove one of them")
    if out is None and not dry_run:
        raise ArgumentError("no folder is given", hint="add --out DIR, or --dry-run")
    config = read_pipeline(pipeline)
    if workers is not None and not sharding.shards:
        envs = workers if config.env.num_envs is None else config.env.num_envs
        if workers > envs:
            raise ArgumentError(
                f"--workers {workers} is more than the {envs} envs",
                hint=f"each env runs in one process: pass at most --workers {envs}",
            )
        config = replace(config, env=replace(config.env, num_envs=envs, batching="parallel"))
    request = DumpRequest(
        config,
        None if steps is None and episodes is None else Goal(steps, episodes),
        policy=policy,
        keys=tuple(split_list(keys)) or None,
        chunk_steps=chunk,
        raw=raw,
        allow_code=pipeline.allow_code,
        workers=None if sharding.shards else workers,
    )
    if dry_run:
        _estimate(request, out, output, force, sharding.shards is not None)
        return None
    assert out is not None
    if sharding.shards is None and is_url(out):
        raise ArgumentError(f"a rollout to {out} needs shards", hint="add --shards 1 or more")
    if sharding.shards is not None:
        return roll_out_sharded(request, out, sharding, workers, output, force)
    _roll_out(request, Path(out), output, force)
    return None


def _estimate(
    request: DumpRequest, out: str | None, output: OutputOptions, force: bool, is_sharded: bool
) -> None:
    from tdx.cli.output import write_view
    from tdx.cli.runtime import third_party_code
    from tdx.cli.views.dumps import estimate_view
    from tdx.rollouts import estimate

    with third_party_code():
        result = estimate(
            request, Path(out or "dump"), force=force or out is None, measure=not is_sharded
        )
    write_view(estimate_view(result), output)


def _roll_out(request: DumpRequest, folder: Path, output: OutputOptions, force: bool) -> None:
    from tdx.cli.progress import progress_on
    from tdx.cli.runtime import third_party_code
    from tdx.rollouts import roll_out

    with _report_saved_steps(folder), third_party_code(), progress_on(sys.stderr) as on_chunk:
        manifest = roll_out(request, folder, force=force, on_chunk=on_chunk)
    _show(folder, manifest, output)


def _resume(
    pipeline: PipelineOptions,
    sharding: ShardOptions,
    output: OutputOptions,
    out: str | None,
    policy: str | None,
    workers: int | None,
    has_other_options: bool,
) -> int | None:
    from tdx.cli.progress import progress_on
    from tdx.cli.runtime import third_party_code
    from tdx.rollouts import is_sharded, is_url, resume

    changed = {f.name for f in fields(pipeline) if getattr(pipeline, f.name) != f.default}
    sharded = out is not None and is_sharded(Path(out))
    unused = replace(sharding, on=None, retries=None) if sharded else sharding
    has_other_options |= sharded and policy is not None
    if has_other_options or changed - _ALLOWED_WITH_RESUME or unused != ShardOptions():
        raise ArgumentError(
            "--resume reads all other options from the dump",
            hint="pass only --out DIR --resume",
        )
    if out is None:
        raise ArgumentError("no dump is given", hint="add --out DIR")
    if is_url(out):
        raise ArgumentError(
            "--resume and a URL cannot be combined", hint="repeat the command that recorded it"
        )
    folder, allow_code = Path(out), pipeline.allow_code
    if sharded:
        return resume_sharded(folder, sharding, workers, allow_code, output)
    with _report_saved_steps(folder), third_party_code(), progress_on(sys.stderr) as on_chunk:
        manifest = resume(
            folder, policy=policy, allow_code=allow_code, workers=workers, on_chunk=on_chunk
        )
    _show(folder, manifest, output)
    return None


def _show(folder: Path, manifest: Manifest, output: OutputOptions) -> None:
    from tdx.cli.output import write_view
    from tdx.cli.views.dumps import summary_view

    write_view(summary_view(str(folder), manifest), output)


@contextmanager
def _report_saved_steps(folder: Path) -> Iterator[None]:
    """If the rollout fails, report how many steps are saved."""
    try:
        yield
    except TdxError as error:
        _, saved = _saved_steps(folder)
        is_known = any(option in (error.hint or "") for option in ("--resume", "--force"))
        if saved and not is_known:
            error.hint = f"{error.hint}; {saved}" if error.hint else saved
        raise
    except KeyboardInterrupt:
        manifest, saved = _saved_steps(folder)
        state = "" if saved is None else f": {saved}"
        if manifest is None:
            state = " before the first chunk; nothing was written"
        elif not manifest.steps:
            state = f" before the first chunk; {folder} has no steps, --force replaces it"
        report_interrupt(f"interrupted{state}")
        raise


def _saved_steps(folder: Path) -> tuple[Manifest | None, str | None]:
    """Return the manifest of a dump, if it has one, and how to continue an unfinished one."""
    from tdx.foundation.text import count_text
    from tdx.rollouts import Manifest

    try:
        manifest = Manifest.load(folder)
    except TdxError:
        return None, None
    if not manifest.steps or manifest.complete:
        return manifest, None
    steps = count_text(manifest.steps, "step")
    return manifest, f"{folder} has {steps}, --resume continues it"


RepairOption = Annotated[
    bool,
    typer.Option(
        "--repair",
        help="Truncate a damaged dump after its last intact chunk. Replaced files are kept in its "
        "folder `damaged`.",
    ),
]


def verify(output: OutputOptions, dump: Folder, repair: RepairOption = False) -> int:
    """Check the checksums and values of a whole dump.

    Compares the values with the manifest and the specs.

    Exits with 0 if the dump is valid, else with 1. --repair reports what was lost and moves a
    damaged shard aside, so that the rollout records it again.

    tdx verify runs/pendulum

    tdx verify runs/pendulum --repair
    """
    from tdx import rollouts
    from tdx.cli.output import write_view
    from tdx.cli.progress import activity_on
    from tdx.cli.views.dumps import repair_view, verify_view

    if rollouts.is_url(dump):
        if repair:
            raise ArgumentError(
                f"{dump} cannot be repaired in place", hint="repair a copy of it on a disk"
            )
        dump = str(rollouts.fetch_dump(dump))
    with activity_on(sys.stderr) as show:
        on_file = show or (lambda file, done, total: None)
        if repair:
            repaired = rollouts.repair(dump, on_file)
            result, view = repaired.verification, repair_view(repaired)
        else:
            result = rollouts.verify(dump, on_file)
            view = verify_view(result)
    write_view(view, output)
    return ExitCode.OK if result.is_fine else ExitCode.FINDINGS


def replay(
    output: OutputOptions,
    dump: Folder,
    stages: Stages = None,
    out: ReplayOut = None,
    force: Force = False,
    allow_code: AllowCode = False,
    compare: CompareReplay = False,
    html: ReplayPage = None,
) -> int:
    """Apply another chain to the data of a dump.

    The result equals a rollout with that chain.

    The dump must have been written without a chain, or with --raw. Without --out the result is
    shown but not saved. With --compare, what differs from the dump is shown instead, as by tdx
    diff, and the exit code is 1 if anything does.

    tdx replay runs/raw -t RewardSum --out runs/summed

    tdx replay runs/raw -t "RewardClipping(-1, 1)" --compare --html replay.html
    """
    import tempfile

    from tdx.cli.contract_runs import ReportFiles
    from tdx.cli.output import write_view
    from tdx.cli.pipelines import read_stages
    from tdx.cli.progress import progress_on
    from tdx.cli.runtime import third_party_code
    from tdx.cli.views.dumps import dump_view, summary_view
    from tdx.rollouts import look_at, open_dump, replay

    if html is not None and not compare:
        raise ArgumentError("--html needs --compare", hint="add --compare, or leave it out")
    files = ReportFiles(html, force=force)
    files.check()
    source, chain = open_dump(dump), read_stages(stages or [])
    with tempfile.TemporaryDirectory(prefix="tdx-") as scratch:
        target = Path(scratch) / "replay" if out is None else Path(out)
        with third_party_code(), progress_on(sys.stderr) as on_chunk:
            manifest = replay(
                source, chain, target, force=force, allow_code=allow_code, on_chunk=on_chunk
            )
        if compare:
            return _compare_replay(source, open_dump(target), out, allow_code, output, files)
        if out is None:
            view = dump_view(look_at(open_dump(target)), f"replay of {dump}")
        else:
            view = summary_view(out, manifest)
    write_view(view, output)
    return ExitCode.OK


def _compare_replay(
    source: Dump,
    result: Dump,
    out: str | None,
    allow_code: bool,
    output: OutputOptions,
    files: ReportFiles,
) -> int:
    """Show what differs between a dump and its replay; return the exit code."""
    from contextlib import ExitStack, closing

    from tdx.cli.dump_sides import COMPARED_STEPS, DumpSide, compare_with_dump
    from tdx.cli.runtime import third_party_code
    from tdx.cli.views.comparisons import diff_view

    names = str(source.path), out or f"replay of {source.path}"
    recorded = min(source.manifest.steps, result.manifest.steps)
    with third_party_code(), ExitStack() as opened:
        sides = [
            opened.enter_context(closing(DumpSide(dump, allow_code, name)))
            for dump, name in zip((source, result), names, strict=True)
        ]
        steps = min(recorded, COMPARED_STEPS)
        seed = source.manifest.seed
        report, smallest = compare_with_dump(
            *(sides, steps, seed, "dump", recorded), files, allow_code=allow_code
        )
    if out is not None:
        print(f"wrote {out}", file=sys.stderr)
    view = diff_view(report)
    files.write_view(view, output, [*view.blocks(), *smallest])
    return ExitCode.OK if report.same else ExitCode.FINDINGS


COMMANDS: Functions = {
    "rollout": rollout,
    "replay": replay,
    "verify": verify,
}
