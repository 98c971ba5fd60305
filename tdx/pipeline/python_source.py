"""Write a pipeline as a Python program that builds the same env."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import fields

from tdx.pipeline.arguments import bind_stage, is_transform
from tdx.pipeline.coercion import plain
from tdx.pipeline.env_plan import EnvPlan, env_plan
from tdx.pipeline.formatting import quote
from tdx.pipeline.model import Pipeline, RolloutConfig, StageConfig
from tdx.pipeline.policy_source import parse_policy
from tdx.pipeline.values import TENSOR, Call, CodeReference, Dtype


def to_python(pipeline: Pipeline) -> str:
    """A program that assigns the pipeline's env to ``env``.

    A policy is assigned to ``policy``, and the defaults of a rollout to ``rollout``.

    Example:
        >>> from tdx.pipeline import Pipeline
        >>> print(to_python(Pipeline.of("Pendulum-v1", "StepCounter(200)")))
        from tdx import Compose, GymEnv, StepCounter, TransformedEnv
        <BLANKLINE>
        env = TransformedEnv(
            GymEnv("Pendulum-v1"),
            Compose(
                StepCounter(200),
            ),
        )
        <BLANKLINE>
    """
    program = _Program()
    body = list(program.body(pipeline))
    return "\n".join([*program.imports(), "", *body, ""])


class _Program:
    """Writes expressions and remembers what has to be imported for them."""

    def __init__(self) -> None:
        self.names = {"Compose", "TransformedEnv"}
        self.modules: set[str] = set()
        self.needs_partial = False

    def imports(self) -> Iterator[str]:
        if self.needs_partial:
            yield "from functools import partial"
            yield ""
        if self.modules:
            yield from (f"import {module}" for module in sorted(self.modules))
            yield ""
        yield f"from tdx import {', '.join(sorted(self.names))}"

    def body(self, pipeline: Pipeline) -> Iterator[str]:
        yield "env = TransformedEnv("
        yield f"    {self.env(env_plan(pipeline.env))},"
        yield "    Compose("
        for stage in pipeline.transforms:
            yield f"        {self.stage(stage)},"
        yield "    ),"
        yield ")"
        if pipeline.env.seed is not None:
            yield f"env.set_seed({pipeline.env.seed})"
        if pipeline.policy is not None:
            reference = parse_policy(pipeline.policy).reference
            yield f"policy = {self.value(reference or pipeline.policy)}"
        rollout = {
            field.name: getattr(pipeline.rollout, field.name) for field in fields(RolloutConfig)
        }
        chosen = {name: value for name, value in rollout.items() if value is not None}
        if chosen:
            yield f"rollout = {self.value(chosen)}"

    def env(self, plan: EnvPlan) -> str:
        factory = self.reference(plan.factory)
        args = [self.value(value) for value in plan.args]
        args += [f"{name}={self.value(value)}" for name, value in plan.kwargs.items()]
        if plan.batch is None:
            return f"{factory}({', '.join(args)})"
        self.names.add(plan.batch)
        if args:
            self.needs_partial = True
            factory = f"partial({', '.join([factory, *args])})"
        named = [f", {name}={self.value(value)}" for name, value in plan.batch_kwargs.items()]
        return f"{plan.batch}({plan.num_envs}, {factory}{''.join(named)})"

    def stage(self, stage: StageConfig) -> str:
        bound = bind_stage(stage)
        name = self.reference(stage.code or stage.name)
        if bound.errors:
            return self.call(name, [plain(value) for value in stage.args], stage.kwargs)
        return self.call(name, bound.args, bound.kwargs)

    def call(self, name: str, args: list[object], kwargs: Mapping[str, object]) -> str:
        positional = [self.value(value) for value in args]
        named = [f"{key}={self.value(value)}" for key, value in kwargs.items()]
        return f"{name}({', '.join([*positional, *named])})"

    def reference(self, target: str | CodeReference) -> str:
        if isinstance(target, CodeReference):
            self.modules.add(target.module)
            return f"{target.module}.{target.name}"
        self.names.add(target)
        return target

    def value(self, value: object) -> str:
        if isinstance(value, str):
            return quote(value)
        if isinstance(value, float) and not math.isfinite(value):
            return f'float("{value}")'
        if isinstance(value, list):
            return f"[{', '.join(map(self.value, value))}]"
        if isinstance(value, tuple):
            items = ", ".join(map(self.value, value))
            return f"({items},)" if len(value) == 1 else f"({items})"
        if isinstance(value, Mapping):
            pairs = (f"{self.value(key)}: {self.value(item)}" for key, item in value.items())
            return f"{{{', '.join(pairs)}}}"
        if isinstance(value, Dtype):
            self.modules.add("torch")
            return f"torch.{value.name}"
        if isinstance(value, CodeReference):
            return self.reference(value)
        if isinstance(value, Call):
            return self.called(value)
        return repr(value)

    def called(self, call: Call) -> str:
        if is_transform(call):
            return self.stage(StageConfig(call.name, call.args, call.kwargs))
        if call.name == TENSOR:
            self.modules.add("torch")
            rows = [_as_lists(value) for value in call.args]
            return self.call(f"torch.{TENSOR}", rows, call.kwargs)
        return self.call(self.reference(call.name), list(call.args), call.kwargs)


def _as_lists(value: object) -> object:
    return [_as_lists(item) for item in value] if isinstance(value, tuple) else value
