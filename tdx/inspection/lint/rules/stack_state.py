"""TDX485 to TDX490: normalizers and action scalings of any library that contradict their data."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tdx.compare.statistics import FRESH_COUNT, is_of_reward, read_counts
from tdx.foundation.keys import NestedKey, format_key, split_key
from tdx.inspection.lint.rule import Violation, stack_rule
from tdx.inspection.lint.rules.stacks import EXAMPLE_IMAGE, EXAMPLE_IMPORTS
from tdx.inspection.lint.stack_context import Fact, StackContext, StageCall, fit_line
from tdx.specs.leaf import shape_text

if TYPE_CHECKING:
    from tdx.stacks import StageInfo

_STATISTIC_ARGUMENTS = {"stats", "statistics", "mean", "means", "std", "stds", "keys"}
"""Words in the names of arguments that map keys to statistics."""
_IMAGE_SIDE = 8
_HIGHEST_PIXEL = 255.0

_ENTRIES = f"""{EXAMPLE_IMPORTS}

class Arm(gym.Env):
    observation_space = spaces.Dict({{"proprio": spaces.Box(-9, 9, (3,), np.float64)}})
    action_space = spaces.Box(-1.0, 1.0, (3,), np.float64)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return {{"proprio": self.np_random.uniform(-1, 1, 3)}}, {{}}

    def step(self, action):
        return self.reset()[0], 0.0, False, False, {{}}
"""


@stack_rule(
    "TDX485",
    "keys of a normalizer match no observation",
    "error",
    why="""
    The keys of the normalizer, or of its statistics, do not exist in the observation, so it returns
    the observation unchanged. No error is raised, and the policy reads raw values.

    Name the keys as the env does: `tdx inspect spec` lists them.
    """,
    python=f"""{_ENTRIES}

class NormalizeEntries(gym.ObservationWrapper):
    def __init__(self, env, keys):
        super().__init__(env)
        self.keys, self.mean, self.var = keys, 0.5, 4.0
        self.seen = 0

    def observation(self, observation):
        self.seen += 1
        scale = np.sqrt(self.var)
        return {{
            name: (value - self.mean) / scale if name in self.keys else value
            for name, value in observation.items()
        }}


def wrong():
    return NormalizeEntries(Arm(), ["propio"])


def right():
    return NormalizeEntries(Arm(), ["proprio"])
""",
)
def normalizer_without_key(context: StackContext) -> Iterator[Violation]:
    """Find normalizers whose keys are no keys of their input."""
    for stage in context.stages:
        normalizes = context.is_normalizer(stage) or "norm" in _folded(stage)
        if not normalizes or context.changed_observations(stage):
            continue
        known = {_name_of(context, key) for key in context.leaves[stage.index]}
        for name, value in stage.arguments.items():
            keys = _keys_in(name, value)
            if not keys:
                continue
            missing = [key for key in keys if _text(key) not in known]
            if len(missing) == len(keys):
                shown = ", ".join(_text(key) for key in missing)
                message = f"no observation has the key {shown} in its {name}"
                hint = f"the keys are {', '.join(sorted(known))}"
                yield Violation(message, hint, stage.index)


@stack_rule(
    "TDX486",
    "statistics and observations differ in size",
    "warning",
    why="""
    The mean and variance of the normalizer and the observation differ in their number of features.
    They belong to another robot or another set of sensors, so some of them are applied to features
    that they were not computed from.

    Load the statistics of this env, or compute them again.
    """,
    python=f"""{_ENTRIES}

class Normalize(gym.ObservationWrapper):
    def __init__(self, env, mean, var):
        super().__init__(env)
        self.loaded_mean, self.loaded_var = mean, var
        self.running = Statistics(mean, var)

    def observation(self, observation):
        value = observation["proprio"]
        count = len(value)
        scale = np.sqrt(self.running.var[:count])
        return {{"proprio": (value - self.running.mean[:count]) / scale}}


class Statistics:
    def __init__(self, mean, var):
        self.mean, self.var = mean, var


def wrong():
    return Normalize(Arm(), np.full(4, 0.5), np.full(4, 4.0))


def right():
    return Normalize(Arm(), np.full(3, 0.5), np.full(3, 4.0))
""",
)
def statistics_of_another_width(context: StackContext) -> Iterator[Violation]:
    """Find normalizers whose statistics do not broadcast to what they normalize."""
    lead = context.batch_dims
    for stage in context.stages:
        if not context.is_normalizer(stage):
            continue
        changed = context.changed_observations(stage)
        shapes = {
            key: tuple(context.leaves[stage.index][key].shape[lead:])
            for key in changed
            if key in context.leaves[stage.index]
        }
        rows = 0 if stage.rows is None else 1
        for name, value in context.after.get(stage.index, {}).items():
            if name.rpartition(".")[2] not in ("mean", "loc") or not shapes:
                continue
            shape = tuple(value.shape[rows:])
            if shape and not any(_broadcasts(shape, data) for data in shapes.values()):
                key, data = next(iter(shapes.items()))
                message = f"{name} has the shape {shape_text(shape)}, the data {shape_text(data)}"
                yield Violation(message, "load the statistics of this env", stage.index, key)
                break


@stack_rule(
    "TDX487",
    "evaluation starts without statistics",
    "warning",
    why="""
    The running statistics are those of at most one value and do not change, so observations pass
    nearly unchanged. The policy was trained on normalized ones: its success rate drops without an
    error. The rule applies with `--eval`, or `tdx.check(env, evaluation=True)`.

    Load the statistics of the training, for example with `VecNormalize.load` or
    `tdx inspect state --load`.
    """,
    python=f"""{EXAMPLE_IMPORTS}

def make(count):
    env = wrappers.NormalizeObservation(gym.make("CartPole-v1", max_episode_steps=20))
    env.obs_rms.count = count
    env.obs_rms.var = np.full(4, 2.0)
    env.update_running_mean = False
    return env


def wrong():
    return make(1e-4)


def right():
    return make(1000.0)
""",
    options="--eval",
)
def fresh_statistics(context: StackContext) -> Iterator[Violation]:
    """Find running statistics that have counted nothing and stay so."""
    if not context.evaluation:
        return
    for stage in context.stages:
        if not context.is_normalizer(stage) or context.learns(stage):
            continue
        state = context.before.get(stage.index, {})
        counts = {
            name: count for name, count in read_counts(state).items() if not is_of_reward(name)
        }
        if counts and max(counts.values()) <= FRESH_COUNT:
            name, count = next(iter(counts.items()))
            message = f"its count ({name}) is {count:g}"
            hint = "load the statistics of the training"
            yield Violation(message, hint, stage.index, "observation")


class ActionPairs(Fact):
    """Action before and after a stage, of each step, first element of the first sub-env."""

    def __init__(self) -> None:
        self.pairs: list[tuple[float, float]] = []

    def add(self, call: StageCall) -> None:
        if call.stage.direction == "inverse" and len(self.pairs) < _MAX_PAIRS:
            for key, old, new in call.tensors():
                if key == "action" and old.numel() and new.numel():
                    self.pairs.append((float(old.flatten()[0]), float(new.flatten()[0])))

    @property
    def line(self) -> tuple[float, float] | None:
        """Factor and offset by which actions are mapped; ``None`` if not linearly."""
        is_known = len(self.pairs) >= _MIN_PAIRS
        if not is_known or max(self.pairs)[0] - min(self.pairs)[0] < 1e-3:
            return None
        return fit_line(self.pairs, 1e-4)


_MIN_PAIRS, _MAX_PAIRS = 5, 100
"""Actions that are compared before the mapping of a stage counts as known, and that are kept."""


@stack_rule(
    "TDX488",
    "offset of absolute actions is added to relative ones",
    "suggestion",
    why="""
    The stage maps the actions of the policy by an offset that moves them to one side of a range
    that is symmetric around zero. Such a range is that of relative actions (deltas, torques), and
    such an offset is usually the mean of absolute ones (positions): every action pushes the same
    way.

    Unless the policy shall act in this part of the range only, use the statistics of the relative
    actions.
    """,
    python=f"""{EXAMPLE_IMPORTS}

def make(offset):
    env = gym.make("Pendulum-v1", max_episode_steps=20)
    space = spaces.Box(-1.0, 1.0, (1,), np.float32)
    scale = np.float32(2 - abs(offset))
    return wrappers.TransformAction(env, lambda action: scale * action + np.float32(offset), space)


def wrong():
    return make(1.6)


def right():
    return make(0.0)
""",
    facts=(ActionPairs,),
)
def absolute_statistics_of_deltas(context: StackContext) -> Iterator[Violation]:
    """Find action mappings whose center is far from that of a symmetric range."""
    for stage, mapped, low, high in _action_mappings(context):
        if low == -high and abs(mapped[0] + mapped[1]) > 0.5 * (high - low):
            message = f"it maps the actions to {_range_text(*mapped)}, of {_range_text(low, high)}"
            hint = "use the statistics of the relative actions"
            yield Violation(message, hint, stage.index, "action")


@dataclass(slots=True)
class ValueRange:
    """Smallest and largest value of a key in all steps, and its dtype, such as ``float32``."""

    low: float
    high: float
    dtype: str


class ImageRanges(Fact):
    """Ranges of the values with two or more dims that a stage wrote, before and after it."""

    def __init__(self) -> None:
        self.ranges: dict[NestedKey, tuple[ValueRange, ValueRange]] = {}

    def add(self, call: StageCall) -> None:
        if call.stage.direction == "inverse":
            return
        for key, *values in call.tensors():
            if not all(value.numel() for value in values):
                continue
            if values[1].is_complex() or values[1].ndim < 2:
                continue
            dtypes = (str(value.dtype).removeprefix("torch.") for value in values)
            first = [ValueRange(float("inf"), float("-inf"), dtype) for dtype in dtypes]
            known = self.ranges.setdefault(key, (first[0], first[1]))
            for total, value in zip(known, values, strict=True):
                low, high = value.aminmax()
                total.low, total.high = min(total.low, float(low)), max(total.high, float(high))


@stack_rule(
    "TDX489",
    "range of an image contradicts its normalizer",
    "warning",
    why="""
    The statistics are those of pixels in 0 … 1, and the image has pixels in 0 … 255, so the network
    reads values in the hundreds; or pixels in 0 … 1 are divided by 255 once more, and it reads
    nearly zero.

    Scale the image exactly once before it is normalized.
    """,
    python=f"""{EXAMPLE_IMPORTS}

{EXAMPLE_IMAGE}
class NormalizeImage(gym.ObservationWrapper):
    def __init__(self, env, scale):
        super().__init__(env)
        self.scale = scale
        self.observation_space = spaces.Box(-1e4, 1e4, (12, 12, 3), np.float32)

    def observation(self, observation):
        return ((observation * self.scale - 0.45) / 0.22).astype(np.float32)


def wrong():
    return NormalizeImage(Image(), 1.0)


def right():
    return NormalizeImage(Image(), 1 / 255)
""",
    facts=(ImageRanges,),
)
def image_range(context: StackContext) -> Iterator[Violation]:
    """Find normalized images with values in the hundreds, and those divided by 255 twice."""
    for stage in context.stages:
        for key, before, after in _image_ranges(context, stage):
            is_float = after.dtype.startswith("float")
            if before.high > 50 and after.high > 100 and is_float and "norm" in _folded(stage):
                message = f"pixels up to {before.high:g} become values up to {after.high:.4g}"
                hint = "divide the image by 255 before it is normalized"
                yield Violation(message, hint, stage.index, key)
            ratio = after.high / before.high if before.high else 1.0
            is_small = before.low >= 0 and before.high <= 1.001 and after.low >= 0
            if is_small and abs(ratio * _HIGHEST_PIXEL - 1) < 0.01:
                message = f"pixels in 0 … {before.high:.3g} are divided by 255 once more"
                yield Violation(message, f"remove {stage.name}", stage.index, key)


@stack_rule(
    "TDX490",
    "action scaling does not cover the range of the env",
    "suggestion",
    why="""
    The stage maps the ends of the policy's range to other values than the ends of the env's range.
    A policy whose actions were normalized by the range of the env is then too weak: the scaling
    does not invert the normalization.

    Map both ends of the range to both ends of the other one, as `RescaleAction` does, unless the
    policy shall not reach them.
    """,
    python=f"""{EXAMPLE_IMPORTS}

def make(scale):
    env = gym.make("Pendulum-v1", max_episode_steps=20)
    space = spaces.Box(-1.0, 1.0, (1,), np.float32)
    return wrappers.TransformAction(env, lambda action: np.float32(scale) * action, space)


def wrong():
    return make(1.5)


def right():
    return make(2.0)
""",
    facts=(ActionPairs,),
)
def scaling_does_not_invert(context: StackContext) -> Iterator[Violation]:
    """Find linear mappings of actions that do not map one range to the other."""
    for stage, mapped, low, high in _action_mappings(context):
        size = high - low
        is_offset = low == -high and abs(mapped[0] + mapped[1]) > 0.5 * size
        # TDX401 reports actions outside of the range.
        is_inside = mapped[0] >= low - 1e-3 * size and mapped[1] <= high + 1e-3 * size
        apart = max(abs(mapped[0] - low), abs(mapped[1] - high)) > 1e-3 * size
        if apart and is_inside and not is_offset:
            message = f"it maps the actions to {_range_text(*mapped)}, of {_range_text(low, high)}"
            hint = "map the ends of one range to the ends of the other"
            yield Violation(message, hint, stage.index, "action")


def _keys_in(name: str, value: object) -> list[object]:
    """Return the keys of observations in an argument of a normalizer; empty if it has none."""
    words = set(re.split(r"_", name))
    if isinstance(value, Mapping) and words & _STATISTIC_ARGUMENTS:
        return list(value)
    if "out" in words or not words & {"key", "keys"}:
        return []
    if isinstance(value, str):
        return [value]
    return list(value) if isinstance(value, Sequence | Set | Mapping) else []


def _folded(stage: StageInfo) -> str:
    return stage.name.casefold()


def _name_of(context: StackContext, key: NestedKey) -> str:
    """Return the name of a key in its library: an entry of a ``Dict`` has no group there."""
    parts = split_key(key)
    is_entry = context.stack.chain_env is None and len(parts) > 1 and parts[0] == "observation"
    return format_key(parts[1:] if is_entry else parts)


def _text(key: object) -> str:
    if isinstance(key, str):
        return key
    parts = key if isinstance(key, Sequence) else (key,)
    return ".".join(str(part) for part in parts)


def _broadcasts(shape: tuple[int, ...], data: tuple[int, ...]) -> bool:
    """Return True if statistics apply to each element of the data, or to each of its channels."""
    if len(shape) > len(data):
        return False
    return all(
        one in (1, other) for one, other in zip(reversed(shape), reversed(data), strict=False)
    ) or (len(data) == 3 and shape[0] == data[0])


def _action_mappings(
    context: StackContext,
) -> Iterator[tuple[StageInfo, tuple[float, float], float, float]]:
    """Yield stages that map actions linearly, with the mapped range and that of the env inside."""
    for stage in context.stages:
        inner, outer = context.spec(stage.index - 1, "action"), context.spec(stage.index, "action")
        line = context.fact(ActionPairs, stage.index).line
        if inner is None or outer is None or line is None:
            continue
        ends = [spec.domain for spec in (inner, outer)]
        numbers = [end for domain in ends for end in (domain.low, domain.high)]
        if not all(isinstance(number, int | float) and abs(number) < 1e6 for number in numbers):
            continue
        low, high, outer_low, outer_high = numbers
        factor, offset = line
        mapped = sorted((factor * outer_low + offset, factor * outer_high + offset))
        yield stage, (mapped[0], mapped[1]), low, high


def _image_ranges(
    context: StackContext, stage: StageInfo
) -> Iterator[tuple[NestedKey, ValueRange, ValueRange]]:
    """Yield the images that a stage changes, with their ranges before and after it."""
    lead = context.batch_dims
    for key, (before, after) in context.fact(ImageRanges, stage.index).ranges.items():
        spec = context.spec(stage.index, key)
        if spec is not None and spec.part == "observation":
            sides = [size for size in spec.shape[lead:] if size >= _IMAGE_SIDE]
            if len(sides) >= 2:
                yield key, before, after


def _range_text(low: float, high: float) -> str:
    return f"{low:.4g} … {high:.4g}"
