"""``tdx check``."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from tdx.cli.completion import complete_rules
from tdx.cli.options import FindingsOptions, PipelineOptions

if TYPE_CHECKING:
    from tdx.pipeline import PipelineFile

_RULES = "Rules"


def check(
    pipeline: PipelineOptions,
    output: FindingsOptions,
    file: Annotated[
        str | None,
        typer.Argument(metavar="FILE", help="A pipeline file; the same as --pipeline FILE."),
    ] = None,
    policy: Annotated[
        str | None,
        typer.Option(
            "--policy",
            metavar="POLICY",
            help="The policy that is to run on it, random or module:name with --allow-code; "
            "what it reads and carries is checked too.",
            rich_help_panel="Pipeline",
        ),
    ] = None,
    select: Annotated[
        list[str] | None,
        typer.Option(
            "--select",
            metavar="CODES",
            autocompletion=complete_rules,
            help="Look for these rules only: TDX421,TDX44. `tdx explain` lists them.",
            rich_help_panel=_RULES,
        ),
    ] = None,
    ignore: Annotated[
        list[str] | None,
        typer.Option(
            "--ignore",
            metavar="CODES",
            autocompletion=complete_rules,
            help="Leave these rules out.",
            rich_help_panel=_RULES,
        ),
    ] = None,
    strict: Annotated[
        bool,
        typer.Option("--strict", help="Let advice count like a warning.", rich_help_panel=_RULES),
    ] = False,
    diff: Annotated[
        bool,
        typer.Option("--diff", help="Show the mended pipeline as a diff.", rich_help_panel=_RULES),
    ] = False,
    fix: Annotated[
        bool,
        typer.Option(
            "--fix",
            help="Write the mended pipeline into its file; for --env and --t print its options.",
            rich_help_panel=_RULES,
        ),
    ] = False,
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
    from tdx.inspection.lint.select import chosen_rules

    rules = chosen_rules(_codes(select), _codes(ignore))
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
