"""Build the env of a pipeline, open it as a stack, and load the policy that acts in it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tdx.errors import ArgumentError
from tdx.pipeline.build import build_env as build_pipeline_env
from tdx.pipeline.build import check_arguments
from tdx.stacks.kinds import open_stack

if TYPE_CHECKING:
    from tdx.core import TransformedEnv
    from tdx.envs import EnvBase
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
        return NativeStack(build_env(pipeline, allow_code), pipeline)
    from tdx.stacks.targets import open_target

    for error in check_arguments(pipeline, allow_code):
        raise error
    stack = open_target(pipeline.env, allow_code)
    if stack.chain_env is not None:
        stack.target = build_env(pipeline, allow_code, stack.chain_env)
    return stack


def build_env(
    pipeline: Pipeline, allow_code: bool = False, base: EnvBase | None = None
) -> TransformedEnv:
    """Build the env of a pipeline with its chain, like :func:`tdx.pipeline.build_env`.

    A factory may return an env of any supported library, which becomes the env inside the chain.

    Args:
        pipeline: The pipeline.
        allow_code: Allow importing Python objects that the pipeline names.
        base: Env that the pipeline names, if it exists already.

    Raises:
        TdxError: First problem of the pipeline, or of the factory.
    """
    return build_pipeline_env(pipeline, allow_code, base, convert_to_env)


def convert_to_env(target: Any) -> EnvBase:
    """Convert an object of any supported library to one env of tdx.

    Raises:
        ArgumentError: Its kind is not supported, or cannot be such an env.

    Example:
        >>> import gymnasium
        >>> convert_to_env(gymnasium.make("Pendulum-v1")).batch_size
        torch.Size([])
    """
    return open_stack(target).as_env()


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
