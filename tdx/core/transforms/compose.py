"""A chain of transforms that is a transform itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Self, overload

import torch
from tensordict import TensorDictBase
from tensordict.nn import dispatch
from torch import nn

from tdx.core.envs import EnvBase
from tdx.core.envs.failures import note_stage
from tdx.core.transforms.callable_transform import (
    CallableTransform,
    TensorDictFunction,
    foreign_library,
)
from tdx.core.transforms.chain_member import ChainOwner
from tdx.core.transforms.transform import Transform
from tdx.foundation.errors import ArgumentError, ChainError, StageIndexError, TdxError
from tdx.foundation.html_repr import repr_html
from tdx.foundation.keys import NestedKey
from tdx.foundation.torch_internals import forward_hooks
from tdx.specs import Composite


class Compose(Transform, ChainOwner):
    """Runs transforms in order, and their inverses in reverse order.

    Args:
        *stages: Stages in order: transforms, chains, or functions of a TensorDict.
        transforms: The same as a sequence, instead of ``stages``.

    Raises:
        ArgumentError: Both are given, or a stage is neither a transform nor a function.
        ChainError: A stage is already part of a chain.

    Example:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> from tdx import RewardClipping, RewardScaling
        >>> chain = Compose(RewardScaling(1.0, 2.0), RewardClipping(-2.0, 2.0))
        >>> chain(TensorDict(reward=torch.ones(1)))["reward"]
        tensor([2.])
        >>> chain[0]
        RewardScaling(loc=1.0000, scale=2.0000, keys=['reward'])
    """

    _repr_html_ = repr_html
    _is_verified = True

    def __init__(
        self,
        *stages: Transform | TensorDictFunction,
        transforms: Sequence[Transform | TensorDictFunction] = (),
    ) -> None:
        super().__init__()
        if type(self) is Compose:
            self.constructor_arguments = None  # They would keep stages that are removed later.
        if stages and transforms:
            raise ArgumentError("Compose has stages twice", hint="pass transforms=[...] alone")
        self.transforms = nn.ModuleList()
        self._stages: tuple[Transform, ...] = ()
        for stage in stages or transforms:
            self.insert(len(self._stages), stage)

    # The chain

    def append(self, transform: Transform | TensorDictFunction) -> None:
        """Append a stage, or each stage of another chain.

        The other chain still lists its stages, but can no longer be changed or used elsewhere. A
        subclass of ``Compose`` and a chain with hooks are one stage, since they may do more than
        their stages.

        Args:
            transform: Transform, chain, or function of a TensorDict.

        Raises:
            ChainError: It is already part of a chain.
        """
        stage = as_transform(transform)
        if type(stage) is not Compose or any(forward_hooks(stage)):
            self.insert(len(self._stages), stage)
            return
        stage.set_container(self)
        for inner in stage:
            inner.reset_parent()
            self.insert(len(self._stages), inner)

    def insert(self, index: int, transform: Transform | TensorDictFunction) -> None:
        """Insert a stage before an index, and set it to the train or eval mode of the chain.

        Args:
            index: Index from 0, or negative to count from the end.
            transform: Transform, or function of a TensorDict.

        Raises:
            StageIndexError: The index is out of range.
        """
        self._require_own_stages()
        count = len(self._stages)
        if not -count <= index <= count:
            raise StageIndexError(
                f"index {index} is outside a chain of {count} stages",
                hint=f"choose one from {-count} to {count}",
            )
        stage = as_transform(transform)
        stage.set_container(self)
        stage.train(self.training)
        stages = list(self._stages)
        stages.insert(index, stage)
        self.set_stages(stages)

    def pop(self, index: int = -1) -> Transform:
        """Remove a stage and return it.

        Raises:
            StageIndexError: The chain has fewer stages.
        """
        self._require_own_stages()
        stages = list(self._stages)
        if not -len(stages) <= index < len(stages):
            raise StageIndexError(
                f"index {index} is out of range for a chain of {len(stages)} stages",
                hint=f"valid indices: {-len(stages)} to {len(stages) - 1}" if stages else None,
            )
        stage = stages.pop(index)
        stage.reset_parent()
        self.set_stages(stages)
        return stage

    def _require_own_stages(self) -> None:
        """Raise a ``ChainError`` if the stages now belong to the chain they were appended to."""
        owner = self.owner
        if isinstance(owner, Compose) and self not in owner._stages:
            raise ChainError(
                "the stages of this chain were appended to another one",
                hint="change that chain, such as env.transform",
            )

    def set_container(self, container: nn.Module | ChainOwner) -> None:
        """Add this chain to an env, a buffer or another chain.

        Raises:
            ChainError: It is already part of one.
        """
        super().set_container(container)
        for stage in self._stages:
            if stage.owner is None:  # the chain that the stages were appended to is gone
                stage.set_container(self)

    def set_stages(self, stages: list[Transform]) -> None:
        self._stages = tuple(stages)
        self.transforms = nn.ModuleList(stages)
        self.transforms.training = self.training
        self.notify_changed()

    def chain_changed(self) -> None:
        self.notify_changed()

    def __len__(self) -> int:
        return len(self._stages)

    def __iter__(self) -> Iterator[Transform]:
        return iter(self._stages)

    @overload
    def __getitem__(self, index: int) -> Transform: ...
    @overload
    def __getitem__(self, index: slice) -> Compose: ...
    def __getitem__(self, index: int | slice) -> Transform:
        if isinstance(index, slice):
            return Compose(*(stage.clone() for stage in self._stages[index]))
        return self._stages[index]

    def clone(self) -> Self:
        """Return a chain of clones of the stages."""
        copied = super().clone()
        copied._stages, copied.is_copy = (), True
        copied._modules["transforms"] = nn.ModuleList()
        for stage in self._stages:
            copied.insert(len(copied), stage.clone())
        return copied

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        for stage in self._stages:
            stage.reset_parent()
            stage.set_container(self)

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        from copy import deepcopy

        copied = type(self).__new__(type(self))
        memo[id(self)] = copied
        copied.__setstate__(deepcopy(self.__getstate__(), memo))
        return copied

    def env_before(self, stage: Transform) -> EnvBase | None:
        env = self.parent
        if env is None:
            return None
        for earlier in self._stages[: self._stages.index(stage)]:
            env = env.append_transform(earlier.clone())
        return env

    # Keys

    @property  # type: ignore[misc]
    def in_keys(self) -> list[NestedKey]:
        """Keys that a stage reads and no earlier stage writes."""
        read: dict[NestedKey, None] = {}
        written: set[NestedKey] = set()
        for stage in self._stages:
            read.update(dict.fromkeys(key for key in stage.in_keys if key not in written))
            written.update(stage.out_keys)
        return list(read)

    @property  # type: ignore[misc]
    def out_keys(self) -> list[NestedKey]:
        """Keys that a stage writes."""
        return list(dict.fromkeys(key for stage in self._stages for key in stage.out_keys))

    @property  # type: ignore[misc]
    def in_keys_inv(self) -> list[NestedKey]:
        """Entries of the env's input that a stage writes."""
        return list(dict.fromkeys(key for stage in self._stages for key in stage.in_keys_inv))

    @property  # type: ignore[misc]
    def out_keys_inv(self) -> list[NestedKey]:
        """Keys that the policy writes."""
        return list(
            dict.fromkeys(key for stage in reversed(self._stages) for key in stage.out_keys_inv)
        )

    @property
    def written_keys(self) -> tuple[NestedKey, ...]:
        return tuple(key for stage in self._stages for key in stage.written_keys)

    @property
    def exposed_keys(self) -> tuple[NestedKey, ...]:
        return tuple(key for stage in self._stages for key in stage.exposed_keys)

    def set_missing_tolerance(self, mode: bool = True) -> None:
        """Set for every stage whether missing in-keys are skipped."""
        super().set_missing_tolerance(mode)
        for stage in self._stages:
            stage.set_missing_tolerance(mode)

    @property
    def invertible(self) -> bool:
        """True if a stage changes the env's input."""
        return any(stage.invertible for stage in self._stages)

    @property
    def skips_steps(self) -> bool:  # type: ignore[override]
        """True if a stage decides which rows are stepped."""
        return any(stage.skips_steps for stage in self._stages)

    # Data

    def locate_error(self, error: Exception, stage: Transform, doing: str) -> Exception:
        """Return an error with the location of the stage that raised it."""
        owner = self.owner
        nested = isinstance(owner, Compose)
        # The stages of nested transformed envs are numbered consecutively.
        first = owner.first_stage_index if isinstance(owner, ChainOwner) else 0
        index, name = first + self._stages.index(stage), type(stage).__name__
        if isinstance(error, TdxError):
            error.at(transform=name) if nested else error.at(stage=index, transform=name)
        elif not nested:
            error.add_note(f"tdx: raised in stage {index} ({name}) during {doing}")
            note_stage(error, index, name)
        return error

    def _run(self, tensordict: TensorDictBase, doing: str, hook: str) -> TensorDictBase:
        for stage in self._stages:
            try:
                tensordict = getattr(stage, hook)(tensordict)
            except Exception as error:
                raise self.locate_error(error, stage, doing) from error.__cause__
        return tensordict

    def _call(self, next_tensordict: TensorDictBase) -> TensorDictBase:
        return self._run(next_tensordict, "a call", "_call")

    @dispatch(source="in_keys", dest="out_keys")
    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Map stored data with each stage in order, in place."""
        return self._run(tensordict, "forward", "forward")

    def init(self, tensordict: TensorDictBase) -> None:
        """Run ``init`` of every stage."""
        for stage in self._stages:
            stage.init(tensordict)

    def _step(self, tensordict: TensorDictBase, next_tensordict: TensorDictBase) -> TensorDictBase:
        stage: Transform
        try:
            for stage in self._stages:
                next_tensordict = stage._step(tensordict, next_tensordict)
                if stage.changes_batch:
                    tensordict = stage.to_outer_batch(tensordict)
        except Exception as error:
            raise self.locate_error(error, stage, "a step") from error.__cause__
        return next_tensordict

    def _reset(
        self, tensordict: TensorDictBase | None, tensordict_reset: TensorDictBase
    ) -> TensorDictBase:
        # The input of the reset in the batch size of each stage.
        views = [tensordict]
        for stage in reversed(self._stages[1:]):
            inner = views[-1]
            views.append(None if inner is None else stage.to_inner_batch(inner))
        try:
            for stage, view in zip(self._stages, reversed(views), strict=False):
                tensordict_reset = stage._reset(view, tensordict_reset)
        except Exception as error:
            raise self.locate_error(error, stage, "a reset") from error.__cause__
        return tensordict_reset

    @property
    def changes_batch(self) -> bool:  # type: ignore[override]
        return any(stage.changes_batch for stage in self._stages)

    def to_outer_batch(self, tensordict: TensorDictBase) -> TensorDictBase:
        for stage in self._stages:
            tensordict = stage.to_outer_batch(tensordict)
        return tensordict

    def to_inner_batch(self, tensordict: TensorDictBase) -> TensorDictBase:
        for stage in reversed(self._stages):
            tensordict = stage.to_inner_batch(tensordict)
        return tensordict

    def _inv_call(self, tensordict: TensorDictBase) -> TensorDictBase:
        stage: Transform
        try:
            for stage in reversed(self._stages):
                tensordict = stage._inv_call(tensordict)
        except Exception as error:
            raise self.locate_error(error, stage, "an inverse call") from error.__cause__
        return tensordict

    def dump(self, **kwargs: Any) -> None:
        """Call ``dump`` of each stage that records something, such as ``VideoRecorder``."""
        for stage in self._stages:
            dump: Callable[..., None] | None = getattr(stage, "dump", None)
            if dump is not None:
                dump(**kwargs)

    def _reset_env_preprocess(self, tensordict: TensorDictBase) -> TensorDictBase:
        for stage in reversed(self._stages):
            tensordict = stage._reset_env_preprocess(tensordict)
        return tensordict

    # Specs

    def transform_specs(
        self, input_spec: Composite, output_spec: Composite
    ) -> tuple[Composite, Composite]:
        stage: Transform
        try:
            for stage in self._stages:
                input_spec, output_spec = stage.transform_specs(input_spec, output_spec)
        except Exception as error:
            raise self.locate_error(
                error, stage, "the computation of its specs"
            ) from error.__cause__
        return input_spec, output_spec

    def _run_spec(self, spec: Composite, hook: str) -> Composite:
        for stage in self._stages:
            spec = getattr(stage, hook)(spec)
        return spec

    def transform_output_spec(self, output_spec: Composite) -> Composite:
        """Return the output spec after the chain."""
        return self._run_spec(output_spec, "transform_output_spec")

    def transform_input_spec(self, input_spec: Composite) -> Composite:
        """Return the input spec that the policy sees."""
        return self._run_spec(input_spec, "transform_input_spec")

    def transform_observation_spec(self, observation_spec: Composite) -> Composite:
        """Return the observation spec after the chain."""
        return self._run_spec(observation_spec, "transform_observation_spec")

    def transform_reward_spec(self, reward_spec: Composite) -> Composite:
        """Return the reward spec after the chain."""
        return self._run_spec(reward_spec, "transform_reward_spec")

    def transform_done_spec(self, done_spec: Composite) -> Composite:
        """Return the spec of the done flags after the chain."""
        return self._run_spec(done_spec, "transform_done_spec")

    def transform_action_spec(self, action_spec: Composite) -> Composite:
        """Return the action spec that the policy sees."""
        return self._run_spec(action_spec, "transform_action_spec")

    def transform_state_spec(self, state_spec: Composite) -> Composite:
        """Return the state spec that the policy sees."""
        return self._run_spec(state_spec, "transform_state_spec")

    def transform_env_batch_size(self, batch_size: torch.Size) -> torch.Size:
        """Return the env's batch size after the chain."""
        for stage in self._stages:
            batch_size = stage.transform_env_batch_size(batch_size)
        return batch_size

    def follow_env_device(self, device: torch.device | None) -> None:
        for stage in self._stages:
            stage.follow_env_device(device)
            device = stage.transform_env_device(device)

    def transform_env_device(self, device: torch.device | None) -> torch.device | None:
        """Return the env's device after the chain; ``None`` if its entries differ."""
        for stage in self._stages:
            device = stage.transform_env_device(device)
        return device

    def close(self) -> None:
        """Close every stage."""
        for stage in self._stages:
            stage.close()

    def __repr__(self) -> str:
        if not self._stages:
            return "Compose()"
        lines = ",\n".join(str(stage).replace("\n", "\n    ") for stage in self._stages)
        return "Compose(\n        " + lines.replace(",\n", ",\n        ") + ")"


def upstream(stage: Transform) -> tuple[EnvBase, tuple[Transform, ...]] | None:
    """Return the base env of a stage and the stages between them, or ``None`` without an env.

    Unlike :attr:`Transform.parent` these are not copies: stepping them steps the real env.
    """
    between: list[Transform] = []
    owner = stage.owner
    while isinstance(owner, Compose):
        earlier = list(owner)
        between = [*earlier[: earlier.index(stage)], *between]
        stage = owner
        owner = stage.owner
    env: EnvBase | None = getattr(owner, "base_env", None)
    return None if env is None else (env, tuple(between))


def as_transform(candidate: nn.Module | TensorDictFunction) -> Transform:
    """Return a transform unchanged, and a plain function as a transform."""
    if isinstance(candidate, Transform):
        return candidate
    library = foreign_library(candidate)
    if library is not None:
        raise ArgumentError(
            f"{_name(candidate)} belongs to {library.title}, but a chain takes tdx transforms and "
            "functions",
            hint=library.hint,
        )
    if isinstance(candidate, type):
        raise ArgumentError(
            f"{candidate.__name__} is a class, not a transform",
            hint=f"create an instance: {candidate.__name__}(...)",
        )
    if callable(candidate) and not isinstance(candidate, EnvBase):
        return CallableTransform(candidate)
    raise ArgumentError(
        f"a chain takes transforms and functions, got {type(candidate).__name__}",
        hint="for example Compose(StepCounter(), lambda td: td)",
    )


def _name(candidate: object) -> str:
    return candidate.__name__ if isinstance(candidate, type) else type(candidate).__name__
