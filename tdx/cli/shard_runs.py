"""Options of shards, and the runs of ``tdx rollout`` that record them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from tdx.cli.options import OutputOptions, choice_option, integer_option
from tdx.cli.runtime import report_interrupt
from tdx.foundation.errors import ArgumentError, ExitCode, TdxError

if TYPE_CHECKING:
    from tdx.rollouts import DumpRequest, ShardedRollout

_SHARDS = "Shards"


class EngineName(StrEnum):
    """Where shards are recorded."""

    LOCAL = "local"
    RAY = "ray"
    SLURM = "slurm"


@dataclass(frozen=True, slots=True)
class ShardOptions:
    """How a rollout is divided into shards, and where they are recorded."""

    shards: Annotated[
        int | None,
        integer_option(
            *("--shards", 1, "Divide the rollout into K shards, each with its own seed."),
            metavar="K",
            panel=_SHARDS,
        ),
    ] = None
    shard: Annotated[
        int | None,
        integer_option(
            *("--shard", 0, "Record only shard I, counted from 0, in this process."),
            metavar="I",
            panel=_SHARDS,
        ),
    ] = None
    on: Annotated[
        EngineName | None,
        choice_option(
            *("--on", EngineName),
            "Record the shards in processes of this machine (the default), on a running Ray "
            "cluster, or as jobs of Slurm.",
            panel=_SHARDS,
        ),
    ] = None
    retries: Annotated[
        int | None,
        integer_option(
            *("--retries", 0, "Repeat a shard whose env or process fails N times; 2 by default."),
            panel=_SHARDS,
        ),
    ] = None


def check_sharding(sharding: ShardOptions, force: bool) -> None:
    """Refuse options of shards that contradict each other."""
    if sharding.shards is None:
        for name in ("shard", "on", "retries"):
            if getattr(sharding, name) is not None:
                raise ArgumentError(f"--{name} needs --shards", hint="add --shards K")
    elif sharding.shard is not None:
        for name in ("on", "retries"):
            if getattr(sharding, name) is not None:
                raise ArgumentError(
                    f"--shard and --{name} cannot be combined", hint="remove one of them"
                )
        if force:
            raise ArgumentError(
                "--shard and --force cannot be combined", hint="remove the folder, or leave --shard"
            )


def roll_out_sharded(
    request: DumpRequest,
    out: str,
    sharding: ShardOptions,
    workers: int | None,
    output: OutputOptions,
    force: bool,
) -> int:
    """Record the shards of a rollout, or one of them, and show the result."""
    from tdx.cli.progress import progress_on, shards_on
    from tdx.cli.runtime import third_party_code
    from tdx.rollouts import is_url, roll_out_shard, roll_out_shards, roll_out_to_url

    count, folder = sharding.shards, Path(out)
    assert count is not None
    engine = _engine_arguments(sharding, workers)
    if is_url(out):
        for option, given in (("--shard", sharding.shard is not None), ("--force", force)):
            if given:
                raise ArgumentError(
                    f"{option} and a URL cannot be combined",
                    hint="use --on ray or --on slurm, and a new URL",
                )
        with (
            third_party_code(),
            shards_on(sys.stderr) as on_progress,
            roll_out_to_url(request, out, count, **engine, on_progress=on_progress) as written,
        ):
            return _show_shards(written[0], output, written[1])
    if sharding.shard is not None:
        with third_party_code(), progress_on(sys.stderr) as on_chunk:
            result = roll_out_shard(request, folder, count, sharding.shard, on_chunk)
        return _show_shards(result, output)
    with _report_shards(folder), third_party_code(), shards_on(sys.stderr) as on_progress:
        result = roll_out_shards(
            request, folder, count, **engine, force=force, on_progress=on_progress
        )
    return _show_shards(result, output)


def resume_sharded(
    folder: Path,
    sharding: ShardOptions,
    workers: int | None,
    allow_code: bool,
    output: OutputOptions,
) -> int:
    """Record the missing shards of a dump, and show the result."""
    from tdx.cli.progress import shards_on
    from tdx.cli.runtime import third_party_code
    from tdx.rollouts import resume_shards

    engine = _engine_arguments(sharding, workers)
    with _report_shards(folder), third_party_code(), shards_on(sys.stderr) as on_progress:
        result = resume_shards(folder, **engine, allow_code=allow_code, on_progress=on_progress)
    return _show_shards(result, output)


def _engine_arguments(sharding: ShardOptions, workers: int | None) -> dict[str, Any]:
    given = {"engine": sharding.on, "retries": sharding.retries, "workers": workers}
    return {name: value for name, value in given.items() if value is not None}


def _show_shards(result: ShardedRollout, output: OutputOptions, folder: Path | None = None) -> int:
    from tdx.cli.output import write_view
    from tdx.cli.views.dumps import sharded_view
    from tdx.rollouts import load_manifest_of

    write_view(sharded_view(result, load_manifest_of(folder or Path(result.path))), output)
    return ExitCode.ENVIRONMENT if result.failures else ExitCode.OK


@contextmanager
def _report_shards(folder: Path) -> Iterator[None]:
    """If the rollout is interrupted, report how many shards are committed."""
    from tdx.rollouts import ShardPlan, read_progress

    try:
        yield
    except KeyboardInterrupt:
        text = "interrupted"
        with suppress(TdxError):
            progress = read_progress(folder, ShardPlan.load(folder))
            text += f": {folder} has {progress.committed} of {progress.shards} shards, "
            text += "--resume records the others"
        report_interrupt(text)
        raise
