"""Explain error codes and lint rules, and render the page of the documentation about them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import ClassVar, Literal

from tdx.compare.codes import DIFFERENCE_CODES
from tdx.foundation import errors
from tdx.foundation.errors import TdxError, UnknownNameError, did_you_mean
from tdx.foundation.serialization import Entries, Entry, Result
from tdx.inspection.checkpoint_codes import CHECKPOINT_RULES, DATASET_RULES
from tdx.inspection.descriptor_codes import DESCRIPTOR_RULES
from tdx.inspection.lint.linter import all_rules
from tdx.inspection.lint.rule import Severity

Kind = Literal["rule", "checkpoint", "contract", "error"]
_INTRODUCTION = """\
# Checks

```sh
tdx check pipeline.yaml --fix
```

`tdx check` validates the arguments and specs of a pipeline, compares the results of a few steps
with the specs, and applies the rules on this page. The steps have random actions; without `--seed`,
the seed is 0, so a second check finds the same. An **error** cannot work, a **warning** is a likely
mistake, and a **suggestion** is an improvement. The exit code is 1 if there are errors or warnings;
with `--strict`, suggestions count too. If the only error is a device that is missing on this
machine, the exit code is 3, and everything else is checked on the CPU.

```sh
tdx check pipelines/ train.py:make_env policies/act --allow-code --exclude 'old_*'
```

Several targets are checked in one process: pipeline files, functions, dumps, policy checkpoints,
robot datasets, deployment descriptors and contracts. Other folders are searched for pipeline files
and checkpoints, hidden folders and links excepted. A target that cannot be read or run is a finding
and does not stop the others. A last line counts targets and findings, the exit code is the highest
one, and JSON is one document of the kind `checks` with a list of the reports.

| option | effect |
| --- | --- |
| `--exclude PATTERN` | leave out targets whose path, or a part of it, matches |
| `--statistics` | count the findings of each rule instead of listing them |
| `--select CODES`, `--ignore CODES` | select rules; `TDX42` matches all codes with this prefix |
| `--strict` | treat suggestions like warnings |
| `--accelerator` | run it on a [simulated GPU](profiling.md#without-an-accelerator) too |
| `--eval` | the env is used for evaluation: report what belongs to training only |
| `--diff` | show what `--fix` would change: a diff of the file, or the fixed options |
| `--fix` | apply the safe fixes; comments are kept, a file modified meanwhile is not written |
| `--fix --unsafe-fixes` | apply also the fixes that change the values that the chain returns |
| `--verbose`, `-v` | show the outcome of each check, and why each violated rule matters |
| `--format sarif` | write findings for code hosts and editors as SARIF 2.1.0 |

`tdx explain CODE` prints one entry of this page. A finding has a fix only if there is exactly one;
`[*]` marks a safe fix, `[?]` an unsafe one. Fixes of suggestions are applied only with `--strict`.

To keep a stage as it is, write a comment at it; errors cannot be suppressed. A file can also select
rules for all of its stages, and `check_select` and `check_ignore` in the
[configuration](cli.md#tdx-config) select rules for all files:

```yaml
transforms:
  - RewardSum   # tdx: ignore[TDX422]
check: {ignore: [TDX49]}
```
"""
_ADDING = """\
## Adding a rule

A rule is a function of a `LintContext`, which has what a chain of tdx declares, or of a
`StackContext` (`stack_rule`), which has what the stages of any library did in steps. It is declared
with a code, a title, a severity, a rationale and two examples. Add it to the module of its code
family in `tdx/inspection/lint/rules/`; nothing else has to be registered. The tests run both
examples: the wrong one violates the rule, the right one does not. See
[Contributing](contributing.md#adding-a-lint-rule).

Regenerate this page with `TDX_UPDATE_GOLDEN=1 python -m pytest tests/inspection/lint`.
"""


@dataclass(frozen=True, slots=True)
class ErrorProse:
    """Explanation of an error."""

    why: str
    wrong: str | None = None
    right: str | None = None

    @property
    def paragraphs(self) -> list[str]:
        """Prose, one line per paragraph."""
        return [" ".join(part.split()) for part in self.why.strip().split("\n\n")]


@dataclass(frozen=True, slots=True)
class CodeExplanation(Result):
    """Explanation of one code.

    Args:
        code: The code.
        kind: Lint rule, rule about checkpoints and datasets, difference from a contract, or error.
        name: Name of the rule, or of the error class.
        title: What is wrong, in a few words.
        severity: ``error``, ``warning`` or ``suggestion``.
        exit_code: Exit code of a process that reports it; for a rule, of ``tdx check``.
        paragraphs: Rationale and solution.
        wrong: Command that shows it.
        right: The corrected command.
        python: Source of the module ``my_code`` if the commands need one.
    """

    json_entries: ClassVar[Entries] = (
        *("code", Entry("family", "kind"), "name", "title", "severity", "exit_code"),
        *(Entry("why", "paragraphs"), "wrong", "right", "python"),
    )

    code: str
    kind: Kind
    name: str
    title: str
    severity: Severity
    exit_code: int
    paragraphs: tuple[str, ...]
    wrong: str | None = None
    right: str | None = None
    python: str | None = None


@cache
def all_explanations() -> tuple[CodeExplanation, ...]:
    """Return the explanations of all codes, sorted by code.

    Example:
        >>> [each.name for each in all_explanations()][:2]
        ['TdxError', 'ArgumentError']
    """
    codes = []
    for member in vars(errors).values():
        if isinstance(member, type) and issubclass(member, TdxError):
            summary = " ".join((member.__doc__ or "").strip().splitlines()[:1])
            prose = ERROR_PROSE.get(member.code, ErrorProse(summary))
            codes.append(
                CodeExplanation(
                    member.code,
                    "error",
                    member.__name__,
                    (summary[:1].lower() + summary[1:]).rstrip("."),
                    "error",
                    int(member.exit_code),
                    tuple(prose.paragraphs),
                    _one_line(prose.wrong),
                    _one_line(prose.right),
                )
            )
    for rule in all_rules():
        allowed = "--allow-code" if rule.python else ""
        codes.append(
            CodeExplanation(
                rule.code,
                "rule",
                rule.slug,
                rule.title,
                rule.severity,
                0 if rule.severity == "suggestion" else 1,
                tuple(rule.paragraphs),
                _one_line(f"tdx check {rule.wrong} {allowed}"),
                _one_line(f"tdx check {rule.right} {allowed}"),
                None if rule.python is None else rule.python.strip("\n"),
            )
        )
    for difference in DIFFERENCE_CODES:
        name, title, why = difference.name, difference.title, tuple(difference.paragraphs)
        codes.append(CodeExplanation(difference.code, "contract", name, title, "error", 1, why))
    codes += [
        CodeExplanation(
            check.code,
            "checkpoint",
            check.name,
            check.title,
            check.severity,
            0 if check.severity == "suggestion" else 1,
            tuple(check.paragraphs),
        )
        for check in (*CHECKPOINT_RULES, *DATASET_RULES, *DESCRIPTOR_RULES)
    ]
    return tuple(sorted(codes, key=lambda explanation: explanation.code))


def explain_code(code: str) -> CodeExplanation:
    """Return the explanation of a code, or of the name of an error or rule; case-insensitive.

    Example:
        >>> explain_code("tdx421").title
        'rewards are clipped before they are scaled'
    """
    folded = code.strip().casefold()
    for entry in all_explanations():
        if folded in (entry.code.casefold(), entry.name.casefold()):
            return entry
    names = [name for entry in all_explanations() for name in (entry.code, entry.name)]
    matches = [name for name in names if folded and name.casefold().startswith(folded)]
    hint = did_you_mean(code, matches or names, "list them with: tdx explain")
    raise UnknownNameError(f"unknown code {code!r}", hint=hint)


def _one_line(command: str | None) -> str | None:
    return None if command is None else " ".join(command.split())


def render_checks_page() -> str:
    """Render ``docs/checks.md``."""
    chapters = {
        "rule": "## Rules\n",
        "checkpoint": "## Checkpoints and datasets\n\nRules about [policy checkpoints]"
        "(checkpoints.md) and their data.\n",
        "contract": "## Contracts\n\nDifferences that `tdx contract check` and `tdx contract diff` "
        "report: see [contracts](contracts.md).\n",
        "error": "## Errors\n\nErrors that end a command.\n",
    }
    parts = [_INTRODUCTION]
    for kind, introduction in chapters.items():
        entries = [entry for entry in all_explanations() if entry.kind == kind]
        parts += [introduction, _table(entries)]
        parts += [part for entry in entries for part in _entry(entry)]
    return "\n".join([*parts, _ADDING])


def _table(entries: Sequence[CodeExplanation]) -> str:
    head = ["| code | severity | what is wrong |", "| --- | --- | --- |"]
    rows: list[str] = []
    for entry in entries:
        kept = "".join(sign for sign in _heading(entry).lower() if sign.isalnum() or sign in " -")
        anchor = kept.replace(" ", "-")
        rows.append(f"| [{entry.code}](#{anchor}) | {entry.severity} | {entry.title} |")
    return "\n".join([*head, *rows]) + "\n"


def _heading(entry: CodeExplanation) -> str:
    return f"{entry.code} {entry.name if entry.kind == 'error' else entry.title}"


def _entry(entry: CodeExplanation) -> Iterator[str]:
    yield f"### {_heading(entry)}\n"
    if entry.kind == "error":
        yield f"Exit code {entry.exit_code}: {entry.title}.\n"
    yield from (f"{paragraph}\n" for paragraph in entry.paragraphs)
    if entry.python is not None:
        yield f"```python\n# my_code.py\n{entry.python}\n```\n"
    for title, command in (("Wrong:", entry.wrong), ("Right:", entry.right)):
        if command is not None:
            yield f"{title}\n\n```sh\n{command}\n```\n"


ERROR_PROSE: dict[str, ErrorProse] = {
    "TDX000": ErrorProse(
        """
        The base class of all errors of tdx: `except TdxError` catches each of them. On the command
        line it also stands for an unexpected error; `--debug` shows the traceback.
        """
    ),
    "TDX101": ErrorProse(
        """
        The value of an argument has the wrong type, is out of range, or conflicts with another
        argument. The message names the argument and the values that it accepts.

        `tdx show transform NAME` lists the arguments of a transform with their types.
        """,
        "tdx check Pendulum-v1 -t 'StepCounter(max_steps=0)'",
        "tdx check Pendulum-v1 -t 'StepCounter(max_steps=200)'",
    ),
    "TDX102": ErrorProse(
        """
        A key does not exist, such as an in-key that the env does not write. The hint contains the
        nearest key, or the available keys.

        `tdx inspect spec --stages` lists the keys after each stage.
        """,
        "tdx inspect spec Pendulum-v1 -t 'CatFrames(4, dim=-1)'",
        """tdx inspect spec Pendulum-v1
-t 'CatFrames(4, dim=-1, in_keys=["observation"])'""",
    ),
    "TDX103": ErrorProse(
        """
        The name of a transform, argument, option, column or value does not exist. The hint contains
        the nearest name.
        """,
        "tdx check Pendulum-v1 -t StepCouter",
        "tdx check Pendulum-v1 -t StepCounter",
    ),
    "TDX201": ErrorProse(
        """
        A spec cannot be created or combined, or a value is outside of it: the lower bound exceeds
        the upper bound, shapes do not broadcast, or the env does not accept the action.
        """
    ),
    "TDX202": ErrorProse(
        """
        A transform does not work at its position in the chain: it would overwrite an existing key,
        requires whole episodes, or drops a key that the env requires. Exceptions in your own
        transforms are reported with this code too. The message names the stage.
        """,
        """tdx check Pendulum-v1 -t Reward2GoTransform""",
        "tdx check Pendulum-v1 -t RewardSum",
    ),
    "TDX203": ErrorProse(
        """
        A pipeline file or the text of `-t` cannot be parsed: invalid YAML, unbalanced brackets, an
        unknown section, or a missing file. The message contains line and column.

        `tdx schema` prints a JSON Schema that editors use to validate the file.
        """,
        "tdx check Pendulum-v1 -t 'StepCounter(max_steps=200'",
        "tdx check Pendulum-v1 -t 'StepCounter(max_steps=200)'",
    ),
    "TDX204": ErrorProse(
        """
        A pipeline that names a Python object as `module:name` requires importing the module, which
        executes its code. Pass `--allow-code` to allow it.
        """,
        "tdx check Pendulum-v1 -t my_code:MyTransform",
        "tdx check Pendulum-v1 -t my_code:MyTransform --allow-code",
    ),
    "TDX205": ErrorProse(
        """
        The result of a reset or step violates the specs: another shape, dtype or device, a value
        out of bounds, or NaN. The finding names the first stage whose result violates them, or the
        env.

        Change the spec if the data is correct, or the data if the spec is.
        """
    ),
    "TDX206": ErrorProse(
        """
        A spec is indexed outside of its shape, or along a dimension that cannot be indexed, such as
        the last dimension of a `OneHot`.
        """
    ),
    "TDX207": ErrorProse(
        """
        `composite["shape"] = (3,)` sets an entry, which must be a spec. To set the attribute, write
        `composite.shape = (3,)`.
        """
    ),
    "TDX208": ErrorProse(
        """
        A transform is called with stored data that it cannot map: it steps or measures an env, or
        it needs the steps of an episode in order. Remove it from the chain of the replay buffer,
        or sample slices of episodes with a `SliceSampler`.
        """
    ),
    "TDX209": ErrorProse(
        """
        A stage is inserted at an index beyond the end of a chain, or removed where there is none.
        Indices count from 0, or from the end if they are negative.
        """
    ),
    "TDX301": ErrorProse(
        """
        The environment raised an error when it was made, reset or stepped, or it requires an
        argument. The message contains the original error; `--env-kwargs` passes arguments to it.
        """,
        "tdx check Pendulum-v1 --env-kwargs 'gravity=9.8'",
        "tdx check Pendulum-v1 --env-kwargs 'g=9.8'",
    ),
    "TDX302": ErrorProse(
        """
        The environment id is neither registered with Gymnasium nor built into tdx. `tdx list envs`
        lists the available ids, and the packages that provide others.
        """,
        "tdx check Pendulm-v1",
        "tdx check Pendulum-v1",
    ),
    "TDX303": ErrorProse(
        """
        A required package is not installed, such as `ale-py` for Atari or `mujoco` for robots. The
        hint contains the command that installs it.
        """
    ),
    "TDX304": ErrorProse(
        """
        The device is not available on this machine, or does not support an operation, such as
        float64 on `mps`. The hint lists the available devices.
        """
    ),
    "TDX305": ErrorProse(
        """
        A worker process of `ParallelEnv` raised an error, exited or stopped responding. The message
        contains the error of the worker. `--batching serial` runs the same envs in one process,
        where errors are easier to debug.
        """
    ),
    "TDX306": ErrorProse(
        """
        A worker process of `ParallelEnv` did not respond before the timeout. Its env may be slow to
        start, blocked or deadlocked.
        """
    ),
    "TDX307": ErrorProse(
        """
        Output cannot be written: standard output is closed, or the disk is full.
        """
    ),
    "TDX308": ErrorProse(
        """
        A disk is full, or a stored file cannot be read, written or parsed.
        """
    ),
}
