"""Convert a pipeline to command-line options and back."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from typing import Any

from tdx.errors import PipelineError, did_you_mean
from tdx.pipeline.file.yaml_format import parse_document
from tdx.pipeline.grammar import format_arguments, format_stage, parse_kwargs, parse_stage, shorten
from tdx.pipeline.model import VERSION, EnvConfig, Pipeline, RolloutConfig
from tdx.pipeline.values import Value

_ENV_SWITCHES = {"from_pixels", "pixels_only"}
_MAX_DIGITS = 30
_TRANSFORM_FLAGS = ("--t", "-t", "--transform")


def to_flags(pipeline: Pipeline) -> list[str]:
    """Return the options that describe a pipeline; default values are left out.

    Example:
        >>> to_flags(Pipeline.of("Pendulum-v1", "StepCounter(max_steps=200)"))
        ['--env', 'Pendulum-v1', '--t', 'StepCounter(max_steps=200)']
    """
    return list(_iterate_flags(pipeline))


def to_command(pipeline: Pipeline, command: str = "tdx inspect spec") -> str:
    """Return a shell command, quoted where needed.

    Example:
        >>> to_command(Pipeline.of("Pendulum-v1", "StepCounter(max_steps=200)"))
        "tdx inspect spec --env Pendulum-v1 --t 'StepCounter(max_steps=200)'"
    """
    return f"{command} {shlex.join(to_flags(pipeline))}"


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
            known = _known_flags()
            hint = did_you_mean(flag, known, f"options: {', '.join(known)}")
            raise PipelineError(f"unknown option {shorten(flag)}", hint=hint)
    if "id" not in env:
        raise PipelineError("no env is given", hint="add --env ID")
    kwargs = env.pop("kwargs", {})
    parsed = parse_document({"version": VERSION, "env": env, "policy": policy, "rollout": rollout})
    return replace(parsed, env=replace(parsed.env, kwargs=kwargs), transforms=tuple(stages))


def _iterate_flags(pipeline: Pipeline) -> Iterator[str]:
    env = pipeline.env
    yield from ("--env", env.id)
    if env.kwargs:
        yield from ("--env-kwargs", format_arguments((), env.kwargs))
    for field in fields(EnvConfig):
        if field.name not in ("id", "kwargs"):
            yield from _iterate_option(field.name, getattr(env, field.name), field.default)
    for stage in pipeline.transforms:
        yield from ("--t", format_stage(stage))
    yield from _iterate_option("policy", pipeline.policy, None)
    for field in fields(RolloutConfig):
        yield from _iterate_option(field.name, getattr(pipeline.rollout, field.name), None)


def _iterate_option(name: str, value: Value, default: object) -> Iterator[str]:
    if value == default:
        return
    flag = name.replace("_", "-")
    if isinstance(value, bool):
        yield f"--{flag}" if value else f"--no-{flag}"
    else:
        yield from (f"--{flag}", str(value))


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


def _known_flags() -> list[str]:
    names = (
        _field_names(EnvConfig) | _field_names(RolloutConfig) | {"policy", "t", "env", "env_kwargs"}
    )
    return [f"--{name.replace('_', '-')}" for name in sorted(names - {"id", "kwargs"})]
