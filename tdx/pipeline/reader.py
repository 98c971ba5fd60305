"""Read a loaded YAML document as a pipeline; every error names its line."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from typing import Any, NoReturn, cast

from tdx.errors import PipelineError, TdxError, Where, did_you_mean
from tdx.pipeline.formatting import format_value, shortened
from tdx.pipeline.grammar import parse_stage
from tdx.pipeline.model import (
    BATCHINGS,
    VERSION,
    EnvConfig,
    Pipeline,
    RolloutConfig,
    StageConfig,
)
from tdx.pipeline.policy_source import mlp_policy, parse_policy
from tdx.pipeline.switched_off import off_stages
from tdx.pipeline.values import Value
from tdx.pipeline.yaml_text import line_and_column, load_yaml, located
from tdx.pipeline.yaml_values import decode
from tdx.untrusted import MAX_ENVS, MAX_SECONDS, MAX_STAGES

_LONGEST_TEXT = 1_000
_LARGEST = 2**63 - 1
TOP_LEVEL = ("version", "env", "transforms", "policy", "rollout")


def read_pipeline(text: str, file: str) -> Pipeline:
    """The pipeline that a file's text holds.

    Args:
        text: YAML.
        file: what errors call the file.

    Raises:
        PipelineError: it is not YAML, or not a pipeline of this version.
    """
    try:
        document = load_yaml(text)
        pipeline = pipeline_of(document, file)
        starts = [stage.line or 0 for stage in pipeline.transforms]
        return replace(pipeline, off=tuple(off_stages(text, document, starts)))
    except TdxError as error:
        raise error.at(file=file) from error.__cause__


def pipeline_of(document: Any, file: str | None = None) -> Pipeline:
    """The pipeline in a loaded document."""
    if not isinstance(document, Mapping):
        hint = "write a map with version, env and transforms"
        raise PipelineError("this is not a pipeline file", hint=hint, where=Where(line=1))
    _check_version(document)
    _check_keys(document, TOP_LEVEL, "a pipeline file")
    if "env" not in document:
        raise PipelineError(
            "the pipeline has no env", hint="add env: with an id", where=Where(line=1)
        )
    return Pipeline(
        env=_env(document),
        transforms=_stages(document),
        policy=_policy(document),
        rollout=_rollout(document),
        file=file,
    )


def _check_version(document: Any) -> None:
    version = document.get("version")
    with located(document, "version"):
        if "version" not in document:
            raise PipelineError("the file has no version", hint=f"add version: {VERSION}")
        if not isinstance(version, int) or isinstance(version, bool) or version < 1:
            raise PipelineError(
                f"version must be {VERSION}, got {_shown(version)}",
                hint=f"write version: {VERSION}",
            )
        if version > VERSION:
            message = f"version {version} of the file format is unknown"
            raise PipelineError(message, hint="newer tdx wrote it: upgrade tdx")


def _check_keys(node: Any, known: tuple[str, ...], owner: str) -> None:
    for key in node:
        if key not in known:
            with located(node, key):
                name = shortened(str(key))
                hint = did_you_mean(name, known, f"it has {', '.join(known)}")
                raise PipelineError(f"{owner} has no key {name}", hint=hint)


def _env(document: Any) -> EnvConfig:
    node = document["env"]
    if isinstance(node, str):
        with located(document, "env"):
            return EnvConfig(str(_text("env", str(node))))
    if not isinstance(node, Mapping):
        with located(document, "env"):
            raise PipelineError("env must be a map with an id", hint="write env: {id: Pendulum-v1}")
    _check_keys(node, tuple(field.name for field in fields(EnvConfig)), "env")
    if "id" not in node:
        with located(document, "env"):
            raise PipelineError("env has no id", hint="add id: with the name of the env")
    return EnvConfig(**_fields(node, _ENV_CHECKS))


def _fields(node: Any, checks: Mapping[str, Callable[[str, Value], Value]]) -> dict[str, Any]:
    """The values of a map, each checked; what is null keeps its default."""
    read: dict[str, Any] = {}
    for key in node:
        with located(node, key):
            value = decode(node[key])
            if value is not None or key == "id":
                read[str(key)] = checks[key](key, value)
    return read


def _policy(document: Any) -> str | None:
    policy = document.get("policy")
    with located(document, "policy"):
        if policy is None:
            return None
        if isinstance(policy, str):
            return str(parse_policy(str(policy)))
        if not isinstance(policy, Mapping) or tuple(policy) != ("mlp",):
            _wrong("policy", policy, "the name of one, or mlp: with settings")
        with located(policy, "mlp"):
            settings = decode(policy["mlp"])
            if not isinstance(settings, Mapping):
                _wrong("mlp", settings, "a map with weights: FILE")
            return str(mlp_policy({str(name): value for name, value in settings.items()}))


def _rollout(document: Any) -> RolloutConfig:
    node = document.get("rollout")
    if node is None:
        return RolloutConfig()
    if not isinstance(node, Mapping):
        with located(document, "rollout"):
            _wrong("rollout", node, "a map")
    _check_keys(node, tuple(field.name for field in fields(RolloutConfig)), "rollout")
    return RolloutConfig(**_fields(node, _ROLLOUT_CHECKS))


def _stages(document: Any) -> tuple[StageConfig, ...]:
    node = document.get("transforms")
    if node is None:
        return ()
    if not isinstance(node, list):
        with located(document, "transforms"):
            _wrong("transforms", node, "a list of stages")
    if len(node) > MAX_STAGES:
        with located(node, index=MAX_STAGES):
            raise PipelineError(
                f"the chain has {len(node):,} stages, the limit is {MAX_STAGES:,}",
                hint="leave some out, or write a transform that combines them",
            )
    return tuple(_stage(node, index) for index in range(len(node)))


def _stage(stages: Any, index: int) -> StageConfig:
    item = stages[index]
    line, _ = line_and_column(stages, index=index)
    try:
        with located(stages, index=index):
            if isinstance(item, str):
                stage = parse_stage(str(item))
                return StageConfig(stage.name, stage.args, stage.kwargs, line)
            if isinstance(item, Mapping) and len(item) == 1:
                (name,) = item
                return _one_key(str(name), item[name], line)
            hint = "write - Name, or - Name: {argument: value}"
            raise PipelineError("a stage is a name, or a map with one name", hint=hint)
    except TdxError as error:
        raise error.at(stage=index) from error.__cause__


def _one_key(name: str, arguments: Any, line: int | None) -> StageConfig:
    bare = parse_stage(name)
    if bare.args or bare.kwargs:
        raise PipelineError(f"{name} has arguments twice", hint="write - Name: {argument: value}")
    if arguments is None:
        return StageConfig(name, (), {}, line)
    if isinstance(arguments, list):
        return StageConfig(name, cast("tuple[Value, ...]", decode(arguments)), {}, line)
    if not isinstance(arguments, Mapping):
        hint = f"write - {name}: {{argument: {arguments}}}"
        raise PipelineError(f"the arguments of {name} must be a map or a list", hint=hint)
    kwargs: dict[str, Value] = {}
    for key in arguments:
        with located(arguments, key):
            if not isinstance(key, str):
                raise PipelineError(
                    f"{_shown(key)} is not the name of an argument", hint="names are strings"
                )
            kwargs[str(key)] = decode(arguments[key])
    return StageConfig(name, (), kwargs, line)


_EXAMPLES = {
    **{"id": "Pendulum-v1", "kwargs": "{g: 9.8}", "device": "cpu", "policy": "random"},
    **{"num_envs": "4", "seed": "0", "worker_timeout": "120", "max_steps": "1000"},
    **{"rollout": "{max_steps: 1000}", "transforms": "[StepCounter, RewardSum]"},
}


def _wrong(key: str, value: object, wanted: str, hint: str | None = None) -> NoReturn:
    raise PipelineError(
        f"{key} must be {wanted}, got {_shown(value)}",
        hint=hint or f"write {key}: {_EXAMPLES.get(key, 'true')}, or leave it out",
    )


def _shown(value: object) -> str:
    try:
        return shortened(format_value(value) if isinstance(value, str) else repr(value))
    except ValueError:
        return "an integer with too many digits"


def _text(key: str, value: Value) -> Value:
    if not isinstance(value, str) or not value:
        _wrong(key, value, "a string")
    if len(value) > _LONGEST_TEXT:
        _wrong(key, value, f"at most {_LONGEST_TEXT:,} characters", "is it the right file?")
    return value


def _flag(key: str, value: Value) -> Value:
    return value if isinstance(value, bool) else _wrong(key, value, "true or false")


def _count(key: str, value: Value) -> Value:
    return _whole_number(key, value, 1)


def _num_envs(key: str, value: Value) -> Value:
    return _whole_number(key, value, 1, MAX_ENVS)


def _seed(key: str, value: Value) -> Value:
    return _whole_number(key, value, 0)


def _whole_number(key: str, value: Value, least: int, most: int = _LARGEST) -> Value:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        _wrong(key, value, f"a whole number of at least {least}")
    if value > most:
        _wrong(key, value, f"at most {most:,}", f"write {key}: {most} or less")
    return value


def _seconds(key: str, value: Value) -> Value:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if number and 0 < cast(float, value) <= MAX_SECONDS:
        return float(cast(float, value))
    _wrong(key, value, f"a number of seconds above 0 and at most {MAX_SECONDS:,}")


def _kwargs(key: str, value: Value) -> Value:
    if isinstance(value, Mapping) and all(isinstance(name, str) for name in value):
        return value
    _wrong(key, value, "a map from names to values")


def _batching(key: str, value: Value) -> Value:
    if value in BATCHINGS:
        return value
    hint = did_you_mean(str(value), BATCHINGS, f"it is one of {', '.join(BATCHINGS)}")
    raise PipelineError(f"batching {value!r} is unknown", hint=hint)


_ENV_CHECKS: Mapping[str, Callable[[str, Value], Value]] = {
    **{"id": _text, "kwargs": _kwargs, "from_pixels": _flag, "pixels_only": _flag},
    **{"num_envs": _num_envs, "batching": _batching, "device": _text, "seed": _seed},
    "worker_timeout": _seconds,
}
_ROLLOUT_CHECKS: Mapping[str, Callable[[str, Value], Value]] = {
    **{"max_steps": _count, "break_when_any_done": _flag, "auto_reset": _flag},
}
