"""Explain error codes and lint rules."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import ClassVar, Literal

from tdx.compare.codes import DIFFERENCE_CODES
from tdx.foundation import errors
from tdx.foundation.errors import TdxError, UnknownNameError, did_you_mean
from tdx.foundation.serialization import Entries, Entry, Result
from tdx.foundation.text import unwrap_paragraphs
from tdx.inspection.checkpoint_codes import CHECKPOINT_RULES, DATASET_RULES
from tdx.inspection.descriptor_codes import DESCRIPTOR_RULES
from tdx.inspection.lint.linter import all_rules
from tdx.inspection.lint.rule import Severity

Kind = Literal["rule", "checkpoint", "contract", "error"]


@dataclass(frozen=True, slots=True)
class ErrorProse:
    """Explanation of an error."""

    why: str
    wrong: str | None = None
    right: str | None = None


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
                    unwrap_paragraphs(prose.why),
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
                unwrap_paragraphs(rule.why),
                _one_line(f"tdx check {rule.wrong} {allowed}"),
                _one_line(f"tdx check {rule.right} {allowed}"),
                None if rule.python is None else rule.python.strip("\n"),
            )
        )
    for difference in DIFFERENCE_CODES:
        name, title, why = difference.name, difference.title, unwrap_paragraphs(difference.why)
        codes.append(CodeExplanation(difference.code, "contract", name, title, "error", 1, why))
    codes += [
        CodeExplanation(
            check.code,
            "checkpoint",
            check.name,
            check.title,
            check.severity,
            0 if check.severity == "suggestion" else 1,
            unwrap_paragraphs(check.why),
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
