"""Convert a pipeline to command-line options and back, and to a Python program."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, fields, replace
from typing import Any

from tdx.foundation.errors import PipelineError, did_you_mean
from tdx.pipeline.arguments import bind_stage, is_transform_call
from tdx.pipeline.coercion import coerce_untyped
from tdx.pipeline.envs import EnvPlan, plan_env
from tdx.pipeline.file.yaml_format import parse_document
from tdx.pipeline.grammar import (
    format_arguments,
    format_stage,
    parse_kwargs,
    parse_stage,
    quote,
    shorten,
)
from tdx.pipeline.model import VERSION, EnvConfig, Pipeline, RolloutConfig
from tdx.pipeline.policies import parse_policy
from tdx.pipeline.values import TENSOR, Call, CodeReference, Dtype, StageConfig, Value

_ENV_SWITCHES = {"from_pixels", "pixels_only"}
_MAX_DIGITS = 30
_TRANSFORM_FLAGS = ("--t", "-t", "--transform")


def to_flags(pipeline: Pipeline) -> list[str]:
    """Return the options that describe a pipeline; default values are left out.

    Example:
        >>> to_flags(Pipeline.of("Pendulum-v1", "StepCounter(max_steps=200)"))
        ['--env', 'Pendulum-v1', '-t', 'StepCounter(max_steps=200)']
    """
    env = pipeline.env
    flags = ["--env", env.id]
    if env.kwargs:
        flags += ["--env-kwargs", format_arguments((), env.kwargs)]
    for field in fields(EnvConfig):
        if field.name not in ("id", "kwargs"):
            flags += _format_option(field.name, getattr(env, field.name), field.default)
    for stage in pipeline.transforms:
        flags += ["-t", format_stage(stage)]
    flags += _format_option("policy", pipeline.policy, None)
    for field in fields(RolloutConfig):
        flags += _format_option(field.name, getattr(pipeline.rollout, field.name), None)
    return flags


def _format_option(name: str, value: Value, default: object) -> list[str]:
    if value == default:
        return []
    flag = name.replace("_", "-")
    if isinstance(value, bool):
        return [f"--{flag}" if value else f"--no-{flag}"]
    return [f"--{flag}", str(value)]


def to_command(pipeline: Pipeline, command: str = "tdx inspect spec") -> str:
    """Return a shell command, quoted where needed.

    Example:
        >>> to_command(Pipeline.of("Pendulum-v1", "StepCounter(max_steps=200)"))
        "tdx inspect spec Pendulum-v1 -t 'StepCounter(max_steps=200)'"
    """
    flag, *words = to_flags(pipeline)
    if pipeline.env.id.startswith("-"):
        # As an argument it would be read as an option.
        words.insert(0, flag)
    return f"{command} {shlex.join(words)}"


def from_flags(flags: Sequence[str]) -> Pipeline:
    """Parse a pipeline from options; the inverse of :func:`to_flags`.

    Raises:
        PipelineError: An option is unknown or its value is invalid.
    """
    env: dict[str, Any] = {}
    rollout: dict[str, Any] = {}
    stages, policy = [], None
    remaining = iter(flags)
    for flag in remaining:
        name = flag.removeprefix("--").replace("-", "_")
        if flag in _TRANSFORM_FLAGS:
            stages.append(parse_stage(_take_value(flag, remaining)))
        elif flag == "--policy":
            policy = _take_value(flag, remaining)
        elif flag == "--env":
            env["id"] = _take_value(flag, remaining)
        elif flag == "--env-kwargs":
            env["kwargs"] = parse_kwargs(_take_value(flag, remaining))
        elif name.removeprefix("no_") in (*_ENV_SWITCHES, "break_when_any_done", "auto_reset"):
            target = env if name.removeprefix("no_") in _ENV_SWITCHES else rollout
            target[name.removeprefix("no_")] = not name.startswith("no_")
        elif name in _field_names(EnvConfig):
            env[name] = _parse_option(name, _take_value(flag, remaining))
        elif name in _field_names(RolloutConfig):
            rollout[name] = _parse_option(name, _take_value(flag, remaining))
        else:
            names = _field_names(EnvConfig) | _field_names(RolloutConfig)
            names |= {"policy", "env", "env_kwargs"}
            known = [f"--{name.replace('_', '-')}" for name in sorted(names - {"id", "kwargs"})]
            known.append("-t")
            hint = did_you_mean(flag, known, f"options: {', '.join(known)}")
            raise PipelineError(f"unknown option {shorten(flag)}", hint=hint)
    if "id" not in env:
        raise PipelineError("no env is given", hint="add --env ID")
    kwargs = env.pop("kwargs", {})
    parsed = parse_document({"version": VERSION, "env": env, "policy": policy, "rollout": rollout})
    return replace(parsed, env=replace(parsed.env, kwargs=kwargs), transforms=tuple(stages))


def _take_value(flag: str, remaining: Iterator[str]) -> str:
    value = next(remaining, None)
    if value is None:
        raise PipelineError(f"{flag} needs a value", hint=f"write {flag} VALUE")
    return value


def _parse_option(name: str, text: str) -> object:
    if name in ("num_envs", "seed", "max_steps"):
        flag = f"--{name.replace('_', '-')}"
        if not text.isdecimal() or len(text) > _MAX_DIGITS:
            shown = shorten(text)
            raise PipelineError(
                f"{flag} must be a whole number, got {shown}", hint=f"write {flag} 1"
            )
        return int(text)
    if name == "worker_timeout":
        try:
            return float(text)
        except ValueError:
            shown = shorten(text)
            raise PipelineError(
                f"--worker-timeout must be a number, got {shown}", hint="write seconds, such as 60"
            ) from None
    return text


def _field_names(config: type) -> set[str]:
    return {field.name for field in fields(config)}


def to_python(pipeline: Pipeline) -> str:
    """Return a program that assigns the pipeline's env to ``env``.

    The policy is assigned to ``policy``, and the defaults of a rollout to ``rollout``.

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
    program = _ProgramWriter()
    body = list(program.body(pipeline))
    return "\n".join([*program.imports(), "", *body, ""])


class _ProgramWriter:
    """Writes expressions and collects the imports they need."""

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
        yield f"    {self.env(plan_env(pipeline.env))},"
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
        rollout = asdict(pipeline.rollout)
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
            return self.call(name, [coerce_untyped(value) for value in stage.args], stage.kwargs)
        return self.call(name, bound.args, bound.kwargs)

    def call(self, name: str, args: list[object], kwargs: Mapping[str, object]) -> str:
        positional = [self.value(value) for value in args]
        named = [f"{key}={self.value(value)}" for key, value in kwargs.items()]
        return f"{name}({', '.join([*positional, *named])})"

    def reference(self, target: str | CodeReference) -> str:
        if isinstance(target, CodeReference):
            if target.is_file:
                self.modules.add("runpy")
                first, *rest = target.name.split(".")
                return ".".join([f"runpy.run_path({quote(target.module)})[{quote(first)}]", *rest])
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
        if is_transform_call(call):
            return self.stage(StageConfig(call.name, call.args, call.kwargs))
        if call.name == TENSOR:
            self.modules.add("torch")
            rows = [_to_lists(value) for value in call.args]
            return self.call(f"torch.{TENSOR}", rows, call.kwargs)
        return self.call(self.reference(call.name), list(call.args), call.kwargs)


def _to_lists(value: object) -> object:
    return [_to_lists(item) for item in value] if isinstance(value, tuple) else value
