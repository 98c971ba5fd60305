"""``ConnectorStack``: the connectors between an env of RLlib and its module.

The env-to-module connectors change observations on their way to the module, the module-to-env
connectors actions on their way back. Each is called as its pipeline calls it, with a batch and with
episodes. Connectors change both in place, so each gets copies: what it receives is what the
connector before it returned, and nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium import Space
from gymnasium.spaces import Box, Dict, MultiBinary, MultiDiscrete, Tuple
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from tdx.foundation.errors import ArgumentError, summarize_error
from tdx.foundation.patches import Patches
from tdx.stacks.gymnasium.levels import Level, arguments_of
from tdx.stacks.gymnasium.snapshots import level_state
from tdx.stacks.observe import preserved_generators
from tdx.stacks.refusals import Missing
from tdx.stacks.rllib.borders import (
    Column,
    Columns,
    build_batch,
    flatten,
    read_batch,
    stack_items,
    take_item,
    unflatten,
)
from tdx.stacks.samples import (
    Part,
    Sample,
    SampleSource,
    SampleStack,
    Spaces,
    StageArrays,
    unbounded_box,
)
from tdx.stacks.sources import attributes_of, class_location
from tdx.stacks.states import StateKeeper

if TYPE_CHECKING:
    from tdx.envs.gym.interface import Info

_ACTIONS, _FOR_ENV = "actions", "actions_for_env"
_KEPT = "episode.obs"
"""Key of the latest observations in the episodes, beside those in the batch, ``obs``."""


@dataclass(slots=True)
class Context:
    """What all connectors of a stack get."""

    rows: int
    module: Any  # Or what stands for it.
    spaces: tuple[Space[object], Space[object]]  # Of the observations and actions of one env.
    shared: dict[str, Any] = field(default_factory=dict)  # The shared_data of connectors.
    # Observations that the episodes keep after all connectors, by key.
    latest: dict[str, Any] = field(default_factory=dict)
    template: Any = None  # The structure of one of them.

    @property
    def episode_ids(self) -> list[str]:
        return [str(row) for row in range(self.rows)]


class _StatelessModule:
    """Stands for the module of a pipeline that is opened alone."""

    framework = "torch"

    def is_stateful(self) -> bool:
        """Return False, as most modules do."""
        return False


class EnvSource(SampleSource):
    """Steps the env of a runner, or draws observations, and tells what the episodes need."""

    def __init__(self, spaces: Spaces, context: Context, env: Any) -> None:
        super().__init__(spaces)
        self.context, self._env = context, env
        self._ended = np.zeros(context.rows, bool)

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Sample, Info]:
        sample, info = super().reset(seed=seed)
        if self._env is not None:
            sample = dict(flatten(self._env.reset(seed=seed)[0], _KEPT))
        self._ended = np.zeros(self.context.rows, bool)
        return sample, info

    def step(self, action: Sample) -> tuple[Sample, float, bool, bool, Info]:
        """Return the next observations; the env resets its sub-envs itself."""
        starts, rows = self._ended, self.context.rows
        zeros = np.zeros(rows), np.zeros(rows, bool), np.zeros(rows, bool)
        info: Info = {"starts": starts, "written": dict(self.context.latest)}
        if self._env is None:
            sample, *_ = super().step(action)
            rewards, terminated, truncated = zeros
        else:
            is_scaled = any(key.partition(".")[0] == _FOR_ENV for key in action)
            template = _blank(self.context.spaces[1])
            result = self._env.step(
                unflatten(action, template, _FOR_ENV if is_scaled else _ACTIONS)
            )
            sample = dict(flatten(result[0], _KEPT))
            rewards, terminated, truncated = result[1:4]
        self._ended = np.logical_or(terminated, truncated)
        info |= {"rewards": rewards, "terminated": terminated, "truncated": truncated}
        return sample, 0.0, False, False, info

    def close(self) -> None:
        if self._env is not None:
            self._env.close()


class ConnectorPart(Part):
    """One connector."""

    def __init__(self, connector: Any, context: Context, *, is_forward: bool) -> None:
        kind = type(connector)
        self.connector, self.context = connector, context
        self.name, self.location = kind.__name__, class_location(kind)
        self.direction = "forward" if is_forward else "inverse"
        spaces = ("input_observation_space", "input_action_space")
        arguments = arguments_of(connector)
        self.arguments = {key: arguments[key] for key in arguments if key not in spaces}
        self.columns: Columns = {}
        """Forms of the columns that it receives."""
        self.returned: dict[str, Column] = {}
        """Forms of the columns that it returned last."""
        self.template: Any = None
        """An observation in the episodes that it receives, for its structure."""
        self.returned_template: Any = None
        self.space = self.returned_space = context.spaces[0]
        """Space of the observations in the episodes, which connectors before it may replace."""
        self._episodes = list(map(self._new_episode, range(context.rows)))
        self._step: tuple[Sample | None, Mapping[str, Any]] = (None, {})

    def prepare(self, action: Sample | None, info: Mapping[str, object]) -> None:
        self._step = action, info

    def forward(self, sample: Sample) -> Sample:
        if self.direction == "inverse":
            return sample
        self._extend_episodes(sample)
        entries = self._call(sample, self._episodes)
        items = [episode.get_observations(-1) for episode in self._episodes]
        self.context.latest, self.returned_template = stack_items(items, _KEPT), items[0]
        self.returned_space = self._episodes[0].observation_space
        return {**self.context.latest, **entries}

    def inverse(self, action: Sample) -> Sample:
        if self.direction == "forward":
            return action
        self.context.shared["memorized_map_structure"] = self.context.episode_ids
        return self._call(action, self._episodes)

    def _extend_episodes(self, sample: Sample) -> None:
        """Add the latest observation to each episode, or begin a new one with it."""
        action, info = self._step
        for row in range(self.context.rows):
            observation = take_item(sample, self.template, _KEPT, row)
            if action is None or info["starts"][row]:
                self._episodes[row] = self._new_episode(row)
                self._episodes[row].add_env_reset(observation=observation, infos={})
                continue
            episode = self._episodes[row]
            # Connectors after this one may have changed what the episode keeps.
            written = take_item(info["written"], self.context.template, _KEPT, row)
            episode.observations.data[-1] = written
            episode.add_env_step(
                observation=observation,
                action=take_item(action, _blank(self.context.spaces[1]), _ACTIONS, row),
                reward=float(info["rewards"][row]),
                infos={},
                terminated=bool(info["terminated"][row]),
                truncated=bool(info["truncated"][row]),
            )

    def _new_episode(self, row: int) -> Any:
        from ray.rllib.env.single_agent_episode import SingleAgentEpisode

        return SingleAgentEpisode(
            id_=self.context.episode_ids[row],
            observation_space=self.space,
            action_space=self.context.spaces[1],
        )

    def _call(self, sample: Sample, episodes: Sequence[Any]) -> dict[str, Any]:
        """Call the connector as its pipeline does, with copies of what it may change."""
        result = self.connector(
            rl_module=self.context.module,
            batch=build_batch(sample, self.columns, self.context.episode_ids),
            episodes=list(episodes),
            explore=False,
            shared_data=self.context.shared,
            metrics=None,
        )
        entries, self.returned = read_batch(result)
        return entries

    def state(self) -> StageArrays:
        own = level_state(Level(0, (self.connector,), None))
        state = {key: value.numpy() for key, value in own.items() if not key.startswith("_ctor_")}
        for name, owner in self._held():
            for key, value in flatten(getattr(owner, "running_stats", None), name):
                if hasattr(value, "num_pushes"):
                    state[f"{key}.mean"] = np.array(value.mean)
                    state[f"{key}.var"] = np.array(value.var)
                    state[f"{key}.count"] = np.array(value.num_pushes)
        return state

    def owners(self) -> Sequence[object]:
        return [self.connector, *(owner for _, owner in self._held())]

    def _held(self) -> Iterator[tuple[str, object]]:
        """Yield the filters of a connector by agent: their statistics are too deep in it."""
        for name, held in attributes_of(self.connector).items():
            for key, owner in held.items() if isinstance(held, dict) else ():
                if hasattr(owner, "__dict__"):
                    yield (name if key is None else f"{name}.{key}"), owner


class ConnectorStack(SampleStack):
    """Connector pipelines of RLlib; each connector is a stage.

    The target is an algorithm, a runner of single-agent envs, whose env is stepped, or one
    pipeline, for which observations or actions are drawn.
    """

    kind = "rllib"
    no_pipeline = Missing(
        "a connector changes episodes, a transform of tdx the entries of a step",
        "convert the env with its wrappers, and add the transforms that do what the connectors do",
    )

    def __init__(self, target: Any) -> None:
        runner = target if not hasattr(target, "env_runner") else target.env_runner
        forward, inverse, env, module = _list_connectors(target, runner)
        known = forward[0] if forward else inverse[0]
        is_runner = env is not None
        spaces = (
            (env.single_observation_space, env.single_action_space)
            if is_runner
            else (known.input_observation_space, known.input_action_space)
        )
        if any(space is None for space in spaces):
            raise ArgumentError(
                "the connector pipeline does not know the spaces of its env",
                hint="build it with them: config.build_env_to_module_connector(env)",
            )
        rows = env.num_envs if is_runner else 1
        context = Context(rows, module, spaces, template=_blank(spaces[0]))
        parts = [ConnectorPart(piece, context, is_forward=True) for piece in forward]
        # The first connector gets what the module returned.
        parts += [ConnectorPart(piece, context, is_forward=False) for piece in inverse[::-1]]
        observations = _row_boxes(spaces[0], _KEPT, rows) if forward else {}
        places = _run_once(parts, observations, _action_boxes(spaces[1], inverse, rows))
        source = EnvSource(places[0], context, env)
        super().__init__(target, parts, places, source=source)
        self.context, self._is_runner = context, is_runner

    @property
    def hidden(self) -> Sequence[str]:
        """See :class:`~tdx.stacks.Stack`; the wrappers of the env."""
        if not self._is_runner:
            return ()
        return (
            "the wrappers of the env that feeds the connectors are not shown: pass .env of the "
            "env runner",
        )

    def paused_learning(self) -> AbstractContextManager[object]:
        owners = [part.owners()[0] for part in self.parts]
        name = "_update_stats"
        return Patches([(owner, name, False) for owner in owners if name in attributes_of(owner)])


def _list_connectors(target: Any, runner: Any) -> tuple[list[Any], list[Any], Any, Any]:
    """Return env-to-module and module-to-env connectors, the env, and the module."""
    if hasattr(target, "connectors"):
        pieces = _flat(target)
        if not pieces:
            raise ArgumentError("the connector pipeline has no connectors")
        name = type(target).__name__
        if name.startswith("Learner"):
            raise ArgumentError(
                "the connectors of a learner take episodes of a training, which tdx does not have",
                hint="pass the env runner, or one of its pipelines",
            )
        is_inverse = name.startswith("ModuleToEnv")
        module = _StatelessModule()
        return ([], pieces, None, module) if is_inverse else (pieces, [], None, module)
    env = getattr(runner, "env", None)
    if env is None:
        raise ArgumentError(
            f"{type(runner).__name__} has no env here: it runs in other processes",
            hint="build the algorithm with config.env_runners(num_env_runners=0)",
        )
    if not hasattr(env, "single_observation_space") or "MultiAgent" in type(runner).__name__:
        raise ArgumentError(
            "connectors of several agents are not supported",
            hint="pass the env that feeds them, such as a PettingZoo parallel env",
        )
    pipelines = runner._env_to_module, runner._module_to_env
    forward, inverse = map(_flat, pipelines)
    return forward, inverse, env, runner.module


def _flat(pipeline: Any) -> list[Any]:
    """Return the connectors of a pipeline, also of the pipelines in it."""
    return [
        piece
        for part in pipeline.connectors
        for piece in (_flat(part) if hasattr(part, "connectors") else [part])
    ]


def _blank(space: Space[object]) -> Any:
    """Return an observation of a space, for its structure."""
    if isinstance(space, Dict):
        return {name: _blank(part) for name, part in space.spaces.items()}
    return tuple(map(_blank, space.spaces)) if isinstance(space, Tuple) else None


def _row_boxes(space: Space[object], key: str, rows: int) -> dict[str, Box]:
    """Return the spaces of the arrays ``[N, ...]`` of N envs by key."""
    boxes: dict[str, Box] = {}
    spaces = {key: space}
    while spaces:
        name, part = spaces.popitem()
        if isinstance(part, Dict):
            spaces |= {f"{name}.{inner}": value for inner, value in part.spaces.items()}
            continue
        if isinstance(part, Tuple):
            spaces |= {f"{name}.{index}": value for index, value in enumerate(part.spaces)}
            continue
        whole = batch_space(part, rows)
        if isinstance(whole, MultiDiscrete):
            whole = Box(whole.start, whole.start + whole.nvec - 1, dtype=whole.dtype.type)
        elif isinstance(whole, MultiBinary):
            whole = Box(0, 1, whole.shape, np.int8)
        if not isinstance(whole, Box):
            raise ArgumentError(
                f"connectors of a {type(part).__name__} space are not supported",
                hint="pass the env that feeds them: .env of the env runner",
            )
        boxes[name] = whole
    return {name: boxes[name] for name in reversed(boxes)}


def _action_boxes(space: Space[object], inverse: Sequence[object], rows: int) -> dict[str, Box]:
    """Return the spaces of what a module returns: actions between -1 and 1 if they are scaled."""
    boxes = _row_boxes(space, _ACTIONS, rows)
    if not any(getattr(piece, "normalize_actions", False) for piece in inverse):
        return boxes
    return {
        key: Box(-1, 1, box.shape, box.dtype.type) if box.dtype.kind == "f" else box
        for key, box in boxes.items()
    }


def _run_once(
    parts: Sequence[ConnectorPart], observations: Mapping[str, Box], actions: Mapping[str, Box]
) -> list[Spaces]:
    """Return the spaces before the parts and after each, from one pass of random values.

    Each part learns the form of the batch that it receives.
    """

    def draw(boxes: Mapping[str, Box]) -> dict[str, Any]:
        # Whether values fit a space depends on them, and two stacks are to have the same specs.
        for box in boxes.values():
            box.seed(0)
        return {key: box.sample() for key, box in boxes.items()}

    keeper = StateKeeper([owner for part in parts for owner in part.owners()])
    samples, returned = [draw(observations)], [draw(actions)]
    forward = [part for part in parts if part.direction == "forward"]
    inverse = parts[len(forward) :]
    context, columns = parts[0].context, dict[str, Column]()
    space, current = context.spaces[0], parts[0]
    try:
        with preserved_generators():
            for current in forward:
                current.columns, current.space = columns, space
                current.template = context.template
                samples.append(dict(current.forward(samples[-1])))
                columns, space = current.returned, current.returned_space
                context.template = current.returned_template
            columns = read_batch(returned[0])[1]
            for current in reversed(inverse):
                current.columns = columns
                returned.append(dict(current.inverse(returned[-1])))
                columns = current.returned
    except Exception as error:
        raise ArgumentError(
            f"{current.name} cannot be called: {summarize_error(error)}",
            hint="pass the env runner, whose module it may need",
        ).at(stage=parts.index(current), transform=current.name) from error
    finally:
        keeper.restore()
    boxes = [dict(observations)]
    for part, before, after in zip(forward, samples, samples[1:], strict=False):
        boxes.append(_observation_boxes(part, boxes[-1], before, after))
    # Each lane passes the connectors of the other one unchanged.
    boxes += [boxes[-1]] * len(inverse)
    returned += [returned[-1]] * len(forward)
    return [
        Spaces(observation, _action_boxes_of(action, actions))
        for observation, action in zip(boxes, reversed(returned), strict=True)
    ]


def _observation_boxes(
    part: ConnectorPart,
    known: Mapping[str, Box],
    before: Mapping[str, NDArray[Any]],
    after: Mapping[str, NDArray[Any]],
) -> dict[str, Box]:
    """Return the spaces after a part: what it changes is in the space that it declares."""
    declared: dict[str, Box] = {}
    space = getattr(part.connector, "observation_space", None)
    if space is not None:
        for key in (_KEPT, "obs"):
            declared |= _row_boxes(space, key, part.context.rows)
    boxes: dict[str, Box] = {}
    for key, value in after.items():
        box = known.get(key)
        if box is None or not np.array_equal(before[key], value, equal_nan=True):
            box = declared.get(key)
        fits = box is not None and box.dtype == value.dtype and box.contains(value)
        boxes[key] = box if box is not None and fits else unbounded_box(value)
    return boxes


def _action_boxes_of(
    action: Mapping[str, NDArray[Any]], known: Mapping[str, Box]
) -> dict[str, Box]:
    boxes: dict[str, Box] = {}
    for key, value in action.items():
        box = known.get(key)
        is_same = box is not None and box.shape == value.shape and box.dtype == value.dtype
        boxes[key] = box if box is not None and is_same else unbounded_box(value)
    return boxes
