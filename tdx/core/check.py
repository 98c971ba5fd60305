"""Which stage of a chain lies: every stage's data against the specs at its place."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import replace

from tensordict import TensorDictBase

from tdx.core.envs import EnvBase
from tdx.core.envs.spec_findings import (
    Phase,
    SpecFinding,
    held_against,
    leaf_keys,
    leaves_of,
    unique_findings,
    wrong_batch_size,
)
from tdx.core.stage_specs import stage_count, stage_specs
from tdx.core.transformed_env import TransformedEnv
from tdx.core.transforms import Compose, Transform
from tdx.envs.check import attributed
from tdx.errors import ChainError, TdxError, Where, first_line
from tdx.keys import NestedKey
from tdx.specs import Composite, TensorSpec
from tdx.tensordicts import new_tensordict


def stage_lies(
    env: TransformedEnv, check_dtype: bool, tensordict: TensorDictBase | None, steps: int
) -> list[SpecFinding]:
    """Run a chain stage by stage and hold what comes out of each against its specs.

    A lie is blamed on the first stage whose data shows it, so that the stages after it, which
    only hand it on, are not. What the env before the chain gets wrong has no stage.

    Args:
        env: the env with its chain; it is reset and stepped.
        check_dtype: whether dtypes are compared.
        tensordict: what the env is reset with, ``[*B]``; nothing by default.
        steps: how many steps to look at.

    Raises:
        EnvError: the env before the chain raised in a reset or a step.
        ChainError: a transform raised in a reset or a step.
    """
    inside = [_told_of_inside(lie) for lie in _innermost(env)._stage_lies(check_dtype, None, steps)]
    walk = _Walk(env, check_dtype, () if tensordict is None else leaf_keys(tensordict))
    given = None if tensordict is None else tensordict.clone(recurse=False)
    current = walk.reset(env, given)
    if given is not None:
        current = given.update(current)
    for step in range(steps):
        with attributed(env, "step", step):
            current = env.rand_action(current)
            current.set("next", walk.step(env, current))
        with attributed(env, "reset", step + 1):
            current = env.maybe_reset(env.step_mdp(current))
    return unique_findings([*inside, *walk.found])


def _told_of_inside(lie: SpecFinding) -> SpecFinding:
    """A lie of a chain inside a batch; its stage is no stage of the chain around it."""
    told = lie.message.replace(": ", f": stage {lie.stage} ({lie.transform}): ", 1)
    return replace(lie, message=told, stage=None, transform=None)


def _innermost(env: EnvBase) -> EnvBase:
    while isinstance(env, TransformedEnv):
        env = env.base_env
    return env


class _Walk:
    """Runs a chain and collects findings; nested transformed envs from the inside out.

    A *place* is an index into the list of ``stage_specs``: 0 is the env before the chain, and
    stage ``i`` stands at place ``i + 1``.
    """

    def __init__(
        self, env: TransformedEnv, check_dtype: bool, passed: Collection[NestedKey]
    ) -> None:
        self.places = stage_specs(env)
        self.check_dtype = check_dtype
        self.passed = set(passed)
        self.any_size = not env.batch_locked
        self.found: list[SpecFinding] = []
        self.seen: set[object] = set()

    def reset(self, env: EnvBase, given: TensorDictBase | None) -> TensorDictBase:
        """What the env's reset returns ``[*B]``, with every stage's part looked at."""
        if not isinstance(env, TransformedEnv):
            with attributed(env, "reset"):
                result = env._completed_reset(given)
            self._look(0, result, "reset")
            return result
        passed = new_tensordict({}, env.batch_size, env.device) if given is None else given
        inner = env._chain._reset_env_preprocess(passed.clone(recurse=False))
        tells_nothing = inner.is_empty() and inner.batch_size == env.base_env.batch_size
        result = self.reset(env.base_env, None if given is None and tells_nothing else inner)
        first, chain = stage_count(env.base_env) + 1, env._chain
        views = chain._stage_inputs(passed) if isinstance(chain, Compose) else [passed]
        for place, stage in enumerate(env.stages, first):
            with _blamed(place, stage, "a reset"):
                result = stage._reset(views[place - first], result)
            self._look(place, result, "reset")
        return result

    def step(self, env: EnvBase, tensordict: TensorDictBase) -> TensorDictBase:
        """What the env's step returns ``[*B]``, with every stage's part looked at."""
        if not isinstance(env, TransformedEnv):
            with attributed(env, "step"):
                result = env._completed_step(tensordict)
            self._look(0, result, "step")
            return result
        first, inner = stage_count(env.base_env) + 1, tensordict.clone(recurse=False)
        for place, stage in reversed(list(enumerate(env.stages, first))):
            if stage.invertible:
                lying = {finding.identity for finding in self._on_the_way_in(place, inner)}
                with _blamed(place, stage, "the way in"):
                    inner = stage._inv_call(inner)
                self._add(place, self._on_the_way_in(place - 1, inner), lying)
        result = self.step(env.base_env, inner)
        for place, stage in enumerate(env.stages, first):
            with _blamed(place, stage, "a step"):
                result = stage._step(inner, result)
                inner = stage._to_outer_batch(inner)
            self._look(place, result, "step")
        return result

    def _look(self, place: int, result: TensorDictBase, phase: Phase) -> None:
        specs = self.places[place]
        output_spec = self._for_size(specs.output_spec, result)
        declared: dict[NestedKey, TensorSpec] = {}
        for part, spec in output_spec.items():
            if part != "full_reward_spec" or phase == "step":
                declared |= leaves_of(spec)
        allowed = self.passed.union(leaves_of(specs.input_spec["full_state_spec"]))
        findings = [
            *wrong_batch_size(result, output_spec.shape, phase),
            *held_against(result, declared, phase, check_dtype=self.check_dtype, allowed=allowed),
        ]
        self._add(place, findings)

    def _on_the_way_in(self, place: int, tensordict: TensorDictBase) -> list[SpecFinding]:
        declared: dict[NestedKey, TensorSpec] = {}
        for spec in self._for_size(self.places[place].input_spec, tensordict).values():
            declared |= leaves_of(spec)
        return list(
            held_against(tensordict, declared, "way in", check_dtype=self.check_dtype, allowed=None)
        )

    def _for_size(self, spec: Composite, tensordict: TensorDictBase) -> Composite:
        """The spec for what an env that is not batch-locked was given, ``[*A, *B]``."""
        ahead = tensordict.ndim - spec.ndim
        if not self.any_size or ahead < 1 or tensordict.batch_size[ahead:] != spec.shape:
            return spec
        return spec.expand(tensordict.batch_size)

    def _add(
        self, place: int, findings: list[SpecFinding], excused: Collection[object] = ()
    ) -> None:
        """Keep what no earlier place has shown, blamed on this one."""
        specs = self.places[place]
        for finding in findings:
            if finding.identity not in self.seen and finding.identity not in excused:
                self.seen.add(finding.identity)
                stage = finding if place == 0 else finding.at_stage(specs.index, specs.name)
                self.found.append(stage)


@contextmanager
def _blamed(place: int, stage: Transform, doing: str) -> Iterator[None]:
    """Say of whatever is raised at which stage it was.

    Raises:
        ChainError: something was raised that is no error of tdx.
    """
    index, name = place - 1, type(stage).__name__
    try:
        yield
    except TdxError as error:
        error.at(stage=index, transform=name)
        raise
    except Exception as error:
        raise ChainError(
            f"it raised {type(error).__name__} in {doing}: {first_line(error)}",
            where=Where(stage=index, transform=name),
            hint="correct the stage; --debug shows the traceback",
        ) from error
