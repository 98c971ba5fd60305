"""The options of ``tdx check``."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tdx.cli.completion import complete_rules
from tdx.cli.options import FindingsOptions, PipelineOptions
from tdx.errors import ArgumentError, PipelineError

if TYPE_CHECKING:
    from tdx.inspection.lint.mend import Mended
    from tdx.inspection.lint.rule import Rule
    from tdx.pipeline import Pipeline, PipelineFile


_RULES = "Rules"

File = Annotated[
    str | None,
    typer.Argument(metavar="FILE", help="A pipeline file; the same as --pipeline FILE."),
]
Policy = Annotated[
    str | None,
    typer.Option(
        "--policy",
        metavar="POLICY",
        help="The policy that is to run on it, random or module:name with --allow-code; "
        "what it reads and carries is checked too.",
        rich_help_panel="Pipeline",
    ),
]
Select = Annotated[
    list[str] | None,
    typer.Option(
        "--select",
        metavar="CODES",
        autocompletion=complete_rules,
        help="Look for these rules only: TDX421,TDX44. `tdx explain` lists them.",
        rich_help_panel=_RULES,
    ),
]
Ignore = Annotated[
    list[str] | None,
    typer.Option(
        "--ignore",
        metavar="CODES",
        autocompletion=complete_rules,
        help="Leave these rules out.",
        rich_help_panel=_RULES,
    ),
]
Strict = Annotated[
    bool,
    typer.Option("--strict", help="Let advice count like a warning.", rich_help_panel=_RULES),
]
Diff = Annotated[
    bool,
    typer.Option("--diff", help="Show the mended pipeline as a diff.", rich_help_panel=_RULES),
]
Fix = Annotated[
    bool,
    typer.Option(
        "--fix",
        help="Write the mended pipeline into its file; for --env and --t print its options.",
        rich_help_panel=_RULES,
    ),
]


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
    from tdx.cli.interrupts import foreign_code
    from tdx.cli.pipelines import read_source, with_file
    from tdx.cli.views.check import write_report
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


_STDIN = "<stdin>"


@dataclass(frozen=True, slots=True)
class Told:
    """What is said of a mended pipeline.

    Args:
        text: the whole that goes to stdout in the place of a table; none to show the findings.
        data: the same as plain data.
        narration: a line for stderr.
    """

    text: str | None
    data: dict[str, Any]
    narration: str | None = None


@dataclass(frozen=True, slots=True)
class Mending:
    """A pipeline, where it came from, and what became of it.

    Args:
        mended: the pipeline after its fixes.
        file: the file it came from, none for options.
        before: the text of that file as it was read.
    """

    mended: Mended
    file: PipelineFile | None
    before: str

    @classmethod
    def of(
        cls,
        pipeline: Pipeline,
        file: PipelineFile | None,
        options: PipelineOptions,
        rules: Sequence[Rule],
        *,
        strict: bool,
    ) -> Mending:
        """Mend a pipeline, and the text of its file.

        Raises:
            ArgumentError: some of its stages are in a file and some are not.
        """
        from tdx.inspection.lint.mend import mend

        if file is not None and options.transforms:
            raise ArgumentError(
                "stages given with --t are not in the file that is to be mended",
                hint="put them into the file, or give the whole chain with --env and --t",
            )
        mended = mend(pipeline, allow_code=options.allow_code, rules=rules, strict=strict)
        before = "" if file is None else file.text
        if file is not None:
            for _, fix in mended.fixes:
                fix.apply(file)
        return cls(mended, file, before)

    def written(self, shown_only: bool) -> Pipeline:
        """Write the file, unless it was changed meanwhile; returns what is left to check.

        Args:
            shown_only: whether a diff is asked for as well, which is refused.

        Raises:
            ArgumentError: both are asked for.
            PipelineError: the file on disk is no longer what was read, or cannot be written.
        """
        from tdx.pipeline.pipeline_file import PipelineFile

        if shown_only:
            raise ArgumentError("--diff and --fix are given", hint="--diff shows, --fix writes")
        file = self.file
        if file is None:
            return self.mended.pipeline
        if file.name != _STDIN and self.mended.fixes:
            if PipelineFile.load(file.name).text != self.before:
                raise PipelineError(
                    f"{file.name} was changed while it was checked", hint="run the command again"
                )
            file.save()
        return self._with_lines(file)

    def told(self, *, fix: bool) -> Told:
        """What is shown."""
        data: dict[str, Any] = {
            "fixes": [{"code": code, "title": each.title} for code, each in self.mended.fixes],
            "command": None if self.file is not None else self._command(),
            "diff": None if self.file is None else self._diff(),
        }
        if self.file is None:
            return Told(f"{self._command()}\n", data, self._narration("mended"))
        if fix and self.file.name == _STDIN:
            return Told(self.file.text, data, self._narration("mended"))
        if fix:
            return Told(None, data, self._narration(f"{self.file.name}: mended"))
        return Told(self._diff(), data)

    def _with_lines(self, file: PipelineFile) -> Pipeline:
        """The mended pipeline with the lines that its stages have in the file now."""
        return self.mended.pipeline.with_stages(*file.pipeline.transforms)

    def _command(self) -> str:
        from tdx.pipeline import to_command

        return to_command(self.mended.pipeline, "tdx check")

    def _diff(self) -> str:
        assert self.file is not None
        name = "pipeline" if self.file.name == _STDIN else self.file.name
        lines = difflib.unified_diff(
            self.before.splitlines(keepends=True),
            self.file.text.splitlines(keepends=True),
            name,
            name,
        )
        return "".join(line if line.endswith("\n") else f"{line}\n" for line in lines)

    def _narration(self, lead: str) -> str:
        titles = [f"{code} ({fix.title})" for code, fix in self.mended.fixes]
        return f"{lead} {', '.join(titles)}" if titles else "nothing to mend"


def narrate(text: str | None) -> None:
    """Write a line to stderr."""
    if text is not None:
        print(text, file=sys.stderr)
