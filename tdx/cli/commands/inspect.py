"""``tdx inspect`` and ``diff``: what a chain does."""

from __future__ import annotations

import sys
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tdx.cli.options import (
    DiagramOptions,
    Format,
    Functions,
    ImageOptions,
    OutputOptions,
    integer_option,
)
from tdx.cli.pipelines import (
    TARGET_HELP,
    AllowCode,
    ArgumentOptions,
    ForcePage,
    Page,
    PipelineOptions,
    PolicyName,
    Samples,
    Shrink,
    TargetOptions,
    complete_key,
    complete_policy_key,
)
from tdx.foundation.errors import ArgumentError, ExitCode

if TYPE_CHECKING:
    from tdx.cli.views import Block
    from tdx.inspection.diff import DiffSide
    from tdx.stacks.checkpoints import Checkpoint


Stages = Annotated[bool, typer.Option("--stages", help="Show the specs after each stage.")]
Changes = Annotated[bool, typer.Option("--changes", help="Show only what each stage changes.")]
Graph = Annotated[bool, typer.Option("--graph", help="Draw the chain as a diagram.")]
Key = Annotated[
    str | None,
    typer.Option(
        "--key",
        metavar="KEY",
        autocompletion=complete_key,
        help="Follow one key through the chain; write a nested key as agents.reward.",
    ),
]
Words = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[TARGET] [KEY]...",
        autocompletion=complete_key,
        help=f"{TARGET_HELP} Then the keys to trace, nested ones as agents.reward; all by default.",
    ),
]
ValuesSteps = Annotated[
    int | None,
    integer_option(
        *("--steps", 1),
        "Number of steps after the reset, 1 by default; without it, a dataset or a dump shows the "
        "statistics of all its data.",
    ),
]
StateSteps = Annotated[
    int, integer_option("--steps", 0, "Number of random steps before the state is read.")
]
Each = Annotated[bool, typer.Option("--each", help="Show each reset and step separately.")]
Export = Annotated[
    str | None,
    typer.Option("--export", metavar="FILE", help="Write statistics and buffers: .safetensors."),
]
Load = Annotated[
    str | None,
    typer.Option("--load", metavar="FILE", help="Load a file written by --export before stepping."),
]
Force = Annotated[bool, typer.Option("--force", help="Replace an existing file.")]
PolicyReads = Annotated[
    list[str] | None,
    typer.Option(
        "--policy-reads",
        metavar="KEY",
        autocompletion=complete_policy_key,
        help="Key that the policy reads, such as agents.observation. Can be repeated; without it, "
        "actions are random.",
    ),
]


def inspect_spec(
    pipeline: TargetOptions,
    output: OutputOptions,
    stages: Stages = False,
    changes: Changes = False,
    key: Key = None,
    samples: Samples = None,
) -> None:
    """Compare the specs before and after a chain, without stepping.

    tdx inspect spec Pendulum-v1 -t StepCounter

    tdx inspect spec pendulum.yaml --changes
    """
    from tdx.cli.output import write_view
    from tdx.cli.pipelines import find_checkpoint, find_descriptor, open_pipeline, read_pipeline
    from tdx.cli.views.specs import spec_view
    from tdx.inspection.spec_report import compare_specs

    if stages and changes:
        raise ArgumentError("--stages and --changes cannot be combined", hint="remove one of them")
    if (descriptor := find_descriptor(pipeline)) is not None:
        from tdx.cli.views.descriptors import descriptor_view

        given = {"--stages": stages, "--changes": changes, "--key": key, "--samples": samples}
        for option in (name for name, value in given.items() if value):
            raise ArgumentError(f"{option} does not apply to a deployment descriptor")
        write_view(descriptor_view(descriptor), output)
        return
    # `open_pipeline` opens checkpoints too, but loads torch, which their specs do not need.
    if (checkpoint := find_checkpoint(pipeline)) is not None:
        from tdx.inspection.spec_report import inspect_checkpoint
        from tdx.stacks.checkpoints.specs import checkpoint_calls

        report, calls = inspect_checkpoint(checkpoint), checkpoint_calls(checkpoint)
        write_view(spec_view(report, calls, stages=stages, changes=changes, key=key), output)
        return
    config = read_pipeline(pipeline)
    with open_pipeline(config, pipeline, samples=samples) as stack:
        report = compare_specs(stack, config.env.id)
        calls = tuple(stack.calls)
    write_view(spec_view(report, calls, stages=stages, changes=changes, key=key), output)


def inspect_chain(
    pipeline: TargetOptions, output: ImageOptions, graph: Graph = False, samples: Samples = None
) -> None:
    """Show what each stage reads, writes, drops and renames.

    Does not step the env.

    tdx inspect chain Pendulum-v1 -t StepCounter -t RewardSum

    tdx inspect chain pendulum.yaml --format svg > chain.svg
    """
    from tdx.cli.output import write_view
    from tdx.cli.pipelines import open_pipeline, read_pipeline
    from tdx.cli.views.chain import chain_view
    from tdx.inspection.chain import inspect_chain

    config = read_pipeline(pipeline)
    with open_pipeline(config, pipeline, samples=samples) as stack:
        report = inspect_chain(stack, config.env.id)
        calls = stack.calls
    if output.format in (Format.MERMAID, Format.SVG):
        from tdx.cli.views.graph import chain_diagram, chain_svg

        draw = chain_svg if output.format is Format.SVG else chain_diagram
        sys.stdout.write(draw(report, calls))
    elif graph and output.format is Format.MD:
        from tdx.cli.views.graph import chain_diagram

        sys.stdout.write(f"```mermaid\n{chain_diagram(report, calls)}```\n")
    else:
        write_view(chain_view(report, calls, graph=graph), output)


def inspect_keys(
    pipeline: ArgumentOptions, output: DiagramOptions, words: Words = None, samples: Samples = None
) -> None:
    """Trace keys: each version, its writer and its readers.

    tdx inspect keys Pendulum-v1 reward -t RewardSum -t "RewardClipping(-1, 1)"

    tdx inspect keys pendulum.yaml --format mermaid
    """
    from tdx.cli.output import write_view
    from tdx.cli.pipelines import open_pipeline, read_pipeline, with_target
    from tdx.cli.views.chain import lineage_diagram, lineage_view
    from tdx.inspection.lineage import inspect_keys

    keys = list(words or ())
    options: PipelineOptions = pipeline
    if keys and pipeline.env is None and pipeline.pipeline is None:
        options = with_target(pipeline, keys.pop(0))
    config = read_pipeline(options)
    with open_pipeline(config, options, samples=samples) as stack:
        lineage = inspect_keys(stack, config.env.id).only(keys)
        calls = stack.calls
    if output.format is Format.MERMAID:
        sys.stdout.write(lineage_diagram(lineage, calls))
    else:
        write_view(lineage_view(lineage, calls), output)


def inspect_values(
    pipeline: TargetOptions,
    output: OutputOptions,
    steps: ValuesSteps = None,
    policy: PolicyName = None,
    each: Each = False,
    key: Key = None,
    samples: Samples = None,
) -> None:
    """Step an env, and show the values that each stage writes.

    Actions come from --policy, from the policy of the pipeline file, or are random. Values outside
    their spec are marked, and the stage that violates its spec is named. Of a LeRobot or Minari
    dataset and of a dump, the recorded values are read: without --steps, the statistics of all.

    tdx inspect values Pendulum-v1 -t "RewardClipping(-1, 1)" --steps 100 --seed 0

    tdx inspect values pendulum.yaml --policy zero --each

    tdx inspect values dataset --key observation.state
    """
    from tdx.cli.output import write_view
    from tdx.cli.pipelines import (
        compute_facts,
        given_options,
        open_pipeline,
        read_pipeline,
        with_target,
    )
    from tdx.cli.views.values import values_view
    from tdx.inspection.values_report import inspect_values
    from tdx.pipeline.build import add_source_line
    from tdx.rollouts.datasets import is_dump, read_data
    from tdx.rollouts.policies.policy import load_actor
    from tdx.stacks.checkpoints import is_dataset

    options = with_target(pipeline)
    source = options.pipeline or options.env
    if source is not None and (is_dump(source) or is_dataset(source)):
        from tdx.stacks.checkpoints.stack import DatasetStack

        given = [name for name, _ in given_options(replace(options, env=None, pipeline=None))]
        given += ["--policy"] if policy is not None else []
        given += ["--samples"] if samples is not None else []
        if given:
            raise ArgumentError(
                f"{given[0]} does not apply to recorded values",
                hint="leave it out, or name a pipeline file or an env instead of the recording",
            )
        if steps is None:
            from tdx.cli.views.datasets import dataset_view

            if each:
                raise ArgumentError(
                    "--each does not apply to the statistics of recorded values",
                    hint="--steps N shows single steps",
                )
            facts = compute_facts(source, key, has_results=True)
            write_view(dataset_view(facts, whole=key is not None), output)
            return
        recording = DatasetStack(read_data(source, has_results=True))
        for note in recording.notes:
            print(f"note: {note}", file=sys.stderr)
        report = inspect_values(recording, source, steps=steps, each=each)
        shown = report if key is None else report.only(key)
        write_view(values_view(shown, recording.calls), output)
        return
    config = read_pipeline(pipeline)
    with open_pipeline(config, pipeline, samples=samples) as stack:
        actor = load_actor(
            config, stack, name=policy, steps=steps or 1, allow_code=pipeline.allow_code
        )
        report = inspect_values(
            stack, config.env.id, steps=steps or 1, seed=config.env.seed, policy=actor, each=each
        )
        calls = stack.calls
        if report.error is not None:
            add_source_line(report.error, config, stack.target)
    if key is not None:
        report = report.only(key)
    write_view(values_view(report, calls), output)
    if report.error is not None:
        raise report.error


def inspect_state(
    pipeline: TargetOptions,
    output: OutputOptions,
    steps: StateSteps = 0,
    load: Load = None,
    export: Export = None,
    force: Force = False,
    samples: Samples = None,
) -> None:
    """Show the state of each stage: statistics, counters, queues.

    Without --steps, it is the state before the first reset. --export writes the statistics and
    buffers to a file, which --load and tdx.load_state load into another stack of the same kind.

    tdx inspect state Pendulum-v1 -t VecNorm --steps 100 --seed 0

    tdx inspect state pendulum.yaml --steps 1000 --export statistics.safetensors
    """
    from tdx.cli.output import write_view
    from tdx.cli.pipelines import open_pipeline, read_pipeline
    from tdx.cli.views.values import state_view
    from tdx.foundation.files import check_replaceable
    from tdx.inspection.values_report import inspect_state

    if export is not None:
        check_replaceable(export, force=force)
    config = read_pipeline(pipeline)
    with open_pipeline(config, pipeline, samples=samples) as stack:
        if load is not None:
            from tdx.contracts import load_state

            loaded = load_state(stack, load)
            print(f"loaded {len(loaded)} tensors from {load}", file=sys.stderr)
        report = inspect_state(stack, config.env.id, steps=steps, seed=config.env.seed)
        calls = stack.calls
        if export is not None:
            from tdx.contracts import save_state

            names = save_state(stack, export, force=force)
            print(f"wrote {export} ({len(names)} tensors)", file=sys.stderr)
    write_view(state_view(report, calls), output)


def inspect_plan(
    pipeline: TargetOptions,
    output: DiagramOptions,
    policy_reads: PolicyReads = None,
    policy: PolicyName = None,
) -> None:
    """Show which stages run every step, which are deferred, and why.

    tdx inspect plan Pendulum-v1 -t RewardSum --policy-reads observation

    tdx inspect plan pendulum.yaml --format mermaid
    """
    from tdx.cli.output import write_view
    from tdx.cli.pipelines import open_env, read_pipeline
    from tdx.cli.views.plan import plan_diagram, plan_view
    from tdx.foundation.keys import normalize_key
    from tdx.inspection.plan_report import inspect_plan
    from tdx.stacks.native import format_stages

    config = read_pipeline(pipeline)
    reads = [normalize_key(tuple(key.split("."))) for key in policy_reads or ()] or None
    if reads and policy is not None:
        raise ArgumentError(
            "--policy and --policy-reads cannot be combined", hint="remove one of them"
        )
    with open_env(config, pipeline) as env:
        actor = None
        if policy is not None:
            from tdx.rollouts.policies.policy import load_actor

            actor = load_actor(config, env, name=policy, allow_code=pipeline.allow_code)
        report = inspect_plan(env, config.env.id, policy_reads=reads, policy=actor)
        calls = format_stages(env, config, expanded=True)
    if output.format is Format.MERMAID:
        sys.stdout.write(plan_diagram(report, calls))
    else:
        write_view(plan_view(report, calls), output)


A = Annotated[
    str,
    typer.Argument(
        metavar="A",
        help="Env id, pipeline file (- reads stdin), dump, module:function, or a contract.",
    ),
]
B = Annotated[
    str,
    typer.Argument(metavar="B", help="Target to compare A with: as A, but no contract."),
]
DiffSteps = Annotated[
    int | None,
    integer_option(
        "--steps", 0, "Compare the values of rollouts of N steps too; 0 compares without a step."
    ),
]
DiffSeed = Annotated[
    int | None,
    integer_option("--seed", 0, "Seed of both sides; 0 by default.", metavar="S"),
]


def diff(
    output: OutputOptions,
    a: A,
    b: B,
    steps: DiffSteps = None,
    seed: DiffSeed = None,
    allow_code: AllowCode = False,
    html: Page = None,
    force: ForcePage = False,
    samples: Samples = None,
    shrink: Shrink = None,
) -> int:
    """Compare two pipelines: stages, specs and values.

    If anything differs, both run in a few reference steps, which name the first stages that differ,
    and in what way. Functions that return an env, and contracts, are compared stage by stage, as by
    tdx contract diff, and so are pipelines with --out or --shrink; their libraries may differ.
    Deployment descriptors are compared as by tdx contract check. Policy checkpoints run on the
    samples of --samples, or on drawn ones. A pipeline is compared with a dump by running it with
    the seed and the actions of the dump; of two dumps, the recorded values are compared. Exits with
    0 if nothing differs, else with 1.

    tdx diff old.yaml new.yaml --steps 100

    tdx diff runs/pendulum new.yaml --steps 100
    """
    from tdx.cli.contract_runs import ReportFiles, diff_stacks, explain_differences, is_code
    from tdx.cli.output import write_view
    from tdx.cli.runtime import third_party_code
    from tdx.cli.views.comparisons import diff_view
    from tdx.foundation.files import is_contract
    from tdx.inspection.diff import compare_pipelines
    from tdx.stacks.building import build_stack
    from tdx.stacks.descriptors import is_descriptor, read_descriptor

    files = ReportFiles(html, shrink, force)
    has_files = html is not None or shrink is not None
    if (checkpoints := _checkpoints(a, b)) is not None and not has_files:
        from tdx.cli.progress import activity_on
        from tdx.inspection.checkpoint_diff import compare_checkpoints
        from tdx.rollouts.samples import read_samples
        from tdx.stacks.checkpoints.stack import CheckpointStack

        if steps is not None or seed is not None:
            raise ArgumentError(
                "--steps and --seed do not apply to policy checkpoints",
                hint="leave them out: both run on the same samples, drawn or those of --samples",
            )
        recorded = None if samples is None else read_samples(samples)
        with activity_on(sys.stderr) as show:
            progress = None if show is None else partial(show, "comparing samples")
            report = compare_checkpoints(*checkpoints, recorded, progress)
        if not report.same:
            opened = [partial(CheckpointStack, side, recorded) for side in checkpoints]
            report = explain_differences(report, opened, noun="first checkpoint")
        write_view(diff_view(report), output)
        return ExitCode.OK if report.same else ExitCode.FINDINGS
    if is_descriptor(b):
        from tdx.cli.pipelines import read_reference
        from tdx.cli.views.check import check_view
        from tdx.inspection.descriptor_check import compare_descriptors

        if any(value is not None for value in (steps, seed, html, samples, shrink)):
            raise ArgumentError(
                "--steps, --seed, --out, --samples and --shrink do not apply to deployment "
                "descriptors",
                hint="leave them out: a descriptor has no values",
            )
        compared = compare_descriptors(read_reference(a), read_descriptor(b))
        write_view(check_view(compared, None, None, verbose=False), output)
        return compared.exit_code(strict=True)
    if is_descriptor(a):
        raise ArgumentError(
            f"{a} is a deployment descriptor, and {b} is not",
            hint=f"compare it with another one, or with a contract: tdx diff {b} {a}",
        )
    if a == b == "-":
        raise ArgumentError("A and B cannot both be stdin", hint="name a file for one of them")
    has_dump = checkpoints is None and any(Path(path).is_dir() for path in (a, b))
    by_stage = any(is_code(target) or is_contract(target) for target in (a, b))
    if by_stage or (has_files and not has_dump):
        if steps is not None:
            raise ArgumentError(
                "--steps does not apply to stacks and contracts",
                hint="leave it out: they are compared in a few reference steps",
            )
        return diff_stacks(a, b, output, files, seed=seed, allow_code=allow_code, samples=samples)
    if samples is not None:
        raise ArgumentError(
            "--samples needs data pipelines or checkpoints",
            hint="name functions, module:function, or folders of checkpoints",
        )
    if seed is not None and steps == 0:
        raise ArgumentError("--seed has no effect with --steps 0", hint="remove one of them")
    if has_dump and seed is not None:
        raise ArgumentError("--seed has no effect with a dump, which has a seed", hint="remove it")
    files.check()
    smallest: list[Block] = []
    recorded_steps: int | None = None
    with third_party_code(), ExitStack() as stack:
        if has_dump:
            from tdx.cli.dump_sides import COMPARED_STEPS, DumpSide, compare_with_dump, open_sides

            sides = [stack.enter_context(closing(s)) for s in open_sides(a, b, allow_code)]
            dumps = [side.dump for side in sides if isinstance(side, DumpSide)]
            seed = dumps[0].manifest.seed
            if len(dumps) == len(sides):
                # Their values are there already.
                recorded_steps = min(dump.manifest.steps for dump in dumps)
                steps = min(recorded_steps, COMPARED_STEPS) if steps is None else steps
            noun = "reference"
            if Path(a).is_dir():
                noun = "first dump" if Path(b).is_dir() else "dump"
            report, smallest = compare_with_dump(
                *(sides, steps, seed or 0, noun, recorded_steps), files, allow_code=allow_code
            )
        else:
            sides = [
                stack.enter_context(closing(_pipeline_side(path, allow_code))) for path in (a, b)
            ]
            report = compare_pipelines(*sides, steps=steps or None, seed=seed or 0)
            # Rollouts that agree leave nothing to explain, whatever the arguments are.
            is_explained = not report.same if steps is None else not report.same_values
            if is_explained and steps != 0:
                stacks = [partial(build_stack, side.pipeline, allow_code) for side in sides]
                report = explain_differences(report, stacks, seed or 0)
    view = diff_view(report)
    files.write_view(view, output, [*view.blocks(), *smallest])
    return ExitCode.OK if report.same else ExitCode.FINDINGS


def _checkpoints(a: str, b: str) -> tuple[Checkpoint, Checkpoint] | None:
    """Read two policy checkpoints; ``None`` if neither side is one."""
    from tdx.stacks.checkpoints import is_checkpoint, read_checkpoint

    kinds = [is_checkpoint(side) for side in (a, b)]
    if not any(kinds):
        return None
    if not all(kinds):
        raise ArgumentError(
            f"{b if kinds[0] else a} is not a policy checkpoint, and {a if kinds[0] else b} is one",
            hint="compare two checkpoints",
        )
    return read_checkpoint(a), read_checkpoint(b)


def _pipeline_side(path: str, allow_code: bool) -> DiffSide:
    """Open a pipeline file, or an env without stages, as one side of the comparison."""
    from tdx.cli.pipelines import read_pipeline, with_target
    from tdx.inspection.diff import PipelineSide

    pipeline = read_pipeline(with_target(PipelineOptions(), path))
    return PipelineSide(pipeline.file or pipeline.env.id, pipeline, allow_code)


COMMANDS: Functions = {
    "inspect spec": inspect_spec,
    "inspect chain": inspect_chain,
    "inspect keys": inspect_keys,
    "inspect values": inspect_values,
    "inspect state": inspect_state,
    "inspect plan": inspect_plan,
    "diff": diff,
}
