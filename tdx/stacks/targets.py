"""Call the Python factory that a pipeline or an option names, and open what it returns."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tdx.errors import ArgumentError, EnvError, TdxError, summarize_error
from tdx.pipeline.arguments import ValueResolver
from tdx.pipeline.coercion import coerce_untyped
from tdx.stacks.kinds import describe_object, open_stack
from tdx.stacks.sources import is_closed

if TYPE_CHECKING:
    from tdx.pipeline import EnvConfig
    from tdx.pipeline.values import CodeReference
    from tdx.stacks.stack import Stack


def open_target(env: EnvConfig, allow_code: bool) -> Stack:
    """Call the factory of an env and open its result.

    Args:
        env: Config of an env that is Python code.
        allow_code: Allow importing and calling it.

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
        target = call_factory(reference, factory, kwargs)
        try:
            return open_stack(target)
        except ArgumentError as error:
            error.message = f"{reference.name}() returned {error.message}"
            raise
    except TdxError as error:
        raise error.at(env=env.id) from error.__cause__


def call_factory(
    reference: CodeReference, factory: Callable[..., Any], kwargs: dict[str, Any]
) -> Any:
    """Call a factory with named arguments.

    Args:
        reference: Its name, for messages.
        factory: The function or class.
        kwargs: Its arguments.

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
    _check_arguments(name, factory, kwargs)
    try:
        target = factory(**kwargs)
    except TdxError:
        raise
    except Exception as error:
        raise EnvError(
            f"{name}() raised {summarize_error(error)}", hint="--debug shows the traceback"
        ) from error
    if target is None:
        raise EnvError(f"{name}() returned nothing", hint=f"end {name} with `return env`")
    if is_closed(target):
        raise EnvError(f"{name}() returned a closed env", hint="return it without close()")
    return target


def _check_arguments(name: str, factory: Callable[..., Any], kwargs: dict[str, Any]) -> None:
    try:
        parameters = inspect.signature(factory).parameters.values()
    except (TypeError, ValueError):
        return
    required = [
        each.name
        for each in parameters
        if each.default is each.empty
        and each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)
        and each.name not in kwargs
    ]
    if required:
        example = ", ".join(f'"{each}": …' for each in required)
        raise ArgumentError(
            f"{name}() needs the argument{'s' * (len(required) > 1)} {', '.join(required)}",
            hint=f"pass --env-kwargs '{{{example}}}', or write a function without arguments",
        )
    known = {each.name for each in parameters}
    takes_any = any(each.kind is each.VAR_KEYWORD for each in parameters)
    unknown = [each for each in kwargs if each not in known]
    if unknown and not takes_any:
        raise ArgumentError(
            f"{name}() has no argument {unknown[0]!r}",
            hint=f"its arguments are {', '.join(sorted(known))}" if known else "it takes none",
        )
