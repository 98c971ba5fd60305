"""``tdx check``, with ``--diff`` and ``--fix``."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from tdx.cli.completion import complete_codes, complete_rules
from tdx.cli.options import (
    FindingsOptions,
    Format,
    Functions,
    OutputOptions,
    configured_values,
    split_list,
)
from tdx.cli.pipelines import PipelineOptions, Samples, TargetOptions
from tdx.cli.runtime import json_text, write_verbatim
from tdx.foundation.errors import ArgumentError, PipelineError

if TYPE_CHECKING:
    from tdx.cli.views.check import FixEntries
    from tdx.inspection.check_report import CheckReport, FixedPipeline
    from tdx.inspection.dataset_check import DatasetFacts
    from tdx.inspection.lint.rule import Rule
    from tdx.pipeline import Pipeline, PipelineFile
    from tdx.stacks.descriptors import Descriptor

_RULES = "Rules"
_STDIN = "<stdin>"

Policy = Annotated[
    str | None,
    typer.Option(
        "--policy",
        metavar="POLICY",
        help="Policy to check with the chain: random, or module:name with --allow-code; includes "
        "the keys that it reads and its recurrent state.",
        rich_help_panel="Pipeline",
    ),
]
Select = Annotated[
    list[str] | None,
    typer.Option(
        "--select",
        metavar="CODES",
        autocompletion=complete_rules,
        help="Check only these rules: TDX421,TDX44. `tdx explain` lists them.",
        rich_help_panel=_RULES,
    ),
]
Ignore = Annotated[
    list[str] | None,
    typer.Option(
        "--ignore",
        metavar="CODES",
        autocompletion=complete_rules,
        help="Skip these rules.",
        rich_help_panel=_RULES,
    ),
]
Strict = Annotated[
    bool,
    typer.Option("--strict", help="Exit with 1 for suggestions too.", rich_help_panel=_RULES),
]
Diff = Annotated[
    bool,
    typer.Option("--diff", help="Show what --fix would change, as a diff.", rich_help_panel=_RULES),
]
Fix = Annotated[
    bool,
    typer.Option(
        "--fix",
        help="Write the safe fixes, which change no values, into the file; for an env and -t, "
        "print the fixed options.",
        rich_help_panel=_RULES,
    ),
]
UnsafeFixes = Annotated[
    bool,
    typer.Option(
        "--unsafe-fixes",
        help="Include fixes that change the values that the chain returns.",
        rich_help_panel=_RULES,
    ),
]
Verbose = Annotated[
    bool,
    typer.Option(
        "--verbose",
        "-v",
        help="Show the outcome of each check and the reason for each rule.",
        rich_help_panel="Output",
    ),
]

Code = Annotated[
    str | None,
    typer.Argument(
        metavar="CODE",
        autocompletion=complete_codes,
        help="Code of an error or of a rule of tdx check; lists all codes by default.",
    ),
]

Against = Annotated[
    str | None,
    typer.Option(
        "--against",
        metavar="FOLDER",
        hidden=True,
    ),
]

Data = Annotated[
    str | None,
    typer.Option(
        "--data",
        metavar="DATASET",
        help="Compare the statistics of a policy checkpoint with a LeRobot dataset.",
        rich_help_panel=_RULES,
    ),
]

Evaluation = Annotated[
    bool,
    typer.Option(
        "--eval",
        help="The env is used for evaluation: report stages that belong to training only, such as "
        "clipped rewards and normalizers that keep learning.",
        rich_help_panel=_RULES,
    ),
]


def check(
    pipeline: TargetOptions,
    output: FindingsOptions,
    policy: Policy = None,
    select: Select = None,
    ignore: Ignore = None,
    strict: Strict = False,
    diff: Diff = False,
    fix: Fix = False,
    unsafe_fixes: UnsafeFixes = False,
    evaluation: Evaluation = False,
    against: Against = None,
    data: Data = None,
    samples: Samples = None,
    verbose: Verbose = False,
) -> int:
    """Check a pipeline: build it, verify its specs, apply the rules.

    Exits with 1 if there is an error or a warning, and with 3 if the only problem is a device that
    this machine does not have. A comment at a stage, # tdx: ignore[TDX422], switches a rule off.

    tdx check Pendulum-v1 -t StepCounter

    tdx check pendulum.yaml --diff --unsafe-fixes
    """
    from tdx.cli.pipelines import find_checkpoint, find_descriptor, read_source, with_target
    from tdx.cli.runtime import third_party_code
    from tdx.inspection.check_report import check_pipeline
    from tdx.stacks.checkpoints import is_dataset

    if (descriptor := find_descriptor(pipeline)) is not None:
        from tdx.inspection.descriptor_check import check_descriptor, compare_descriptors

        given = {"--policy": policy, "--diff": diff, "--fix": fix, "--eval": evaluation}
        given |= {"--data": data, "--samples": samples, "--unsafe-fixes": unsafe_fixes}
        for option in (name for name, value in given.items() if value):
            raise ArgumentError(f"{option} does not apply to a deployment descriptor")
        chosen = split_list(select), split_list(ignore)
        if against is None:
            checked = check_descriptor(descriptor, *chosen)
        else:
            checked = compare_descriptors(_reference(against), descriptor, *chosen)
        _write_report(checked, (), output, None, None, verbose=verbose)
        return checked.exit_code(strict=strict)
    if against is not None:
        from tdx.cli.contract_runs import check_against

        others = {"--policy": policy, "--select": select, "--ignore": ignore, "--strict": strict}
        others |= {"--diff": diff, "--fix": fix, "--unsafe-fixes": unsafe_fixes}
        for option in (name for name, value in others.items() if value):
            raise ArgumentError(
                f"{option} does not apply to a contract", hint=f"leave out {option} or --against"
            )
        return check_against(pipeline, against, output, evaluation=evaluation, samples=samples)
    if pipeline.target is not None and is_dataset(pipeline.target):
        from tdx.inspection.dataset_check import check_dataset

        chosen = split_list(select), split_list(ignore)
        checked = check_dataset(_facts(pipeline.target), *chosen)
        _write_report(checked, (), output, None, None, verbose=verbose)
        return checked.exit_code(strict=strict)
    if (checkpoint := find_checkpoint(pipeline)) is not None:
        from tdx.inspection.checkpoint_check import check_checkpoint

        given = {"--policy": policy, "--diff": diff, "--fix": fix, "--eval": evaluation}
        for option in (name for name, value in given.items() if value):
            raise ArgumentError(f"{option} does not apply to a policy checkpoint")
        chosen = split_list(select), split_list(ignore)
        if data is None:
            checked = check_checkpoint(checkpoint, *chosen)
        else:
            from tdx.inspection.dataset_check import check_against_data

            checked = check_against_data(checkpoint, _facts(data), *chosen)
        _write_report(checked, (), output, None, None, verbose=verbose)
        return checked.exit_code(strict=strict)
    if data is not None:
        raise ArgumentError("--data needs a policy checkpoint", hint="tdx check FOLDER --data DATA")
    options = with_target(pipeline)
    config, source = read_source(options)
    rules = _rules(config, select, ignore)
    if policy is not None:
        config = replace(config, policy=policy)
    if diff and fix:
        raise ArgumentError("--diff and --fix cannot be combined", hint="remove one of them")
    if unsafe_fixes and not (diff or fix):
        raise ArgumentError("--unsafe-fixes alone has no effect", hint="add --fix or --diff")
    fixes = None
    report = None
    if samples is not None and not config.is_factory:
        raise ArgumentError("--samples needs --against or module:function", hint="leave it out")
    if config.is_factory:
        report = _check_stack(config, options, rules, samples, evaluation=evaluation)
        if report is not None and (diff or fix):
            print(f"nothing to fix: the stages of {config.env.id} are Python code", file=sys.stderr)
    if report is not None:
        _write_report(report, rules, output, None, None, verbose=verbose)
        return report.exit_code(strict=strict)
    with third_party_code():
        if diff or fix:
            fixes = Fixes.find(config, source, options, rules, strict=strict, unsafe=unsafe_fixes)
            if fix:
                config = fixes.write()
        report = check_pipeline(
            config, allow_code=pipeline.allow_code, rules=rules, evaluation=evaluation
        )
    text = None if pipeline.transforms or source is None else _text_on_disk(source)
    changes = None if fixes is None else fixes.output(fix=fix)
    _write_report(report, rules, output, changes, text, verbose=verbose)
    return report.exit_code(strict=strict)


def _reference(path: str) -> Descriptor:
    """Read the descriptor that another one is compared with."""
    from tdx.stacks.descriptors import is_descriptor, read_descriptor

    if not is_descriptor(path):
        raise ArgumentError(
            f"{path} is not a deployment descriptor",
            hint="compare a descriptor with another one: an ONNX file of mjlab, or the IO "
            "descriptors of Isaac Lab",
        )
    return read_descriptor(path)


def _facts(path: str) -> DatasetFacts:
    """Read a dataset, and compute the statistics of its data."""
    from tdx.cli.progress import activity_on
    from tdx.inspection.dataset_check import DatasetFacts
    from tdx.stacks.checkpoints import read_dataset
    from tdx.stacks.checkpoints.dataset import compute_statistics

    dataset = read_dataset(path)
    with activity_on(sys.stderr) as show:
        progress = None if show is None else partial(show, "reading steps")
        return DatasetFacts(dataset, compute_statistics(dataset, on_progress=progress))


def _rules(
    config: Pipeline, select: list[str] | None, ignore: list[str] | None
) -> tuple[Rule, ...]:
    """Select the rules: the options come first, then the pipeline, then the user's settings."""
    from tdx.inspection.lint.linter import rules_of

    settings = configured_values(("check_select", "check_ignore"))
    chosen = split_list(select)
    if not chosen and not config.check.select:
        chosen = split_list([settings.get("check_select") or ""])
    skipped = [*split_list(ignore), *split_list([settings.get("check_ignore") or ""])]
    return rules_of(config, chosen, skipped)


def _check_stack(
    config: Pipeline,
    options: PipelineOptions,
    rules: Sequence[Rule],
    samples: str | None,
    *,
    evaluation: bool,
) -> CheckReport | None:
    """Check the env that a factory returns; ``None`` if the pipeline has invalid arguments."""
    from tdx.cli.runtime import third_party_code
    from tdx.inspection.check_report import check_pipeline
    from tdx.inspection.stack_check import check as check_stack
    from tdx.pipeline import check_arguments
    from tdx.rollouts.samples import read_samples
    from tdx.stacks.building import build_stack

    if check_arguments(config, options.allow_code):
        return None
    with third_party_code():
        stack = build_stack(
            config, options.allow_code, None if samples is None else read_samples(samples)
        )
        try:
            if config.policy not in (None, "random"):
                if (base := stack.chain_env) is not None:
                    return check_pipeline(
                        config, allow_code=True, rules=rules, base=base, evaluation=evaluation
                    )
                raise ArgumentError(
                    f"--policy does not apply to a stack of the kind {stack.kind!r}",
                    hint="leave it out: the steps of the check have random actions",
                )
            seed = config.env.seed
            return check_stack(stack, config.env.id, seed=seed, rules=rules, evaluation=evaluation)
        finally:
            stack.close()


def _text_on_disk(source: PipelineFile) -> str:
    return source.text.replace("\n", source.newline)


def _write_report(
    report: CheckReport,
    rules: Sequence[Rule],
    options: FindingsOptions,
    fixes: FixOutput | None,
    text: str | None,
    *,
    verbose: bool,
) -> None:
    """Write the findings, or the fixes, in the requested format.

    Args:
        report: Findings.
        rules: Rules that were checked.
        options: Output format.
        fixes: Output of ``--diff`` and ``--fix``.
        text: Text of the file that contains the whole pipeline. ``None``: no such file.
        verbose: Show the outcome of each check and the reason for each rule.
    """
    from tdx.cli.output import write_view
    from tdx.cli.views.check import check_view

    if fixes is not None and fixes.message is not None:
        print(fixes.message, file=sys.stderr)
    if options.format is Format.SARIF:
        from tdx.cli.views.check import sarif

        log = sarif(report, [rule.code for rule in rules], text)
        sys.stdout.write(json_text(log, sys.stdout, indent=2))
    elif fixes is not None and fixes.text is not None and options.format is Format.TABLE:
        write_verbatim(fixes.text)
    else:
        data = None if fixes is None else fixes.data
        write_view(check_view(report, data, text, verbose=verbose), options)


@dataclass(frozen=True, slots=True)
class FixOutput:
    """Output of ``--diff`` and ``--fix``.

    Args:
        text: Text for stdout instead of the findings. ``None``: show the findings.
        data: The fixes as plain data.
        message: Line for stderr.
    """

    text: str | None
    data: FixEntries
    message: str | None = None


@dataclass(frozen=True, slots=True)
class Fixes:
    """A fixed pipeline and the file that it comes from.

    Args:
        result: Pipeline with its fixes.
        file: File with the fixes applied. ``None``: the pipeline comes from options.
        original_text: Text of the file before the fixes.
    """

    result: FixedPipeline
    file: PipelineFile | None
    original_text: str

    @classmethod
    def find(
        cls,
        pipeline: Pipeline,
        file: PipelineFile | None,
        options: PipelineOptions,
        rules: Sequence[Rule],
        *,
        strict: bool,
        unsafe: bool,
    ) -> Fixes:
        """Apply the fixes of the rules to a pipeline and to the text of its file.

        Raises:
            ArgumentError: Some stages come from the file and some from options.
        """
        from tdx.inspection.check_report import fix_pipeline

        if file is not None and options.transforms:
            raise ArgumentError(
                "stages from --t cannot be fixed together with a file",
                hint="add them to the file, or pass the whole chain with --env and --t",
            )
        result = fix_pipeline(
            pipeline,
            allow_code=options.allow_code,
            rules=rules,
            strict=strict,
            unsafe=unsafe,
        )
        original_text = "" if file is None else file.text
        if file is not None:
            for _, fix in result.fixes:
                file.write(fix.apply(file.draft))
        return cls(result, file, original_text)

    def write(self) -> Pipeline:
        """Write the fixed file unless it changed on disk; return the fixed pipeline.

        Raises:
            PipelineError: The file changed on disk or cannot be written.
        """
        from tdx.pipeline import PipelineFile

        file = self.file
        if file is None:
            return self.result.pipeline
        if file.name != _STDIN and self.result.fixes:
            if PipelineFile.load(file.name).text != self.original_text:
                raise PipelineError(
                    f"{file.name} changed during the check", hint="run the command again"
                )
            file.save()
        # The stages of the file have the line numbers after the fixes.
        return self.result.pipeline.with_stages(*file.pipeline.transforms)

    def output(self, *, fix: bool) -> FixOutput:
        """Return what to print; with ``fix`` the file has been written."""
        data: FixEntries = {
            "fixes": [{"code": code, "title": fix.title} for code, fix in self.result.fixes],
            "command": None if self.file is not None else self._command(),
            "diff": None if self.file is None else self._diff(),
        }
        if self.file is None:
            return FixOutput(f"{self._command()}\n", data, self._message("fixed"))
        if fix and self.file.name == _STDIN:
            return FixOutput(self.file.text, data, self._message("fixed"))
        if fix:
            return FixOutput(None, data, self._message(f"{self.file.name}: fixed"))
        return FixOutput(self._diff(), data, self._message("would fix"))

    def _command(self) -> str:
        from tdx.pipeline import to_command

        return to_command(self.result.pipeline, "tdx check")

    def _diff(self) -> str:
        assert self.file is not None
        name = "pipeline" if self.file.name == _STDIN else self.file.name
        lines = difflib.unified_diff(
            self.original_text.splitlines(keepends=True),
            self.file.text.splitlines(keepends=True),
            name,
            name,
        )
        return "".join(line if line.endswith("\n") else f"{line}\n" for line in lines)

    def _message(self, lead: str) -> str:
        from tdx.foundation.text import count_text

        titles = [f"{code} ({fix.title})" for code, fix in self.result.fixes]
        if not titles:
            return "nothing to fix"
        return f"{lead} {count_text(len(titles), 'issue')}: {', '.join(titles)}"


def explain(output: OutputOptions, code: Code = None) -> None:
    """Explain an error or rule, and how to fix it.

    tdx explain TDX421

    tdx explain --format md
    """
    from tdx.cli.output import write_view
    from tdx.cli.views.check import codes_view, explain_view
    from tdx.inspection.explanations import all_explanations, explain_code

    if code is None:
        write_view(codes_view(all_explanations()), output)
    else:
        write_view(explain_view(explain_code(code)), output)


COMMANDS: Functions = {
    "check": check,
    "explain": explain,
}
