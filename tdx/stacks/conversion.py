"""What a stack of another library becomes as a pipeline of tdx: stage by stage, or the reason."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, runtime_checkable

from tdx.foundation.errors import ArgumentError
from tdx.foundation.serialization import Entries, Entry, Result
from tdx.pipeline import EnvConfig, StageConfig, format_stage
from tdx.stacks.refusals import Missing

if TYPE_CHECKING:
    from torch import Tensor

    from tdx.envs import EnvBase
    from tdx.stacks.stack import Stack

NamedTensors = Mapping[str, "Tensor"]


@dataclass(frozen=True, slots=True)
class Counterpart:
    """The stages of tdx that compute what a stage of another library computes."""

    # Empty: the env, or the way tdx represents values, covers it already.
    stages: tuple[StageConfig, ...] = ()
    comment: str = ""  # What it does, or why nothing has to be written.
    # Largest relative difference between the values. 0: they are bit-identical.
    tolerance: float = 0.0
    # Fields of EnvConfig that replace the stage. Among its kwargs, ... removes one.
    env: Mapping[str, Any] = field(default_factory=dict)
    key: str | None = None  # Of the observation after the stage. None: unchanged.
    # Keys that the stages write for entries of info, with the path of the entry.
    recorded: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    observable: bool = True  # True if it changes values or info, so that it has to be compared.


@dataclass(frozen=True, slots=True)
class ConvertedStage(Result):
    """A stage of a stack and its counterpart.

    Args:
        index: Index of the stage in the stack.
        name: Class name.
        call: The stage as a call.
        result: Its counterpart, or why it has none.
        key: Key of the observation after it; ``None`` if it has several entries.
    """

    json_entries: ClassVar[Entries] = (
        *("index", "name", "call", Entry("stages", "calls"), "comment", "missing"),
    )

    index: int
    name: str
    call: str
    result: Counterpart | Missing
    key: str | None = None

    @property
    def missing(self) -> Missing | None:
        """Why it has no counterpart. ``None``: it has one."""
        return self.result if isinstance(self.result, Missing) else None

    @property
    def comment(self) -> str:
        """What its counterpart does, or why nothing has to be written."""
        return "" if isinstance(self.result, Missing) else self.result.comment

    @property
    def outcome(self) -> str:
        """Its stages in the pipeline, or why it has none, as a line of text."""
        if self.missing is not None:
            return f"not converted: {self.missing.reason}"
        return ", ".join(self.calls) or self.comment

    @property
    def calls(self) -> list[str]:
        """Its stages in the pipeline, as the text of ``-t``."""
        return [format_stage(stage) for stage in self.stages]

    @property
    def stages(self) -> tuple[StageConfig, ...]:
        """Its stages in the pipeline."""
        return () if isinstance(self.result, Missing) else self.result.stages

    @property
    def env(self) -> Mapping[str, Any]:
        """Settings of the env that replace it."""
        return {} if isinstance(self.result, Missing) else self.result.env

    @property
    def sets_env(self) -> bool:
        """True if it becomes a setting of the env, other than the default."""
        settings = {**self.env, **self.env.get("kwargs", {})}
        return any(settings[name] is not ... for name in settings if name != "kwargs")


@dataclass(frozen=True, slots=True)
class ConvertedStack:
    """A stack as a pipeline."""

    env: EnvConfig  # Without the stages.
    stages: tuple[ConvertedStage, ...]  # Innermost first.
    key: str | None  # Of the observation of the env. None: it has several entries.
    missing_env: Missing | None = None  # Why env is only a proposal for the env inside.

    def env_up_to(self, last: int) -> EnvConfig:
        """Return the env with the settings that replace stages up to an index."""
        env = self.env
        for stage in self.stages[: last + 1]:
            changes = dict(stage.env)
            kwargs = {**env.kwargs, **changes.pop("kwargs", {})}
            kept = {name: value for name, value in kwargs.items() if value is not ...}
            env = replace(env, kwargs=kept, **changes)
        return env

    def key_after(self, last: int) -> str | None:
        return self.key if last < 0 else self.stages[last].key


class Reference(Protocol):
    """A part of a stack that runs as its own library runs it, with values as entries."""

    def reset(self, seed: int | None) -> NamedTensors:
        """Start an episode, in a batch that of each row that is done, and return what it observes.

        ``seed`` is that of the first episode, ``None`` for the following ones.
        """
        ...

    def sample_action(self) -> tuple[Any, NamedTensors]:
        """Return a random action and its entries for an env of tdx."""
        ...

    def step(self, action: object) -> tuple[NamedTensors, Mapping[str, Any]]:
        """Make a step; return observation, reward and flags, and the ``info``.

        In a batch the ``info`` has the values of the rows that are done, as tensors.
        """
        ...

    def close(self) -> None:
        """Close the env."""
        ...


def action_entries(encoded: Any) -> NamedTensors:
    """Return an action as entries: its own if it has several, otherwise ``action``."""
    return dict(encoded.items()) if hasattr(encoded, "items") else {"action": encoded}


class RandomStream:
    """Random numbers of torch that nothing outside of its blocks draws."""

    def __init__(self, seed: int) -> None:
        import torch

        self._state = torch.Generator().manual_seed(seed).get_state()

    @contextmanager
    def active(self) -> Iterator[None]:
        import torch

        outside = torch.get_rng_state()
        torch.set_rng_state(self._state)
        try:
            yield
        finally:
            self._state = torch.get_rng_state()
            torch.set_rng_state(outside)


@runtime_checkable
class Convertible(Protocol):
    """A stack that can become a pipeline."""

    def convert(self) -> ConvertedStack:
        """Find the counterparts of the stages.

        Raises:
            TdxError: The env inside is not one that a pipeline can name.
        """
        ...

    def reference(self, last: int, key: str | None, seed: int) -> Reference:
        """Return the stack up to a stage.

        ``last`` is the index of the stage, -1 for the env inside, and ``key`` that of the
        observation, if it has a single entry.
        """
        ...

    def base_env(self, last: int, key: str | None) -> EnvBase:
        """Return the stack up to a stage as one env of tdx, with the key of the observation."""
        ...


def require_convertible(stack: Stack, hint: str) -> Convertible:
    """Return a stack that can become a pipeline."""
    if isinstance(stack, Convertible):
        return stack
    sentence = f"{stack.name} is a stack of {stack.kind}, which cannot be converted"
    if stack.no_pipeline is None:
        raise ArgumentError(sentence, hint=hint)
    raise ArgumentError(f"{sentence}: {stack.no_pipeline.reason}", hint=stack.no_pipeline.advice)


def list_segments(stages: Sequence[ConvertedStage]) -> list[tuple[int, int]]:
    """Return the parts of a stack between stages without counterpart, as ``(below, last)``.

    ``below`` is the stage without counterpart under the part, or -1 for the env. The last stage of
    a part is one that can be observed.

    Example:
        >>> same, none = Counterpart(), Missing("", "")
        >>> results = [same, none, same, same]
        >>> list_segments([ConvertedStage(i, "", "", result) for i, result in enumerate(results)])
        [(-1, 0), (1, 3)]
    """
    segments: list[tuple[int, int]] = []
    below, last = -1, -1
    for stage in stages:
        if isinstance(stage.result, Missing):
            if last > below or below < 0:
                segments.append((below, last))
            below = last = stage.index
        elif stage.result.observable:
            last = stage.index
    if last > below or below < 0:
        segments.append((below, last))
    return segments
