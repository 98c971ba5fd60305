"""``tdx inspect``: specs, stages, keys, values and plan of a chain."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from tdx.cli.choices import DiagramFormat, integer_option
from tdx.cli.env_completion import complete_key, complete_policy_key
from tdx.cli.options import DiagramOptions, OutputOptions, PipelineOptions
from tdx.cli.pipelines import PolicyName

Stages = Annotated[bool, typer.Option("--stages", help="Show the specs after each stage.")]
Key = Annotated[
    str | None,
    typer.Option(
        "--key",
        metavar="KEY",
        autocompletion=complete_key,
        help="Follow one key through the chain; write a nested key as agents.reward.",
    ),
]
Keys = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[KEY]...",
        autocompletion=complete_key,
        help="Keys to trace, nested ones as agents.reward; all by default.",
    ),
]
Steps = Annotated[int, integer_option("--steps", 1, "Number of steps after the reset.")]
Each = Annotated[bool, typer.Option("--each", help="Show each reset and step separately.")]
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
    pipeline: PipelineOptions, output: OutputOptions, stages: Stages = False, key: Key = None
) -> None:
    """Compare the specs of an env before and after a chain, without stepping it.

    tdx inspect spec --env Pendulum-v1 --t StepCounter
    """
    from tdx.cli.output.write import write_view
    from tdx.cli.pipelines import open_stack, read_pipeline
    from tdx.cli.views.specs import spec_view
    from tdx.inspection.chain_report import format_calls
    from tdx.inspection.spec_report import inspect_spec

    config = read_pipeline(pipeline)
    with open_stack(config, pipeline) as stack:
        report = inspect_spec(stack, config.env.id)
        calls = format_calls(stack, config)
    write_view(spec_view(report, calls, stages=stages, key=key), output)


def inspect_chain(pipeline: PipelineOptions, output: OutputOptions) -> None:
    """Show what each stage of a chain reads, writes, drops and renames, without stepping it.

    tdx inspect chain --env Pendulum-v1 --t StepCounter --t RewardSum
    """
    from tdx.cli.output.write import write_view
    from tdx.cli.pipelines import open_stack, read_pipeline
    from tdx.cli.views.chain import chain_view
    from tdx.inspection.chain_report import format_calls, inspect_chain

    config = read_pipeline(pipeline)
    with open_stack(config, pipeline) as stack:
        report = inspect_chain(stack, config.env.id)
        calls = format_calls(stack, config)
    write_view(chain_view(report, calls), output)


def inspect_keys(pipeline: PipelineOptions, output: DiagramOptions, keys: Keys = None) -> None:
    """Trace keys through a chain: each version, its writer and its readers.

    tdx inspect keys reward --env Pendulum-v1 --t RewardSum --t "RewardClipping(-1, 1)"
    """
    from tdx.cli.output.write import write_view
    from tdx.cli.pipelines import open_stack, read_pipeline
    from tdx.cli.views.chain import lineage_diagram, lineage_view
    from tdx.inspection.chain_report import format_calls
    from tdx.inspection.lineage import inspect_keys

    config = read_pipeline(pipeline)
    with open_stack(config, pipeline) as stack:
        lineage = inspect_keys(stack, config.env.id).only(list(keys or ()))
        calls = format_calls(stack, config)
    if output.format is DiagramFormat.MERMAID:
        sys.stdout.write(lineage_diagram(lineage, calls))
    else:
        write_view(lineage_view(lineage, calls), output.output)


def inspect_values(
    pipeline: PipelineOptions,
    output: OutputOptions,
    steps: Steps = 1,
    policy: PolicyName = None,
    each: Each = False,
) -> None:
    """Reset and step an env, and show the values that each stage writes.

    Actions come from --policy, from the policy of the pipeline file, or are random. Values outside
    their spec are marked, and the stage that violates its spec is named.

    tdx inspect values --env Pendulum-v1 --t "RewardClipping(-1, 1)" --steps 100 --seed 0
    """
    from tdx.cli.output.write import write_view
    from tdx.cli.pipelines import load_stack_policy, open_stack, read_pipeline
    from tdx.cli.views.values import values_view
    from tdx.inspection.chain_report import format_calls
    from tdx.inspection.values_report import inspect_values
    from tdx.pipeline.build import add_source_line

    config = read_pipeline(pipeline)
    with open_stack(config, pipeline) as stack:
        actor = load_stack_policy(policy, config, stack, steps, allow_code=pipeline.allow_code)
        report = inspect_values(
            stack, config.env.id, steps=steps, seed=config.env.seed, policy=actor, each=each
        )
        calls = format_calls(stack, config)
        if report.error is not None:
            add_source_line(report.error, config, stack.target)
    write_view(values_view(report, calls), output)
    if report.error is not None:
        raise report.error


def inspect_plan(
    pipeline: PipelineOptions, output: DiagramOptions, policy_reads: PolicyReads = None
) -> None:
    """Show how a rollout runs: which stages run in each step, which are deferred, and why.

    tdx inspect plan --env Pendulum-v1 --t RewardSum --policy-reads observation
    """
    from tdx.cli.output.write import write_view
    from tdx.cli.pipelines import open_env, read_pipeline
    from tdx.cli.views.plan import plan_diagram, plan_view
    from tdx.inspection.chain import format_stages
    from tdx.inspection.plan_report import inspect_plan
    from tdx.keys import normalize_key

    config = read_pipeline(pipeline)
    reads = [normalize_key(tuple(key.split("."))) for key in policy_reads or ()] or None
    with open_env(config, pipeline) as env:
        report = inspect_plan(env, config.env.id, policy_reads=reads)
        calls = format_stages(env, config, expanded=True)
    if output.format is DiagramFormat.MERMAID:
        sys.stdout.write(plan_diagram(report, calls))
    else:
        write_view(plan_view(report, calls), output.output)
