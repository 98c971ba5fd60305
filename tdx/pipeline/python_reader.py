"""Read back the program that :func:`tdx.pipeline.to_python` wrote, without running it."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any, NoReturn, cast

from tdx.errors import PipelineError, Where
from tdx.pipeline.env_plan import NATIVE
from tdx.pipeline.grammar import parse_stage, parse_value
from tdx.pipeline.model import Batching, EnvConfig, Pipeline, RolloutConfig, StageConfig
from tdx.pipeline.source_tree import dotted_name
from tdx.pipeline.values import Value
from tdx.untrusted import MAX_PIPELINE_BYTES

_BATCHES: Mapping[str, Batching] = {"SerialEnv": "serial", "ParallelEnv": "parallel"}
_FORM = "it is not in the form that to_python writes"
_WRITTEN = "only programs that to_python wrote can be read"


def from_python(source: str) -> Pipeline:
    """The pipeline that a program of :func:`to_python` builds; the program is not run.

    Raises:
        PipelineError: it is another program.

    Example:
        >>> from tdx.pipeline import Pipeline, to_python
        >>> pipeline = Pipeline.of("Pendulum-v1", "StepCounter(max_steps=200)")
        >>> from_python(to_python(pipeline)) == pipeline
        True
    """
    if len(source) > MAX_PIPELINE_BYTES:
        raise PipelineError("this program is too long", hint=_WRITTEN)
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        where = Where(line=getattr(error, "lineno", None))
        raise PipelineError("this is not Python", hint=_WRITTEN, where=where) from error
    return _Source(tree).pipeline()


class _Source:
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
            self.fail(env, "no env is made with TransformedEnv")
        if len(env.args) != 2 or not isinstance(env.args[1], ast.Call):
            self.fail(env, "TransformedEnv gets an env and a Compose")
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
        raise PipelineError(problem, hint=f"{_FORM}; {_WRITTEN}", where=where)

    def rollout(self) -> RolloutConfig:
        node = self.assigned.get("rollout")
        values = {} if node is None else self.value(node)
        known = {field.name for field in fields(RolloutConfig)}
        if not isinstance(values, Mapping) or not known.issuperset(map(str, values)):
            self.fail(node, "rollout is no map of its defaults")
        return RolloutConfig(**cast("dict[str, Any]", dict(values)))

    def env(self, node: ast.expr) -> EnvConfig:
        if not isinstance(node, ast.Call):
            self.fail(node, "the env is not made by a call")
        batching = _BATCHES.get(dotted_name(node.func) or "")
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
        native = {name: id_ for id_, name in NATIVE.items()}.get(ast.unparse(factory))
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
            own = kwargs.pop("env_kwargs", {})
            if not isinstance(own, Mapping):
                self.fail(factory, "env_kwargs is no map")
            kwargs |= {str(name): value for name, value in own.items()}
        else:
            self.fail(factory, f"{ast.unparse(factory)} makes no env")
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
        """``module:name`` for a dotted name in an imported module; torch is none of these."""
        dotted = dotted_name(node) or ""
        for module in sorted(self.modules, key=len, reverse=True):
            if module != "torch" and dotted.startswith(f"{module}."):
                return f"{module}:{dotted.removeprefix(f'{module}.')}"
        return None

    def text(self, node: ast.expr) -> str:
        """The expression, with references to Python objects as the strings a pipeline has."""
        return ast.unparse(_References(self).visit(ast.parse(ast.unparse(node), mode="eval")))


class _References(ast.NodeTransformer):
    def __init__(self, source: _Source) -> None:
        self.source = source

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        reference = self.source.reference(node)
        return node if reference is None else ast.copy_location(ast.Constant(reference), node)
