"""Checks of a stack against a contract, and comparisons of two stacks."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, get_args

from tdx.cli.options import OutputOptions
from tdx.cli.pipelines import PipelineOptions, TargetOptions, given_options
from tdx.foundation.errors import ArgumentError

if TYPE_CHECKING:
    from tdx.contracts import Contract, ContractReport
    from tdx.contracts.shrinking import Counterexample
    from tdx.inspection.diff import DiffReport
    from tdx.stacks import Stack


def is_code(target: str) -> bool:
    """Return True for the name of a function: ``module:function`` or ``file.py:function``."""
    module, colon, name = target.rpartition(":")
    return bool(colon and module) and name.isidentifier() and not os.path.exists(target)


def check_against(
    options: TargetOptions,
    folder: str,
    output: OutputOptions,
    *,
    evaluation: bool,
    samples: str | None = None,
    shrink: str | None = None,
    tolerance: list[str] | None = None,
    stage: int | None = None,
) -> int:
    """Check an env against a contract, and write the report.

    With ``shrink``, the smallest case of the first difference is written to that folder; with
    ``stage``, this stage is checked alone, against a contract of it.
    """
    from tdx.cli.output import write_view
    from tdx.cli.pipelines import open_pipeline, read_pipeline
    from tdx.cli.views.comparisons import contract_view
    from tdx.contracts import check_contract, load_contract
    from tdx.contracts.tolerances import parse_tolerances, with_tolerances

    _check_new(shrink)
    contract = with_tolerances(load_contract(folder), parse_tolerances(tolerance))
    config = read_pipeline(options)
    with open_pipeline(config, options, samples=samples) as stack:
        target: object = stack
        if stage is not None:
            from tdx.contracts.shrinking import build_stage_alone

            target = build_stage_alone(stack, stage)
        report = check_contract(
            target, contract, config.env.id, evaluation=evaluation, reference=folder
        )
        if shrink is not None:
            command = _check_command(options, evaluation=evaluation, samples=samples)
            _write_smallest(shrink, target, contract, report, command)
    write_view(contract_view(report), output)
    return report.exit_code


def _check_new(shrink: str | None) -> None:
    if shrink is not None and os.path.lexists(shrink):
        raise ArgumentError(f"{shrink} already exists", hint="choose the path of a new folder")


def _write_smallest(
    folder: str, target: object, contract: Contract, report: ContractReport, command: Sequence[str]
) -> Counterexample | None:
    """Write the smallest case of the first difference, and a line about it on stderr.

    ``None``: nothing differs.
    """
    from tdx.contracts.shrinking import shrink_contract, write_counterexample
    from tdx.foundation.text import count_text

    if report.first is None:
        print("note: nothing differs, so nothing is written for --shrink", file=sys.stderr)
        return None
    smallest = shrink_contract(target, contract, report, evaluation="--eval" in command)
    write_counterexample(smallest, folder, command)
    parts = [f"{count_text(smallest.contract.steps, 'step')} of {contract.steps}"]
    if smallest.stage is not None:
        parts.append(f"stage {smallest.stage} alone")
    print(f"wrote {folder} ({', '.join(parts)})", file=sys.stderr)
    return smallest


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
    *,
    seed: int | None,
    allow_code: bool,
    html: str | None,
    force: bool,
    samples: str | None = None,
    shrink: str | None = None,
) -> int:
    """Compare two stacks, or a contract and a stack, and write the report.

    Args:
        a: The reference: function, pipeline file or contract.
        b: The other one.
        output: Output format.
        seed: Seed of the reference steps.
        allow_code: Allow importing the functions.
        html: File for an HTML report. ``None``: only the report on stdout.
        force: True to replace the HTML report.
        samples: Value of ``--samples``.
        shrink: Folder for the smallest case of the first difference. ``None``: write none.

    Returns:
        The exit code.
    """
    from tdx.cli.html import html_page
    from tdx.cli.output import check_target, write_file, write_view
    from tdx.cli.views.comparisons import (
        contract_view,
        counterexample_blocks,
        side_by_side_blocks,
    )
    from tdx.contracts import check_contract
    from tdx.contracts.shrinking import shrink_contract

    if html is not None:
        check_target(html, force=force)
    _check_new(shrink)
    with ExitStack() as opened:
        contract, target = _open_sides(opened, (a, b), seed, samples, allow_code=allow_code)
        report = check_contract(target, contract, b, reference=a)
        given = ["--allow-code"] if allow_code else []
        given += [] if samples is None else ["--samples", samples]
        smallest = None
        if shrink is not None:
            command = ["contract", "check", b, *given]
            smallest = _write_smallest(shrink, target, contract, report, command)
        elif html is not None and report.first is not None:
            smallest = shrink_contract(target, contract, report)
    if html is not None:
        command = ["tdx", "contract", "diff", a, b, *given, "--shrink", shrink or "smallest"]
        blocks = side_by_side_blocks(report)
        if smallest is not None:
            blocks += counterexample_blocks(smallest, contract.steps, command)
        write_file(html, html_page(blocks), force=force)
        print(f"wrote {html}", file=sys.stderr)
    write_view(contract_view(report), output)
    return report.exit_code


def explain_differences(
    report: DiffReport,
    stacks: Sequence[Callable[[], Stack]],
    seed: int = 0,
    noun: str = "reference",
) -> DiffReport:
    """Return a comparison with the stages that differ first, and the kind of each difference."""
    from tdx.contracts import diff_stacks as compare_stacks
    from tdx.foundation.errors import TdxError
    from tdx.foundation.text import count_text

    try:
        with ExitStack() as opened:
            one, other = (opened.enter_context(closing(open_side())) for open_side in stacks)
            found = compare_stacks(one, other, seed=seed, noun=noun)
    except TdxError as error:
        note = f"the differences are not explained: {error.message}"
        return replace(report, notes=(*report.notes, note))
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
