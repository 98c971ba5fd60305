"""Assertions for envs, chains and transforms, and a pytest fixture for contracts of preprocessing.

As a plugin of pytest it adds the fixture ``check_contract`` and the option ``--update-contracts``.
"""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tensordict import TensorDictBase

    from tdx import EnvBase, Transform
    from tdx.contracts import Contract, ContractReport
    from tdx.contracts.tolerances import Tolerances

_UPDATE = "--update-contracts"


def assert_same_pipeline(
    a: Any,
    b: Any,
    *,
    steps: int = 12,
    seed: int = 0,
    evaluation: bool = False,
    tolerances: Tolerances | None = None,
) -> None:
    """Assert that two envs preprocess alike, whatever library they come from.

    Args:
        a: The reference, such as the env of the training.
        b: The other env; reset it before you use it again.
        steps: Number of reference steps.
        seed: Seed of the reference steps.
        evaluation: The other env is used for evaluation: its statistics must not change.
        tolerances: Tolerances of keys, as for :func:`tdx.check_contract`.

    Raises:
        AssertionError: They differ; the message names the first stage and key.

    Example:
        >>> import gymnasium
        >>> from tdx.testing import assert_same_pipeline
        >>> one, other = (gymnasium.make("Pendulum-v1") for _ in range(2))
        >>> assert_same_pipeline(one, other, steps=4)
    """
    from tdx.contracts import diff_stacks

    _raise(diff_stacks(a, b, seed=seed, steps=steps, evaluation=evaluation, tolerances=tolerances))


def assert_matches_contract(
    env: Any,
    contract: Contract | str | Path,
    *,
    evaluation: bool = False,
    tolerances: Tolerances | None = None,
) -> None:
    """Assert that an env preprocesses as a contract does.

    Args:
        env: The env; reset it before you use it again.
        contract: The contract, or its folder.
        evaluation: The env is used for evaluation: its statistics must not change.
        tolerances: Tolerances of keys, as for :func:`tdx.check_contract`.

    Raises:
        AssertionError: It differs; the message names the first stage and key.
        StorageError: The contract cannot be read.
    """
    from tdx.contracts import Contract, check_contract, load_contract

    is_path = not isinstance(contract, Contract)
    loaded: Any = load_contract(str(contract)) if is_path else contract
    name = str(contract) if is_path else "contract"
    _raise(
        check_contract(env, loaded, evaluation=evaluation, reference=name, tolerances=tolerances)
    )


def assert_env_specs(env: Any, *, steps: int = 50, seed: int | None = 0) -> None:
    """Assert that the values of an env and of its stages match their specs in random steps.

    Args:
        env: An env of tdx, Gymnasium, Stable-Baselines3 or TorchRL; it is reset and stepped.
        steps: Number of steps.
        seed: Seed of the env and of the actions. ``None``: do not seed.

    Raises:
        AssertionError: A value does not match its spec; the message names the stage and the key.

    Example:
        >>> import gymnasium
        >>> from tdx.testing import assert_env_specs
        >>> assert_env_specs(gymnasium.make("Pendulum-v1"), steps=5)
    """
    from tdx.inspection.stack_check import check

    findings = check(env, steps=steps, seed=seed).findings
    errors = [each for each in findings if each.severity == "error"]
    found = [each for each in errors if each.violation is not None or each.check != "lints"]
    if found:
        raise AssertionError(
            "\n".join(f"{each.code} {each.where}: {each.message}" for each in found)
        )


def assert_transform_contract(
    make: Callable[[], Transform], make_env: Callable[[], EnvBase], *, steps: int = 8, seed: int = 0
) -> None:
    """Assert what tdx relies on for every transform, such as one of a plugin.

    The values match the specs; the specs before the transform and the input of a step are left
    unchanged; a planned rollout and one of a pickled copy have the values of an eager one; and a
    transform continues from the ``state_dict`` of another one.

    Args:
        make: Creates the transform.
        make_env: Creates an env that it fits, whose steps depend only on its seed and the actions.
        steps: Number of steps of each rollout.
        seed: Seed of the env and of the actions.

    Raises:
        AssertionError: The transform breaks one of these rules; the message names it.

    Example:
        >>> from tdx import GymEnv, RewardSum
        >>> from tdx.testing import assert_transform_contract
        >>> assert_transform_contract(RewardSum, lambda: GymEnv("Pendulum-v1"))
    """
    from tdx import TransformedEnv, check_env_specs

    base = make_env()
    given = base.output_spec.clone(), base.input_spec.clone()
    env = TransformedEnv(base, make())
    check_env_specs(env, seed=seed)
    if (base.output_spec, base.input_spec) != given:
        raise AssertionError(f"{env.stages[0]} changes the specs of the env before it")
    _assert_input_unchanged(env)
    expected = _roll_out(TransformedEnv(make_env(), make(), planned=False), steps, seed)
    pickled = pickle.loads(pickle.dumps(make()))
    for how, transform in (("planned", make()), ("pickled", pickled)):
        other = TransformedEnv(make_env(), transform, planned=how == "planned")
        found = _roll_out(other, steps, seed)
        _assert_same(expected, found, f"a {how} rollout differs from an eager one")
    env.close()
    first, second = (TransformedEnv(make_env(), make(), planned=False) for _ in range(2))
    _roll_out(first, steps, seed)
    second.load_state_dict(first.state_dict())
    _assert_same(
        _roll_out(first, steps, seed + 1),
        _roll_out(second, steps, seed + 1),
        "a rollout with a loaded state_dict differs",
    )


def _roll_out(env: EnvBase, steps: int, seed: int) -> TensorDictBase:
    import torch

    env.set_seed(seed)
    torch.manual_seed(seed)
    return env.rollout(steps, break_when_any_done=False)


def _assert_input_unchanged(env: EnvBase) -> None:
    tensordict = env.rand_action(env.reset())
    given = tensordict.clone()
    env.step(tensordict)
    _assert_same(given, tensordict.select(*given.keys()), "a step changes its input")


def _assert_same(expected: TensorDictBase, found: TensorDictBase, message: str) -> None:
    from tdx.compare.rollouts import compare_rollouts, explain_rollouts

    changes = compare_rollouts(expected, found)
    # A single step, without a batch, explains nothing.
    explanations = explain_rollouts(expected, found, changes) if expected.ndim else {}
    for key, change in changes.items():
        if change is not None:
            how = f"; {explanations[key].text}" if key in explanations else ""
            raise AssertionError(f"{message} at {key}: {change.text}{how}")


def _raise(report: ContractReport) -> None:
    if report.same:
        return
    is_different = report.verdict == "different"
    what = "differs from" if is_different else "cannot be compared with"
    lines = [f"{report.target} {what} {report.reference} ({report.coverage})", *report.excluded]
    missed = () if report.evaluation else report.training_only
    for each in (*report.differences, *missed):
        lines.append(f"{each.title}: {each.sentence}")
        lines += [f"  {name}: {text}" for name, text in each.details()]
        lines += [f"  {row}" for row in each.examples]
    lines += [f"allowed: {each.sentence}" for each in report.allowed]
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

        def check(
            env: Any,
            name: str,
            *,
            evaluation: bool = False,
            tolerances: Tolerances | None = None,
        ) -> None:
            if request.config.getoption(_UPDATE):
                from tdx.contracts import freeze, save_contract

                folder.mkdir(exist_ok=True)
                save_contract(freeze(env, tolerances=tolerances), folder / name, force=True)
                return
            assert_matches_contract(
                env, folder / name, evaluation=evaluation, tolerances=tolerances
            )

        return check
