"""Open the env of a pipeline as a stack, with the text of its stages and its policy."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tdx.errors import ArgumentError
from tdx.pipeline.build import build_env, check_arguments, format_stages

if TYPE_CHECKING:
    from tdx.pipeline import Pipeline
    from tdx.stacks.stack import Stack


def build_stack(pipeline: Pipeline, allow_code: bool = False) -> Stack:
    """Open the env of a pipeline with its stages; the caller closes it.

    A factory without further stages may return an env of any supported library, whose own wrappers
    are then the stages. Otherwise the env is built as a chain of tdx.

    Args:
        pipeline: The pipeline.
        allow_code: Allow importing Python objects that the pipeline names.

    Raises:
        TdxError: First problem of the pipeline, or of the factory.

    Example:
        >>> from tdx.pipeline import Pipeline
        >>> build_stack(Pipeline.of("Pendulum-v1", "RewardSum")).kind
        'tdx'
    """
    from tdx.stacks.native import NativeStack

    if not pipeline.is_factory:
        return NativeStack(build_env(pipeline, allow_code))
    from tdx.stacks.targets import open_target

    for error in check_arguments(pipeline, allow_code):
        raise error
    stack = open_target(pipeline.env, allow_code)
    if isinstance(stack, NativeStack):
        stack.target = build_env(pipeline, allow_code, stack.target)
    return stack


def format_calls(stack: Stack, pipeline: Pipeline) -> tuple[str, ...]:
    """Return one line for each stage of a stack, innermost first.

    Stages of a chain are written as :func:`~tdx.pipeline.build.format_stages` does.

    Args:
        stack: The stack of the pipeline.
        pipeline: The pipeline.
    """
    from tdx.stacks.native import NativeStack

    if isinstance(stack, NativeStack):
        return format_stages(stack.target, pipeline)
    return tuple(stage.call for stage in stack.stages)


def load_policy(
    name: str | None, pipeline: Pipeline, allow_code: bool = False
) -> Callable[[Any], Any] | None:
    """Load the policy of a stack of another library: a function that takes an observation.

    Args:
        name: Name of the policy. ``None``: the policy of the pipeline, or random actions.
        pipeline: Pipeline that may name a policy.
        allow_code: Allow importing it.

    Returns:
        The function; ``None`` for random actions.

    Raises:
        ArgumentError: The policy acts on TensorDicts.
        CodeNotAllowedError: It is Python code, and code is not allowed.

    Example:
        >>> from tdx.pipeline import Pipeline
        >>> load_policy("random", Pipeline.of("my_envs:make")) is None
        True
    """
    from tdx.pipeline.arguments import ValueResolver
    from tdx.pipeline.policies import parse_policy

    chosen = name or pipeline.policy or "random"
    source = parse_policy(chosen)
    if source.kind == "random":
        return None
    if source.reference is None:
        raise ArgumentError(
            f"the policy {chosen} acts on the TensorDicts of a tdx env",
            hint="pass random, or module:function of a function that takes an observation",
        )
    policy: Callable[[Any], Any] = ValueResolver(allow_code).import_object(source.reference)
    return policy
