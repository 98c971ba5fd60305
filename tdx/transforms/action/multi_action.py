"""Take several actions at once from the policy."""

from __future__ import annotations

from typing import Self

import torch
from tensordict import TensorDictBase
from torch import Tensor

from tdx.core.envs.step_mdp import advance
from tdx.core.transforms import TimeBehavior
from tdx.core.transforms.families import EnvOnlyTransform, batch_dims_of
from tdx.core.transforms.inner_steps import end_keys, require_upstream, running_rows, step_rows
from tdx.core.transforms.spec_maps import missing_key_error, output_keys, unlocked_copy
from tdx.core.transforms.validation import check_integer
from tdx.foundation.errors import ArgumentError, Where
from tdx.foundation.keys import NestedKey, normalize_key
from tdx.foundation.tensordicts import read, write
from tdx.specs import Composite
from tdx.transforms.action.action_chunk_transform import ACTION_CHUNK_KEY


class MultiAction(EnvOnlyTransform):
    """Take a chunk of actions from the policy, and step the env once for each.

    The chunk has one more dim than an action, ``[*B, n, ...]``, of any length. A step returns the
    output of the last action. Upstream stages see every step of the env, later ones one in ``n``.
    If the episode ends within a chunk, the rest of it is not played: in a batch, rows that are
    done are not stepped while the others continue.

    Args:
        dim: Position of the new dim after the batch dims, counted from 1.
        stack_rewards: Return the rewards of all steps, ``[*B, n, ...]``, with zeros for steps that
            are not played; otherwise that of the last step played.
        action_key: Action of the env. ``None``: all of them.
        chunk_key: Key of the chunk; that of the action by default.

    Raises:
        ArgumentError: ``dim`` is not an integer of at least 1, ``chunk_key`` is given for several
            actions, or (in a step) a chunk is empty, has another number of dims, or the chunks
            differ in length.
        KeyNotFoundError: The env has no such action (when its specs are computed), or a chunk is
            missing (in a step).
        ChainError: The env cannot step some rows of its batch (in a step).

    Example:
        >>> import torch
        >>> from tdx import GymEnv, MultiAction, TransformedEnv
        >>> env = TransformedEnv(GymEnv("Pendulum-v1"), MultiAction())
        >>> start = env.reset().set("action", torch.zeros(4, 1))
        >>> env.step(start)["next", "reward"].shape
        torch.Size([4, 1])
    """

    why_not_exported = "it steps the env"
    _is_verified = True
    steps_env = True

    time_behavior = TimeBehavior.CONTROL

    def __init__(
        self,
        *,
        dim: int = 1,
        stack_rewards: bool = True,
        action_key: NestedKey | None = None,
        chunk_key: NestedKey | None = None,
    ) -> None:
        super().__init__()
        self.dim = check_integer(dim, "dim", 1, "1 is the first dim after the batch dims")
        self.stack_rewards = stack_rewards
        self.action_key = None if action_key is None else normalize_key(action_key)
        self.chunk_key = None if chunk_key is None else normalize_key(chunk_key)
        if self.action_key is not None:
            self._set_inverse_keys([self.action_key], [self.chunk_key or self.action_key])
        # Dim of the chunk in each entry, counted from the last batch dim of the env.
        self._action_dims: dict[NestedKey, int] = {}
        # Shape of an action without the batch dims.
        self._features: dict[NestedKey, torch.Size] = {}
        self._reward_dims: dict[NestedKey, int] = {}
        self._done_keys: list[NestedKey] = []
        self._outputs: tuple[NestedKey, ...] = ()
        # Input of the running step, and the actions that follow its first one, by key.
        self._input: TensorDictBase | None = None
        self._following: dict[NestedKey, tuple[Tensor, ...]] = {}

    @classmethod
    def from_vla(cls, *, dim: int = 1, stack_rewards: bool = True) -> Self:
        """Return a transform for policies that write chunks to ``("vla_action", "chunk")``."""
        return cls(
            dim=dim, stack_rewards=stack_rewards, action_key="action", chunk_key=ACTION_CHUNK_KEY
        )

    @property
    def invertible(self) -> bool:
        """True, since it takes chunks instead of actions."""
        return True

    # Steps

    def _inv_call(self, tensordict: TensorDictBase) -> TensorDictBase:
        if not self._action_dims:  # Data that a replay buffer writes has its chunks.
            return tensordict
        self._following = {}
        for in_key, out_key in self._inverse_pairs:
            chunk = self._entry(tensordict, out_key)
            dims, features = self._action_dims[in_key], self._features[in_key]
            if chunk.ndim != tensordict.ndim + len(features) + 1:
                raise ArgumentError(
                    f"a chunk of actions {tuple(features)} has one more dim, got "
                    f"{tuple(chunk.shape)}",
                    hint="return [*B, n, ...] from the policy",
                    where=Where(key=out_key),
                )
            actions = chunk.unbind(tensordict.ndim + dims)
            if not actions:
                raise ArgumentError("the chunk holds no action", where=Where(key=out_key))
            if in_key != out_key:
                del tensordict[out_key]
            write(tensordict, in_key, actions[0])
            self._following[in_key] = actions[1:]
        lengths = {len(actions) + 1 for actions in self._following.values()}
        if len(lengths) > 1:
            raise ArgumentError(f"the chunks of the actions have {sorted(lengths)} actions")
        self._input = tensordict.clone(recurse=False)
        return tensordict

    def _step(self, tensordict: TensorDictBase, next_tensordict: TensorDictBase) -> TensorDictBase:
        before, following = self._input, next_tensordict
        assert before is not None
        self._input = None
        rest = list(zip(*self._following.values(), strict=True))
        rewards = {key: [read(following, key)] for key in self._reward_dims}
        env, stages = require_upstream(self)
        for actions in rest:
            running = running_rows(following, self._done_keys)
            if bool(running.any()):
                before = advance(before.set("next", following), list(rewards))
                for key, action in zip(self._following, actions, strict=True):
                    write(before, key, action)
                passed_on = before.clone(recurse=False)
                following = step_rows(env, stages, passed_on, running, following)
            for key, earned in rewards.items():
                earned.append(self._played(running, read(following, key)))
        for key, earned in rewards.items():
            if self.stack_rewards:
                dim = following.ndim + self._reward_dims[key]
                write(following, key, torch.stack(earned, dim))
        return following

    @staticmethod
    def _played(running: Tensor, reward: Tensor) -> Tensor:
        """Return the rewards ``[*B, ...]`` of a step, with zeros in rows that were done before."""
        rows = running.reshape(*running.shape, *[1] * (reward.ndim - running.ndim))
        return torch.where(rows.to(reward.device), reward, torch.zeros_like(reward))

    # Specs

    def _bind(self, input_spec: Composite, output_spec: Composite) -> None:
        actions, rewards = input_spec["full_action_spec"], output_spec["full_reward_spec"]
        if self.action_key is None:
            keys = [normalize_key(key) for key in actions.keys(True, True)]
            if self.chunk_key is not None and len(keys) != 1:
                raise ArgumentError(
                    f"chunk_key is given for {len(keys)} actions", hint="name the action_key"
                )
            self._set_inverse_keys(keys, keys if self.chunk_key is None else [self.chunk_key])
        for key in self.in_keys_inv:
            if actions.get(key, None) is None:
                known = output_keys(Composite(full_action_spec=actions))
                raise missing_key_error(key, known, "the action spec at this stage")
        self._action_dims = {key: self._chunk_dim(actions, key) for key in self.in_keys_inv}
        self._features = {key: actions[key].shape[actions.ndim :] for key in self.in_keys_inv}
        self._reward_dims = {
            normalize_key(key): self._chunk_dim(rewards, key) for key in rewards.keys(True, True)
        }
        self._done_keys = end_keys(output_spec["full_done_spec"])
        self._outputs = tuple(output_keys(output_spec))

    def _chunk_dim(self, spec: Composite, key: NestedKey) -> int:
        # A group of agents has dims of its own, in front of the chunk.
        return batch_dims_of(spec, key) - spec.ndim + self.dim - 1

    @property
    def written_keys(self) -> tuple[NestedKey, ...]:
        return self._outputs

    def transform_action_spec(self, action_spec: Composite) -> Composite:
        """Return the action spec with chunks of unknown length."""
        result = unlocked_copy(action_spec)
        for in_key, out_key in self._inverse_pairs:
            spec = action_spec.get(in_key, None)
            if spec is not None:
                dim = action_spec.ndim + self._action_dims[in_key]
                del result[in_key]
                result[out_key] = spec.unsqueeze(dim).make_neg_dim(dim)
        return result

    def transform_state_spec(self, state_spec: Composite) -> Composite:
        """Return the state spec unchanged."""
        return state_spec

    def transform_reward_spec(self, reward_spec: Composite) -> Composite:
        """Return the reward spec, with the rewards of all steps if they are stacked."""
        if not self.stack_rewards:
            return reward_spec
        result = unlocked_copy(reward_spec)
        for key, offset in self._reward_dims.items():
            dim = reward_spec.ndim + offset
            result[key] = reward_spec[key].unsqueeze(dim).make_neg_dim(dim)
        return result

    def __repr__(self) -> str:
        return f"MultiAction(dim={self.dim}, stack_rewards={self.stack_rewards})"
