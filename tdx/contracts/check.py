"""Check a target against a contract, and compare two targets."""

from __future__ import annotations

from collections.abc import Set
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, get_args

from tdx.compare.explanations import Explainer
from tdx.compare.golden import predict_each_other
from tdx.compare.model import DEFAULT_PARTS, Contract, Part
from tdx.compare.replay import pair_levels, prepare, replay
from tdx.compare.report import ContractReport, Coverage, Difference
from tdx.compare.roles import (
    Tags,
    choices_of_pairs,
    equal_stages,
    pairs_of_one_class,
    relevant_stages,
    role_of,
    trial_pairs,
)
from tdx.compare.stacks import compare_contracts, rows_of_failure
from tdx.contracts.freeze import freeze, observe, stack_in_this_process
from tdx.contracts.reference_run import STEPS
from tdx.contracts.tolerances import Tolerances, with_tolerances
from tdx.foundation.errors import TdxError
from tdx.stacks import open_stack

if TYPE_CHECKING:
    from tdx.stacks import Stack


def check_contract(
    env: object,
    contract: Contract,
    name: str | None = None,
    *,
    evaluation: bool = False,
    reference: str = "contract",
    tolerances: Tolerances | None = None,
) -> ContractReport:
    """Run the recorded inputs of a contract through an env, and compare stage by stage.

    In a stack of the same library, each stage gets its recorded inputs, so that a difference is
    found at the stage that has it; the env inside runs along from its recorded calls. In another
    library, the results of the env inside are replaced, and it is not stepped. The state of the
    stages is restored; reset the env before you continue.

    Args:
        env: Env of any supported library with its wrappers.
        contract: The contract.
        name: Name of the env in the report. Defaults to the name of the env inside.
        evaluation: The env is used for evaluation: report statistics that change.
        reference: Name of the contract in the report.
        tolerances: By key, what replaces parts of the tolerances of the contract: ``rtol`` and
            ``atol`` of each number, the share of ``rows`` that may differ by more, and the
            ``limit`` of a ``quantile`` of the differences.

    Raises:
        ArgumentError: ``env`` is neither an env nor a stack, its env cannot be replaced, or a
            tolerance is invalid.

    Example:
        >>> import gymnasium, tdx
        >>> env = gymnasium.wrappers.NormalizeObservation(gymnasium.make("Pendulum-v1"))
        >>> tdx.check_contract(env, tdx.freeze(env)).same
        True
    """
    contract = with_tolerances(contract, tolerances)
    with stack_in_this_process(open_stack(env)) as (stack, notes):
        names = (reference, name or stack.name)
        recording = contract.recording if stack.kind == contract.kind else None
        try:
            if recording is not None:
                prepare(stack, recording)
            target = observe(
                stack, contract.inputs, contract.seed, contract.compare, recording=recording
            )
            in_rows = [stage.index for stage in stack.stages if stage.rows is not None]
            target = replace(target, notes=notes, recording=None)

            explainer = Explainer()

            def compare(tags: Tags) -> ContractReport:
                replayed = None
                if recording is not None:
                    pairs = pair_levels(contract, target, recording, stack, tags)
                    replayed = None if pairs is None else replay(stack, recording, pairs)
                return compare_contracts(
                    *(contract, target, names, replayed),
                    evaluation=evaluation,
                    in_rows=in_rows,
                    tags=tags,
                    explainer=explainer,
                )

            report = compare(frozenset())
            if (
                len(report.causes) > 1
                or report.follows
                or any(cause.kind == "order" or _is_unexplained(cause) for cause in report.causes)
            ):
                # The pairs of stages of one class that leave the fewest differences are the right
                # ones.
                same: set[tuple[int, int]] = set()
                if recording is None:
                    same = equal_stages(contract, target) | {
                        (one.index, other.index)
                        for one, other in pairs_of_one_class(contract, target)
                        if not one.has_known_role
                        and predict_each_other((contract, target), (one, other))
                    }
                else:
                    for tags in trial_pairs(contract, target):
                        pairs = pair_levels(contract, target, recording, stack, tags)
                        # What a stage is tried with may not suit it.
                        with suppress(TdxError):
                            if pairs is not None:
                                same |= replay(stack, recording, pairs).equal_levels(contract)

                def cost(report: ContractReport) -> tuple[int, int, int, float]:
                    return _differences(report, contract, same)

                for tags in choices_of_pairs(contract, target, same):
                    with suppress(TdxError):
                        report = min(report, compare(tags), key=cost)
            return report
        except TdxError as error:
            return _failed(contract, stack, names, error)


def _differences(
    report: ContractReport, contract: Contract, same: Set[tuple[int, int]]
) -> tuple[int, int, int, float]:
    """Return how much a report leaves to explain: differences, and the cost of their edits."""
    explanations = [cause.explanation for cause in report.causes]
    edits = [edit for found in explanations if found is not None for edit in found.edits]
    # Two differences that are explained say more than one that is not.
    unexplained = sum(map(_is_unexplained, report.causes))
    # Of stages whose class says nothing, only what they do shows that one has moved.
    guessed = sum(
        cause.kind == "order"
        and (cause.reference_stage, cause.stage) not in same
        and not contract.stage(cause.reference_stage or 0).has_known_role
        for cause in report.causes
    )
    # A stage that has not moved is one that is missing, and one without an explanation.
    count = len(report.causes) + 2 * unexplained + 4 * guessed
    # A stage that another one replaces says less than one that is missing.
    replaced = sum(
        cause.stage is not None
        and cause.reference_stage is not None
        and cause.kind != "order"
        and contract.stage(cause.reference_stage).role != role_of(cause.name)
        for cause in report.causes
        if (cause.stage or 0) >= 0
    )
    return count, replaced, len(report.follows), sum(edit.cost for edit in edits)


def _is_unexplained(difference: Difference) -> bool:
    """Return True if a difference of values has no kind, or only that of noise."""
    if difference.kind in ("argument", "missing stage", "order", "setting", "inner calls"):
        return difference.kind == "missing stage" and (
            difference.reference_stage is None and difference.explanation is None
        )
    return difference.explanation is None or difference.explanation.kind == "noise"


def diff_stacks(
    a: object,
    b: object,
    names: tuple[str, str] = ("A", "B"),
    *,
    seed: int = 0,
    steps: int = STEPS,
    evaluation: bool = False,
    tolerances: Tolerances | None = None,
    noun: str = "reference",
) -> ContractReport:
    """Compare two envs of the same or of different libraries stage by stage.

    Observations, actions, rewards and done flags are compared. For an evaluation, only observations
    and actions are compared.

    Args:
        a: The reference, such as the env of the training.
        b: The other env, such as that of an evaluation.
        names: Names of both in the report.
        seed: Seed of the reference steps.
        steps: Number of reference steps.
        evaluation: The other env is used for evaluation: report statistics that change.
        tolerances: As for :func:`check_contract`.
        noun: What messages call the first env, such as ``checkpoint``.

    Raises:
        TdxError: The first env cannot be recorded.

    Example:
        >>> import gymnasium, tdx
        >>> env = gymnasium.make("Pendulum-v1")
        >>> tdx.diff_stacks(env, gymnasium.wrappers.RescaleAction(env, -1, 1)).first.kind
        'missing stage'
    """
    compare = DEFAULT_PARTS if evaluation else get_args(Part)
    frozen = freeze(a, seed=seed, steps=steps, compare=compare, tolerances=tolerances)
    frozen = replace(frozen, noun=noun)
    return check_contract(b, frozen, names[1], evaluation=evaluation, reference=names[0])


def _failed(
    contract: Contract, stack: Stack, names: tuple[str, str], error: TdxError
) -> ContractReport:
    """Return the report of a target whose stage raises an error with the recorded inputs."""
    where = error.where
    index = where.stage if where.stage is not None else -1
    key = None if where.key is None else str(where.key)
    difference = Difference(
        "spec",
        index,
        index if 0 <= index <= contract.last else None,
        where.transform or stack.name,
        key,
        f"it fails with the inputs of the {contract.noun}: {error.message}",
        None,
        error.hint,
        noun=contract.noun,
    )
    relevant = len(relevant_stages(contract))
    coverage = Coverage(0, relevant, 0, 0, len(contract.stages) - 1 - relevant, noun=contract.noun)
    return ContractReport(
        *names,
        len(stack.stages),
        contract.steps,
        coverage,
        (difference,),
        compare=contract.compare,
        rows=tuple(rows_of_failure(contract, (difference,))),
        noun=contract.noun,
    )
