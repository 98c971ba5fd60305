"""The rollouts of an env, which the engine carries out."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module

from tensordict import TensorDictBase

from tdx.core.envs.env_module import EnvModule
from tdx.core.envs.policies import Policy
from tdx.core.envs.rollout import Callback, check_steps


class EnvRollouts(EnvModule):
    """What makes many steps of an env; see :class:`EnvBase`."""

    def rollout(
        self,
        max_steps: int,
        policy: Policy | None = None,
        callback: Callback | None = None,
        *,
        auto_reset: bool = True,
        auto_cast_to_device: bool = False,
        break_when_any_done: bool = True,
        break_when_all_done: bool = False,
        return_contiguous: bool = True,
        tensordict: TensorDictBase | None = None,
        set_truncated: bool = False,
    ) -> TensorDictBase:
        """Step the env until it is done, or ``max_steps`` times.

        Args:
            max_steps: the most steps to make.
            policy: writes the action into the TensorDict it is given; random by default. A
                module over tensors gets the observations that its arguments are named after, or
                else all of them in order, and returns the action.
            callback: called after each step with the env and the step's TensorDict.
            auto_reset: whether to reset the env first.
            auto_cast_to_device: whether the policy gets its input on its own device.
            break_when_any_done: whether to stop at the first done flag; otherwise the rows
                that are done are reset and the rollout goes on.
            break_when_all_done: whether to stop once every row is done.
            return_contiguous: whether to return one block; a lazy stack otherwise.
            tensordict: where to start from if ``auto_reset`` is off.
            set_truncated: whether the last step is marked as truncated and done.

        Returns:
            a TensorDict of shape ``[*B, T]``, its last dim named ``time``.

        Raises:
            ArgumentError: ``max_steps`` is below 1, or there is nothing to start from.
        """
        check_steps(max_steps)
        engine = import_module("tdx.core.planned.rollout")
        request = engine.Request(
            policy,
            callback,
            auto_cast_to_device,
            break_when_any_done and not break_when_all_done,
            break_when_all_done,
        )
        rolled_out: TensorDictBase = engine.rollout(
            self,
            max_steps,
            request,
            auto_reset=auto_reset,
            return_contiguous=return_contiguous,
            tensordict=tensordict,
            set_truncated=set_truncated,
        )
        return rolled_out

    def iter_rollout(
        self,
        max_steps: int | None = None,
        policy: Policy | None = None,
        callback: Callback | None = None,
        *,
        chunk_steps: int | None = None,
        chunk_bytes: int | None = None,
        auto_reset: bool = True,
        auto_cast_to_device: bool = False,
        break_when_any_done: bool = False,
        tensordict: TensorDictBase | None = None,
    ) -> Iterator[TensorDictBase]:
        """A rollout chunk after chunk, of any length in constant memory.

        The chunks one after another are what :meth:`rollout` returns. Where a step raises, the
        chunk with the steps before it comes first.

        Args:
            max_steps: the most steps to make; without end by default.
            policy: see :meth:`rollout`.
            callback: see :meth:`rollout`.
            chunk_steps: the number of steps in a chunk; chosen by their size by default.
            chunk_bytes: how much memory a chunk may take, instead.
            auto_reset: whether to reset the env first.
            auto_cast_to_device: whether the policy gets its input on its own device.
            break_when_any_done: whether to stop at the first done flag; otherwise the rows
                that are done are reset and the rollout goes on.
            tensordict: where to start from if ``auto_reset`` is off.

        Yields:
            TensorDicts of shape ``[*B, t]``, their last dim named ``time``.

        Raises:
            ArgumentError: a number of steps or a size is below 1, or both sizes are given.

        Example:
            >>> from tdx import GymEnv
            >>> chunks = GymEnv("Pendulum-v1").iter_rollout(1000, chunk_steps=400)
            >>> [chunk.shape[0] for chunk in chunks]
            [400, 400, 200]
        """
        if max_steps is not None:
            check_steps(max_steps)
        engine = import_module("tdx.core.planned.rollout")
        request = engine.Request(policy, callback, auto_cast_to_device, break_when_any_done, False)
        chunks: Iterator[TensorDictBase] = engine.iter_rollout(
            self,
            max_steps,
            request,
            chunk_steps=chunk_steps,
            chunk_bytes=chunk_bytes,
            auto_reset=auto_reset,
            tensordict=tensordict,
        )
        return chunks
