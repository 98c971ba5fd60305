"""Convert a pipeline to command-line options or a Python program, and back."""

from __future__ import annotations

import ast
import math
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, fields, replace
from typing import Any, NoReturn, cast

from tdx.foundation.errors import PipelineError, Where, did_you_mean
from tdx.foundation.untrusted import MAX_PIPELINE_BYTES
from tdx.pipeline.arguments import bind_stage, is_transform_call
from tdx.pipeline.coercion import coerce_untyped
from tdx.pipeline.envs import NATIVE_ENVS, EnvPlan, plan_env
from tdx.pipeline.file.yaml_format import parse_document
from tdx.pipeline.grammar import (
    dotted_name,
    format_arguments,
    format_stage,
    parse_kwargs,
    parse_stage,
    parse_value,
    quote,
    shorten,
)
from tdx.pipeline.model import VERSION, Batching, EnvConfig, Pipeline, RolloutConfig
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


_BATCH_CLASSES: Mapping[str, Batching] = {"SerialEnv": "serial", "ParallelEnv": "parallel"}
_FORM_HINT = "the program has another form than to_python writes"
_ORIGIN_HINT = "only programs written by to_python can be read"


def from_python(source: str) -> Pipeline:
    """Parse the pipeline that a program of :func:`to_python` builds; the program is not run.

    Raises:
        PipelineError: It is another program.

    Example:
        >>> from tdx.pipeline import Pipeline, to_python
        >>> pipeline = Pipeline.of("Pendulum-v1", "StepCounter(max_steps=200)")
        >>> from_python(to_python(pipeline)) == pipeline
        True
    """
    if len(source) > MAX_PIPELINE_BYTES:
        raise PipelineError("this program is too long", hint=_ORIGIN_HINT)
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        where = Where(line=getattr(error, "lineno", None))
        raise PipelineError("this is not Python", hint=_ORIGIN_HINT, where=where) from error
    return _ProgramReader(tree).pipeline()


class _ProgramReader:
    """Reads the assignments of a program."""

    def __init__(self, tree: ast.Module) -> None:
        imports = [node for node in tree.body if isinstance(node, ast.Import)]
        self.modules = [name.name for node in imports for name in node.names]
        self.assigned = {
            node.targets[0].id: node.value
            for node in tree.body
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
        }
        self.seeds = [
            node.value.args[0]
            for node in tree.body
            if isinstance(node, ast.Expr)
            and isinstance(node.value, ast.Call)
            and dotted_name(node.value.func) == "env.set_seed"
        ]

    def pipeline(self) -> Pipeline:
        env = self.assigned.get("env")
        if not isinstance(env, ast.Call) or dotted_name(env.func) != "TransformedEnv":
            self.fail(env, "TransformedEnv is not called")
        if len(env.args) != 2 or not isinstance(env.args[1], ast.Call):
            self.fail(env, "TransformedEnv needs an env and a Compose")
        config = self.env(env.args[0])
        if self.seeds:
            config = replace(config, seed=cast(int, self.value(self.seeds[0])))
        stages = tuple(self.stage(node) for node in env.args[1].args)
        policy = self.assigned.get("policy")
        return Pipeline(
            env=config,
            transforms=stages,
            policy=None if policy is None else cast(str, self.value(policy)),
            rollout=self.rollout(),
        )

    def fail(self, node: ast.AST | None, problem: str) -> NoReturn:
        where = Where(line=getattr(node, "lineno", None))
        raise PipelineError(problem, hint=f"{_FORM_HINT}; {_ORIGIN_HINT}", where=where)

    def rollout(self) -> RolloutConfig:
        node = self.assigned.get("rollout")
        values = {} if node is None else self.value(node)
        known = _field_names(RolloutConfig)
        if not isinstance(values, Mapping) or not known.issuperset(map(str, values)):
            self.fail(node, "rollout is not a dict of its defaults")
        return RolloutConfig(**cast("dict[str, Any]", dict(values)))

    def env(self, node: ast.expr) -> EnvConfig:
        if not isinstance(node, ast.Call):
            self.fail(node, "the env is not created by a call")
        batching = _BATCH_CLASSES.get(dotted_name(node.func) or "")
        if batching is None:
            return self.single(node.func, node.args, node.keywords)
        count, factory = node.args
        if isinstance(factory, ast.Call):
            config = self.single(factory.args[0], factory.args[1:], factory.keywords)
        else:
            config = self.single(factory, [], [])
        named: dict[str, Any] = {
            str(keyword.arg): self.value(keyword.value) for keyword in node.keywords
        }
        return replace(config, num_envs=cast(int, self.value(count)), batching=batching, **named)

    def single(
        self, factory: ast.expr, args: list[ast.expr], keywords: list[ast.keyword]
    ) -> EnvConfig:
        kwargs = {str(keyword.arg): self.value(keyword.value) for keyword in keywords}
        known: dict[str, Any] = {"device": kwargs.pop("device", None)}
        reference = self.reference(factory)
        native = {name: id_ for id_, name in NATIVE_ENVS.items()}.get(ast.unparse(factory))
        if reference is not None:
            known["id"] = reference
        elif native is not None:
            known["id"] = native
            batch = kwargs.pop("batch_size", None)
            known["num_envs"] = batch[0] if isinstance(batch, tuple) else None
        elif dotted_name(factory) == "GymEnv" and len(args) == 1:
            known["id"] = self.value(args[0])
            named = ("num_envs", "from_pixels", "pixels_only")
            known |= {name: kwargs.pop(name) for name in named if name in kwargs}
            env_kwargs = kwargs.pop("env_kwargs", {})
            if not isinstance(env_kwargs, Mapping):
                self.fail(factory, "env_kwargs is not a dict")
            kwargs |= {str(name): value for name, value in env_kwargs.items()}
        else:
            self.fail(factory, f"{ast.unparse(factory)} does not create an env")
        return EnvConfig(kwargs=kwargs, **known)

    def stage(self, node: ast.expr) -> StageConfig:
        reference = self.reference(node.func if isinstance(node, ast.Call) else node)
        if reference is None:
            return parse_stage(self.text(node))
        if not isinstance(node, ast.Call):
            return StageConfig(reference)
        args = tuple(self.value(argument) for argument in node.args)
        kwargs = {str(keyword.arg): self.value(keyword.value) for keyword in node.keywords}
        return StageConfig(reference, args, kwargs)

    def value(self, node: ast.expr) -> Value:
        return parse_value(self.text(node))

    def reference(self, node: ast.expr) -> str | None:
        """Return ``module:name`` for a dotted name in an imported module other than torch."""
        dotted = dotted_name(node) or ""
        for module in sorted(self.modules, key=len, reverse=True):
            if module != "torch" and dotted.startswith(f"{module}."):
                return f"{module}:{dotted.removeprefix(f'{module}.')}"
        return None

    def text(self, node: ast.expr) -> str:
        """Return the source of an expression, with Python objects replaced by their references."""
        return ast.unparse(
            _ReferenceReplacer(self).visit(ast.parse(ast.unparse(node), mode="eval"))
        )


class _ReferenceReplacer(ast.NodeTransformer):
    """Replaces dotted names of imported modules by string constants."""

    def __init__(self, source: _ProgramReader) -> None:
        self.source = source

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        reference = self.source.reference(node)
        return node if reference is None else ast.copy_location(ast.Constant(reference), node)
