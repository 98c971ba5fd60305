"""``tdx inspect plan``."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from tdx.cli.choices import DiagramFormat
from tdx.cli.key_completion import complete_policy_key
from tdx.cli.options import DiagramOptions, PipelineOptions

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
    from tdx.cli.source import built_env, read_pipeline
    from tdx.cli.views.plan_diagram import plan_diagram
    from tdx.cli.views.plan_view import plan_view
    from tdx.inspection.chain import format_stages
    from tdx.inspection.plan_report import inspect_plan
    from tdx.keys import normal_key

    config = read_pipeline(pipeline)
    reads = [normal_key(tuple(key.split("."))) for key in policy_reads or ()] or None
    with built_env(config, pipeline) as env:
        report = inspect_plan(env, config.env.id, policy_reads=reads)
        calls = format_stages(env, config, expanded=True)
    if output.format is DiagramFormat.MERMAID:
        sys.stdout.write(plan_diagram(report, calls))
    else:
        write(plan_view(report, calls), output.output)
