"""The abstract env: ``step``, ``reset`` and ``rollout``."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar, Literal, Self

import torch
from tensordict import TensorDictBase, is_tensor_collection
from torch import nn

from tdx.core.envs import rollout as rollouts
from tdx.core.envs import spec_inference
from tdx.core.envs.capabilities import EnvCapabilities, EnvServices
from tdx.core.envs.done_flags import (
    any_done,
    complete_done,
    complete_masks,
    complete_rewards,
    end_masks,
    is_partial,
    write_reset,
)
from tdx.core.envs.env_specs import EnvSpecs, available_device
from tdx.core.envs.spec_attributes import (
    BatchSize,
    EnvMeta,
    FullSpec,
    LeafKeys,
    LeafSpecAttribute,
    OnlyKey,
    SpecLock,
    SpecsAttribute,
    UnbatchedSpec,
)
from tdx.core.envs.step_mdp import advance, step_anywhere
from tdx.foundation.accelerators import target_device
from tdx.foundation.errors import ArgumentError, EnvError
from tdx.foundation.tensordicts import (
    is_step_result,
    mark_step_result,
    new_tensordict,
    plain_entries,
    read,
    update_entries,
    write,
)
from tdx.specs.violations import SpecViolation


class EnvBase(nn.Module, EnvCapabilities, metaclass=EnvMeta):
    """Abstract env over TensorDicts.

    A subclass sets its specs in ``__init__`` and implements :meth:`_step`, :meth:`_reset` and
    :meth:`_set_seed`. Every spec is stored as a composite. ``action_spec``, ``reward_spec`` and
    ``done_spec`` return the leaf itself if the composite contains only one.

    Args:
        device: Device of the env's tensors; the CPU by default.
        batch_size: Number of envs that run at once, ``[*B]``; empty for a single env.
        run_type_checks: If True, each step checks the dtypes of its output.
        allow_done_after_reset: If True, an episode may be done right after its reset.
        _batch_locked: If True, the env takes TensorDicts of its batch size only. An env without
            state of its own may also take ``[*A, *B]``.

    Example:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> from tdx import Composite, Unbounded
        >>> class Counter(EnvBase):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.observation_spec = Composite(count=Unbounded((1,)))
        ...         self.action_spec = Unbounded((1,))
        ...     def _reset(self, tensordict=None, **kwargs):
        ...         return TensorDict(count=torch.zeros(1))
        ...     def _step(self, tensordict):
        ...         count = tensordict["count"] + 1
        ...         return TensorDict(count=count, reward=torch.ones(1), done=count > 2)
        ...     def _set_seed(self, seed):
        ...         return None
        >>> Counter().rollout(10)["next", "count"].flatten()
        tensor([1., 2., 3.])
    """

    # Specs and what follows from them, held by an :class:`~tdx.core.envs.env_specs.EnvSpecs`.

    full_observation_spec = FullSpec("full_observation_spec", "Outputs except rewards and flags.")
    full_reward_spec = FullSpec("full_reward_spec", "The reward spec, always as a composite.")
    full_done_spec = FullSpec("full_done_spec", "The spec of the done flags, as a composite.")
    full_action_spec = FullSpec("full_action_spec", "The action spec, always as a composite.")
    full_state_spec = FullSpec("full_state_spec", "All inputs except actions, as a composite.")
    observation_spec = FullSpec("full_observation_spec", "Outputs except rewards and flags.")
    state_spec = FullSpec("full_state_spec", "All inputs except actions.")
    action_spec = LeafSpecAttribute(
        "full_action_spec", "Spec of the action; of all, if there are several."
    )
    reward_spec = LeafSpecAttribute(
        "full_reward_spec", "Spec of the reward; of all, if there are several."
    )
    done_spec = LeafSpecAttribute(
        "full_done_spec", "Spec of the done flag; of all, if there are several."
    )
    observation_keys = LeafKeys("full_observation_spec", "Keys of the observation spec's leaves.")
    state_keys = LeafKeys("full_state_spec", "Keys of the state spec's leaves.")
    action_keys = LeafKeys("full_action_spec", "Keys of the action spec's leaves.")
    reward_keys = LeafKeys("full_reward_spec", "Keys of the reward spec's leaves.")
    done_keys = LeafKeys("full_done_spec", "Keys of the done spec's leaves.")
    action_key = OnlyKey("full_action_spec", "action")
    reward_key = OnlyKey("full_reward_spec", "reward")
    done_key = OnlyKey("full_done_spec", "done")
    done_keys_groups = SpecsAttribute(EnvSpecs.done_groups, "Done keys by their parent.")
    reset_keys = SpecsAttribute(EnvSpecs.reset_keys, "Keys of the partial-reset masks.")
    output_spec = SpecsAttribute(lambda specs: specs.output_spec, "What the env returns; locked.")
    input_spec = SpecsAttribute(lambda specs: specs.input_spec, "What the env takes; locked.")
    specs = SpecsAttribute(EnvSpecs.whole, "All specs of the env in one composite.")
    full_observation_spec_unbatched = UnbatchedSpec("full_observation_spec")
    full_reward_spec_unbatched = UnbatchedSpec("full_reward_spec")
    full_done_spec_unbatched = UnbatchedSpec("full_done_spec")
    full_action_spec_unbatched = UnbatchedSpec("full_action_spec")
    full_state_spec_unbatched = UnbatchedSpec("full_state_spec")
    observation_spec_unbatched = UnbatchedSpec("observation_spec")
    reward_spec_unbatched = UnbatchedSpec("reward_spec")
    done_spec_unbatched = UnbatchedSpec("done_spec")
    action_spec_unbatched = UnbatchedSpec("action_spec")
    state_spec_unbatched = UnbatchedSpec("state_spec")
    output_spec_unbatched = UnbatchedSpec("output_spec")
    input_spec_unbatched = UnbatchedSpec("input_spec")
    is_spec_locked = SpecLock()

    batch_size = BatchSize()
    device = SpecsAttribute(lambda specs: specs.placed().device, "Device; ``None`` if on several.")
    shape = SpecsAttribute(lambda specs: specs.placed().batch_size, "Same as ``batch_size``.")
    ndim = SpecsAttribute(lambda specs: len(specs.placed().batch_size), "Number of batch dims.")
    batch_dims = SpecsAttribute(lambda specs: len(specs.placed().batch_size), "Same as ``ndim``.")

    services: ClassVar[EnvServices]
    """Set by :mod:`tdx.core`."""

    env_specs: EnvSpecs
    """The specs behind the attributes above, their version and what is derived from them."""

    _batch_locked: bool

    def __new__(
        cls, *args: Any, _inplace_update: bool = False, _batch_locked: bool = True, **kwargs: Any
    ) -> Self:
        """Create an env; its class may declare ``_input_spec`` and ``_output_spec``."""
        env = super().__new__(cls)
        specs = EnvSpecs(None, torch.Size())
        specs.completes_done = cls.auto_complete_done_specs
        specs.unlock()
        specs.declare(getattr(cls, "_input_spec", None), getattr(cls, "_output_spec", None))
        env.__dict__["env_specs"] = specs
        env._batch_locked = _batch_locked
        return env

    def __init__(
        self,
        *,
        device: torch.device | str | int | None = None,
        batch_size: torch.Size | tuple[int, ...] | list[int] | None = None,
        run_type_checks: bool = False,
        allow_done_after_reset: bool = False,
        _batch_locked: bool | None = None,
    ) -> None:
        super().__init__()
        self.env_specs.place(device, batch_size)
        if _batch_locked is not None:
            self._batch_locked = _batch_locked
        self.run_type_checks = run_type_checks
        self.allow_done_after_reset = allow_done_after_reset
        self.is_closed = False

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Return a new TensorDict with observations, reward and done flags, ``[*B]``."""
        raise NotImplementedError

    def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
        """Return a new TensorDict with the first observations, ``[*B]``.

        If ``tensordict`` holds ``_reset`` masks, only the masked rows have to be reset; ``reset``
        restores the other rows afterwards.
        """
        raise NotImplementedError

    def _set_seed(self, seed: int | None) -> None:
        """Seed the random generator of the env."""
        raise NotImplementedError

    @property
    def batch_locked(self) -> bool:
        """True if the env takes TensorDicts of its own batch size only."""
        return self._batch_locked

    @batch_locked.setter
    def batch_locked(self, value: bool) -> None:
        raise EnvError("batch_locked is a read-only property", hint="pass it to the constructor")

    def forward(self, tensordict: TensorDictBase | None = None) -> TensorDictBase:
        """Make one step; same as :meth:`step`.

        Raises:
            ArgumentError: It is called without a TensorDict, as TorchRL's collectors do with an
                object that is not one of their envs.
        """
        if tensordict is None:
            raise ArgumentError(
                "an env is called with the TensorDict of a step, got no argument",
                hint="a collector or an env of TorchRL takes tdx.to_torchrl(env)",
            )
        return self.step(tensordict)

    def __getattr__(self, name: str) -> torch.Tensor | nn.Module:
        # What collectors, batches and transformed envs of TorchRL read first of an env.
        if name in ("_has_dynamic_specs", "_supports_set_state"):
            raise ArgumentError(
                "an env of tdx was given to an object of TorchRL",
                hint="give it tdx.to_torchrl(env), or a function that returns that",
            )
        return super().__getattr__(name)

    def step(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Make one step.

        Args:
            tensordict: Holds the action, of shape ``[*B]``. Entries that it already has under
                ``next`` take precedence over the result of the step, unless they are the result
                of an earlier step of the same TensorDict.

        Returns:
            The same TensorDict, with the result under ``next``.
        """
        entries = plain_entries(tensordict)
        # The comparisons take less time than the checks, which the usual input does not need.
        if (
            entries is None
            or tensordict.batch_size != self.env_specs.batch_size
            or tensordict.device != self.env_specs.device
        ):
            self._check_batch(tensordict)
            return step_anywhere(tensordict, self.device, self.completed_step)
        given_next = entries.get("next")
        if given_next is not None and is_step_result(given_next, tensordict):
            given_next = None  # The result of the step before is no wish of the caller.
        following = self.completed_step(tensordict, given_next)
        if given_next is not None:
            update_entries(following, given_next)
        entries["next"] = following
        mark_step_result(following, tensordict)
        return tensordict

    def completed_step(
        self, tensordict: TensorDictBase, given_next: TensorDictBase | None = None
    ) -> TensorDictBase:
        """Call :meth:`_step` and add the declared flags and rewards that it left out.

        Args:
            tensordict: Input of the step, ``[*B]``.
            given_next: Entries that the caller has put under ``next``. :meth:`step` writes them
                over the result; only a chain of transforms reads them before that.
        """
        following = self._step(tensordict)
        if not self.writes_all_outputs:
            rewards, flags = self.full_reward_spec, self.full_done_spec
            complete_rewards(following, self._expanded(rewards, following))
            complete_done(following, self._expanded(flags, following), reset=False)
            if self.run_type_checks:
                for part in self.output_spec.values():
                    part.type_check(following)
        return following

    def completed_reset(
        self, tensordict: TensorDictBase | None = None, **kwargs: Any
    ) -> TensorDictBase:
        """Call :meth:`_reset` and add the declared flags that it left out."""
        result = self._reset(tensordict, **kwargs)
        if not self.writes_all_outputs:
            complete_done(result, self._expanded(self.full_done_spec, result), reset=True)
        return result

    def _expanded(self, spec: Any, tensordict: TensorDictBase) -> Any:
        """Expand a spec to a TensorDict ``[*A, *B]`` if the env is not batch-locked."""
        extra = tensordict.batch_size[: tensordict.ndim - len(self.env_specs.batch_size)]
        return spec.expand(*extra, *spec.shape) if extra and not self.batch_locked else spec

    def reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
        """Start new episodes.

        Args:
            tensordict: Where to write, ``[*B]``; a new TensorDict by default. If it holds
                ``_reset`` masks (bool, of the done flag's shape), only the masked rows are reset
                and the others keep their values.
            **kwargs: Passed to :meth:`_reset`.

        Returns:
            ``tensordict``, or a new TensorDict.

        Raises:
            EnvError: A mask has a wrong shape or dtype.
        """
        if tensordict is None:
            return self.completed_reset(None, **kwargs)
        self._check_batch(tensordict)
        masks = complete_masks(
            tensordict, self.reset_keys, lambda: self._expanded(self.full_done_spec, tensordict)
        )
        partial = is_partial(masks, self.env_specs.main_device)
        result = self.completed_reset(tensordict, **kwargs)
        return write_reset(tensordict, result, masks, partial, self.env_specs.output_keys())

    def _check_batch(self, tensordict: TensorDictBase) -> None:
        given, own = tuple(tensordict.batch_size), tuple(self.batch_size)
        if self.batch_locked and given != own:
            raise ArgumentError(
                f"Expected a tensordict with shape==env.batch_size, got {given}, the env has {own}",
                hint="the env is batch-locked: pass a TensorDict of its own batch size",
            )
        if given[max(len(given) - len(own), 0) :] != own:
            raise ArgumentError(
                f"Expected a tensordict with shape [*A, *env.batch_size], got {given}, the env has "
                f"{own}",
                hint="dims may be added before the batch dims of the env",
            )

    def step_mdp(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Return the input of the next step: the root updated with ``next``, without rewards.

        A reward that is also a state stays.
        """
        return advance(tensordict, self.env_specs.dropped_keys())

    def maybe_reset(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Reset the rows whose done flag at the root is set, if there are any.

        Flags of agents count only if the env has none at the root.
        """
        # Reading a flag on an accelerator would make the host wait for it.
        reads_flags = self.env_specs.main_device.type == "cpu" or not self.resets_by_mask
        end_keys = self.env_specs.end_keys()
        if reads_flags and not any_done(tensordict, end_keys):
            return tensordict
        for key, mask in end_masks(tensordict, end_keys).items():
            write(tensordict, key, mask.clone())
        return self.reset(tensordict)

    def step_and_maybe_reset(
        self, tensordict: TensorDictBase
    ) -> tuple[TensorDictBase, TensorDictBase]:
        """Make one step, and reset the episodes that ended with it.

        Returns:
            The TensorDict of the step with ``next``, and the input of the next step.
        """
        tensordict = self.step(tensordict)
        return tensordict, self.maybe_reset(self.step_mdp(tensordict))

    def rand_action(self, tensordict: TensorDictBase | None = None) -> TensorDictBase:
        """Write a random action from the action spec.

        Args:
            tensordict: Where to write, ``[*B]``; a new TensorDict by default.
        """
        if tensordict is None:
            tensordict = new_tensordict({}, self.batch_size, self.device)
        drawn = self._expanded(self.full_action_spec, tensordict).rand()
        for name in drawn.keys():
            value, held = read(drawn, name), read(tensordict, name)
            if held is not None and is_tensor_collection(value):
                held.update(value)
            else:
                tensordict.set(name, value)
        return tensordict

    def rand_step(self, tensordict: TensorDictBase | None = None) -> TensorDictBase:
        """Make one step with a random action; see :meth:`rand_action`."""
        return self.step(self.rand_action(tensordict))

    def record_threads(self, threads: set[int]) -> AbstractContextManager[None]:
        """Note the threads that step the env in a block in which others may step it directly.

        Internal: an env around an env of another library overrides it.

        Args:
            threads: Receives their ids.
        """
        return nullcontext()

    def set_seed(self, seed: int | None = None, static_seed: bool = False) -> int | None:
        """Seed the generator of the env; random actions follow ``torch.manual_seed``.

        Args:
            seed: Seed of the first env; env ``i`` of a batch gets ``seed + i``.
            static_seed: If True, every env of a batch gets the same seed.

        Returns:
            Seed for the next env: ``seed`` plus the number of envs, or ``seed`` if it is static.
        """
        self._set_seed(seed)
        if seed is None or static_seed:
            return seed
        return seed + max(self.numel(), 1)

    rollout = rollouts.rollout
    iter_rollout = rollouts.iter_rollout
    auto_specs_ = spec_inference.auto_specs_
    set_spec_lock_ = spec_inference.set_spec_lock_
    add_truncated_keys = spec_inference.add_truncated_keys

    def append_transform(
        self, transform: nn.Module | Callable[[TensorDictBase], TensorDictBase]
    ) -> EnvBase:
        """Return a new env with a transform around this one, which stays unchanged."""
        return type(self).services.append_transform(self, transform)

    def check_env_specs(
        self,
        return_contiguous: bool | None = None,
        check_dtype: bool = True,
        seed: int | None = None,
        tensordict: TensorDictBase | None = None,
        break_when_any_done: bool | Literal["both"] | None = None,
    ) -> None:
        """Check that the env returns what its specs declare; see :func:`tdx.check_env_specs`.

        Raises:
            CheckError: A spec is violated.
        """
        self.services.check_env_specs(
            self, return_contiguous, check_dtype, seed, tensordict, break_when_any_done
        )

    def find_stage_violations(
        self, check_dtype: bool, tensordict: TensorDictBase | None, steps: int
    ) -> list[SpecViolation]:
        """Return the spec violations of the stages of the env's chain."""
        return self.services.find_stage_violations(self, check_dtype, tensordict, steps)

    def ndimension(self) -> int:
        """Return the number of batch dims."""
        return self.ndim

    def numel(self) -> int:
        """Return the number of single envs."""
        return self.batch_size.numel()

    def to(self, *args: Any, **kwargs: Any) -> Self:
        """Move the env to a device; takes the arguments of ``nn.Module.to``.

        Raises:
            DeviceError: The device does not exist on this machine.
        """
        device = target_device(*args, **kwargs)
        if device is not None:
            device = available_device(device)
        super().to(*args, **kwargs)
        if device is not None:
            self.move_to(device)
        return self

    def cpu(self) -> Self:
        """Move the env to the CPU."""
        return self.to("cpu")

    def cuda(self, device: torch.device | int | None = None) -> Self:
        """Move the env to a CUDA device, the current one by default."""
        return self.to(torch.device("cuda") if device is None else torch.device(device))

    def move_to(self, device: torch.device) -> None:
        if device != self.env_specs.device:
            self._move(device)

    def _move(self, device: torch.device) -> None:
        self.env_specs.move(device)

    def fake_tensordict(self) -> TensorDictBase:
        """Return zeros for every key of a step, in the declared shapes, dtypes and device."""
        return self.env_specs.fake_tensordict()

    def close(self, *, raise_if_closed: bool = True) -> None:
        """Release the resources of the env; it cannot be used afterwards.

        Args:
            raise_if_closed: If False, an env that raises an error if it is closed does not.
        """
        self.is_closed = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def __repr__(self) -> str:
        size = torch.Size(self.batch_size)
        return f"{type(self).__name__}(batch_size={size}, device={self.device})"
