"""Build the env of a pipeline, or open it as a stack.

Three functions return a :class:`~tdx.stacks.Stack`, each calling the next:

- :func:`build_stack` takes a pipeline. Only a bare factory keeps its wrappers as stages; any other
  pipeline becomes a chain of tdx (:func:`build_env`).
- :func:`open_target` takes an env that is Python code, and calls the factory.
- :func:`tdx.stacks.open_stack` takes the object that the factory returned, and finds its library.

``tdx.cli.pipelines.open_pipeline`` is :func:`build_stack` for a command, which closes the stack.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from tdx.foundation.errors import ArgumentError, TdxError, describe_object
from tdx.pipeline.arguments import ValueResolver
from tdx.pipeline.build import build_checked_env, check_arguments
from tdx.pipeline.coercion import coerce_untyped
from tdx.pipeline.factories import call_factory, returned_message
from tdx.stacks.kinds import CHECKPOINT, open_stack

if TYPE_CHECKING:
    from tdx.core import TransformedEnv
    from tdx.envs import EnvBase
    from tdx.pipeline import EnvConfig, Pipeline
    from tdx.stacks.stack import Stack


def opens_as_stack(pipeline: Pipeline) -> bool:
    """Return True for a bare factory, and for the folder of a checkpoint or a dataset."""
    return pipeline.is_factory or CHECKPOINT.accepts(pipeline.env.id)


def build_stack(
    pipeline: Pipeline,
    allow_code: bool = False,
    samples: Sequence[Mapping[str, object]] | None = None,
) -> Stack:
    """Build the env of a pipeline and open it as a stack; the caller closes it.

    A factory without further stages may return an env of any supported library, whose own wrappers
    are then the stages; the folder of a policy checkpoint has its processors. Otherwise the env is
    built as a chain of tdx.

    Without ``samples``, those of a checkpoint are drawn from its specs.
    """
    if CHECKPOINT.accepts(pipeline.env.id):
        if pipeline.transforms:
            raise ArgumentError(
                "-t does not apply to a policy checkpoint or a dataset",
                hint="of a checkpoint, its processors are its stages; a dataset has none",
            )
        return CHECKPOINT.open(pipeline.env.id, samples)
    if samples is not None:
        if not pipeline.is_factory:
            raise ArgumentError(
                "--samples needs a policy checkpoint or module:function", hint="leave it out"
            )
        return open_target(pipeline.env, allow_code, samples)
    if not pipeline.is_factory:
        from tdx.stacks.native import NativeStack

        env = build_checked_env(pipeline, allow_code, convert=convert_to_env)
        return NativeStack(env, pipeline)

    for error in check_arguments(pipeline, allow_code):
        raise error
    stack = open_target(pipeline.env, allow_code)
    if stack.chain_env is not None:
        stack.target = build_env(pipeline, allow_code, stack.chain_env)
    return stack


def build_env(
    pipeline: Pipeline, allow_code: bool = False, base: EnvBase | None = None
) -> TransformedEnv:
    """Build the env of a pipeline with its chain, like :func:`tdx.pipeline.build_checked_env`.

    A factory may return an env of any supported library, which becomes the env inside the chain.

    Args:
        pipeline: The pipeline.
        allow_code: Allow importing Python objects that the pipeline names.
        base: Env that the pipeline names, if it exists already.

    Raises:
        TdxError: First problem of the pipeline, or of the factory.
    """
    if CHECKPOINT.accepts(pipeline.env.id):
        raise CHECKPOINT.refusal(pipeline.env.id)
    return build_checked_env(pipeline, allow_code, base, convert_to_env)


def convert_to_env(target: object) -> EnvBase:
    """Convert an object of any supported library to one env of tdx.

    Raises:
        ArgumentError: Its kind is not supported, or cannot be such an env; a data pipeline is none.
    """
    try:
        return open_stack(target).as_env()
    except ArgumentError as error:
        from tdx.stacks.callables import is_pipeline

        if not is_pipeline(target):
            raise
        raise ArgumentError(
            f"{describe_object(target)} is a data pipeline and has no env",
            hint="tdx report and tdx inspect chain show its parts: they take --samples",
        ) from error


def open_target(
    env: EnvConfig, allow_code: bool, samples: Sequence[Mapping[str, object]] | None = None
) -> Stack:
    """Call the factory of an env and open its result."""
    reference = env.code
    assert reference is not None
    try:
        resolver = ValueResolver(allow_code)
        factory = resolver.import_object(reference)
        kwargs = {
            name: resolver.resolve(coerce_untyped(value)) for name, value in env.kwargs.items()
        }
        is_itself = False
        if samples is not None:
            from tdx.stacks.callables import is_pipeline

            is_itself = is_pipeline(factory)
        target = factory if is_itself else call_factory(reference, factory, kwargs, samples is None)
        try:
            return open_stack(target, samples)
        except ArgumentError as error:
            if samples is None:
                error.message = returned_message(reference.name, target, error.message)
            raise
    except TdxError as error:
        raise error.at(env=env.id) from error.__cause__
