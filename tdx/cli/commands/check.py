"""``tdx check``."""

from __future__ import annotations

from tdx.cli.options import OutputOptions, PipelineOptions
from tdx.errors import ExitCode


def check(pipeline: PipelineOptions, output: OutputOptions) -> int:
    """Check a pipeline: that it can be built, and that env and chain keep what their specs promise.

    Ends with exit code 1 where something is found.

    tdx check --env Pendulum-v1 --t StepCounter
    """
    from tdx.cli.foreign_code import foreign_code
    from tdx.cli.output.write import write
    from tdx.cli.source import read_pipeline
    from tdx.cli.views.check_view import check_view
    from tdx.inspection.check_report import check_pipeline

    config = read_pipeline(pipeline)
    with foreign_code():
        report = check_pipeline(config, allow_code=pipeline.allow_code)
    write(check_view(report), output)
    return ExitCode.OK if report.ok else ExitCode.FINDINGS
