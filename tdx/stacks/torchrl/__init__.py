"""TorchRL: convert envs and specs in both directions.

The functions here import torchrl when they are called, and check its version first.
"""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

from tdx.foundation.errors import MissingPackageError, install_extra

if TYPE_CHECKING:
    from tdx.envs import EnvBase
    from tdx.specs import TensorSpec
    from tdx.transforms import Transform

__all__ = [
    "from_torchrl",
    "from_torchrl_spec",
    "from_torchrl_transform",
    "to_torchrl",
    "to_torchrl_spec",
]


def to_torchrl(env: EnvBase) -> Any:
    """Return a TorchRL env that runs an env of tdx.

    Collectors, ``SerialEnv``, ``ParallelEnv``, ``TransformedEnv``, losses and ``check_env_specs``
    of TorchRL accept it. Values and seeds are those of the env, which both share. It stays open
    when the TorchRL env is deleted; ``close`` closes both.

    Args:
        env: An env of tdx, with or without transforms.

    Returns:
        A ``torchrl.envs.EnvBase``; the env itself is its attribute ``env``.

    Raises:
        ArgumentError: ``env`` is not an env of tdx.
        MissingPackageError: TorchRL is missing, or has an unsupported version.
        SpecError: A spec has no counterpart in TorchRL.

    Example:
        >>> from tdx import GymEnv, StepCounter, TransformedEnv
        >>> env = to_torchrl(TransformedEnv(GymEnv("Pendulum-v1"), StepCounter()))
        >>> env.rollout(3)["next", "step_count"].flatten()
        tensor([1, 2, 3])
    """
    require_torchrl()
    from tdx.stacks.torchrl.env import TdxEnv

    return TdxEnv(env)


def from_torchrl(env: object) -> EnvBase:
    """Return an env of tdx that runs a TorchRL env, with one stage for each transform.

    The stages run the original transforms, so values, specs, partial resets and state are those
    of the TorchRL env. It stays usable, but both share one state: step one of them at a time.

    Args:
        env: A ``torchrl.envs.EnvBase``, with or without a (nested) chain of transforms.

    Raises:
        ArgumentError: ``env`` is not a TorchRL env, or it resets itself during a step.
        MissingPackageError: TorchRL is missing, or has an unsupported version.
        SpecError: The class of a spec has no counterpart in tdx.

    Example:
        >>> from tdx import CartPoleEnv
        >>> from torchrl.envs import RewardSum, StepCounter
        >>> chain = to_torchrl(CartPoleEnv()).append_transform(StepCounter())
        >>> env = from_torchrl(chain.append_transform(RewardSum()))
        >>> [type(stage).__name__ for stage in env.stages]
        ['StepCounter', 'RewardSum']
    """
    require_torchrl()
    from tdx.stacks.torchrl.chain import convert_env

    return convert_env(env)


def from_torchrl_transform(transform: object) -> Transform:
    """Return a stage for a chain of tdx that runs a transform of TorchRL.

    The stage runs the original, with its specs and its state. A rollout runs it in every step,
    since nothing is known about it.

    Args:
        transform: A ``torchrl.envs.Transform`` without an env. A ``torchrl.envs.Compose`` becomes
            a ``Compose`` with clones of its transforms.

    Raises:
        ArgumentError: ``transform`` is not a TorchRL transform, or is part of a chain of TorchRL.
        MissingPackageError: TorchRL is missing, or has an unsupported version.

    Example:
        >>> import torchrl.envs
        >>> from tdx import GymEnv, RewardScaling, TransformedEnv
        >>> total = from_torchrl_transform(torchrl.envs.RewardSum())
        >>> env = TransformedEnv(GymEnv("CartPole-v1"), total).append_transform(
        ...     RewardScaling(0.0, 2.0)
        ... )
        >>> env.rollout(3)["next", "episode_reward"].flatten()
        tensor([1., 2., 3.])
    """
    require_torchrl()
    from tdx.stacks.torchrl.transform import adopt_transform

    return adopt_transform(transform)


def to_torchrl_spec(spec: TensorSpec) -> Any:
    """Convert a spec of tdx to the spec of TorchRL with the same values.

    Args:
        spec: Any spec of tdx. Locked composites stay locked.

    Raises:
        MissingPackageError: TorchRL is missing, or has an unsupported version.
        SpecError: The spec has no counterpart in TorchRL, for example complex numbers.

    Example:
        >>> from tdx import Bounded, Composite
        >>> to_torchrl_spec(Composite(observation=Bounded(-1, 1, (3,))))["observation"].shape
        torch.Size([3])
    """
    require_torchrl()
    from tdx.stacks.torchrl.specs import convert_to_torchrl

    return convert_to_torchrl(spec)


def from_torchrl_spec(spec: object) -> TensorSpec:
    """Convert a spec of TorchRL to the spec of tdx with the same values.

    Args:
        spec: A ``torchrl.data.TensorSpec``. Locked composites stay locked.

    Raises:
        MissingPackageError: TorchRL is missing, or has an unsupported version.
        SpecError: The class of the spec has no counterpart in tdx.

    Example:
        >>> from tdx import Categorical
        >>> from_torchrl_spec(to_torchrl_spec(Categorical(3))) == Categorical(3)
        True
    """
    require_torchrl()
    from tdx.stacks.torchrl.specs import convert_from_torchrl

    return convert_from_torchrl(spec)


SUPPORTED = "0.14"
"""Release whose envs, transforms and specs are supported."""
HINT = install_extra("torchrl")


def require_torchrl() -> None:
    """Check that a supported release of TorchRL is installed, without importing it.

    Raises:
        MissingPackageError: It is missing, or another release is installed.
    """
    try:
        installed = version("torchrl")
    except PackageNotFoundError as error:
        raise MissingPackageError("TorchRL is not installed", hint=HINT) from error
    if not installed.startswith(f"{SUPPORTED}."):
        raise MissingPackageError(
            f"TorchRL {installed} is not supported: tdx needs {SUPPORTED}", hint=HINT
        )
