"""``tdx inspect``."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from tdx.cli.choices import DiagramFormat, number_option
from tdx.cli.env_completion import complete_key, complete_policy_key
from tdx.cli.options import DiagramOptions, OutputOptions, PipelineOptions
from tdx.cli.pipelines import PolicyName


def inspect_spec(
    pipeline: PipelineOptions,
    output: OutputOptions,
    stages: Annotated[
        bool, typer.Option("--stages", help="Show the specs after every stage.")
    ] = False,
    key: Annotated[
        str | None,
        typer.Option(
            "--key",
            metavar="KEY",
            autocompletion=complete_key,
            help="Follow one key through the chain; nested as agents.reward.",
        ),
    ] = None,
) -> None:
    """Compare the specs of an env before and after a chain, without stepping it.

    tdx inspect spec --env Pendulum-v1 --t StepCounter
    """
    from tdx.cli.output.write import write
    from tdx.cli.pipelines import built_env, read_pipeline
    from tdx.cli.views.specs import spec_view
    from tdx.inspection.spec_report import inspect_spec
    from tdx.inspection.stage_text import stage_texts

    config = read_pipeline(pipeline)
    with built_env(config, pipeline) as env:
        report = inspect_spec(env, config.env.id)
        calls = stage_texts(env, config)
    write(spec_view(report, calls, stages=stages, key=key), output)


def inspect_chain(pipeline: PipelineOptions, output: OutputOptions) -> None:
    """Say what each stage of a chain reads, writes, drops and renames, without stepping it.

    tdx inspect chain --env Pendulum-v1 --t StepCounter --t RewardSum
    """
    from tdx.cli.output.write import write
    from tdx.cli.pipelines import built_env, read_pipeline
    from tdx.cli.views.chain import chain_view
    from tdx.inspection.chain_report import inspect_chain
    from tdx.inspection.stage_text import stage_texts

    config = read_pipeline(pipeline)
    with built_env(config, pipeline) as env:
        report = inspect_chain(env, config.env.id)
        calls = stage_texts(env, config)
    write(chain_view(report, calls), output)


Keys = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[KEY]...",
        autocompletion=complete_key,
        help="The keys to trace; nested as agents.reward. All by default.",
    ),
]


def inspect_keys(pipeline: PipelineOptions, output: DiagramOptions, keys: Keys = None) -> None:
    """Trace keys through a chain: each version, who wrote it and who reads it.

    tdx inspect keys reward --env Pendulum-v1 --t RewardSum --t "RewardClipping(-1, 1)"
    """
    from tdx.cli.output.write import write
    from tdx.cli.pipelines import built_env, read_pipeline
    from tdx.cli.views.chain import lineage_diagram, lineage_view
    from tdx.inspection.lineage import inspect_keys
    from tdx.inspection.stage_text import stage_texts

    config = read_pipeline(pipeline)
    with built_env(config, pipeline) as env:
        lineage = inspect_keys(env, config.env.id).only(list(keys or ()))
        calls = stage_texts(env, config)
    if output.format is DiagramFormat.MERMAID:
        sys.stdout.write(lineage_diagram(lineage, calls))
    else:
        write(lineage_view(lineage, calls), output.output)


Steps = Annotated[
    int,
    number_option("--steps", 1, "How many steps to make after the reset."),
]


def inspect_values(
    pipeline: PipelineOptions,
    output: OutputOptions,
    steps: Steps = 1,
    policy: PolicyName = None,
    each: Annotated[
        bool, typer.Option("--each", help="Show every reset and step by itself.")
    ] = False,
) -> None:
    """Reset and step an env, and show what each stage really writes.

    Actions are those of --policy, or of the policy that the pipeline file names, or random. A value
    that is not what its spec says is marked, and the stage that lies is named.

    tdx inspect values --env Pendulum-v1 --t "RewardClipping(-1, 1)" --steps 100 --seed 0
    """
    from tdx.cli.output.write import write
    from tdx.cli.pipelines import acting, built_env, read_pipeline
    from tdx.cli.views.values import values_view
    from tdx.inspection.stage_text import stage_texts
    from tdx.inspection.values_report import inspect_values
    from tdx.pipeline.validation import add_line

    config = read_pipeline(pipeline)
    with built_env(config, pipeline) as env:
        actor = acting(policy, config, env, steps, allow_code=pipeline.allow_code)
        report = inspect_values(
            env, config.env.id, steps=steps, seed=config.env.seed, policy=actor, each=each
        )
        calls = stage_texts(env, config)
        if report.error is not None:
            add_line(report.error, config, env)
    write(values_view(report, calls), output)
    if report.error is not None:
        raise report.error


PolicyReads = Annotated[
    list[str] | None,
    typer.Option(
        "--policy-reads",
        metavar="KEY",
        autocompletion=complete_policy_key,
        help="A key that the policy reads, nested as agents.observation. Repeat it for several; "
        "without it, actions are random.",
    ),
]


def inspect_plan(
    pipeline: PipelineOptions, output: DiagramOptions, policy_reads: PolicyReads = None
) -> None:
    """Show how a rollout would run: which stages run in every step, which can wait, and why.

    tdx inspect plan --env Pendulum-v1 --t RewardSum --policy-reads observation
    """
    from tdx.cli.output.write import write
    from tdx.cli.pipelines import built_env, read_pipeline
    from tdx.cli.views.plan import plan_diagram, plan_view
    from tdx.inspection.plan_report import inspect_plan
    from tdx.inspection.stage_text import stage_texts
    from tdx.keys import normal_key

    config = read_pipeline(pipeline)
    reads = [normal_key(tuple(key.split("."))) for key in policy_reads or ()] or None
    with built_env(config, pipeline) as env:
        report = inspect_plan(env, config.env.id, policy_reads=reads)
        calls = stage_texts(env, config, expanded=True)
    if output.format is DiagramFormat.MERMAID:
        sys.stdout.write(plan_diagram(report, calls))
    else:
        write(plan_view(report, calls), output.output)
