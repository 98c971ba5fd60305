"""Convert between a pipeline and the nodes of its YAML document."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, fields
from functools import partial
from typing import Any, NoReturn, cast

from tdx.foundation.errors import PipelineError, TdxError, Where, did_you_mean
from tdx.foundation.untrusted import MAX_ENVS, MAX_SECONDS, MAX_STAGES
from tdx.pipeline.arguments import name_arguments
from tdx.pipeline.file.yaml_codec import add_location, decode, encode, find_position
from tdx.pipeline.grammar import format_stage, format_value, parse_stage, shorten
from tdx.pipeline.model import BATCHINGS, VERSION, CheckConfig, EnvConfig, Pipeline, RolloutConfig
from tdx.pipeline.policies import make_policy, parse_mlp_settings, parse_policy
from tdx.pipeline.values import FileArguments, StageConfig, Value

_MAX_TEXT_LENGTH = 1_000
_MAX_INTEGER = 2**63 - 1
Check = Callable[[str, Value], Value]
TOP_LEVEL_KEYS = ("version", "env", "transforms", "policy", "rollout", "check")


def parse_document(document: Any, file: str | None = None) -> Pipeline:
    """Parse a loaded document as a pipeline."""
    if not isinstance(document, Mapping):
        hint = "write a map with version, env and transforms"
        raise PipelineError("this is not a pipeline file", hint=hint, where=Where(line=1))
    version = document.get("version")
    with add_location(document, "version"):
        if "version" not in document:
            raise PipelineError("the file has no version", hint=f"add version: {VERSION}")
        if not isinstance(version, int) or isinstance(version, bool) or version < 1:
            raise PipelineError(
                f"version must be {VERSION}, got {_shorten_value(version)}",
                hint=f"write version: {VERSION}",
            )
        if version > VERSION:
            message = f"version {version} of the file format is unknown"
            raise PipelineError(message, hint="a newer tdx wrote the file: upgrade tdx")
    _check_keys(document, TOP_LEVEL_KEYS, "a pipeline file")
    if "env" not in document:
        raise PipelineError(
            "the pipeline has no env", hint="add env: with an id", where=Where(line=1)
        )
    return Pipeline(
        env=_parse_env(document),
        transforms=_parse_stages(document),
        policy=_parse_policy(document),
        rollout=RolloutConfig(**_parse_section(document, "rollout", _ROLLOUT_CHECKS, "a map")),
        check=CheckConfig(
            **_parse_section(document, "check", _CHECK_CHECKS, "a map with select or ignore")
        ),
        file=file,
    )


def _check_keys(node: Any, known: tuple[str, ...], owner: str) -> None:
    for key in node:
        if key not in known:
            with add_location(node, key):
                name = shorten(str(key))
                hint = did_you_mean(name, known, f"it has {', '.join(known)}")
                raise PipelineError(f"{owner} has no key {name}", hint=hint)


def _parse_env(document: Any) -> EnvConfig:
    node = document["env"]
    if isinstance(node, str):
        with add_location(document, "env"):
            return EnvConfig(str(_check_text("env", str(node))))
    if not isinstance(node, Mapping):
        with add_location(document, "env"):
            raise PipelineError("env must be a map with an id", hint="write env: {id: Pendulum-v1}")
    _check_keys(node, tuple(_ENV_CHECKS), "env")
    if "id" not in node:
        with add_location(document, "env"):
            raise PipelineError("env has no id", hint="add id: with the name of the env")
    read = _check_fields(node, _ENV_CHECKS)
    return EnvConfig(**{**read, "kwargs": FileArguments(read.get("kwargs", {}))})


def _check_fields(node: Any, checks: Mapping[str, Check]) -> dict[str, Any]:
    """Return the checked values of a mapping; null values keep their defaults."""
    read: dict[str, Any] = {}
    for key in node:
        with add_location(node, key):
            value = decode(node[key])
            if value is not None or key == "id":
                read[str(key)] = checks[key](key, value)
    return read


def _parse_policy(document: Any) -> str | None:
    policy = document.get("policy")
    with add_location(document, "policy"):
        if policy is None:
            return None
        if isinstance(policy, str):
            return str(parse_policy(str(policy)))
        if not isinstance(policy, Mapping) or tuple(policy) != ("mlp",):
            _raise_invalid("policy", policy, "the name of one, or mlp: with settings")
        with add_location(policy, "mlp"):
            settings = decode(policy["mlp"])
            if not isinstance(settings, Mapping):
                _raise_invalid("mlp", settings, "a map with weights: FILE")
            return str(make_policy("mlp", {str(name): value for name, value in settings.items()}))


def _parse_section(
    document: Any, key: str, checks: Mapping[str, Check], expected: str
) -> dict[str, Any]:
    """Return the checked values of an optional top-level mapping."""
    node = document.get(key)
    if node is None:
        return {}
    if not isinstance(node, Mapping):
        with add_location(document, key):
            _raise_invalid(key, node, expected)
    _check_keys(node, tuple(checks), key)
    return _check_fields(node, checks)


def _parse_stages(document: Any) -> tuple[StageConfig, ...]:
    node = document.get("transforms")
    if node is None:
        return ()
    if not isinstance(node, list):
        with add_location(document, "transforms"):
            _raise_invalid("transforms", node, "a list of stages")
    if len(node) > MAX_STAGES:
        with add_location(node, index=MAX_STAGES):
            raise PipelineError(
                f"the chain has {len(node):,} stages, the limit is {MAX_STAGES:,}",
                hint="leave some out, or write a transform that combines them",
            )
    return tuple(_parse_stage_node(node, index) for index in range(len(node)))


def _parse_stage_node(stages: Any, index: int) -> StageConfig:
    item = stages[index]
    place = find_position(stages, index=index)
    try:
        with add_location(stages, index=index):
            if isinstance(item, str):
                stage = parse_stage(str(item))
                return StageConfig(stage.name, stage.args, FileArguments(stage.kwargs), *place)
            if isinstance(item, Mapping) and len(item) == 1:
                (name,) = item
                return _parse_stage_entry(str(name), item[name], place)
            hint = "write - Name, or - Name: {argument: value}"
            raise PipelineError("a stage is a name, or a map with one name", hint=hint)
    except TdxError as error:
        raise error.at(stage=index) from error.__cause__


def _parse_stage_entry(
    name: str, arguments: Any, place: tuple[int | None, int | None]
) -> StageConfig:
    bare = parse_stage(name)
    if bare.args or bare.kwargs:
        raise PipelineError(f"{name} has arguments twice", hint="write - Name: {argument: value}")
    if arguments is None:
        return StageConfig(name, (), FileArguments(), *place)
    if isinstance(arguments, list):
        values = cast("tuple[Value, ...]", decode(arguments))
        return StageConfig(name, values, FileArguments(), *place)
    if not isinstance(arguments, Mapping):
        hint = f"write - {name}: {{argument: {arguments}}}"
        raise PipelineError(f"the arguments of {name} must be a map or a list", hint=hint)
    kwargs = FileArguments()
    for key in arguments:
        with add_location(arguments, key):
            if not isinstance(key, str):
                raise PipelineError(
                    f"{_shorten_value(key)} is not the name of an argument",
                    hint="names are strings",
                )
            kwargs[str(key)] = decode(arguments[key])
    return StageConfig(name, (), kwargs, *place)


_EXAMPLES = {
    **{"id": "Pendulum-v1", "kwargs": "{g: 9.8}", "device": "cpu", "policy": "random"},
    **{"check": "{ignore: [TDX422]}", "select": "[TDX42]", "ignore": "[TDX422]"},
    **{"num_envs": "4", "seed": "0", "worker_timeout": "120", "max_steps": "1000"},
    **{"rollout": "{max_steps: 1000}", "transforms": "[StepCounter, RewardSum]"},
}


def _raise_invalid(key: str, value: object, expected: str, hint: str | None = None) -> NoReturn:
    raise PipelineError(
        f"{key} must be {expected}, got {_shorten_value(value)}",
        hint=hint or f"write {key}: {_EXAMPLES.get(key, 'true')}, or leave it out",
    )


def _shorten_value(value: object) -> str:
    try:
        return shorten(format_value(value) if isinstance(value, str) else repr(value))
    except ValueError:
        return "an integer with too many digits"


def _check_text(key: str, value: Value) -> Value:
    if not isinstance(value, str) or not value:
        _raise_invalid(key, value, "a string")
    if len(value) > _MAX_TEXT_LENGTH:
        _raise_invalid(
            key, value, f"at most {_MAX_TEXT_LENGTH:,} characters", "is it the right file?"
        )
    return value


def _check_bool(key: str, value: Value) -> Value:
    return value if isinstance(value, bool) else _raise_invalid(key, value, "true or false")


def _check_integer(key: str, value: Value, least: int = 1, most: int = _MAX_INTEGER) -> Value:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        _raise_invalid(key, value, f"a whole number of at least {least}")
    if value > most:
        _raise_invalid(key, value, f"at most {most:,}", f"write {key}: {most} or less")
    return value


def _check_seconds(key: str, value: Value) -> Value:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if number and 0 < cast(float, value) <= MAX_SECONDS:
        return float(cast(float, value))
    _raise_invalid(key, value, f"a number of seconds above 0 and at most {MAX_SECONDS:,}")


def _check_kwargs(key: str, value: Value) -> Value:
    if isinstance(value, Mapping) and all(isinstance(name, str) for name in value):
        return value
    _raise_invalid(key, value, "a map from names to values")


def _check_codes(key: str, value: Value) -> Value:
    codes = [value] if isinstance(value, str) else value
    if not isinstance(codes, (list, tuple)) or not all(isinstance(code, str) for code in codes):
        _raise_invalid(key, value, "a list of codes")
    return tuple(str(code) for code in codes)


def _check_batching(key: str, value: Value) -> Value:
    if value in BATCHINGS:
        return value
    hint = did_you_mean(str(value), BATCHINGS, f"use one of {', '.join(BATCHINGS)}")
    raise PipelineError(f"unknown batching {value!r}", hint=hint)


_ENV_CHECKS: Mapping[str, Check] = {
    "id": _check_text,
    "kwargs": _check_kwargs,
    "from_pixels": _check_bool,
    "pixels_only": _check_bool,
    "num_envs": partial(_check_integer, most=MAX_ENVS),
    "batching": _check_batching,
    "device": _check_text,
    "seed": partial(_check_integer, least=0),
    "worker_timeout": _check_seconds,
}
_ROLLOUT_CHECKS: Mapping[str, Check] = {
    "max_steps": _check_integer,
    "break_when_any_done": _check_bool,
    "auto_reset": _check_bool,
}
_CHECK_CHECKS: Mapping[str, Check] = {"select": _check_codes, "ignore": _check_codes}


def build_document(pipeline: Pipeline) -> dict[str, Any]:
    """Return a pipeline as the plain data of its file; default values are left out."""
    env: dict[str, Any] = {"id": encode(pipeline.env.id)}
    for field in fields(EnvConfig):
        value = getattr(pipeline.env, field.name)
        default = {} if field.name == "kwargs" else field.default
        if field.name != "id" and value != default:
            env[field.name] = encode(value)
    document: dict[str, Any] = {"version": pipeline.version, "env": env}
    document["transforms"] = [build_stage_node(stage) for stage in pipeline.transforms]
    if pipeline.policy is not None:
        settings = parse_mlp_settings(pipeline.policy)
        document["policy"] = {"mlp": encode(settings)} if settings else encode(pipeline.policy)
    rollout = {name: value for name, value in asdict(pipeline.rollout).items() if value is not None}
    if rollout:
        document["rollout"] = rollout
    rules = {"select": [*pipeline.check.select], "ignore": [*pipeline.check.ignore]}
    chosen = {name: codes for name, codes in rules.items() if codes}
    return {**document, "check": chosen} if chosen else document


def build_stage_node(stage: StageConfig) -> object:
    """Return the node of a stage: its name, a mapping from name to arguments, or ``-t`` text."""
    full = name_arguments(stage)
    if not full.args and not full.kwargs:
        return full.name
    if not full.args:
        return {full.name: {name: encode(value) for name, value in full.kwargs.items()}}
    if not full.kwargs:
        return {full.name: [encode(value) for value in full.args]}
    return format_stage(full)
