"""Build the env of a pipeline, or open it as a stack.

Three functions return a :class:`~tdx.stacks.Stack`, each calling the next:

- :func:`build_stack` takes a pipeline. Only a bare factory keeps its wrappers as stages; any other
  pipeline becomes a chain of tdx (:func:`build_env`).
- :func:`open_target` takes an env that is Python code, and calls the factory.
- :func:`tdx.stacks.open_stack` takes the object that the factory returned, and finds its library.

``tdx.cli.pipelines.open_pipeline`` is :func:`build_stack` for a command, which closes the stack.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from tdx.foundation.errors import ArgumentError, EnvError, TdxError
from tdx.pipeline.arguments import ValueResolver
from tdx.pipeline.build import build_checked_env, check_arguments
from tdx.pipeline.coercion import coerce_untyped
from tdx.pipeline.factories import call_function, required_parameters, unwrap_env
from tdx.stacks.kinds import CHECKPOINT, describe_object, open_stack
from tdx.stacks.sources import is_closed

if TYPE_CHECKING:
    from tdx.core import TransformedEnv
    from tdx.envs import EnvBase
    from tdx.pipeline import EnvConfig, Pipeline
    from tdx.pipeline.values import CodeReference
    from tdx.stacks.stack import Stack


def opens_as_stack(pipeline: Pipeline) -> bool:
    """Return True for a bare factory, and for the folder of a checkpoint or a dataset.

    Example:
        >>> from tdx.pipeline import Pipeline
        >>> opens_as_stack(Pipeline.of("sample_pipelines/checkpoints/sound"))
        True
    """
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

    Args:
        pipeline: The pipeline.
        allow_code: Allow importing Python objects that the pipeline names.
        samples: Samples of a data pipeline without an env, or of a checkpoint. ``None``: those of a
            checkpoint are drawn from its specs.

    Raises:
        TdxError: First problem of the pipeline, or of the factory.

    Example:
        >>> from tdx.pipeline import Pipeline
        >>> build_stack(Pipeline.of("Pendulum-v1", "RewardSum")).kind
        'tdx'
    """
    from tdx.stacks.native import NativeStack

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
        return NativeStack(build_env(pipeline, allow_code), pipeline)

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
        ArgumentError: Its kind is not supported, or cannot be such an env.

    Example:
        >>> import gymnasium
        >>> convert_to_env(gymnasium.make("Pendulum-v1")).batch_size
        torch.Size([])
    """
    return open_stack(target).as_env()


def open_target(
    env: EnvConfig, allow_code: bool, samples: Sequence[Mapping[str, object]] | None = None
) -> Stack:
    """Call the factory of an env and open its result.

    Args:
        env: Config of an env that is Python code.
        allow_code: Allow importing and calling it.
        samples: Samples of a data pipeline, which the code may be itself.

    Raises:
        CodeNotAllowedError: Code is not allowed.
        ArgumentError: The factory is not callable, or returns an unsupported object.
        EnvError: The factory raises, or returns nothing.
    """
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
                error.message = f"{reference.name}() returned {error.message}"
            raise
    except TdxError as error:
        raise error.at(env=env.id) from error.__cause__


def call_factory(
    reference: CodeReference,
    factory: Callable[..., object],
    kwargs: dict[str, object],
    returns_env: bool = True,
) -> object:
    """Call a factory with named arguments.

    Args:
        reference: Its name, for messages.
        factory: The function or class.
        kwargs: Its arguments.
        returns_env: True to return the env in its result (:func:`unwrap_env`).

    Raises:
        ArgumentError: It is not callable, or does not take these arguments.
        EnvError: It raises, returns nothing, or returns a closed env.
    """
    name = reference.name
    if not callable(factory):
        raise ArgumentError(
            f"{name} is {describe_object(factory)} and cannot be called",
            hint="name a function that returns an env",
        )
    _check_arguments(reference, factory, kwargs)
    target = call_function(name, factory, kwargs)
    if returns_env:
        target = unwrap_env(target, name)
    if target is None:
        raise EnvError(f"{name}() returned nothing", hint=f"end {name} with `return env`")
    if is_closed(target):
        raise EnvError(f"{name}() returned a closed env", hint="return it without close()")
    return target


def _check_arguments(
    reference: CodeReference, factory: Callable[..., object], kwargs: dict[str, object]
) -> None:
    name = reference.name
    try:
        parameters = inspect.signature(factory).parameters.values()
    except (TypeError, ValueError):
        return
    required = [argument for argument in required_parameters(factory) if argument not in kwargs]
    if required:
        example = ", ".join(f"{argument}=…" for argument in required)
        raise ArgumentError(
            f"{name}() needs the argument{'s' * (len(required) > 1)} {', '.join(required)}",
            hint=f"give them: '{reference}({example})', or write a function without arguments",
        )
    known = {parameter.name for parameter in parameters}
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)
    unknown = [argument for argument in kwargs if argument not in known]
    if unknown and not takes_any:
        raise ArgumentError(
            f"{name}() has no argument {unknown[0]!r}",
            hint=f"its arguments are {', '.join(sorted(known))}" if known else "it takes none",
        )
