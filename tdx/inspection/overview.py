"""Specs and errors of a pipeline, stage by stage, leaving out stages that fail.

Other reports require a chain that can be built. This one is for a chain that is being edited.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from itertools import pairwise, zip_longest
from typing import TYPE_CHECKING

from tdx.foundation.errors import (
    ChainError,
    TdxError,
    Where,
    find_foreign_cause,
    find_user_line,
)
from tdx.inspection.chain import StageFlow, analyze_chain
from tdx.inspection.lineage import Lineage, trace_flow
from tdx.inspection.spec_report import EnvFacts, KeyChange, compare_leaves
from tdx.pipeline.model import StackFacts, Statistics, Wrapper
from tdx.specs.leaf import LeafSpec, composite_leaves
from tdx.stacks.stack import Stack, StageInfo, format_argument

if TYPE_CHECKING:
    from torch import Tensor

    from tdx.core import TransformedEnv
    from tdx.envs import EnvBase
    from tdx.pipeline import EnvConfig, Pipeline


def format_traceback(error: BaseException) -> str:
    """Format the traceback of an error with a foreign cause; empty for an error of tdx alone."""
    if find_foreign_cause(error) is None:
        return ""
    return "".join(traceback.format_exception(error)).strip("\n")


@dataclass(frozen=True, slots=True)
class Problem:
    """An error as plain data that can be sent between processes.

    Args:
        origin: Line of user code that raised, as ``file:line``.
        details: Traceback of a foreign error, or the last output of a process.
    """

    code: str
    message: str
    hint: str | None = None
    where: Where = field(default_factory=Where)
    origin: str | None = None
    details: str = field(default="", compare=False)

    @classmethod
    def of(cls, error: TdxError) -> Problem:
        """Convert an error."""
        text = (error.code, error.message, error.hint, error.where)
        return cls(*text, find_user_line(error), format_traceback(error))


@dataclass(frozen=True, slots=True)
class StageOverview:
    """Specs of one stage, or the problem because of which it is left out."""

    index: int
    problem: Problem | None
    changes: tuple[KeyChange, ...] = ()
    flow: StageFlow | None = None


@dataclass(frozen=True, slots=True)
class ChainOverview:
    """Specs and errors of a pipeline.

    Args:
        env: Facts about the env without the chain; ``None`` if it cannot be made.
        lineage: Versions of all keys. Its stages are ``env_stages``, then ``working``.
        working: Indices of the stages that are not left out.
        env_stages: Class names of the stages that the env itself has; ``base`` is after them.
        stack: The env with its stages, if a factory creates both; ``stages`` are these.
    """

    env: EnvFacts | None
    env_problem: Problem | None
    base: tuple[LeafSpec, ...] = ()
    stages: tuple[StageOverview, ...] = ()
    changes: tuple[KeyChange, ...] = ()
    after: EnvFacts | None = None
    lineage: Lineage | None = None
    working: tuple[int, ...] = ()
    env_stages: tuple[str, ...] = ()
    stack: StackFacts | None = None

    def before(self, index: int) -> tuple[LeafSpec, ...]:
        """Return the specs before a stage: those after the last working stage before it."""
        for stage in reversed(self.stages[:index]):
            if stage.problem is None:
                return tuple(each.after for each in stage.changes if each.after is not None)
        return self.base

    @property
    def problems(self) -> tuple[Problem, ...]:
        """All problems, in the order of the chain."""
        stages = (stage.problem for stage in self.stages)
        return tuple(each for each in (self.env_problem, *stages) if each is not None)


class EnvCache:
    """Keeps the env of a pipeline open while its chain is edited.

    ``read_samples`` reads the samples of a stack without an env from a file or folder.
    """

    def __init__(
        self,
        allow_code: bool = False,
        read_samples: Callable[[str], Sequence[Mapping[str, object]]] | None = None,
    ) -> None:
        self.allow_code = allow_code
        self._read_samples = read_samples
        self._config: EnvConfig | None = None
        self._samples: str | None = None
        self._env: EnvBase | None = None
        self._stack: Stack | None = None

    def base(self, config: EnvConfig) -> EnvBase:
        """Return the env; it is made only if its config changed."""
        if self._env is None or repr(config) != repr(self._config):
            from tdx.pipeline import make_env
            from tdx.stacks.building import convert_to_env

            self.close()
            self._env = make_env(config, self.allow_code, convert_to_env)
            self._config = config
        return self._env

    def stack(self, pipeline: Pipeline, samples: str | None = None) -> Stack | None:
        """Return the stack that a factory creates or a folder holds; ``None``: see :meth:`base`."""
        from tdx.stacks.building import build_stack, open_target, opens_as_stack

        if not opens_as_stack(pipeline):
            return None
        config = pipeline.env
        is_other = repr(config) != repr(self._config) or samples != self._samples
        if self._stack is None or is_other:
            self.close()
            recorded = None
            if samples is not None and self._read_samples is not None:
                recorded = self._read_samples(samples)
            self._stack = (
                open_target(config, self.allow_code, recorded)
                if pipeline.is_factory
                else build_stack(pipeline, self.allow_code, recorded)
            )
            self._config, self._samples = config, samples
        return self._stack

    def close(self) -> None:
        """Close the env."""
        stack, self._stack = self._stack, None
        if stack is not None:
            stack.close()
        env, self._env, self._config = self._env, None, None
        if env is not None:
            env.close()


def inspect_overview(
    pipeline: Pipeline, cache: EnvCache | None = None, samples: str | None = None
) -> ChainOverview:
    """Inspect a pipeline without a reset or step, leaving out stages that fail.

    It may be a factory of a stack of any library; ``samples`` are a file or folder with the samples
    of a stack without an env. The env stays open for the next call if there is a cache.

    Example:
        >>> from tdx.pipeline import Pipeline
        >>> result = inspect_overview(Pipeline.of("Pendulum-v1", "CatFrames(4)", "RewardSum"))
        >>> [stage.problem and stage.problem.message for stage in result.stages]
        ['CatFrames needs the argument dim', None]
    """
    from tdx.pipeline import check_arguments

    if cache is None:
        with closing(EnvCache()) as own:
            return inspect_overview(pipeline, own, samples)
    if not (pipeline.is_factory and check_arguments(pipeline, cache.allow_code)):
        try:
            stack = cache.stack(pipeline, samples)
        except TdxError as error:
            stages = tuple(StageOverview(at, None) for at in range(len(pipeline.transforms)))
            return ChainOverview(None, Problem.of(error), stages=stages)
        if stack is not None:
            return inspect_stack(stack, pipeline.env.id)
    return _OverviewBuilder(pipeline, cache).build()


class _OverviewBuilder:
    def __init__(self, pipeline: Pipeline, cache: EnvCache) -> None:
        self.pipeline = pipeline
        self.cache = cache
        self.problems: dict[int, Problem] = {}

    def build(self) -> ChainOverview:
        from tdx.pipeline import check_arguments

        env_problem: Problem | None = None
        for error in check_arguments(self.pipeline, self.cache.allow_code):
            stage = error.where.stage
            if stage is None:
                env_problem = env_problem or Problem.of(error)
            else:
                self.problems.setdefault(stage, Problem.of(error))
        if env_problem is None:
            try:
                base = self.cache.base(self.pipeline.env)
                # Leave out one more stage after each failure.
                while True:
                    count = len(self.pipeline.transforms)
                    working = [index for index in range(count) if index not in self.problems]
                    env = self._build_env(base, working)
                    if env is not None:
                        return self._report(base, env, working)
            except TdxError as error:
                env_problem = Problem.of(error)
        stages = tuple(
            StageOverview(index, self.problems.get(index))
            for index in range(len(self.pipeline.transforms))
        )
        return ChainOverview(None, env_problem, stages=stages)

    def _build_env(self, base: EnvBase, working: Sequence[int]) -> TransformedEnv | None:
        """Build the env with its chain. Record the stages that fail and return ``None``."""
        from tdx.core import TransformedEnv
        from tdx.core.chain import chain_stages
        from tdx.core.transforms import Compose
        from tdx.pipeline import check_specs
        from tdx.pipeline.arguments import ValueResolver

        transforms = []
        for index in working:
            resolver = ValueResolver(self.cache.allow_code)
            try:
                transforms.append(resolver.build_transform(self.pipeline.transforms[index]))
            except TdxError as error:
                self._record_failure(index, error)
        if len(transforms) < len(working):
            return None
        try:
            env = TransformedEnv(base, Compose(*transforms))
            errors = check_specs(env)
        except TdxError as error:
            errors = [error]
        except Exception as error:
            foreign = ChainError(
                f"{type(error).__name__}: {error}".splitlines()[0],
                hint="see the traceback",
            )
            foreign.__cause__ = error
            errors = [foreign]
        if not errors:
            return env
        if not working:
            raise errors[0]
        for each in errors:
            at = None if each.where.stage is None else each.where.stage - len(chain_stages(base))
            # An error without a stage is attributed to the last one, so that the others are shown.
            is_known = at is not None and 0 <= at < len(working)
            self._record_failure(working[at if is_known and at is not None else -1], each)
        return None

    def _record_failure(self, index: int, error: TdxError) -> None:
        config = self.pipeline.transforms[index]
        problem = Problem.of(error)
        where = replace(problem.where, stage=index).merge(Where(transform=config.name))
        self.problems.setdefault(index, replace(problem, where=where))

    def _report(self, base: EnvBase, env: TransformedEnv, working: Sequence[int]) -> ChainOverview:
        from tdx.core.chain import chain_stages, stage_specs

        specs = stage_specs(env)[-len(working) - 1 :]
        leaves = [composite_leaves(each.input_spec, each.output_spec) for each in specs]
        flow = analyze_chain(env)
        flows = flow.stages[-len(working) :] if working else ()
        overviews: dict[int, StageOverview] = {}
        for at, index in enumerate(working):
            changes = compare_leaves(leaves[at], leaves[at + 1], (index,))
            overviews[index] = StageOverview(index, None, changes, flows[at])
        stages = tuple(
            overviews.get(index) or StageOverview(index, self.problems[index])
            for index in range(len(self.pipeline.transforms))
        )
        return ChainOverview(
            *(EnvFacts.of(base), None, leaves[0], stages),
            *(compare_leaves(leaves[0], leaves[-1]), EnvFacts.of(env)),
            *(trace_flow(flow, self.pipeline.env.id), tuple(working)),
            tuple(type(stage).__name__ for stage in chain_stages(base)),
        )


_MAX_ELEMENTS = 100
"""Number of elements of a feature whose statistics are shown."""


def _tabulate_statistics(state: Mapping[str, Tensor], summary: str) -> Iterator[Statistics]:
    """Yield the statistics of each feature, those of the features in a summary first."""
    tables: dict[str, dict[str, Tensor]] = {}
    for name, value in state.items():
        feature, _, statistic = name.rpartition(".")
        tables.setdefault(feature, {})[statistic] = value.flatten()
    places = {feature: f", {summary}".find(f", {feature}: ") for feature in tables}
    for feature in sorted(tables, key=lambda feature: (places[feature] < 0, places[feature])):
        columns = tables[feature]
        numbers = (column[:_MAX_ELEMENTS].double().tolist() for column in columns.values())
        rows = tuple(zip_longest(*numbers))
        size = max(column.numel() for column in columns.values())
        yield Statistics(feature, tuple(columns), rows, size, places[feature] >= 0)


def _describe_wrapper(stage: StageInfo, state: Mapping[str, Tensor]) -> Wrapper:
    """Return a stage as plain data, with the state of one that is read from files."""
    arguments, summary = dict(stage.arguments), ""
    if stage.text is not None and any(
        isinstance(value, dict) and value for value in arguments.values()
    ):
        # The features of a normalizer take several lines; its call has what it does with each.
        arguments = {
            name: value for name, value in arguments.items() if not isinstance(value, dict)
        }
        summary = stage.text.removeprefix(f"{stage.name}(").removesuffix(")")
    return Wrapper(
        stage.name,
        tuple((name, format_argument(value)) for name, value in arguments.items()),
        stage.location,
        stage.direction,
        stage.rows,
        summary,
        tuple(_tabulate_statistics(state, summary)),
    )


def inspect_stack(stack: Stack, env: str) -> ChainOverview:
    """Inspect a stack without a reset or step.

    The wrappers of other libraries declare no keys, so that their data flow and their lineage are
    unknown without steps; :func:`~tdx.inspection.lineage.inspect_keys` makes some. If the specs of
    a stage cannot be read, the stages are listed without specs.

    Example:
        >>> import gymnasium
        >>> import numpy as np
        >>> from tdx.stacks import open_stack
        >>> env = gymnasium.make("Pendulum-v1")
        >>> env = gymnasium.wrappers.RescaleAction(env, np.float32(-1), np.float32(1))
        >>> overview = inspect_stack(open_stack(env), "my_envs:make")
        >>> overview.stack.wrappers[-1].text
        'min_action=-1.0, max_action=1.0'
        >>> [change.key for change in overview.stages[-1].changes if change.change != "same"]
        ['action']
    """
    from tdx.stacks.checkpoints.stack import CheckpointStack, DatasetStack

    is_data = isinstance(stack, CheckpointStack | DatasetStack)
    states = stack.state() if is_data else {}
    facts = StackFacts(
        env,
        stack.kind,
        tuple(_describe_wrapper(stage, states.get(stage.index, {})) for stage in stack.stages),
        tuple(stack.notes),
        # A chain of tdx can be around it.
        can_extend=getattr(type(stack), "as_env", Stack.as_env) is not Stack.as_env,
        runs_as_chain=stack.chain_env is not None,
        takes_env_settings=stack.takes_env_settings,
        is_data=is_data,
    )
    try:
        specs = stack.specs()
    except TdxError as error:
        problem = Problem.of(error)
        failed = problem.where.stage
        return ChainOverview(
            env=EnvFacts((), "cpu"),
            env_problem=problem if failed is None else None,
            stages=tuple(
                StageOverview(index, problem if index == failed else None)
                for index in range(len(facts.wrappers))
            ),
            stack=facts,
        )
    leaves = [composite_leaves(each.input_spec, each.output_spec) for each in specs]
    # Transforms declare their keys.
    chain = stack.chain_env
    flow = None if chain is None else analyze_chain(chain)
    stages = tuple(
        StageOverview(
            index,
            None,
            compare_leaves(before, after, (index,)),
            None if flow is None else flow.stages[index],
        )
        for index, (before, after) in enumerate(pairwise(leaves))
    )
    return ChainOverview(
        env=EnvFacts.at(specs[0]),
        env_problem=None,
        base=leaves[0],
        stages=stages,
        changes=compare_leaves(leaves[0], leaves[-1]),
        after=EnvFacts.at(specs[-1]),
        lineage=None if flow is None else trace_flow(flow, env),
        working=tuple(range(len(stages))),
        stack=facts,
    )
