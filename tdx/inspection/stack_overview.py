"""Specs and errors of the stack that a factory creates, stage by stage."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from tdx.foundation.errors import TdxError
from tdx.inspection.chain import analyze_chain
from tdx.inspection.lineage import inspect_keys
from tdx.inspection.overview import (
    ChainOverview,
    EnvCache,
    Problem,
    StageOverview,
    inspect_overview,
)
from tdx.inspection.spec_report import EnvFacts, compare_leaves
from tdx.pipeline.stack_facts import StackFacts, Wrapper
from tdx.specs.leaf import composite_leaves
from tdx.stacks.stack import Stack, StageInfo, format_argument

if TYPE_CHECKING:
    from tdx.core import StageSpecs
    from tdx.pipeline import Pipeline


def inspect_target(pipeline: Pipeline, cache: EnvCache) -> ChainOverview:
    """Inspect a pipeline, which may be a factory of a stack of any library.

    Args:
        pipeline: The pipeline.
        cache: Keeps the env open for the next call.

    Example:
        >>> from tdx.pipeline import Pipeline
        >>> cache = EnvCache()
        >>> inspect_target(Pipeline.of("Pendulum-v1", "RewardSum"), cache).stack is None
        True
        >>> cache.close()
    """
    from tdx.pipeline import check_arguments
    from tdx.stacks.building import opens_as_stack

    is_stack = opens_as_stack(pipeline)
    if is_stack and not (pipeline.is_factory and check_arguments(pipeline, cache.allow_code)):
        try:
            stack = cache.stack(pipeline)
        except TdxError as error:
            stages = tuple(StageOverview(at, None) for at in range(len(pipeline.transforms)))
            return ChainOverview(None, Problem.of(error), (), stages, (), None, None, ())
        if stack is not None:
            return inspect_stack(stack, pipeline.env.id)
    return inspect_overview(pipeline, cache)


def inspect_stack(stack: Stack, env: str) -> ChainOverview:
    """Inspect a stack without a reset or step.

    The wrappers of other libraries declare no keys, so that their data flow and their lineage are
    unknown without steps; :func:`~tdx.inspection.lineage.inspect_keys` makes some. If the specs of
    a stage cannot be read, the stages are listed without specs.

    Args:
        stack: The stack.
        env: Id of its env in the pipeline.

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

    facts = StackFacts(
        env,
        stack.kind,
        tuple(_describe(stage) for stage in stack.stages),
        tuple(stack.notes),
        can_extend=_can_become_env(stack),
        runs_as_chain=stack.chain_env is not None,
        takes_env_settings=stack.takes_env_settings,
        is_data=isinstance(stack, CheckpointStack | DatasetStack),
    )
    try:
        specs = stack.specs()
    except TdxError as error:
        return _without_specs(facts, Problem.of(error))
    return _with_flow(_with_specs(facts, specs), stack)


def _can_become_env(stack: Stack) -> bool:
    """Return True if the stack defines ``as_env``, so that a chain of tdx can be around it."""
    return getattr(type(stack), "as_env", Stack.as_env) is not Stack.as_env


def _describe(stage: StageInfo) -> Wrapper:
    arguments = tuple((name, format_argument(each)) for name, each in stage.arguments.items())
    return Wrapper(stage.name, arguments, stage.location, stage.direction, stage.rows)


def _with_specs(facts: StackFacts, specs: Sequence[StageSpecs]) -> ChainOverview:
    leaves = [composite_leaves(each.input_spec, each.output_spec) for each in specs]
    stages = tuple(
        StageOverview(index, None, compare_leaves(leaves[index], leaves[index + 1], (index,)))
        for index in range(len(specs) - 1)
    )
    return ChainOverview(
        env=EnvFacts.at(specs[0]),
        env_problem=None,
        base=leaves[0],
        stages=stages,
        changes=compare_leaves(leaves[0], leaves[-1]),
        after=EnvFacts.at(specs[-1]),
        lineage=None,
        working=tuple(range(len(stages))),
        stack=facts,
    )


def _with_flow(overview: ChainOverview, stack: Stack) -> ChainOverview:
    """Add the data flow and the lineage of transforms, which declare their keys."""
    env = stack.chain_env
    if env is None or overview.stack is None:
        return overview
    flows = analyze_chain(env).stages
    stages = (replace(stage, flow=flow) for stage, flow in zip(overview.stages, flows, strict=True))
    lineage = inspect_keys(env, overview.stack.env)
    return replace(overview, stages=tuple(stages), lineage=lineage)


def _without_specs(facts: StackFacts, problem: Problem) -> ChainOverview:
    failed = problem.where.stage
    stages = tuple(
        StageOverview(index, problem if index == failed else None)
        for index in range(len(facts.wrappers))
    )
    return ChainOverview(
        env=EnvFacts((), "cpu"),
        env_problem=problem if failed is None else None,
        base=(),
        stages=stages,
        changes=(),
        after=None,
        lineage=None,
        working=(),
        stack=facts,
    )
