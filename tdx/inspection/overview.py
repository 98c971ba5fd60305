"""A chain as far as it works: what each stage does, and what is wrong with those that fail.

Other reports want a whole chain. This one leaves a stage that fails out and goes on behind it, so
that whoever edits a chain sees all that can be seen.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from tdx.errors import ChainError, TdxError, Where
from tdx.inspection.leaf import LeafSpec, composite_leaves
from tdx.inspection.lineage import Lineage, inspect_keys
from tdx.inspection.origin import traceback_text, user_line
from tdx.inspection.spec_report import EnvFacts, KeyChange, compare_leaves
from tdx.inspection.stage_flow import StageFlow

if TYPE_CHECKING:
    from tdx.core import TransformedEnv
    from tdx.core.transforms import Transform
    from tdx.envs import EnvBase
    from tdx.pipeline import EnvConfig, Pipeline


@dataclass(frozen=True, slots=True)
class Problem:
    """An error as plain data, which needs no class of its own to travel between processes.

    Args:
        code: its stable code.
        message: what is wrong, on one line.
        hint: what to do about it.
        where: the place.
        origin: Line of the user's own code that raised, as ``file:line``.
        details: Traceback of an error of other code, or the last output of a process.
    """

    code: str
    message: str
    hint: str | None = None
    where: Where = field(default_factory=Where)
    origin: str | None = None
    details: str = field(default="", compare=False)

    @classmethod
    def of(cls, error: TdxError) -> Problem:
        """The problem that an error speaks of."""
        text = (error.code, error.message, error.hint, error.where)
        return cls(*text, user_line(error), traceback_text(error))


@dataclass(frozen=True, slots=True)
class StageOverview:
    """One stage.

    Args:
        index: its place in the pipeline, from 0.
        problem: why it is left out; none where it works.
        changes: every key before and after it; nothing where it is left out.
        flow: what it reads and writes in both directions; none where it is left out.
    """

    index: int
    problem: Problem | None
    changes: tuple[KeyChange, ...] = ()
    flow: StageFlow | None = None


@dataclass(frozen=True, slots=True)
class ChainOverview:
    """A pipeline as far as it works.

    Args:
        env: what holds for the env alone; none where it cannot be made.
        env_problem: why it cannot be made.
        base: the specs of the env alone.
        stages: every stage of the pipeline.
        changes: every key before and after the whole chain.
        after: what holds for the env with the chain.
        lineage: every version of every key; its stages are those of ``env_stages``, then those
            of ``working``.
        working: the indices of the stages that are not left out.
        env_stages: names of the stages that the env itself has; its specs are those after them.
    """

    env: EnvFacts | None
    env_problem: Problem | None
    base: tuple[LeafSpec, ...]
    stages: tuple[StageOverview, ...]
    changes: tuple[KeyChange, ...]
    after: EnvFacts | None
    lineage: Lineage | None
    working: tuple[int, ...]
    env_stages: tuple[str, ...] = ()

    def before(self, index: int) -> tuple[LeafSpec, ...]:
        """The specs that a stage is given: those after the last stage before it that works.

        Args:
            index: the stage; the length of the chain for what comes out at the end.
        """
        for stage in reversed(self.stages[:index]):
            if stage.problem is None:
                return tuple(each.after for each in stage.changes if each.after is not None)
        return self.base

    @property
    def problems(self) -> tuple[Problem, ...]:
        """All that is wrong, in the order of the chain."""
        stages = (stage.problem for stage in self.stages)
        return tuple(each for each in (self.env_problem, *stages) if each is not None)


class EnvBench:
    """Keeps the env of a pipeline made while its chain is edited.

    Args:
        allow_code: whether Python objects that a pipeline names may be imported.
    """

    def __init__(self, allow_code: bool = False) -> None:
        self.allow_code = allow_code
        self._config: EnvConfig | None = None
        self._env: EnvBase | None = None

    def base(self, config: EnvConfig) -> EnvBase:
        """The env, made where it is not the one that is there.

        Raises:
            TdxError: it cannot be made.
        """
        from tdx.pipeline import make_env

        if self._env is None or repr(config) != repr(self._config):
            self.close()
            self._env = make_env(config, self.allow_code)
            self._config = config
        return self._env

    def close(self) -> None:
        """Close the env that is there."""
        env, self._env, self._config = self._env, None, None
        if env is not None:
            env.close()


def overview(pipeline: Pipeline, bench: EnvBench | None = None) -> ChainOverview:
    """Look at a pipeline without a step; stages that fail are left out, one after the other.

    Args:
        pipeline: the pipeline.
        bench: keeps the env for the next look; without it the env is closed again.

    Example:
        >>> from tdx.pipeline import Pipeline
        >>> seen = overview(Pipeline.of("Pendulum-v1", "CatFrames(4)", "RewardSum"))
        >>> [stage.problem and stage.problem.message for stage in seen.stages]
        ['CatFrames needs the argument dim', None]
    """
    own = bench or EnvBench()
    try:
        return _Look(pipeline, own).taken()
    finally:
        if bench is None:
            own.close()


class _Look:
    def __init__(self, pipeline: Pipeline, bench: EnvBench) -> None:
        self.pipeline = pipeline
        self.bench = bench
        self.problems: dict[int, Problem] = {}

    def taken(self) -> ChainOverview:
        env_problem = self._read_arguments()
        if env_problem is None:
            try:
                return self._chain(self.bench.base(self.pipeline.env))
            except TdxError as error:
                env_problem = Problem.of(error)
        stages = tuple(
            StageOverview(index, self.problems.get(index))
            for index in range(len(self.pipeline.transforms))
        )
        return ChainOverview(None, env_problem, (), stages, (), None, None, ())

    def _read_arguments(self) -> Problem | None:
        """Remember what is wrong with stages as they are written; returns what is with the env."""
        from tdx.pipeline import check_arguments

        env_problem = None
        for error in check_arguments(self.pipeline, self.bench.allow_code):
            stage = error.where.stage
            if stage is None:
                env_problem = env_problem or Problem.of(error)
            else:
                self.problems.setdefault(stage, Problem.of(error))
        return env_problem

    def _chain(self, base: EnvBase) -> ChainOverview:
        """Put the stages that work around the env; one more that fails is left out each time."""
        while True:
            working = self._working()
            made = self._made(working)
            if len(made) < len(working):
                continue
            env = self._built(base, made, working)
            if env is not None:
                return self._report(base, env, working)

    def _working(self) -> list[int]:
        return [n for n in range(len(self.pipeline.transforms)) if n not in self.problems]

    def _made(self, working: Sequence[int]) -> list[Transform]:
        from tdx.pipeline.resolver import ValueResolver

        made = []
        for index in working:
            try:
                made.append(
                    ValueResolver(self.bench.allow_code).build_transform(
                        self.pipeline.transforms[index]
                    )
                )
            except TdxError as error:
                self._failed(index, error)
        return made

    def _built(
        self, base: EnvBase, made: Sequence[Transform], working: Sequence[int]
    ) -> TransformedEnv | None:
        """The env with its chain; none where a stage fails, which is then remembered."""
        from tdx.core import TransformedEnv
        from tdx.core.stage_specs import stage_count
        from tdx.core.transforms import Compose
        from tdx.pipeline import check_specs

        try:
            env = TransformedEnv(base, Compose(*made))
            errors = check_specs(env)
        except TdxError as error:
            errors = [error]
        except Exception as error:
            foreign = ChainError(
                f"{type(error).__name__}: {error}".splitlines()[0],
                hint="the traceback shows where it was raised",
            )
            foreign.__cause__ = error
            errors = [foreign]
        if not errors:
            return env
        if not working:
            raise errors[0]
        for found in errors:
            at = None if found.where.stage is None else found.where.stage - stage_count(base)
            # An error that names no stage is blamed on the last, so that the others can be seen.
            known = at is not None and 0 <= at < len(working)
            self._failed(working[at if known and at is not None else -1], found)
        return None

    def _failed(self, index: int, error: TdxError) -> None:
        config = self.pipeline.transforms[index]
        problem = Problem.of(error)
        where = replace(problem.where, stage=index).merged(Where(transform=config.name))
        self.problems.setdefault(index, replace(problem, where=where))

    def _report(self, base: EnvBase, env: TransformedEnv, working: Sequence[int]) -> ChainOverview:
        from tdx.core.stage_specs import chain_stages, stage_specs
        from tdx.inspection.stage_flow import chain_flow

        specs = stage_specs(env)[-len(working) - 1 :]
        leaves = [composite_leaves(each.input_spec, each.output_spec) for each in specs]
        flows = chain_flow(env).stages[-len(working) :] if working else ()
        found: dict[int, StageOverview] = {}
        for at, index in enumerate(working):
            changes = compare_leaves(leaves[at], leaves[at + 1], (index,))
            found[index] = StageOverview(index, None, changes, flows[at])
        stages = tuple(
            found.get(index) or StageOverview(index, self.problems[index])
            for index in range(len(self.pipeline.transforms))
        )
        return ChainOverview(
            *(EnvFacts.of(base), None, leaves[0], stages),
            *(compare_leaves(leaves[0], leaves[-1]), EnvFacts.of(env)),
            *(inspect_keys(env, self.pipeline.env.id), tuple(working)),
            tuple(type(stage).__name__ for stage in chain_stages(base)),
        )
