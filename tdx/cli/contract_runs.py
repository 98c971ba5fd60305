"""Checks of a stack against a contract, and comparisons of two stacks."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from tdx.cli.options import OutputOptions
from tdx.cli.pipelines import PipelineOptions, TargetOptions, given_options
from tdx.foundation.errors import ArgumentError

if TYPE_CHECKING:
    from tdx.cli.views import Block, View
    from tdx.contracts import Contract, ContractReport
    from tdx.inspection.diff import DiffReport
    from tdx.pipeline import Pipeline
    from tdx.stacks import Stack

_PAGE_FOLDER = "-smallest"
"""End of the name of the folder that a page has beside it."""


@dataclass(frozen=True, slots=True)
class ReportFiles:
    """The files of a comparison: a page, and the smallest case of the first difference.

    Args:
        page: File for an HTML page. ``None``: none.
        shrink: Folder for the smallest case. ``None``: beside the page.
        force: True to replace what an earlier run wrote.
    """

    page: str | None = None
    shrink: str | None = None
    force: bool = False

    @property
    def folder(self) -> str | None:
        """Folder for the smallest case; ``None`` without files, or if the page is no file."""
        if self.shrink is not None or self.page is None:
            return self.shrink
        page = Path(self.page)
        is_stream = self.page == "-" or (page.exists() and not page.is_file())
        return None if is_stream else str(page.with_name(f"{page.stem}{_PAGE_FOLDER}"))

    def check(self) -> None:
        """Raise an error if a file exists that may not be replaced."""
        from tdx.cli.output import check_target

        if self.page is not None:
            check_target(self.page, force=self.force)
        if self.folder is None or not os.path.lexists(self.folder):
            return
        if not (self.force and os.path.exists(os.path.join(self.folder, "reproduce.py"))):
            hint = "choose the path of a new folder"
            if self.shrink is None:
                hint = "name another page, or another folder with --shrink; --force replaces "
                hint += "the folder of an earlier page"
            raise ArgumentError(f"{self.folder} already exists", hint=hint)

    def write_smallest(
        self,
        target: object,
        contract: Contract,
        report: ContractReport,
        command: Sequence[str],
        pipeline: Pipeline | None = None,
    ) -> list[Block]:
        """Write the smallest case of the first difference; return what the page says about it.

        Args:
            target: The env that was compared.
            contract: The contract that it was compared with.
            report: What differs.
            command: Arguments of a check of the target, without those of its contract.
            pipeline: Pipeline of a target without a file, which the folder then contains.
        """
        from tdx.cli.views.comparisons import counterexample_blocks
        from tdx.contracts.shrinking import shrink_contract, write_counterexample
        from tdx.foundation.text import count_text
        from tdx.pipeline.file.pipeline_text import write_pipeline

        if self.page is None and self.shrink is None:
            return []
        if report.first is None:
            if self.shrink is not None:
                print("note: nothing differs, so nothing is written for --shrink", file=sys.stderr)
            return []
        smallest = shrink_contract(target, contract, report, evaluation="--eval" in command)
        size = f"{count_text(smallest.contract.steps, 'step')} of {contract.steps}"
        size += "" if smallest.stage is None else f", stage {smallest.stage} alone"
        if self.folder is not None:
            files = {}
            if pipeline is not None:
                files["target.yaml"] = write_pipeline(pipeline)
                command = [*command, os.path.join(self.folder, "target.yaml")]
            write_counterexample(smallest, self.folder, command, files)
            print(f"wrote {self.folder} ({size})", file=sys.stderr)
        return counterexample_blocks(smallest, size, self.folder)

    def write_view(self, view: View, output: OutputOptions, page: Iterable[Block]) -> None:
        """Write the page, if there is one, and what the command prints.

        Args:
            view: What the command prints, unless the page goes to stdout.
            output: Output format.
            page: Blocks of the page.
        """
        from tdx.cli.html import html_page
        from tdx.cli.output import STDOUT, write_file, write_view

        if self.page is not None:
            write_file(self.page, html_page(page), force=self.force)
        if self.page == STDOUT:
            return
        if self.page is not None:
            print(f"wrote {self.page}", file=sys.stderr)
        write_view(view, output)


def is_code(target: str) -> bool:
    """Return True for the name of a function: ``module:function`` or ``file.py:function``."""
    module, colon, name = target.rpartition(":")
    return bool(colon and module) and name.isidentifier() and not os.path.exists(target)


def check_against(
    options: TargetOptions,
    folder: str,
    output: OutputOptions,
    files: ReportFiles,
    *,
    evaluation: bool,
    samples: str | None = None,
    tolerance: list[str] | None = None,
    stage: int | None = None,
) -> int:
    """Check an env against a contract, and write the report.

    With ``stage``, this stage of the env is checked alone, against a contract of it.
    """
    from tdx.cli.pipelines import open_pipeline, read_pipeline
    from tdx.contracts import check_contract, load_contract
    from tdx.contracts.tolerances import parse_tolerances, with_tolerances

    files.check()
    contract = with_tolerances(load_contract(folder), parse_tolerances(tolerance))
    config = read_pipeline(options)
    with open_pipeline(config, options, samples=samples) as stack:
        target: object = stack
        if stage is not None:
            from tdx.contracts.shrinking import build_stage_alone

            target = build_stage_alone(stack, stage)
        command = _check_command(options, evaluation=evaluation, samples=samples)
        report = check_contract(
            target, contract, config.env.id, evaluation=evaluation, reference=folder
        )
        smallest = files.write_smallest(target, contract, report, command)
    return _write_report(report, smallest, output, files)


def _write_report(
    report: ContractReport, smallest: Sequence[Block], output: OutputOptions, files: ReportFiles
) -> int:
    """Write the report and return the exit code."""
    from tdx.cli.views.comparisons import contract_view, side_by_side_blocks

    page = [] if files.page is None else [*side_by_side_blocks(report), *smallest]
    files.write_view(contract_view(report), output, page)
    return report.exit_code


def _check_command(options: TargetOptions, *, evaluation: bool, samples: str | None) -> list[str]:
    """Return the arguments of a check of the same target, without those of its contract."""
    arguments = ["contract", "check"]
    if options.target is not None:
        arguments.append(options.target)
    for name, value in given_options(options):
        arguments += [name] if value is None else [name, value]
    if evaluation:
        arguments.append("--eval")
    if samples is not None:
        arguments += ["--samples", samples]
    return arguments


def diff_stacks(
    a: str,
    b: str,
    output: OutputOptions,
    files: ReportFiles,
    *,
    seed: int | None,
    allow_code: bool,
    samples: str | None = None,
) -> int:
    """Compare two stacks, or a contract and a stack, and write the report.

    Args:
        a: The reference: function, pipeline file or contract.
        b: The other one.
        output: Output format.
        files: Files of the report.
        seed: Seed of the reference steps.
        allow_code: Allow importing the functions.
        samples: Value of ``--samples``.

    Returns:
        The exit code.
    """
    from tdx.contracts import check_contract

    files.check()
    command = ["contract", "check", b]
    command += ["--allow-code"] if allow_code else []
    command += [] if samples is None else ["--samples", samples]
    with ExitStack() as opened:
        contract, target = _open_sides(opened, (a, b), seed, samples, allow_code=allow_code)
        report = check_contract(target, contract, b, reference=a)
        smallest = files.write_smallest(target, contract, report, command)
    return _write_report(report, smallest, output, files)


def explain_differences(
    report: DiffReport,
    stacks: Sequence[Callable[[], Stack]],
    seed: int = 0,
    noun: str = "reference",
    on_difference: Callable[[Stack, Contract, ContractReport], None] | None = None,
) -> DiffReport:
    """Return a comparison with the stages that differ first, and the kind of each difference.

    If the sides differ, ``on_difference`` is called with the second side, a contract of the first
    one, and the result.
    """
    from tdx.compare.model import Part
    from tdx.contracts import check_contract, freeze
    from tdx.foundation.errors import TdxError
    from tdx.foundation.text import count_text

    with ExitStack() as opened:
        try:
            one, other = (opened.enter_context(closing(open_side())) for open_side in stacks)
            contract = replace(freeze(one, seed=seed, compare=get_args(Part)), noun=noun)
            found = check_contract(other, contract, report.b, reference=report.a)
        except TdxError as error:
            note = f"the differences are not explained: {error.message}"
            return replace(report, notes=(*report.notes, note))
        if on_difference is not None:
            on_difference(other, contract, found)
    steps = count_text(found.steps, "reference step")
    note = f"{'explained by' if found.causes else 'no stage differs in'} {steps}: {found.coverage}"
    return replace(
        report,
        differences=found.causes,
        follows=found.follows,
        notes=(*report.notes, note),
    )


def _open_sides(
    opened: ExitStack,
    sides: tuple[str, str],
    seed: int | None,
    samples: str | None,
    *,
    allow_code: bool,
) -> tuple[Contract, Stack]:
    """Return the contract of the first side, and the second side."""
    from tdx.compare.model import Part
    from tdx.contracts import freeze, load_contract
    from tdx.foundation.files import is_contract

    a, b = sides
    if is_contract(b):
        if not is_contract(a):
            raise ArgumentError(f"{b} is a contract, and {a} is not", hint=f"run tdx diff {b} {a}")
        raise ArgumentError("A and B are contracts", hint="name an env for B: it is run")
    if is_contract(a):
        contract = load_contract(a)
        return contract, opened.enter_context(_open(b, samples, allow_code))
    one = opened.enter_context(_open(a, samples, allow_code))
    other = opened.enter_context(_open(b, samples, allow_code))
    contract = freeze(one, seed=seed or 0, compare=get_args(Part))
    return replace(contract, noun="reference"), other


@contextmanager
def _open(target: str, samples: str | None, allow_code: bool) -> Iterator[Stack]:
    from tdx.cli.pipelines import open_pipeline, read_pipeline, with_target

    options = with_target(PipelineOptions(allow_code=allow_code), target)
    with open_pipeline(read_pipeline(options), options, samples=samples) as stack:
        yield stack
