"""Stacks of a data pipeline without an env: its parts change samples, one after the other.

The source of the samples takes the place of an env inside, and each part that of a wrapper: a
reset or a step returns the next sample, which the parts change on its way to a policy, and the
action of a step passes the parts that change actions on its way back. So a pipeline is observed,
compared and measured as the wrappers of Gymnasium are.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, SupportsFloat

import gymnasium
import numpy as np
import torch
from gymnasium.spaces import Box, Dict
from numpy.typing import NDArray
from torch import Tensor

from tdx.core import StageSpecs
from tdx.core.tracing.passages import is_same
from tdx.foundation.errors import TdxError
from tdx.foundation.keys import NestedKey
from tdx.specs import Composite
from tdx.stacks.gymnasium.level_stack import LevelStack
from tdx.stacks.gymnasium.levels import Level
from tdx.stacks.gymnasium.observed import WrapperLevels
from tdx.stacks.gymnasium.snapshots import space_specs
from tdx.stacks.gymnasium.stack import GymnasiumDriver
from tdx.stacks.observe import Event, Method
from tdx.stacks.observe.copies import LevelEntries
from tdx.stacks.observe.env_inside import fit
from tdx.stacks.observe.levels import RowEntries
from tdx.stacks.stack import Direction, StackState, StageInfo

if TYPE_CHECKING:
    from tdx.envs.gym.interface import Info

Sample = Mapping[str, object]
"""Arrays by key, and other values that are passed on."""
StageArrays = Mapping[str, NDArray[Any]]


@dataclass(frozen=True, slots=True)
class Spaces:
    """What samples and actions are at one place of a pipeline."""

    observation: Mapping[str, Box]
    action: Mapping[str, Box] = field(default_factory=dict)


class Part:
    """One part of a pipeline; a subclass changes samples, actions, or both."""

    name: str
    """Name of the stage."""
    direction: Direction = "forward"
    arguments: Mapping[str, object] = {}
    location: str | None = None
    text: str | None = None
    """The stage as a call; ``None``: of name and arguments."""
    is_opaque = False
    """True if the part is passed over, since what it does is not known."""

    def prepare(self, action: Sample | None, info: Mapping[str, object]) -> None:
        """Take what belongs to the next sample, before :meth:`forward`.

        ``action`` is that of the step, as the part inside got it, and ``None`` for a reset;
        ``info`` is what the source tells beside the sample.
        """

    def forward(self, sample: Sample) -> Sample:
        """Return the sample after the part."""
        return sample

    def inverse(self, action: Sample) -> Sample:
        """Return the action after the part."""
        return action

    def state(self) -> StageArrays:
        """Return the arrays that the part keeps."""
        return {}

    def owners(self) -> Sequence[object]:
        """Return the objects that hold its state and may change it."""
        return ()


class SampleSource(gymnasium.Env[Sample, Sample]):
    """Returns the next sample in each reset and step.

    Args:
        spaces: Of its samples, and of the actions that leave the pipeline.
        samples: The samples. ``None``: draw them, from the bounds of a space, or from a standard
            normal distribution where it has none.
        returned: Keys of a sample that a policy returned. They are no observations, and
            :meth:`SampleStack.sample_action` passes them on.
    """

    observation_space: Dict
    action_space: Dict

    def __init__(
        self,
        spaces: Spaces,
        samples: Sequence[Sample] | None = None,
        returned: Collection[str] = (),
    ) -> None:
        self.observation_space, self.action_space = (
            _space(spaces.observation),
            _space(spaces.action),
        )
        self._boxes, self._samples, self._next = spaces.observation, samples, 0
        self._returned = returned
        self.sample: Sample = {}

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Sample, Info]:
        """Return a sample; a seed begins with the first one."""
        super().reset(seed=seed)
        if seed is not None or self._is_exhausted:
            self._next = 0
        return self._take(), {}

    def step(self, action: Sample) -> tuple[Sample, float, bool, bool, Info]:
        """Return the next sample; the last one of a recording ends the episode."""
        return self._take(), 0.0, False, self._is_exhausted, {}

    @property
    def _is_exhausted(self) -> bool:
        return self._samples is not None and self._next >= len(self._samples)

    def _take(self) -> Sample:
        if self._samples is None:
            self.sample = {key: draw_box(box, self.np_random) for key, box in self._boxes.items()}
        else:
            self.sample = dict(self._samples[self._next % len(self._samples)])
        self._next += 1
        return {key: value for key, value in self.sample.items() if key not in self._returned}


def draw_box(box: Box, rng: np.random.Generator) -> NDArray[Any]:
    """Draw an array from its bounds, or from a standard normal distribution without bounds."""
    if box.is_bounded():
        drawn = box.low + rng.random(box.shape) * (box.high.astype(np.float64) - box.low)
    else:
        drawn = rng.normal(size=box.shape)
    return drawn.astype(box.dtype)


def unbounded_box(array: NDArray[Any]) -> Box:
    """Return the space of all arrays of a shape and dtype.

    Example:
        >>> unbounded_box(np.zeros(2, np.uint8))
        Box(0, 255, (2,), uint8)
    """
    if array.dtype.kind == "f":
        return Box(-np.inf, np.inf, array.shape, array.dtype.type)
    if array.dtype.kind == "b":
        return Box(0, 1, array.shape, array.dtype.type)
    limits = np.iinfo(array.dtype)
    return Box(limits.min, limits.max, array.shape, array.dtype.type)


def _space(boxes: Mapping[str, Box]) -> Dict:
    # A plain dict would be sorted.
    return Dict(OrderedDict(boxes))


class PartWrapper(gymnasium.Wrapper[Sample, Sample, Sample, Sample]):
    """Applies a part to the samples and actions that pass it."""

    def __init__(
        self, env: gymnasium.Env[Sample, Sample], part: Part, index: int, spaces: Spaces
    ) -> None:
        super().__init__(env)
        self.part, self._index = part, index
        self.observation_space, self.action_space = (
            _space(spaces.observation),
            _space(spaces.action),
        )

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Sample, Info]:
        sample, info = self.env.reset(seed=seed, options=options)
        self.part.prepare(None, info)
        return self._apply(self.part.forward, sample), info

    def step(self, action: Sample) -> tuple[Sample, SupportsFloat, bool, bool, Info]:
        inner = self._apply(self.part.inverse, action)
        sample, reward, terminated, truncated, info = self.env.step(inner)
        self.part.prepare(inner, info)
        sample = self._apply(self.part.forward, sample)
        return sample, reward, terminated, truncated, info

    def _apply(self, function: Callable[[Sample], Sample], sample: Sample) -> Sample:
        try:
            return function(sample)
        except TdxError as error:
            raise error.at(stage=self._index, transform=self.part.name) from None


class _PartLevel(Level):
    """The source of the samples, or one part."""

    __slots__ = ()

    @property
    def name(self) -> str:
        return self.owner.part.name if self.index >= 0 else self.env_name

    @property
    def env_name(self) -> str:
        return "samples"

    def info(self) -> StageInfo:
        if self.index < 0:
            return StageInfo(-1, self.name)
        part: Part = self.owner.part
        return StageInfo(
            self.index,
            part.name,
            part.arguments,
            part.location,
            part.direction,
            text=part.text,
            is_opaque=part.is_opaque,
        )


class _SampleLevels(WrapperLevels):
    """Levels whose results are samples: entries by key, without rewards and flags."""

    def given_entries(self, index: int, given: object) -> LevelEntries:
        return _entries(given)

    def returned_entries(self, index: int, method: Method, returned: Any) -> LevelEntries:
        return _entries(returned[0])

    def complete_reset(
        self, index: int, entries: LevelEntries, current: LevelEntries
    ) -> LevelEntries:
        return entries

    def has_same_entries(self, one: int, other: int, *, of_actions: bool) -> bool:
        return True

    def overwritten_keys(self, event: Event, entries: LevelEntries) -> Sequence[NestedKey]:
        old = _entries(event.previous)
        return [
            key
            for key, value in entries.items()
            if ((key,) in event.shared or () in event.shared)
            and key in old
            and not is_same(old[key], value)
        ]


def _entries(sample: object) -> LevelEntries:
    if not isinstance(sample, Mapping):
        return {}
    return {str(key): _to_tensor(value) for key, value in sample.items()}


def to_array(value: object) -> NDArray[Any] | None:
    """Return numbers as an array, also those of images and lists; ``None`` for anything else."""
    if isinstance(value, Tensor):
        value = value.detach().cpu()
        value = value.float().numpy() if value.dtype == torch.bfloat16 else value.numpy()
    try:
        array = np.asarray(value)
    except (ValueError, TypeError):
        return None
    return array if array.dtype.kind in "biuf" else None


def _to_tensor(value: object) -> object:
    array = None if isinstance(value, Tensor) else to_array(value)
    if array is None:
        return value
    is_wide = array.dtype.kind == "u" and array.dtype.itemsize > 1
    return torch.from_numpy((array.astype(np.int64) if is_wide else array).copy())


def _specs(space: Any) -> Composite:
    boxes: Mapping[str, Box] = space.spaces
    return Composite({key: space_specs(box, key, None)[key] for key, box in boxes.items()})


class SampleStack(LevelStack):
    """A data pipeline without an env.

    The first part gets the samples first. ``spaces`` are those before the parts and after each.
    """

    kind = "samples"
    done_keys = ()
    level_type = _SampleLevels

    def __init__(
        self,
        target: Any,
        parts: Sequence[Part],
        spaces: Sequence[Spaces],
        samples: Sequence[Sample] | None = None,
        source: SampleSource | None = None,
    ) -> None:
        if source is None:
            source = SampleSource(spaces[0], samples, spaces[-1].action)
        owners: list[gymnasium.Env[Sample, Sample]] = [source]
        for index, (part, after) in enumerate(zip(parts, spaces[1:], strict=True)):
            owners.append(PartWrapper(owners[-1], part, index, after))
        super().__init__(
            owners[-1], [_PartLevel(i, (owner,), None) for i, owner in enumerate(owners, start=-1)]
        )
        self.original = target
        self.parts, self.source = tuple(parts), source

    def _level_specs(self, level: Level) -> StageSpecs:
        inputs = {"full_action_spec": _specs(level.action_space), "full_state_spec": Composite()}
        outputs = {
            "full_observation_spec": _specs(level.observation_space),
            "full_reward_spec": Composite(),
            "full_done_spec": Composite(),
        }
        return StageSpecs(level.index, level.name, None, Composite(inputs), Composite(outputs))

    def driver(self, policy: object = None) -> GymnasiumDriver:
        """See :class:`~tdx.stacks.Stack`; the policy takes a sample and returns an action."""
        return GymnasiumDriver(self, policy)

    def sample_action(self) -> Sample:
        """Return the action of the current sample if it has one, else a random one."""
        boxes: Mapping[str, Box] = self.target.action_space.spaces
        recorded = {key: self.source.sample[key] for key in boxes if key in self.source.sample}
        if boxes and len(recorded) == len(boxes):
            return {
                key: fit(torch.as_tensor(value), boxes[key].shape).numpy()
                for key, value in recorded.items()
            }
        return super().sample_action()

    def encode_action(self, entries: RowEntries) -> Sample:
        return {
            key: fit(None if (value := entries.get(key)) is None else value[0], box.shape)
            .numpy()
            .astype(box.dtype)
            for key, box in self.target.action_space.spaces.items()
        }

    def state(self) -> StackState:
        states = {
            index: {name: torch.from_numpy(array.copy()) for name, array in part.state().items()}
            for index, part in enumerate(self.parts)
        }
        return {index: state for index, state in states.items() if state}

    def state_owners(self) -> Sequence[object]:
        return [owner for part in self.parts for owner in part.owners()]

    def load_state(self, state: StackState) -> Sequence[str]:
        """See :class:`~tdx.stacks.Stack`; what a pipeline keeps cannot be replaced."""
        return [f"{index}.{name}" for index, values in state.items() for name in values]
