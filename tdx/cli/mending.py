"""``tdx check --diff`` and ``--fix``: the mended pipeline, shown or written."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tdx.cli.options import PipelineOptions
from tdx.errors import ArgumentError, PipelineError

if TYPE_CHECKING:
    from tdx.inspection.lint.mend import Mended
    from tdx.inspection.lint.rule import Rule
    from tdx.pipeline import Pipeline, PipelineFile

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
        from tdx.pipeline.file.pipeline_file import PipelineFile

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
