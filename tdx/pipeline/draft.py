"""A draft: a pipeline that is being edited, with stages that are switched off."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Self

from tdx.foundation.errors import ArgumentError
from tdx.pipeline.model import (
    DisabledStage,
    EnvConfig,
    Pipeline,
    RolloutConfig,
    StackFacts,
    Wrapper,
)
from tdx.pipeline.values import StageConfig

FIRST_WRAPPER_NUMBER = 100_000
"""Number of the innermost wrapper; smaller numbers belong to the stages of the pipeline."""


@dataclass(frozen=True, slots=True)
class DraftStage:
    """A stage of a draft."""

    number: int  # Identifies the stage within the draft, also after it is moved.
    config: StageConfig
    enabled: bool = True  # A disabled stage only keeps its position.
    # Of a stage that the code of the env makes, which cannot be edited.
    wrapper: Wrapper | None = None


@dataclass(frozen=True, slots=True)
class Draft:
    """A pipeline that is being edited; every edit returns a new draft.

    The app, ``tdx check --fix`` and :class:`~tdx.pipeline.PipelineFile` edit pipelines as drafts.
    A *place* counts all stages, an *index* only those of the pipeline.
    """

    env: EnvConfig | None = None  # None: not chosen yet.
    stages: tuple[DraftStage, ...] = ()  # In order, including disabled ones.
    policy: str | None = None
    rollout: RolloutConfig = field(default_factory=RolloutConfig)
    file: str | None = field(default=None, compare=False)  # Where it was read; not compared.
    stack: StackFacts | None = None  # The env, if its wrappers are the first stages; see around.

    @classmethod
    def of(cls, pipeline: Pipeline) -> Self:
        """Create a draft of a pipeline, with its disabled stages at their positions."""
        ranked = [(n + 1, False, config) for n, config in enumerate(pipeline.transforms)]
        ranked += [(stage.before, True, stage.stage) for stage in pipeline.off]
        # A disabled stage follows the enabled one before it; several keep their order.
        ranked.sort(key=lambda entry: entry[:2])
        stages = tuple(DraftStage(n, config, not off) for n, (_, off, config) in enumerate(ranked))
        return cls(pipeline.env, stages, pipeline.policy, pipeline.rollout, pipeline.file)

    def around(self, stack: StackFacts) -> Draft:
        """Return a draft with the wrappers of its env before its stages; they cannot be edited."""
        wrappers = _wrapper_stages(stack)
        return replace(self, stages=(*wrappers, *self.stages), stack=stack)

    def edited(self) -> Draft | None:
        """Return the draft without the wrappers; ``None`` if one of them was edited."""
        if self.stack is None:
            return self
        wrappers = _wrapper_stages(self.stack)
        own = self.stages[len(wrappers) :]
        if self.stages[: len(wrappers)] != wrappers or any(stage.wrapper for stage in own):
            return None
        return replace(self, stages=own, stack=None)

    def pipeline(self) -> Pipeline:
        """Return the pipeline; the enabled stages that are not wrappers form its chain."""
        if self.env is None:
            raise ArgumentError("no env is chosen", hint="choose one first")
        configs: list[StageConfig] = []
        off: list[DisabledStage] = []
        for stage in self.stages:
            if not stage.enabled:
                off.append(DisabledStage(len(configs), stage.config))
            elif stage.wrapper is None:
                configs.append(stage.config)
        chain, file = tuple(configs), self.file
        return Pipeline(self.env, chain, self.policy, self.rollout, file=file, off=tuple(off))

    @property
    def positions(self) -> tuple[int, ...]:
        """Position in the draft of each stage that runs, wrappers included."""
        return tuple(place for place, stage in enumerate(self.stages) if stage.enabled)

    def find_place(self, number: int) -> int | None:
        """Return the position of a stage by its number; ``None`` if it does not exist."""
        numbers = [stage.number for stage in self.stages]
        return numbers.index(number) if number in numbers else None

    def place_of(self, index: int, excluded: Collection[int] = (), *, or_end: bool = False) -> int:
        """Return the position of a stage by its index in the pipeline.

        ``excluded`` are the numbers of stages without an index, such as stages that fail.
        ``or_end`` accepts the index after the last stage, for an insertion.
        """
        places = [n for n in self.positions if self.stages[n].number not in excluded]
        if or_end and index == len(places):
            return len(self.stages)
        if not 0 <= index < len(places):
            hint = f"the chain has {len(places)} stages"
            raise ArgumentError(f"stage {index} does not exist", hint=hint)
        return places[index]

    def insert(self, place: int, configs: Iterable[StageConfig]) -> Self:
        """Return a draft with stages inserted before ``place``."""
        self._check(place, len(self.stages) + 1)
        first = self._next_number()
        new = (DraftStage(first + n, config) for n, config in enumerate(configs))
        return self._with([*self.stages[:place], *new, *self.stages[place:]])

    def remove(self, place: int) -> Self:
        self._check(place)
        return self._with([*self.stages[:place], *self.stages[place + 1 :]])

    def duplicate(self, place: int) -> Self:
        self._check(place)
        copy = replace(self.stages[place], number=self._next_number())
        return self._with([*self.stages[: place + 1], copy, *self.stages[place + 1 :]])

    def move(self, place: int, to: int) -> Self:
        """Return a draft with a stage moved to the position ``to``."""
        self._check(place)
        self._check(to)
        stages = list(self.stages)
        stages.insert(to, stages.pop(place))
        return self._with(stages)

    def toggle(self, place: int) -> Self:
        self._check(place)
        stage = self.stages[place]
        return self._put(place, replace(stage, enabled=not stage.enabled))

    def replace(self, place: int, config: StageConfig) -> Self:
        self._check(place)
        return self._put(place, replace(self.stages[place], config=config))

    def with_env(self, env: EnvConfig) -> Self:
        return replace(self, env=env)

    def _put(self, place: int, stage: DraftStage) -> Self:
        return self._with([*self.stages[:place], stage, *self.stages[place + 1 :]])

    def _with(self, stages: Sequence[DraftStage]) -> Self:
        return replace(self, stages=tuple(stages))

    def _next_number(self) -> int:
        own = (stage.number for stage in self.stages if stage.wrapper is None)
        return 1 + max(own, default=-1)

    def _check(self, place: int, length: int | None = None) -> None:
        count = len(self.stages)
        if not 0 <= place < (count if length is None else length):
            raise ArgumentError(
                f"stage {place} does not exist", hint=f"the chain has {count} stages"
            )


def _wrapper_stages(stack: StackFacts) -> tuple[DraftStage, ...]:
    return tuple(
        DraftStage(FIRST_WRAPPER_NUMBER + index, StageConfig(wrapper.name), True, wrapper)
        for index, wrapper in enumerate(stack.wrappers)
    )
