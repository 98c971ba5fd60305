"""Assertions and a pytest fixture for contracts of preprocessing.

As a plugin of pytest it adds the fixture ``check_contract`` and the option ``--update-contracts``.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tdx.contracts import Contract, ContractReport

_UPDATE = "--update-contracts"


def assert_same_pipeline(
    a: Any, b: Any, *, steps: int = 12, seed: int = 0, evaluation: bool = False
) -> None:
    """Assert that two envs preprocess alike, whatever library they come from.

    Args:
        a: The reference, such as the env of the training.
        b: The other env; it is not stepped.
        steps: Number of golden steps.
        seed: Seed of the golden steps.
        evaluation: The other env is used for evaluation: its statistics must not change.

    Raises:
        AssertionError: They differ; the message names the first stage and key.

    Example:
        >>> import gymnasium
        >>> from tdx.testing import assert_same_pipeline
        >>> one, other = (gymnasium.make("Pendulum-v1") for _ in range(2))
        >>> assert_same_pipeline(one, other, steps=4)
    """
    from tdx.contracts import diff_stacks

    _raise(diff_stacks(a, b, seed=seed, steps=steps, evaluation=evaluation))


def assert_matches_contract(
    env: Any, contract: Contract | str | Path, *, evaluation: bool = False
) -> None:
    """Assert that an env preprocesses as a contract does.

    Args:
        env: The env; it is not stepped.
        contract: The contract, or its folder.
        evaluation: The env is used for evaluation: its statistics must not change.

    Raises:
        AssertionError: It differs; the message names the first stage and key.
        StorageError: The contract cannot be read.
    """
    from tdx.contracts import Contract, check_contract, load_contract

    is_path = not isinstance(contract, Contract)
    loaded: Any = load_contract(str(contract)) if is_path else contract
    name = str(contract) if is_path else "contract"
    _raise(check_contract(env, loaded, evaluation=evaluation, reference=name))


def _raise(report: ContractReport) -> None:
    if report.same:
        return
    lines = [f"{report.target} differs from {report.reference}"]
    for each in report.differences:
        lines.append(f"{each.code} {each.kind}: {each.sentence}")
        if each.size is not None:
            lines.append(f"  {each.key} differs by up to {each.size:.4g}")
        if each.hint:
            lines.append(f"  hint: {each.hint}")
    if report.follows:
        lines.append(f"{len(report.follows)} more follow from it")
    raise AssertionError("\n".join(lines))


def pytest_addoption(parser: Any) -> None:
    """Add ``--update-contracts``."""
    group = parser.getgroup("tdx")
    group.addoption(
        _UPDATE, action="store_true", help="Write the contracts of the fixture check_contract."
    )


if "pytest" in sys.modules:
    # The assertions work without pytest.
    import pytest

    @pytest.fixture
    def check_contract(request: pytest.FixtureRequest) -> Callable[..., None]:
        """Check an env against the contract ``contracts/NAME`` next to the test file.

        ``check_contract(env, "walker", evaluation=True)`` fails if they differ; with
        ``--update-contracts`` it writes the contract instead.
        """
        folder = Path(request.path).parent / "contracts"

        def check(env: Any, name: str, *, evaluation: bool = False) -> None:
            if request.config.getoption(_UPDATE):
                from tdx.contracts import freeze, save_contract

                folder.mkdir(exist_ok=True)
                save_contract(freeze(env), folder / name, force=True)
                return
            assert_matches_contract(env, folder / name, evaluation=evaluation)

        return check
