"""``tdx check`` of one or many targets, with ``--diff`` and ``--fix``."""

from __future__ import annotations

import difflib
import sys
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Annotated

import typer

from tdx.cli.completion import complete_codes, complete_rules, complete_target
from tdx.cli.options import (
    FindingsOptions,
    Format,
    Functions,
    OutputOptions,
    configured_values,
    split_list,
)
from tdx.cli.pipelines import (
    TARGET_HELP,
    ArgumentOptions,
    PipelineOptions,
    Samples,
    TargetOptions,
)
from tdx.cli.runtime import json_text, write_verbatim
from tdx.foundation.errors import (
    ArgumentError,
    EnvError,
    MissingPackageError,
    PipelineError,
    TdxError,
)

if TYPE_CHECKING:
    from tdx.cli.contract_runs import ReportFiles
    from tdx.cli.views.check import FixEntries
    from tdx.inspection.check_report import CheckReport, FixedPipeline
    from tdx.inspection.lint.rule import Rule
    from tdx.pipeline import Pipeline, PipelineFile

_RULES = "Rules"
_STDIN = "<stdin>"
_NOT_ON_ACCELERATOR = "the chain did not run on the simulated GPU because of the errors"
NOTHING_TO_FIX = "nothing to fix"
_NOT_FOR_DESCRIPTORS = (
    "policy",
    "diff",
    "fix",
    "evaluation",
    "accelerator",
    "data",
    "samples",
    "unsafe_fixes",
)

Policy = Annotated[
    str | None,
    typer.Option(
        "--policy",
        metavar="POLICY",
        help="Policy to check with the chain: random, or module:name with --allow-code. The keys "
        "that it reads and its recurrent state are checked too.",
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
        help="Compare the statistics of a policy checkpoint with a LeRobot or Minari dataset, "
        "a dump, or norm_stats.json of openpi.",
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

Accelerator = Annotated[
    bool,
    typer.Option(
        "--accelerator",
        help="Also run the chain on a simulated GPU: report where the host would wait, and what "
        "would fail there. Needs no GPU.",
        rich_help_panel=_RULES,
    ),
]


Exclude = Annotated[
    list[str] | None,
    typer.Option(
        "--exclude",
        metavar="PATTERN",
        help="Skip targets whose path, or a part of it, matches: 'old_*'. Can be repeated.",
        rich_help_panel=_RULES,
    ),
]

Statistics = Annotated[
    bool,
    typer.Option(
        "--statistics",
        help="Count the findings of each rule instead of listing them.",
        rich_help_panel=_RULES,
    ),
]


@dataclass(frozen=True, slots=True)
class CheckTargets(ArgumentOptions):
    """The targets of a check, and the options of their pipelines."""

    targets: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[TARGET]...",
            help=f"{TARGET_HELP} Also a contract, a robot dataset or a deployment descriptor. "
            "Other folders are searched for pipeline files and checkpoints.",
            autocompletion=complete_target,
        ),
    ] = None

    def of(self, target: str | None) -> TargetOptions:
        """Return the options with one of the targets."""
        shared = {field.name: getattr(self, field.name) for field in fields(ArgumentOptions)}
        return TargetOptions(**shared, target=target)


@dataclass(frozen=True, slots=True)
class CheckOptions:
    """What is checked, and what is fixed, in each target."""

    policy: Policy = None
    select: Select = None
    ignore: Ignore = None
    strict: Strict = False
    diff: Diff = False
    fix: Fix = False
    unsafe_fixes: UnsafeFixes = False
    evaluation: Evaluation = False
    accelerator: Accelerator = False
    data: Data = None
    samples: Samples = None

    def refuse(self, names: Sequence[str], subject: str, hint: str | None = None) -> None:
        """Raise an error for a given option that does not apply to a subject."""
        for name in names:
            if getattr(self, name):
                option = "--eval" if name == "evaluation" else f"--{name.replace('_', '-')}"
                raise ArgumentError(
                    f"{option} does not apply to {subject}",
                    hint=None if hint is None else hint.format(option=option),
                )


@dataclass(frozen=True, slots=True)
class _Checked:
    """The result for one target.

    Args:
        text: Text of the file that contains the whole pipeline. ``None``: no such file.
    """

    report: CheckReport
    rules: Sequence[Rule] = ()
    fixes: FixOutput | None = None
    text: str | None = None


def check(
    pipeline: CheckTargets,
    output: FindingsOptions,
    options: CheckOptions,
    against: Against = None,
    exclude: Exclude = None,
    statistics: Statistics = False,
    verbose: Verbose = False,
) -> int:
    """Check pipelines: build them, verify specs, apply the rules.

    Exits with 1 if there is an error or a warning, and with 3 if the only problem is a device that
    this machine does not have. With several targets, the highest exit code counts. The comment
    # tdx: ignore[TDX422] beside a stage disables a rule there.

    tdx check Pendulum-v1 -t StepCounter

    tdx check pendulum.yaml --diff --unsafe-fixes

    tdx check pipelines/ train.py:make_env --allow-code --exclude 'old_*' --statistics
    """
    from tdx.cli.check_targets import find_targets
    from tdx.foundation.files import is_artifact

    if options.diff and options.fix:
        raise ArgumentError("--diff and --fix cannot be combined", hint="remove one of them")
    names = pipeline.targets or []
    if len(names) > 1 and (pipeline.env is not None or pipeline.pipeline is not None):
        raise ArgumentError("--env and --pipeline take no further targets", hint="remove them")
    targets, is_several = find_targets(names, split_list(exclude))
    if not is_several and targets and is_artifact(targets[0]):
        return _check_artifact(targets[0], pipeline, output, options, against)
    if against is not None:
        if is_several:
            raise ArgumentError("--against takes one target", hint="run the command for each")
        return check_against_reference(
            pipeline.of(next(iter(targets), None)), output, options, against
        )
    if is_several or statistics:
        return _check_all(
            pipeline, targets or [None], output, options, statistics=statistics, verbose=verbose
        )
    checked = _check_target(pipeline.of(next(iter(targets), None)), options)
    _write_report(checked, output, verbose=verbose)
    return checked.report.exit_code(strict=options.strict)


def _check_artifact(
    path: str,
    pipeline: CheckTargets,
    output: OutputOptions,
    options: CheckOptions,
    against: str | None,
) -> int:
    """Verify an exported chain on its own vectors, or on the inputs of a contract."""
    from tdx.artifacts.check import check_artifact
    from tdx.cli.output import write_view
    from tdx.cli.views.artifacts import artifact_check_view
    from tdx.contracts import load_contract

    options.refuse((*_NOT_FOR_DESCRIPTORS, "select", "ignore"), "an exported chain")
    contract = None if against is None else load_contract(against)
    report = check_artifact(
        path, contract, allow_code=pipeline.allow_code, reference=f"the contract {against}"
    )
    write_view(artifact_check_view(report), output)
    return report.exit_code


def check_against_reference(
    pipeline: TargetOptions,
    output: FindingsOptions,
    options: CheckOptions,
    against: str,
    files: ReportFiles | None = None,
    *,
    tolerance: list[str] | None = None,
    stage: int | None = None,
) -> int:
    """Compare a stack with a contract, or a descriptor with one or with another descriptor."""
    from tdx.cli.contract_runs import ReportFiles, check_against
    from tdx.cli.pipelines import find_descriptor, read_reference

    files = files or ReportFiles()
    if (descriptor := find_descriptor(pipeline)) is not None:
        from tdx.cli.views.check import check_view
        from tdx.inspection.descriptor_check import compare_descriptors

        options.refuse(_NOT_FOR_DESCRIPTORS, "a deployment descriptor")
        if files.shrink is not None or stage is not None:
            raise ArgumentError("--shrink and --stage need steps, and a descriptor has none")
        if tolerance:
            raise ArgumentError("--tolerance does not apply to a deployment descriptor")
        chosen = split_list(options.select), split_list(options.ignore)
        files.check()
        report = compare_descriptors(read_reference(against), descriptor, *chosen)
        if files.page is None:
            _write_report(_Checked(report), output, verbose=False)
        else:
            view = check_view(report)
            files.write_view(view, output, view.blocks())
        return report.exit_code(strict=options.strict)
    options.refuse(
        ("policy", "select", "ignore", "strict", "diff", "fix", "unsafe_fixes", "accelerator"),
        "a contract",
        "leave out {option} or --against",
    )
    return check_against(
        *(pipeline, against, output, files),
        evaluation=options.evaluation,
        samples=options.samples,
        tolerance=tolerance,
        stage=stage,
    )


def _check_all(
    pipeline: CheckTargets,
    targets: Sequence[str | None],
    output: FindingsOptions,
    options: CheckOptions,
    *,
    statistics: bool,
    verbose: bool,
) -> int:
    """Check several targets and write one document; a failure of one does not stop the others."""
    from tdx.cli.output import write_view
    from tdx.cli.progress import activity_on
    from tdx.cli.views.check import checks_view, sarif
    from tdx.inspection.check_report import CheckedTarget, CheckReport, CheckSummary, Finding

    results: list[tuple[CheckedTarget, _Checked]] = []
    with activity_on(sys.stderr) as show:
        for number, target in enumerate(targets, 1):
            name = target or pipeline.env or pipeline.pipeline or ""
            if show is not None:
                show(f"checking {name}", number, len(targets))
            try:
                checked = _check_target(pipeline.of(target), options)
                code = checked.report.exit_code(strict=options.strict)
            except Exception as error:
                if output.debug:
                    traceback.print_exception(error)
                known = error if isinstance(error, TdxError) else _unexpected(error)
                failure = Finding.from_error(known, "arguments")
                checked = _Checked(CheckReport(name, 0, (), (failure,)))
                code = known.exit_code
            if checked.fixes is not None and checked.fixes.message not in (None, NOTHING_TO_FIX):
                print(checked.fixes.message, file=sys.stderr)
            results.append((CheckedTarget(name, int(code), checked.report), checked))
    summary = CheckSummary(tuple(target for target, _ in results))
    if output.format is Format.SARIF:
        codes = {rule.code for _, checked in results for rule in checked.rules}
        log = sarif([(checked.report, checked.text) for _, checked in results], sorted(codes))
        sys.stdout.write(json_text(log, sys.stdout, indent=2))
    elif options.diff and output.format is Format.TABLE:
        # Stdout is a patch, so failures go to stderr.
        for checked_target, checked in results:
            write_verbatim("" if checked.fixes is None else checked.fixes.text or "")
            for finding in () if checked.report.checks else checked.report.findings:
                print(f"error: {checked_target.target}: {finding.message}", file=sys.stderr)
    else:
        texts = [checked.text for _, checked in results]
        write_view(checks_view(summary, texts, statistics=statistics, verbose=verbose), output)
    return max(target.exit_code for target in summary.targets)


def _unexpected(error: Exception) -> TdxError:
    """Return an error of a library as one of tdx."""
    text = f": {error}" if str(error) else ""
    return EnvError(f"unexpected {type(error).__name__}{text}", hint="--debug shows the traceback")


def _check_target(pipeline: TargetOptions, options: CheckOptions) -> _Checked:
    """Check one target by what it is: a folder or file of data, a function, or a pipeline."""
    from tdx.cli.pipelines import (
        compute_facts,
        find_checkpoint,
        find_descriptor,
        read_source,
        with_target,
    )
    from tdx.cli.runtime import third_party_code
    from tdx.foundation.files import is_contract
    from tdx.inspection.check_report import check_pipeline
    from tdx.stacks.checkpoints import is_dataset

    chosen = split_list(options.select), split_list(options.ignore)
    if (descriptor := find_descriptor(pipeline)) is not None:
        from tdx.inspection.descriptor_check import check_descriptor

        options.refuse(_NOT_FOR_DESCRIPTORS, "a deployment descriptor")
        return _Checked(check_descriptor(descriptor, *chosen))
    if pipeline.target is not None and is_contract(pipeline.target):
        from tdx.contracts import load_contract
        from tdx.foundation.text import count_text
        from tdx.inspection.check_report import CheckReport

        options.refuse((*_NOT_FOR_DESCRIPTORS, "select", "ignore"), "a contract")
        stages = count_text(len(load_contract(pipeline.target).stages) - 1, "stage")
        note = f"no env is compared with it: tdx contract check ENV --against {pipeline.target}"
        report = CheckReport(
            *(pipeline.target, 0, ("arguments",), ()),
            hidden=(f"the contract can be read; {note}",),
            parts=f"contract of {stages}",
        )
        return _Checked(report)
    if pipeline.target is not None and is_dataset(pipeline.target):
        from tdx.inspection.dataset_check import check_dataset

        return _Checked(check_dataset(compute_facts(pipeline.target), *chosen))
    if (checkpoint := find_checkpoint(pipeline)) is not None:
        from tdx.inspection.checkpoint_check import check_checkpoint

        options.refuse(("policy", "diff", "fix", "evaluation"), "a policy checkpoint")
        if options.data is None and options.samples is None:
            report = check_checkpoint(checkpoint, *chosen)
        else:
            from tdx.inspection.dataset_check import check_against_data

            data = None if options.data is None else compute_facts(options.data)
            samples = (
                None if options.samples is None else compute_facts(options.samples, numbers=())
            )
            report = check_against_data(checkpoint, data, samples, *chosen)
        if options.accelerator:
            from tdx.inspection.checkpoint_check import check_on_accelerator
            from tdx.rollouts.samples import read_samples

            with third_party_code():
                report = check_on_accelerator(
                    *(report, checkpoint, *chosen),
                    allow_code=pipeline.allow_code,
                    samples=None if options.samples is None else read_samples(options.samples),
                )
        return _Checked(report)
    if options.data is not None:
        raise ArgumentError("--data needs a policy checkpoint", hint="tdx check FOLDER --data DATA")
    one = with_target(pipeline)
    config, source = read_source(one)
    rules = _rules(config, options.select, options.ignore)
    if not options.accelerator:
        if options.select and rules and all(rule.subject == "device" for rule in rules):
            raise ArgumentError(
                f"{rules[0].code} is checked on a simulated GPU only", hint="add --accelerator"
            )
        rules = tuple(rule for rule in rules if rule.subject != "device")
    if options.policy is not None:
        config = replace(config, policy=options.policy)
    if options.unsafe_fixes and not (options.diff or options.fix):
        raise ArgumentError("--unsafe-fixes alone has no effect", hint="add --fix or --diff")
    if options.samples is not None and not config.is_factory:
        raise ArgumentError("--samples needs --against or module:function", hint="leave it out")
    if config.is_factory:
        stack = _check_stack(config, one, rules, options)
        if stack is not None:
            if options.diff or options.fix:
                reason = f"nothing to fix: the stages of {config.env.id} are Python code"
                print(reason, file=sys.stderr)
            return _Checked(_with_recorded_data(stack, pipeline.target, *chosen), rules)
    fixes = None
    with third_party_code():
        if options.diff or options.fix:
            fixes = Fixes.find(config, source, one, rules, options)
            if options.fix:
                config = fixes.write()
        report = check_pipeline(
            config,
            allow_code=one.allow_code,
            rules=rules,
            evaluation=options.evaluation,
            accelerator=options.accelerator,
        )
    if options.accelerator and "accelerator" not in report.checks:
        report = replace(report, notes=(*report.notes, _NOT_ON_ACCELERATOR))
    report = _with_recorded_data(report, pipeline.target, *chosen)
    text = None
    if not pipeline.transforms and source is not None:
        text = source.text.replace("\n", source.newline)  # as it is on disk
    return _Checked(report, rules, None if fixes is None else fixes.output(fix=options.fix), text)


def _with_recorded_data(
    report: CheckReport, path: str | None, select: Sequence[str], ignore: Sequence[str]
) -> CheckReport:
    """Add the findings about the data of a dump to those about its pipeline."""
    from tdx.cli.pipelines import compute_facts
    from tdx.cli.progress import activity_on
    from tdx.foundation.text import count_text
    from tdx.inspection.checkpoint_codes import CONSTANT
    from tdx.inspection.dataset_check import DatasetFacts, check_dataset
    from tdx.rollouts.datasets import is_dump, read_data
    from tdx.rollouts.dump.progress import ignore_progress
    from tdx.rollouts.dump.verification import verify

    if path is None or not is_dump(path):
        return report
    with activity_on(sys.stderr) as show:
        problems = verify(path, ignore_progress if show is None else show).problems
    outside = [problem.message for problem in problems if problem.kind == "spec"]
    if len(outside) < len(problems):
        damaged = f"its data is not checked, for its files are damaged: run tdx verify {path}"
        return replace(report, hidden=(*report.hidden, damaged))
    hidden = list(report.hidden)
    try:
        facts = compute_facts(path)
    except MissingPackageError as error:
        facts = DatasetFacts(read_data(path), {})
        hidden.append(f"the statistics of its data are not checked: {error}")
    data = check_dataset(facts, select, ignore, outside)
    found = [
        # Envs observe constants; it matters where the statistics of the dump normalize.
        replace(finding, severity="suggestion") if finding.code == CONSTANT.code else finding
        for finding in data.findings
    ]
    return replace(
        report,
        findings=(*report.findings, *found),
        hidden=(*hidden, *data.hidden),
        parts=f"{count_text(report.stages, 'stage')}; {data.parts}",
    )


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
    config: Pipeline, pipeline: PipelineOptions, rules: Sequence[Rule], options: CheckOptions
) -> CheckReport | None:
    """Check the env that a factory returns; ``None`` if the pipeline has invalid arguments."""
    from tdx.cli.runtime import third_party_code
    from tdx.inspection.check_report import CHECK_SEED, check_pipeline
    from tdx.inspection.stack_check import check as check_stack
    from tdx.inspection.stack_check import check_on_accelerator
    from tdx.pipeline import check_arguments
    from tdx.rollouts.samples import read_samples
    from tdx.stacks.building import build_stack

    if check_arguments(config, pipeline.allow_code):
        return None
    with third_party_code():
        samples = None if options.samples is None else read_samples(options.samples)
        stack = build_stack(config, pipeline.allow_code, samples)
        try:
            if options.accelerator and stack.chain_env is None:
                raise ArgumentError(
                    f"--accelerator does not apply to a stack of the kind {stack.kind!r}: only "
                    "chains of tdx and TorchRL run on the simulated GPU",
                    hint="for wrappers that have counterparts, tdx init --from writes a pipeline "
                    "of tdx",
                )
            seed = CHECK_SEED if config.env.seed is None else config.env.seed
            if config.policy not in (None, "random"):
                if stack.chain_env is None:
                    raise ArgumentError(
                        f"--policy does not apply to a stack of the kind {stack.kind!r}",
                        hint="leave it out: the steps of the check have random actions",
                    )
                report = check_pipeline(
                    config,
                    allow_code=True,
                    rules=rules,
                    base=stack.chain_env,
                    evaluation=options.evaluation,
                )
            else:
                report = check_stack(
                    stack, config.env.id, seed=seed, rules=rules, evaluation=options.evaluation
                )
        finally:
            stack.close()
        if not options.accelerator:
            return report
        if any(finding.severity == "error" for finding in report.findings):
            return replace(report, notes=(*report.notes, _NOT_ON_ACCELERATOR))
        return check_on_accelerator(
            report, lambda: build_stack(config, pipeline.allow_code, None), seed, rules
        )


def _write_report(checked: _Checked, options: FindingsOptions, *, verbose: bool) -> None:
    """Write the findings, or the fixes, of one target in the requested format."""
    from tdx.cli.output import write_view
    from tdx.cli.views.check import check_view, sarif

    report, fixes, text = checked.report, checked.fixes, checked.text
    if fixes is not None and fixes.message is not None:
        print(fixes.message, file=sys.stderr)
    if options.format is Format.SARIF:
        log = sarif([(report, text)], [rule.code for rule in checked.rules])
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
    """

    text: str | None
    data: FixEntries
    message: str | None = None


@dataclass(frozen=True, slots=True)
class Fixes:
    """A fixed pipeline and the file that it comes from.

    Args:
        file: File with the fixes applied. ``None``: the pipeline comes from options.
    """

    result: FixedPipeline
    file: PipelineFile | None
    original_text: str

    @classmethod
    def find(
        cls,
        pipeline: Pipeline,
        file: PipelineFile | None,
        given: PipelineOptions,
        rules: Sequence[Rule],
        options: CheckOptions,
    ) -> Fixes:
        """Apply the fixes of the rules to a pipeline and to the text of its file."""
        from tdx.inspection.check_report import fix_pipeline

        if file is not None and given.transforms:
            raise ArgumentError(
                "stages from -t cannot be fixed together with a file",
                hint="add them to the file, or pass an env id with the whole chain as -t",
            )
        result = fix_pipeline(
            pipeline,
            allow_code=given.allow_code,
            rules=rules,
            strict=options.strict,
            unsafe=options.unsafe_fixes,
            accelerator=options.accelerator,
        )
        original_text = "" if file is None else file.text
        if file is not None:
            for _, fix in result.fixes:
                file.write(fix.apply(file.draft))
        return cls(result, file, original_text)

    def write(self) -> Pipeline:
        """Write the fixed file unless it changed on disk; return the fixed pipeline."""
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
            return NOTHING_TO_FIX
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
