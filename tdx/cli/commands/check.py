"""``tdx check``."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from tdx.cli.check_options import Diff, File, Fix, Ignore, Policy, Select, Strict
from tdx.cli.options import FindingsOptions, PipelineOptions

if TYPE_CHECKING:
    from tdx.pipeline import PipelineFile


def check(
    pipeline: PipelineOptions,
    output: FindingsOptions,
    file: File = None,
    policy: Policy = None,
    select: Select = None,
    ignore: Ignore = None,
    strict: Strict = False,
    diff: Diff = False,
    fix: Fix = False,
) -> int:
    """Check a pipeline: that it can be built, keeps what its specs promise, and breaks no rule.

    Ends with exit code 1 where an error or a warning is found, and with 3 where all is well but for
    a device that this machine does not have.

    tdx check --env Pendulum-v1 --t StepCounter
    """
    from tdx.cli.foreign_code import foreign_code
    from tdx.cli.mending import Mending
    from tdx.cli.source import read_source, with_file
    from tdx.cli.views.check_view import write_report
    from tdx.inspection.check_report import check_pipeline
    from tdx.inspection.lint.linter import select_rules

    rules = select_rules(_codes(select), _codes(ignore))
    options = with_file(pipeline, file)
    config, source = read_source(options)
    if policy is not None:
        config = replace(config, policy=policy)
    text = None if pipeline.transforms else _text(source)
    mending = None
    with foreign_code():
        if diff or fix:
            mending = Mending.of(config, source, options, rules, strict=strict)
            if fix:
                config = mending.written(diff)
                text = _text(source)
        report = check_pipeline(config, allow_code=pipeline.allow_code, rules=rules)
    told = None if mending is None else mending.told(fix=fix)
    write_report(report, rules, output, told, text)
    return report.exit_code(strict=strict)


def _text(source: PipelineFile | None) -> str | None:
    """The file as it is on disk."""
    return None if source is None else source.text.replace("\n", source.newline)


def _codes(given: list[str] | None) -> list[str]:
    """Codes that are given one by one or with commas between."""
    return [code for text in given or () for code in text.split(",") if code.strip()]
