"""``tdx inspect chain``."""

from __future__ import annotations

from tdx.cli.options import OutputOptions, PipelineOptions


def inspect_chain(pipeline: PipelineOptions, output: OutputOptions) -> None:
    """Say what each stage of a chain reads, writes, drops and renames, without stepping it.

    tdx inspect chain --env Pendulum-v1 --t StepCounter --t RewardSum
    """
    from tdx.cli.output.write import write
    from tdx.cli.source import built_env, read_pipeline
    from tdx.cli.views.chain_view import chain_view
    from tdx.inspection.chain import format_stages, inspect_chain

    config = read_pipeline(pipeline)
    with built_env(config, pipeline) as env:
        report = inspect_chain(env, config.env.id)
        calls = format_stages(env, config)
    write(chain_view(report, calls), output)
