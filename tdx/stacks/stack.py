"""The protocol of a stack."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeGuard

from tdx.foundation.errors import ArgumentError, EnvError, TdxError, summarize_error
from tdx.foundation.keys import NestedKey

if TYPE_CHECKING:
    from torch import Tensor

    from tdx.core import StageSpecs, StepTrace
    from tdx.core.meter import Meter
    from tdx.core.tracing import BaseTracer
    from tdx.envs import EnvBase
    from tdx.stacks.observe import Levels, RowEntries
    from tdx.stacks.refusals import Missing
    from tdx.stacks.tracer import Driver, OnTrace

Direction = Literal["forward", "inverse", "both"]
StackState = Mapping[int, Mapping[str, "Tensor"]]
"""Running statistics, counters and queues of each stage, by index and name."""


@dataclass(frozen=True, slots=True)
class StageInfo:
    """One stage of a stack.

    Args:
        index: Index of the stage, from 0 for the innermost one.
        name: Class name.
        arguments: Arguments of its constructor, as far as they are known.
        location: ``file:line`` of its class; ``None`` if it has no Python source.
        direction: ``forward`` from the env to the policy, ``inverse`` from the policy to the env.
        rows: Number of sub-envs that have this stage each; ``None`` outside of a vector env.
        text: The stage as its pipeline writes it. ``None``: derived from name and arguments.
        is_opaque: True if the stage is passed over, since what it does is not known.
    """

    index: int
    name: str
    arguments: Mapping[str, object] = field(default_factory=dict)
    location: str | None = None
    direction: Direction = "both"
    rows: int | None = None
    text: str | None = None
    is_opaque: bool = False

    @property
    def call(self) -> str:
        """The stage as a call, such as ``TimeLimit(max_episode_steps=200)``."""
        if self.text is not None:
            return self.text
        arguments = ", ".join(
            f"{name}={format_argument(value)}" for name, value in self.arguments.items()
        )
        return f"{self.name}({arguments})" if arguments else self.name


_MAX_LENGTH = 40


def format_argument(value: object) -> str:
    """Return an argument as a short text."""
    if callable(value):
        return str(getattr(value, "__name__", type(value).__name__))
    if getattr(value, "shape", None) == () and hasattr(value, "item"):
        # A number of NumPy.
        value = value.item()
    try:
        text = " ".join(repr(value).split())
    except Exception:
        return f"<{type(value).__name__}>"
    return text if len(text) <= _MAX_LENGTH else f"{text[: _MAX_LENGTH - 1]}…"


class Stack(Protocol):
    """An env with an ordered sequence of stages.

    A subclass gets the defaults of what it does not define; any object with these methods is a
    stack.

    Args:
        kind: Name of the kind, such as ``"gymnasium"``.
        target: The object that the user passed.
    """

    kind: str
    target: Any

    @property
    def name(self) -> str:
        """Name of the env."""
        ...

    @property
    def stages(self) -> Sequence[StageInfo]:
        """The stages, innermost first."""
        ...

    @property
    def calls(self) -> Sequence[str]:
        """Each stage as a call, innermost first. Default: those of ``stages``."""
        return tuple(stage.call for stage in self.stages)

    @property
    def notes(self) -> Sequence[str]:
        """What to know about the stages, each a sentence. Default: what is hidden."""
        return self.hidden

    @property
    def hidden(self) -> Sequence[str]:
        """Envs inside whose stages the stack does not show, each a sentence. Default: none."""
        return ()

    @property
    def env_arguments(self) -> Mapping[str, object]:
        """Arguments of the env inside, as far as they are known. Default: none."""
        return {}

    @property
    def settings(self) -> Mapping[str, object]:
        """Settings outside of the stages that a deployment has to keep. Default: none.

        A contract records them.
        """
        return {}

    @property
    def free_keys(self) -> tuple[str, ...]:
        """First parts of keys that need no spec. Default: every key needs one."""
        return ()

    @property
    def done_keys(self) -> Sequence[NestedKey]:
        """Keys of the flags in a trace that end an episode."""
        ...

    @property
    def ends_with_last_agent(self) -> bool:
        """True if an episode lasts until a flag of each agent is set. Default: False."""
        return False

    @property
    def num_envs(self) -> int | None:
        """Number of envs in a step; ``None`` for a single env. Default: that of the specs."""
        shape = self.specs()[-1].output_spec.shape
        return shape.numel() if shape else None

    @property
    def device(self) -> str:
        """Device of the observations. Default: that of the specs."""
        return str(self.specs()[-1].output_spec.device or "cpu")

    @property
    def batch_locked(self) -> bool:
        """True if the env takes one batch size only, which is the default."""
        return True

    @property
    def chain_env(self) -> EnvBase | None:
        """Env of tdx whose transforms are the stages. Default: ``None``, there is none.

        Its transforms declare their keys, so that nothing has to be stepped to know the data flow.
        Rollouts of tdx plan and execute it, and its policies take TensorDicts.
        """
        return None

    @property
    def has_pipeline_rules(self) -> bool:
        """True if the lint rules for pipelines apply. Default: those for stacks do."""
        return False

    @property
    def takes_env_settings(self) -> bool:
        """True if settings such as ``from_pixels`` and ``num_envs`` apply. Default: they do not."""
        return False

    def as_env(self) -> EnvBase:
        """Return the whole stack as one env of tdx: for rollouts, dumps and a chain around it.

        Both share the state of the target. Default: the stack cannot be such an env.

        Raises:
            ArgumentError: It cannot.
        """
        raise ArgumentError(
            f"a stack of the kind {self.kind!r} cannot be the env of a rollout or a chain of tdx",
            hint="leave out -t and options of rollouts: inspect spec, chain, keys, values and "
            "state, check, profile and report work on its stages",
        )

    def specs(self) -> Sequence[StageSpecs]:
        """Return the specs before the chain and those after each stage.

        The input spec has ``full_action_spec`` and ``full_state_spec``, the output spec
        ``full_observation_spec``, ``full_reward_spec`` and ``full_done_spec``.
        """
        ...

    def tracer(self, policy: object = None) -> BaseTracer:
        """Return an object that resets and steps the env and records every stage.

        The default records what :meth:`driver` does with :meth:`attach`.

        Args:
            policy: Chooses the actions. ``None``: random actions.
        """
        from tdx.stacks.tracer import StackTracer

        return StackTracer(self, self.driver(policy))

    def driver(self, policy: object = None) -> Driver:
        """Return an object that resets and steps the env as a training loop does.

        Args:
            policy: Chooses the actions. ``None``: random actions.
        """
        ...

    @property
    def no_pipeline(self) -> Missing | None:
        """Why no pipeline has the values of stacks of this kind. Default: no reason is known."""
        return None

    @property
    def attaches_to_runs(self) -> bool:
        """True if a tracer may stay attached for a run, which is faster.

        The block of :meth:`attach` then gets each trace when its step ends. Default: a tracer
        attaches for each step.
        """
        return False

    def attach(self, on_trace: OnTrace) -> AbstractContextManager[None]:
        """Record the resets and steps that the caller makes in a block.

        Values, randomness and behavior do not change; nothing remains attached after the block.

        Args:
            on_trace: Called with the trace of each reset and step.
        """
        ...

    def measure(self, meter: Meter, *, all_stages: bool = False) -> AbstractContextManager[None]:
        """Measure the time of every call in a block.

        Args:
            meter: Measures the calls.
            all_stages: Include stages that take less time than reading the clock.
        """
        ...

    def locate_error(self, error: Exception) -> TdxError | None:
        """Return an error that names the stage that raised an error of the env.

        Default: ``None``, the stage is unknown.

        Args:
            error: The error, with its traceback.
        """
        return None

    def state(self) -> StackState:
        """Return copies of the state of each stage: running statistics, counters, queues.

        Default: no stage has a state.
        """
        return {}

    def observed_levels(self) -> Levels | None:
        """Return the levels of the stack, whose calls contracts record, replay and replace.

        Default: ``None``, there are no contracts of the stack.
        """
        return None

    def in_this_process(self) -> AbstractContextManager[Stack]:
        """Return the stack with what runs in other processes created again here, for a block.

        Default: the stack itself.

        Raises:
            EnvError: It cannot be created.
        """
        return nullcontext(self)

    def encode_action(self, entries: RowEntries) -> object:
        """Return an action for :meth:`driver` from entries ``[R, ...]``.

        Default: the first entry.
        """
        return next(iter(entries.values()))

    def paused_learning(self) -> AbstractContextManager[object]:
        """Stop the updates of running statistics in a block, where the stages have a switch."""
        return nullcontext()

    def state_owners(self) -> Sequence[object]:
        """Return the objects that hold the state of the stages. Default: there are none."""
        return ()

    def load_state(self, state: StackState) -> Sequence[str]:
        """Write tensors of :meth:`state` back; return the names of unknown ones.

        Args:
            state: Tensors by stage and name.
        """
        return [f"{index}.{name}" for index, values in state.items() for name in values]

    def seeded(self, seed: int | None) -> AbstractContextManager[None]:
        """Seed the env and the random actions of a block; global generators are restored after it.

        Args:
            seed: The seed. ``None``: do not seed.
        """
        ...

    def close(self) -> None:
        """Close the env."""
        ...


def is_stack(target: object) -> TypeGuard[Stack]:
    """Return True if an object has the methods of a stack; none of them is called."""
    kind = type(target)
    return all(callable(getattr(kind, name, None)) for name in ("specs", "attach", "measure"))


@contextmanager
def located_errors(stack: Stack, traces: Sequence[StepTrace] = ()) -> Iterator[None]:
    """Raise the errors of a stack in a block as errors that name the stage, if it is known.

    ``traces`` are those of the block so far: the last one knows the stage.
    """
    try:
        yield
    except Exception as error:
        located = traces[-1].error if traces else None
        if located is None:
            if isinstance(error, TdxError):
                raise
            located = stack.locate_error(error) or EnvError(
                f"the stack raised {summarize_error(error)}",
                hint="correct the stage; --debug shows the traceback",
            )
        raise located from error
