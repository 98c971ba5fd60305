"""A pipeline that is not finished: perhaps without an env, with stages that are switched off."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Self

from tdx.errors import ArgumentError
from tdx.pipeline.model import DisabledStage, EnvConfig, Pipeline, RolloutConfig
from tdx.pipeline.values import StageConfig


@dataclass(frozen=True, slots=True)
class DraftStage:
    """A stage of a draft.

    Args:
        number: tells it from all others of the draft, wherever it is moved.
        config: the stage.
        enabled: whether it is part of the pipeline; one that is switched off only keeps its place.
    """

    number: int
    config: StageConfig
    enabled: bool = True


@dataclass(frozen=True, slots=True)
class Draft:
    """A pipeline that is being edited; every edit makes a new one.

    Args:
        env: the env; none where it is not chosen yet.
        stages: the stages in order, also those that are switched off.
        policy: what the pipeline says of the policy.
        rollout: what it says of rollouts.
        file: where it came from; not part of its identity.

    Example:
        >>> from tdx.pipeline import Pipeline
        >>> draft = Draft.of(Pipeline.of("Pendulum-v1", "RewardSum", "StepCounter"))
        >>> [stage.name for stage in draft.toggled(0).pipeline().transforms]
        ['StepCounter']
    """

    env: EnvConfig | None = None
    stages: tuple[DraftStage, ...] = ()
    policy: str | None = None
    rollout: RolloutConfig = field(default_factory=RolloutConfig)
    file: str | None = field(default=None, compare=False)

    @classmethod
    def of(cls, pipeline: Pipeline) -> Self:
        """A draft of a pipeline, with the stages that are switched off in it at their places."""
        ranked = [(n + 1, True, config) for n, config in enumerate(pipeline.transforms)]
        ranked += [(each.before, False, each.stage) for each in pipeline.off]
        # A stage that is off comes behind the one before it; those at one place keep their order.
        ranked.sort(key=lambda each: (each[0], not each[1]))
        stages = tuple(DraftStage(n, config, on) for n, (_, on, config) in enumerate(ranked))
        return cls(pipeline.env, stages, pipeline.policy, pipeline.rollout, pipeline.file)

    def pipeline(self) -> Pipeline:
        """The pipeline that it stands for: the stages that are switched on make its chain.

        Raises:
            ArgumentError: no env is chosen.
        """
        if self.env is None:
            raise ArgumentError("no env is chosen", hint="choose one first")
        configs = tuple(stage.config for stage in self.stages if stage.enabled)
        places = self.positions
        off = tuple(
            DisabledStage(sum(each < place for each in places), stage.config)
            for place, stage in enumerate(self.stages)
            if not stage.enabled
        )
        return Pipeline(self.env, configs, self.policy, self.rollout, file=self.file, off=off)

    @property
    def positions(self) -> tuple[int, ...]:
        """For each stage of the pipeline, its place in the draft."""
        return tuple(place for place, stage in enumerate(self.stages) if stage.enabled)

    def index_of(self, place: int) -> int | None:
        """The index in the pipeline of the stage at a place; none where it is switched off."""
        positions = self.positions
        return positions.index(place) if place in positions else None

    def place_of(self, number: int) -> int | None:
        """Where a stage stands; none where it is no longer there."""
        numbers = [stage.number for stage in self.stages]
        return numbers.index(number) if number in numbers else None

    def inserted(self, place: int, configs: Iterable[StageConfig]) -> Self:
        """With stages put before the one at ``place``."""
        self._check(place, len(self.stages) + 1)
        first = self._next_number()
        new = (DraftStage(first + n, config) for n, config in enumerate(configs))
        return self._with([*self.stages[:place], *new, *self.stages[place:]])

    def removed(self, place: int) -> Self:
        """Without a stage."""
        self._check(place)
        return self._with([*self.stages[:place], *self.stages[place + 1 :]])

    def duplicated(self, place: int) -> Self:
        """With a copy of a stage behind it."""
        self._check(place)
        copy = replace(self.stages[place], number=self._next_number())
        return self._with([*self.stages[: place + 1], copy, *self.stages[place + 1 :]])

    def moved(self, place: int, to: int) -> Self:
        """With a stage moved so that it ends up at ``to``."""
        self._check(place)
        self._check(to)
        stages = list(self.stages)
        stages.insert(to, stages.pop(place))
        return self._with(stages)

    def toggled(self, place: int) -> Self:
        """With a stage switched off, or on again."""
        self._check(place)
        stage = self.stages[place]
        return self._put(place, replace(stage, enabled=not stage.enabled))

    def replaced(self, place: int, config: StageConfig) -> Self:
        """With another stage in the place of one."""
        self._check(place)
        return self._put(place, replace(self.stages[place], config=config))

    def with_env(self, env: EnvConfig) -> Self:
        """With another env."""
        return replace(self, env=env)

    def _put(self, place: int, stage: DraftStage) -> Self:
        return self._with([*self.stages[:place], stage, *self.stages[place + 1 :]])

    def _with(self, stages: Sequence[DraftStage]) -> Self:
        return replace(self, stages=tuple(stages))

    def _next_number(self) -> int:
        return 1 + max((stage.number for stage in self.stages), default=-1)

    def _check(self, place: int, length: int | None = None) -> None:
        there = len(self.stages)
        if not 0 <= place < (there if length is None else length):
            raise ArgumentError(f"there is no stage {place}", hint=f"the chain has {there} stages")


class IndexedDraft:
    """A draft whose stages are named by their indices in its pipeline, so that fixes fit it.

    Args:
        draft: the draft to edit; stages that are switched off stay where they are.
        left_out: numbers of stages that have no index either, such as those that fail.

    Example:
        >>> from tdx.pipeline import Pipeline
        >>> indexed = IndexedDraft(Draft.of(Pipeline.of("A-v0", "B", "C", "D")), {1})
        >>> indexed.remove(1)
        >>> [stage.config.name for stage in indexed.draft.stages]
        ['B', 'C']
    """

    def __init__(self, draft: Draft, left_out: Collection[int] = ()) -> None:
        self.draft = draft
        self._left_out = frozenset(left_out)

    def insert(self, index: int, stage: StageConfig) -> None:
        """Put a stage before the one at ``index`` of the pipeline."""
        self.draft = self.draft.inserted(self._place(index), [stage])

    def remove(self, index: int) -> None:
        """Take a stage out."""
        self.draft = self.draft.removed(self._places()[index])

    def move(self, index: int, to: int) -> None:
        """Move a stage so that it ends up at ``to`` of the pipeline."""
        places = self._places()
        self.draft = self.draft.moved(places[index], places[to])

    def replace(self, index: int, stage: StageConfig) -> None:
        """Put a stage in the place of another."""
        self.draft = self.draft.replaced(self._places()[index], stage)

    def _place(self, index: int) -> int:
        places = self._places()
        return places[index] if index < len(places) else len(self.draft.stages)

    def _places(self) -> list[int]:
        stages = self.draft.stages
        return [n for n in self.draft.positions if stages[n].number not in self._left_out]
