"""Rollouts with fixed actions, and their comparison."""

from __future__ import annotations

import torch
from tensordict import TensorDictBase
from torch import Tensor
from torch.nn.functional import one_hot

from tdx.core.envs import EnvBase
from tdx.foundation.keys import NestedKey, format_key, normalize_key, split_key
from tdx.specs import Bounded, Categorical, MultiCategorical, OneHot

# Outputs of a network: batches round differently from single images.
ROUNDED = {"r3m_vec"}

CHUNK = 2
"""Number of actions if the env takes any."""


class FixedActions:
    """Policy whose actions depend only on the number of the step.

    Args:
        env: Env with bounded or categorical actions.
    """

    def __init__(self, env: EnvBase) -> None:
        self.specs = {
            normalize_key(key): spec for key, spec in env.full_action_spec.items(True, True)
        }
        self.generator = torch.Generator().manual_seed(7)

    def __call__(self, tensordict: TensorDictBase) -> TensorDictBase:
        for key, spec in self.specs.items():
            shape = [CHUNK if size < 0 else size for size in spec.shape]
            part = torch.rand(shape, generator=self.generator)
            if isinstance(spec, Bounded):
                part = part.to(spec.low)
                value = spec.low + (spec.high - spec.low) * part
            elif isinstance(spec, OneHot):
                value = one_hot(part.argmax(-1), spec.n)
            else:
                assert isinstance(spec, Categorical)
                value = part * (spec.nvec if isinstance(spec, MultiCategorical) else spec.n)
            tensordict.set(key, value.to(spec.dtype))
        return tensordict


def fixed_rollout(env: EnvBase, steps: int = 8) -> TensorDictBase:
    """Return a rollout ``[*B, T]`` over several episodes."""
    env.set_seed(3)
    torch.manual_seed(5)
    return env.rollout(steps, FixedActions(env), break_when_any_done=False)


def entries(tensordict: TensorDictBase) -> dict[NestedKey, Tensor]:
    """Return the leaves by key."""
    return {normalize_key(key): value for key, value in tensordict.items(True, True)}


def assert_same(
    actual: TensorDictBase, expected: TensorDictBase, *, superset: bool = False
) -> None:
    """Check that two TensorDicts have the same keys, shapes, dtypes and values.

    Args:
        actual: Data to check.
        expected: Expected data.
        superset: Allow further keys in ``actual``.
    """
    found, wanted = entries(actual), entries(expected)
    if superset:
        assert wanted.keys() <= found.keys()
    else:
        assert found.keys() == wanted.keys()
    for key, value in wanted.items():
        assert found[key].dtype == value.dtype, key
        assert found[key].shape == value.shape, key
        if split_key(key)[-1] in ROUNDED:
            torch.testing.assert_close(found[key], value, msg=format_key(key))
        else:
            assert torch.equal(found[key], value), key
