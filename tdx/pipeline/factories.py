"""Factories of envs in Python code, as users have them: read without running, called, unwrapped.

A training script rarely has a function without arguments that returns an env. Its function returns
a thunk (``make_env(env_id, idx, capture_video, run_name)``), a list of thunks for a vector env, or
the env with something else.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import FunctionType, MethodType
from typing import Any, TypeGuard

from tdx.foundation.errors import (
    ArgumentError,
    EnvError,
    PipelineError,
    TdxError,
    describe_object,
    find_user_line,
    summarize_error,
)
from tdx.foundation.text import count_text
from tdx.pipeline.grammar import parse_value, split_outside_brackets
from tdx.pipeline.values import CodeReference, Value

_MOST_CALLS = 4
_FACTORY_NAME = re.compile("env|^(make|build|create)", re.IGNORECASE)
_NOT_FACTORIES = ("main", "parse_args")
_CALL = re.compile(r"(.+?:[\w.]+)\((.*)\)", re.DOTALL)
_BARE_WORD = re.compile(r"[A-Za-z][\w./:-]*")
_ENV_ID = re.compile(r"(^|_)(env|gym|game)_?(id|name)$", re.IGNORECASE)
_NEEDS_SPACE = re.compile(
    r"(Transform\w+)\.__init__\(\) missing 1 required positional argument: '(\w+_space)'"
)
_NAMED = re.compile(r"\s*([A-Za-z_]\w*)\s*=(?!=)(.*)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class FunctionHead:
    """A function at the top level of a file."""

    name: str
    parameters: tuple[str, ...]  # Their names, in order.
    required: Mapping[str, str]  # Those without a default, with the source of their annotations.
    returns: bool  # False for one like main of a training script.


def list_functions(path: str | Path) -> list[FunctionHead]:
    """Return the public functions of a Python file, without running it; none if it is broken."""
    try:
        tree = ast.parse(Path(path).read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return []
    heads = []
    for statement in tree.body:
        if isinstance(statement, ast.FunctionDef) and not statement.name.startswith("_"):
            arguments = statement.args
            positional = [*arguments.posonlyargs, *arguments.args]
            keyword_only = zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
            required = {
                argument.arg: ""
                if argument.annotation is None
                else ast.unparse(argument.annotation)
                for argument in (
                    *positional[: len(positional) - len(arguments.defaults)],
                    *(argument for argument, default in keyword_only if default is None),
                )
            }
            names = [argument.arg for argument in [*positional, *arguments.kwonlyargs]]
            heads.append(
                FunctionHead(statement.name, tuple(names), required, _returns_value(statement))
            )
    return heads


def _returns_value(function: ast.FunctionDef) -> bool:
    """Return True for ``return value`` in a function itself, not in a function inside it."""
    pending: list[ast.AST] = [*function.body]
    while pending:
        node = pending.pop()
        if isinstance(node, ast.Return) and node.value is not None:
            return True
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef):
            pending += ast.iter_child_nodes(node)
    return False


def choose_function(path: str, arguments: str | None = None) -> str:
    """Return ``file.py:function`` for the only function of a file that can return an env.

    Functions that are named like a factory, such as ``make_env``, come before all others.

    ``arguments`` are those of a call, as they are written. ``None``: the function needs none.
    """
    # Nothing else is called: a script may train in its only function without arguments.
    heads = [
        head for head in list_functions(path) if head.returns and head.name not in _NOT_FACTORIES
    ]
    heads = [head for head in heads if _FACTORY_NAME.search(head.name)] or heads
    names = [head.name for head in heads if arguments is not None or not head.required]
    if len(names) == 1:
        return f"{path}:{names[0]}"
    if names:
        raise ArgumentError(
            f"{path} has {len(names)} functions that may return an env: {', '.join(names)}",
            hint=f"name one of them: {path}:{names[0]} --allow-code",
        )
    if heads:
        calls = [f"{head.name}({', '.join(head.parameters)})" for head in heads]
        raise ArgumentError(
            f"{path} has no factory without arguments: {', '.join(calls)}",
            hint=_suggest_call(CodeReference(path, heads[0].name), heads[0].required, {}),
        )
    raise ArgumentError(
        f"{path} is Python code without a function that returns an env",
        hint=f"write one, and name it: {path}:FUNCTION --allow-code",
    )


def parse_call(text: str) -> tuple[str, dict[str, Value]] | None:
    """Split ``file.py:make_env(CartPole-v1, 0, seed=1)`` into the reference and its arguments.

    Only literals are read; a word without quotes is a text. Positional arguments get the names of
    the parameters, which are read from the file without running it.

    Returns:
        The reference and the arguments by name; ``None`` if the text is no such call.

    Example:
        >>> parse_call("envs:make(env_id=CartPole-v1, size=(84, 84))")
        ('envs:make', {'env_id': 'CartPole-v1', 'size': (84, 84)})
        >>> parse_call("Pendulum-v1")
    """
    match = _CALL.fullmatch(text)
    reference = None if match is None else CodeReference.of(match[1])
    if match is None or reference is None:
        return None
    names: tuple[str, ...] | None = None
    if reference.is_file:
        heads = {head.name: head.parameters for head in list_functions(reference.module)}
        names = heads.get(reference.name)
    arguments: dict[str, Value] = {}
    for position, part in enumerate(split_outside_brackets(match[2], ",".__eq__)):
        named = _NAMED.fullmatch(part)
        if named is None and names is None:
            raise ArgumentError(
                f"the parameters of {reference} are not known before it is imported",
                hint=f"name each argument: {reference}(name={part.strip()})",
            )
        if named is None and names is not None and position >= len(names):
            taken = count_text(len(names), "argument")
            raise ArgumentError(
                f"{reference.name}() takes {taken}, not {position + 1}",
                hint=f"its parameters: {', '.join(names)}" if names else "leave them out",
            )
        name = named[1] if named is not None else (names or ())[position]
        if name in arguments:
            raise ArgumentError(
                f"{reference.name}() gets {name!r} twice", hint="remove one of them"
            )
        arguments[name] = _parse_argument(part if named is None else named[2])
    return str(reference), arguments


def _parse_argument(text: str) -> Value:
    text = text.strip()
    try:
        return parse_value(text)
    except PipelineError:
        if _BARE_WORD.fullmatch(text):
            return text
        raise ArgumentError(
            f"{text!r} is not a literal", hint="write a number, a text in quotes, or a list of them"
        ) from None


def is_thunk(target: object) -> TypeGuard[Callable[[], object]]:
    """Return True for a function that needs no arguments."""
    if not isinstance(target, FunctionType | MethodType | partial):
        return False
    return not required_parameters(target)


def required_parameters(function: Callable[..., object]) -> list[str]:
    """Return the names of the parameters without a default; none if they are not known."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return []
    return [
        parameter.name
        for parameter in parameters
        if parameter.default is parameter.empty
        and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    ]


def call_factory(
    reference: CodeReference,
    factory: Callable[..., object],
    kwargs: dict[str, object],
    returns_env: bool = True,
) -> object:
    """Call a factory with named arguments.

    ``returns_env`` returns the env in its result (:func:`unwrap_env`).
    """
    name = reference.name
    if not isinstance(factory, type) and all(hasattr(factory, part) for part in ("reset", "step")):
        # An env itself may be callable. A command may create the env more than once.
        raise ArgumentError(
            f"{name} is {describe_object(factory)}, not a function that returns it",
            hint="create it in a function that returns it, and name the function",
        )
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
        annotations = {
            parameter.name: (
                parameter.annotation
                if isinstance(parameter.annotation, str)
                else getattr(parameter.annotation, "__name__", "")
            )
            for parameter in parameters
            if parameter.name in required or parameter.name in kwargs
        }
        raise ArgumentError(
            f"{name}() needs the argument{'s' * (len(required) > 1)} {', '.join(required)}",
            hint=_suggest_call(reference, annotations, kwargs),
        )
    known = {parameter.name for parameter in parameters}
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)
    unknown = [argument for argument in kwargs if argument not in known]
    if unknown and not takes_any:
        raise ArgumentError(
            f"{name}() has no argument {unknown[0]!r}",
            hint=f"its arguments are {', '.join(sorted(known))}" if known else "it takes none",
        )


def _suggest_call(
    reference: CodeReference, annotations: Mapping[str, str], given: Mapping[str, object]
) -> str:
    """Return a hint with an example of a call, which can be pasted if it says no "fill in"."""
    heads = list_functions(reference.module) if reference.is_file else []
    order = next((head.parameters for head in heads if head.name == reference.name), ())
    words: list[str] = []
    unknown: list[str] = []
    for position, (name, annotation) in enumerate(annotations.items()):
        if name not in given:
            text = _example_value(name, annotation)
        elif isinstance(value := given[name], bool | int | float | str):
            is_word = isinstance(value, str) and _BARE_WORD.fullmatch(value)
            text = str(value) if is_word else repr(value)
        else:
            text = None
        if text is None:
            unknown.append(name)
        # A position means a name only if the file can be read, and nothing before is left out.
        is_positional = not unknown and order[: position + 1] == (*annotations,)[: position + 1]
        words.append(f"{'' if is_positional else f'{name}='}{'…' if text is None else text}")
    hint = f"for example {str(reference) + '(' + ', '.join(words) + ')'!r} --allow-code"
    return f"{hint}; fill in {', '.join(unknown)}" if unknown else hint


def _example_value(name: str, annotation: str) -> str | None:
    """Return the text of a value that an argument may take, by its name and annotation."""
    if _ENV_ID.search(name):
        return "CartPole-v1"
    kind = annotation.partition("|")[0].strip(" '\"")
    if kind == "bool" or name.startswith("capture_"):
        return "False"
    if re.search(r"(^|_)(seed|idx|index|rank|i)$", name):
        return "0"
    if kind == "int" or re.match(r"(num|n)_", name):
        return "1"
    # CleanRL's run_name and exp_name label the files that a run writes.
    return name.removesuffix("_name") if name in ("run_name", "exp_name") else None


def call_function(
    name: str, function: Callable[..., object], kwargs: Mapping[str, object]
) -> object:
    """Call a function of a user."""
    try:
        return function(**kwargs)
    except TdxError:
        raise
    except Exception as error:
        line = find_user_line(error)
        raise EnvError(
            f"{name}() raised {summarize_error(error)}" + (f" ({line})" if line else ""),
            hint=_explain_gymnasium(error) or "--debug shows the traceback",
        ) from error


def _explain_gymnasium(error: Exception) -> str | None:
    """Return what to change after an error of Gymnasium that does not say so itself."""
    from gymnasium.error import NamespaceNotFound

    from tdx.envs.gym.providers import PROVIDERS

    if str(error).startswith("Disable frame-skipping"):
        return (
            "AtariPreprocessing skips frames itself: pass frameskip=1 to gymnasium.make, or "
            "frame_skip=1 to AtariPreprocessing"
        )
    if (changed := _NEEDS_SPACE.match(str(error))) is not None:
        return (
            f"since Gymnasium 1, {changed[1]} takes the {changed[2]} of its result as third "
            f"argument; if it does not change: env.{changed[2]}"
        )

    # Packages register their envs when they are imported, which nothing in the user's code may do.
    named = re.match(r"Namespace (\S+) not found", str(error))
    if not isinstance(error, NamespaceNotFound) or named is None:
        return None
    provider = next((p for p in PROVIDERS if p.provides(f"{named[1]}/")), None)
    if provider is None:
        return f"import the package that registers {named[1]}/ before gymnasium.make"
    module = provider.module
    call = f"import {module} and call gymnasium.register_envs({module}) before gymnasium.make"
    return call if provider.installed else f"{provider.hint}; then {call}"


def returned_message(name: str, target: object, message: str) -> str:
    """Return the message of an error about an object that a factory returned, with its name.

    Example:
        >>> returned_message("make", {}, "an object of type dict is not supported")
        'make() returned an object of type dict, which is not supported'
        >>> returned_message("make", {}, "its env is closed")
        'make(): its env is closed'
    """
    subject = describe_object(target)
    if message.startswith(f"{subject} "):
        return f"{name}() returned {subject}, which{message.removeprefix(subject)}"
    return f"{name}(): {message}"


def unwrap_env(target: object, name: str) -> object:
    """Return the env in what a factory returned.

    A thunk and a class of envs are called, thunks in a list or tuple become the envs of a
    :class:`gymnasium.vector.SyncVectorEnv`, and a tuple that begins with an env is that env.
    Anything else is returned unchanged.
    """
    for _ in range(_MOST_CALLS):
        is_env_class = isinstance(target, type) and _has_env_methods(target)
        if is_thunk(target) or (
            is_env_class and callable(target) and not required_parameters(target)
        ):
            target = call_function(name, target, {})
        elif isinstance(target, list | tuple) and target and all(map(is_thunk, target)):
            return _make_vector_env(list(target), name)
        elif isinstance(target, tuple) and target and _has_env_methods(target[0]):
            target = target[0]
        else:
            break
    return target


def _has_env_methods(target: object) -> bool:
    return all(callable(getattr(target, method, None)) for method in ("reset", "step"))


def _make_vector_env(thunks: list[Callable[[], object]], name: str) -> object:
    import gymnasium

    def keep(env: gymnasium.Env[Any, Any]) -> Callable[[], gymnasium.Env[Any, Any]]:
        return lambda: env

    factories = []
    for index, thunk in enumerate(thunks):
        env = call_function(f"{name}()[{index}]", thunk, {})
        if not isinstance(env, gymnasium.Env):
            raise EnvError(
                f"{name}()[{index}] returned {type(env).__name__}, not a Gymnasium env",
                hint="return the vector env that is made of them",
            )
        factories.append(keep(env))
    return gymnasium.vector.SyncVectorEnv(factories)


def is_closed(target: object) -> bool:
    """Return True if an env says that it is closed."""
    from tdx.envs import EnvBase

    try:
        # In TorchRL, `is_closed` is also true before the first reset.
        is_own = isinstance(target, EnvBase)
        return getattr(target, "is_closed" if is_own else "closed", None) is True
    except Exception:
        # Wrappers may answer for any name, or raise anything.
        return False
