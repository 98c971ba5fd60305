"""The stack of a tdx env: its chain of transforms."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from tensordict import is_tensor_collection
from torch.nn.parameter import is_lazy

from tdx.core import Tracer, stage_specs
from tdx.core.chain import chain_stages, flatten_chain, flatten_stages
from tdx.core.envs.done_flags import any_done
from tdx.core.envs.policies import as_policy
from tdx.foundation.html_repr import repr_html
from tdx.foundation.keys import NestedKey
from tdx.foundation.patches import Patches
from tdx.pipeline import format_stage
from tdx.stacks.sources import attributes_of, class_location, constructor_arguments
from tdx.stacks.stack import Direction, Stack, StackState, StageInfo
from tdx.stacks.states import write_tensor

if TYPE_CHECKING:
    from torch import Tensor, nn

    from tdx.core import StageSpecs
    from tdx.core.meter import Meter
    from tdx.core.tracing.traces import Hook
    from tdx.core.transforms import Transform
    from tdx.envs import EnvBase
    from tdx.pipeline import Pipeline
    from tdx.stacks.conversion import ConvertedStack, Reference
    from tdx.stacks.native_levels import ChainLevels
    from tdx.stacks.observe import RowEntries
    from tdx.stacks.tracer import OnTrace

_MAX_REPR = 100


class NativeStack(Stack):
    """An env of tdx with its chain.

    The outermost stages are shown as ``pipeline`` writes them.
    """

    _repr_html_ = repr_html

    kind = "tdx"

    def __init__(self, target: EnvBase, pipeline: Pipeline | None = None) -> None:
        self.target = target
        self._pipeline = pipeline

    @property
    def chain_env(self) -> EnvBase | None:
        env: EnvBase = self.target
        return env

    @property
    def has_pipeline_rules(self) -> bool:
        return True

    @property
    def takes_env_settings(self) -> bool:
        return True

    def as_env(self) -> EnvBase:
        """See :class:`~tdx.stacks.Stack`; the target."""
        env: EnvBase = self.target
        return env

    @property
    def name(self) -> str:
        """Id of the Gymnasium env before the chain, or the class name of another env."""
        spec = getattr(self._gymnasium_env, "spec", None)
        return type(flatten_chain(self.target)[0]).__name__ if spec is None else str(spec.id)

    @property
    def stages(self) -> Sequence[StageInfo]:
        texts = format_stages(self.target, self._pipeline)
        return tuple(
            StageInfo(
                index,
                type(stage).__name__,
                stage_arguments(stage),
                class_location(type(stage)),
                _direction(stage),
                text=texts[index],
            )
            for index, stage in enumerate(chain_stages(self.target))
        )

    @property
    def env_arguments(self) -> Mapping[str, object]:
        """See :class:`~tdx.stacks.Stack`; those of the Gymnasium env that a ``GymEnv`` steps."""
        inner = self._gymnasium_env
        if inner is None:
            return {}
        from tdx.stacks.gymnasium.levels import arguments_of

        return arguments_of(inner)

    @property
    def _gymnasium_env(self) -> object:
        """The env inside of all wrappers that a ``GymEnv`` steps. ``None``: another kind of env."""
        base = flatten_chain(self.target)[0]
        inner = attributes_of(getattr(base, "original", base)).get("_env")
        if inner is None:
            return None
        from tdx.stacks.gymnasium.levels import core_of

        return core_of(inner)

    @property
    def calls(self) -> Sequence[str]:
        """See :class:`~tdx.stacks.Stack`; finds neither arguments nor source locations."""
        return format_stages(self.target, self._pipeline)

    @property
    def done_keys(self) -> Sequence[NestedKey]:
        return list(self.target.done_keys)

    @property
    def batch_locked(self) -> bool:
        return bool(self.target.batch_locked)

    def specs(self) -> Sequence[StageSpecs]:
        return stage_specs(self.target)

    def tracer(self, policy: Any = None) -> Tracer:
        """See :class:`~tdx.stacks.Stack`; the policy takes a TensorDict, as in ``rollout``."""
        return Tracer(self.target, policy)

    def driver(self, policy: object = None) -> NativeDriver:
        return NativeDriver(self.target, policy)

    @contextmanager
    def attach(self, on_trace: OnTrace) -> Iterator[None]:
        """See :class:`~tdx.stacks.Stack`; records ``reset`` and ``step``, not ``rollout``."""
        tracer = Tracer(self.target)

        def run(phase: Hook, given: object, call: Callable[[], object]) -> object:
            try:
                return tracer.record(phase, given, call)
            finally:
                if tracer.last is not None:
                    on_trace(tracer.last)

        def traced_reset(reset: Callable[..., object]) -> Callable[..., object]:
            return lambda tensordict=None, **kwargs: run(
                "reset", tensordict, partial(reset, tensordict, **kwargs)
            )

        def traced_step(step: Callable[..., object]) -> Callable[..., object]:
            return lambda tensordict: run("step", tensordict, partial(step, tensordict))

        with Patches() as patches, tracer.attached():
            patches.hook(self.target, "reset", traced_reset)
            patches.hook(self.target, "step", traced_step)
            yield

    def measure(self, meter: Meter, *, all_stages: bool = False) -> AbstractContextManager[None]:
        from tdx.stacks.native_times import timed_env

        return timed_env(self.target, meter, all_wrappers=all_stages)

    def state(self) -> StackState:
        """See :class:`~tdx.stacks.Stack`; the buffers and parameters of each transform."""
        states: dict[int, dict[str, Tensor]] = {}
        for index, stage in enumerate(self._stateful_stages()):
            for name, value in (*stage.named_parameters(), *stage.named_buffers()):
                # A lazy buffer gets its shape in the first step.
                if not is_lazy(value):
                    states.setdefault(index, {})[name] = value.detach().clone()
        return states

    def convert(self) -> ConvertedStack:
        from tdx.stacks.native_conversion import convert_chain

        return convert_chain(self.target, self.stages)

    def reference(self, last: int, key: str | None, seed: int) -> Reference:
        from tdx.stacks.native_conversion import TensorDictReference, cut_chain

        return TensorDictReference(cut_chain(self.target, last + 1), seed)

    def base_env(self, last: int, key: str | None) -> EnvBase:
        from tdx.stacks.native_conversion import cut_chain

        return cut_chain(self.target, last + 1)

    def observed_levels(self) -> ChainLevels:
        from tdx.stacks.native_levels import ChainLevels

        return ChainLevels(self.target)

    def encode_action(self, entries: RowEntries) -> object:
        """See :class:`~tdx.stacks.Stack`; a TensorDict with all action keys."""
        from tdx.stacks.native_levels import build_action

        return build_action(self.target, entries, list(self.target.action_keys))

    def paused_learning(self) -> AbstractContextManager[object]:
        from tdx.stacks.native_levels import learning_switches

        return Patches(learning_switches(self.state_owners()))

    def state_owners(self) -> Sequence[object]:
        """See :class:`~tdx.stacks.Stack`; the transforms."""
        return [part for stage in self._stateful_stages() for part in stage.modules()]

    def load_state(self, state: StackState) -> Sequence[str]:
        stages = self._stateful_stages()
        return [
            f"{index}.{name}"
            for index, values in state.items()
            for name, value in values.items()
            if index >= len(stages) or not write_tensor(stages[index], name, value)
        ]

    def _stateful_stages(self) -> Sequence[nn.Module]:
        """Return the stages, or what they run, with the state of each."""
        return chain_stages(self.target)

    def seeded(self, seed: int | None) -> AbstractContextManager[None]:
        return seed_run(self.target, seed)

    def close(self) -> None:
        self.target.close()


class NativeDriver:
    """Resets and steps an env of tdx as ``rollout`` does."""

    def __init__(self, env: EnvBase, policy: object = None) -> None:
        self._env = env
        self._policy = env.rand_action if policy is None else as_policy(policy, env)
        self._current: Any = None

    @property
    def reset_due(self) -> bool:
        return self._current is None or any_done(self._current, self._env.env_specs.end_keys())

    def reset(self, seed: int | None = None) -> None:
        """See :class:`~tdx.stacks.tracer.Driver`; only the rows that are done start again."""
        if seed is not None:
            self._env.set_seed(seed)
        env, current = self._env, self._current
        self._current = env.reset() if current is None else env.maybe_reset(current)

    def step(self, action: object = None) -> None:
        """See :class:`~tdx.stacks.tracer.Driver`; several actions are a TensorDict."""
        current = self._current
        if action is None:
            current = self._policy(current)
        elif is_tensor_collection(action):
            current = current.update(action)
        else:
            current = current.set(self._env.action_key, action)
        self._current = self._env.step_mdp(self._env.step(current))


def stage_arguments(stage: nn.Module) -> dict[str, object]:
    """Return the arguments that a transform was created with, as far as its attributes show them.

    Buffers are numbers or lists, and keys those of its properties.
    """
    buffers = {name: _to_numbers(value) for name, value in stage._buffers.items()}
    return constructor_arguments(stage, None, buffers)


def _to_numbers(value: Tensor | None) -> object:
    """Return a buffer as numbers, a float32 as the shortest one: 0.1 and not 0.10000000149."""
    if value is None or is_lazy(value):
        return None
    if value.dtype is not torch.float32:
        return value.tolist()
    return value.detach().cpu().numpy().astype(str).astype(float).tolist()


def format_stages(
    env: EnvBase, pipeline: Pipeline | None = None, *, expanded: bool = False
) -> tuple[str, ...]:
    """Return one line for each stage of an env's whole chain, innermost first.

    Stages of the pipeline are written as in a pipeline file, those of the env as their ``repr``.

    ``expanded`` lists the stages inside a ``Compose`` one by one, as a plan does.
    """
    stages = chain_stages(env)
    configs = () if pipeline is None else pipeline.transforms
    own = len(stages) - len(configs)
    texts: list[str] = []
    for index, stage in enumerate(stages):
        parts = flatten_stages((stage,)) if expanded else (stage,)
        if parts != (stage,):
            texts += map(_stage_repr, parts)
        elif index < own:
            texts.append(_stage_repr(stage))
        else:
            texts.append(format_stage(configs[index - own]))
    return tuple(texts)


def _stage_repr(stage: Transform) -> str:
    text = repr(stage)
    return type(stage).__name__ if "\n" in text or len(text) > _MAX_REPR else text


def _direction(stage: Transform) -> Direction:
    if not stage.invertible:
        return "forward"
    return "both" if stage.in_keys else "inverse"


@contextmanager
def seed_run(env: EnvBase, seed: int | None) -> Iterator[None]:
    """Seed the env and torch, and restore torch's generators afterwards; gradients are off."""
    devices = [env.main_device] if env.main_device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices), torch.no_grad():
        if seed is not None:
            torch.manual_seed(seed)
            env.set_seed(seed)
        yield
