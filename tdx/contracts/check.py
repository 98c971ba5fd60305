"""Check a target against a contract, and compare two targets."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tdx.contracts.compare import compare_contracts
from tdx.contracts.freeze import freeze, observe, stack_in_this_process
from tdx.contracts.model import Contract
from tdx.contracts.observe import STEPS
from tdx.contracts.report import ContractReport, Difference
from tdx.errors import TdxError
from tdx.stacks import open_stack

if TYPE_CHECKING:
    from tdx.stacks import Stack


def check_contract(
    env: Any,
    contract: Contract,
    name: str | None = None,
    *,
    evaluation: bool = False,
    reference: str = "contract",
) -> ContractReport:
    """Run the golden inputs of a contract through an env, and compare stage by stage.

    The env inside is not stepped, and the state of the stages is restored.

    Args:
        env: Env of any supported library with its wrappers.
        contract: The contract.
        name: Name of the env in the report. Defaults to the name of the env inside.
        evaluation: The env is used for evaluation: report statistics that change.
        reference: Name of the contract in the report.

    Raises:
        ArgumentError: ``env`` is neither an env nor a stack, or its env cannot be replaced.

    Example:
        >>> import gymnasium, tdx
        >>> env = gymnasium.wrappers.NormalizeObservation(gymnasium.make("Pendulum-v1"))
        >>> tdx.check_contract(env, tdx.freeze(env)).same
        True
    """
    return compare_target(env, contract, name, evaluation=evaluation, reference=reference)[0]


def compare_target(
    env: Any,
    contract: Contract,
    name: str | None = None,
    *,
    evaluation: bool = False,
    reference: str = "contract",
) -> tuple[ContractReport, Contract | None]:
    """Check an env like :func:`check_contract`; also return what its stages did.

    Returns:
        The report, and the observed env; ``None`` if it fails with the golden inputs.
    """
    with stack_in_this_process(open_stack(env)) as (stack, notes):
        names = (reference, name or stack.name)
        try:
            target = observe(stack, contract.inputs, contract.seed, contract.compare)
        except TdxError as error:
            return _failed(contract, stack, names, error), None
    target = replace(target, notes=notes)
    return compare_contracts(contract, target, names, evaluation=evaluation), target


def diff_stacks(
    a: Any,
    b: Any,
    names: tuple[str, str] = ("A", "B"),
    *,
    seed: int = 0,
    steps: int = STEPS,
    evaluation: bool = False,
) -> ContractReport:
    """Compare two envs of the same or of different libraries stage by stage.

    Args:
        a: The reference, such as the env of the training.
        b: The other env, such as that of an evaluation.
        names: Names of both in the report.
        seed: Seed of the golden steps.
        steps: Number of golden steps.
        evaluation: The other env is used for evaluation: report statistics that change.

    Raises:
        TdxError: The first env cannot be frozen.

    Example:
        >>> import gymnasium, tdx
        >>> env = gymnasium.make("Pendulum-v1")
        >>> tdx.diff_stacks(env, gymnasium.wrappers.RescaleAction(env, -1, 1)).first.kind
        'missing stage'
    """
    frozen = freeze(a, seed=seed, steps=steps)
    return check_contract(b, frozen, names[1], evaluation=evaluation, reference=names[0])


def _failed(
    contract: Contract, stack: Stack, names: tuple[str, str], error: TdxError
) -> ContractReport:
    """Return the report of a target whose stage raises an error with the golden inputs."""
    where = error.where
    index = where.stage if where.stage is not None else -1
    key = None if where.key is None else str(where.key)
    found = Difference(
        "spec",
        index,
        index if 0 <= index <= contract.last else None,
        where.transform or stack.name,
        key,
        f"it fails with the inputs of the contract: {error.message}",
        None,
        error.hint,
    )
    steps = sum(each.steps for each in contract.inputs)
    return ContractReport(*names, len(stack.stages), steps, (found,))
