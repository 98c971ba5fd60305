"""The kinds of stacks that tdx can open."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from types import FunctionType, MethodType
from typing import Any, Protocol

from tdx.foundation.errors import ArgumentError, EnvError, describe_object, summarize_error
from tdx.foundation.plugins import (
    Group,
    Plugin,
    disable_plugin,
    disabled_plugins,
    load_plugins,
    own_modules,
)
from tdx.stacks.refusals import NEEDS_SAMPLES, imported_classes, unsupported_error
from tdx.stacks.sources import attributes_of
from tdx.stacks.stack import Stack, is_stack

GROUP: Group = "tdx.stacks"
"""Entry-point group of the kinds of stacks."""


class StackKind(Protocol):
    """A kind of stack, registered in the entry-point group ``tdx.stacks``.

    Args:
        title: What it opens, for messages.
    """

    title: str

    def accepts(self, target: object) -> bool:
        """Return True if it can open an object."""
        ...

    def open(self, target: object) -> Stack:
        """Open an object that it accepts."""
        ...


@dataclass(frozen=True, slots=True)
class BuiltinKind:
    """A kind of stack that belongs to tdx, imported when an object of its library is opened.

    The adapter of a library declares it as ``KIND`` in the ``kind.py`` of its folder, which imports
    neither the library nor the rest of the adapter.

    Args:
        title: What it opens, for messages.
        bases: Classes of the objects, as ``module:name``. A module that is not imported has no
            objects.
        factory: Creates its stack.
    """

    title: str
    bases: tuple[str, ...]
    factory: Callable[[object], Stack]

    def accepts(self, target: object) -> bool:
        return isinstance(target, tuple(imported_classes(self.bases)))

    def open(self, target: object) -> Stack:
        return self.factory(target)


def _open_native(target: Any) -> Stack:
    from tdx.stacks.native import NativeStack

    return NativeStack(target)


NATIVE = BuiltinKind("a tdx env", ("tdx.core.envs.env_base:EnvBase",), _open_native)


@cache
def builtin_kinds() -> tuple[BuiltinKind, ...]:
    """Return the kinds of tdx: its own envs, and ``KIND`` of each folder with a ``kind.py``."""
    modules = own_modules("tdx.stacks", "*/kind.py")
    return (NATIVE, *(module.KIND for module in modules))


class CheckpointKind:
    """The folder of a policy checkpoint or of a dataset, or what was read from it."""

    title = "the folder of a policy checkpoint or of a dataset"

    def accepts(self, target: object) -> bool:
        """Return True for the path of a checkpoint or dataset, and for what was read from one."""
        from tdx.stacks.checkpoints import Checkpoint, Dataset, is_checkpoint, is_dataset

        return isinstance(target, Checkpoint | Dataset) or (
            isinstance(target, str | Path) and (is_checkpoint(target) or is_dataset(target))
        )

    def refusal(self, target: Any) -> ArgumentError:
        """Return the error of a command that does not take a target, with those that do."""
        from tdx.stacks.checkpoints import Dataset, find_dataset_format

        if isinstance(target, Dataset):
            target, name = target.path, target.title
        else:
            form = find_dataset_format(target)
            name = None if form is None else form.name
        if name is None:
            return ArgumentError(
                f"{target} is a policy checkpoint, which this command does not take",
                hint="these commands of tdx take it: check, contract, diff, profile, report, and "
                "inspect spec, chain, keys, values and state",
            )
        return ArgumentError(
            f"{target} is {name}: recorded steps, without stages",
            hint="tdx check, tdx inspect values and tdx report read it; to run a checkpoint "
            f"or a pipeline on its steps: --samples {target}",
        )

    def open(self, target: Any, samples: Sequence[Mapping[str, object]] | None = None) -> Stack:
        from tdx.stacks.checkpoints import Dataset, is_dataset, read_checkpoint, read_dataset
        from tdx.stacks.checkpoints.stack import CheckpointStack, DatasetStack

        if isinstance(target, Dataset) or (isinstance(target, str | Path) and is_dataset(target)):
            if samples is not None:
                raise ArgumentError("a dataset has samples of its own", hint="leave out --samples")
            dataset = target if isinstance(target, Dataset) else read_dataset(target)
            return DatasetStack(dataset)
        checkpoint = read_checkpoint(target) if isinstance(target, str | Path) else target
        return CheckpointStack(checkpoint, samples)


CHECKPOINT = CheckpointKind()


def open_stack(target: object, samples: Sequence[Mapping[str, object]] | None = None) -> Stack:
    """Open an env, the processors of a policy checkpoint, or a data pipeline, with its stages.

    Args:
        target: An env of tdx or Gymnasium, of a library with an entry point in ``tdx.stacks``, the
            folder of a policy checkpoint, or a stack, which is returned unchanged. With samples
            also a list of callables, a ``torch.nn.Sequential``, a ``Compose`` of torchvision, a
            pipeline of scikit-learn, or a function of a sample.
        samples: Samples of a checkpoint or a data pipeline, arrays by key. ``None``: those of a
            checkpoint are drawn from its specs.

    Raises:
        ArgumentError: No kind of stack accepts the object.
        EnvError: The env is closed.
        StorageError: The checkpoint cannot be read.

    Example:
        >>> import gymnasium
        >>> stack = open_stack(gymnasium.make("Pendulum-v1"))
        >>> [stage.name for stage in stack.stages]
        ['PassiveEnvChecker', 'OrderEnforcing', 'TimeLimit']
    """
    if CHECKPOINT.accepts(target):
        return CHECKPOINT.open(target, samples)
    if samples is not None:
        from tdx.stacks.callables import CallableStack, is_pipeline

        is_env = is_stack(target) or any(own.accepts(target) for own in builtin_kinds())
        if not is_env and is_pipeline(target):
            return CallableStack(target, samples)
        raise ArgumentError(
            f"{describe_object(target)} takes no samples", hint="leave them out for an env"
        )
    if is_stack(target):
        return target
    for own in builtin_kinds():
        if own.accepts(target):
            _check_open(target)
            return own.open(target)
    for plugin, kind in plugin_kinds():
        try:
            accepted = kind.accepts(target)
        except Exception as error:
            disable_plugin(plugin, plugin.error(f"failed: {summarize_error(error)}"))
            continue
        if accepted:
            return kind.open(target)
    raise _unsupported_error(target)


def _check_open(target: object) -> None:
    """Raise an error for an env that says that it is closed: vector envs, and envs of tdx."""
    name = "is_closed" if NATIVE.accepts(target) else "closed"
    if attributes_of(target).get(name) is True:
        raise EnvError(
            f"the {type(target).__name__} is closed", hint="create a new env, and close it later"
        )


@cache
def plugin_kinds() -> tuple[tuple[Plugin, StackKind], ...]:
    """Load the kinds of stacks of plugins."""
    return load_plugins(GROUP, lambda plugin: (plugin, plugin.load()))


def _unsupported_error(target: object) -> ArgumentError:
    """Return the error for an unsupported object, with what to do; or else what is supported."""
    error = unsupported_error(target, _name_env_inside(target))
    if error.hint is not None:
        return error
    plugins = (kind.title for _, kind in plugin_kinds())
    kinds = [*(kind.title for kind in builtin_kinds()), CHECKPOINT.title, *plugins]
    disabled = next(iter(disabled_plugins(GROUP).values()), None)
    hint = _next_step(target) if disabled is None else f"{disabled.message}: {disabled.hint}"
    return ArgumentError(f"{error.message}: pass {', '.join(kinds)}", hint=hint)


def _name_env_inside(target: object) -> str | None:
    """Return the hint for envs in dicts, such as those of LeRobot by suite and task."""
    path = ""
    while isinstance(target, dict) and target:
        key, target = next(iter(target.items()))
        path += f"[{key!r}]"
    if path and hasattr(target, "step") and hasattr(target, "reset"):
        return f"return one of the envs in it, such as result{path}"
    return None


def _next_step(target: object) -> str:
    if target is None:
        return "end the function that creates the env with `return env`"
    if isinstance(target, str):
        return f"create the env: tdx.GymEnv({target!r}) or gymnasium.make({target!r})"
    if isinstance(target, type):
        return f"create an instance: {target.__name__}()"
    if isinstance(target, FunctionType | MethodType | partial):
        return f"call it: {getattr(target, '__name__', 'function')}()"
    if hasattr(target, "step") and hasattr(target, "reset"):
        if hasattr(target, "num_envs"):
            return "wrap it in a subclass of gymnasium.vector.VectorEnv: it has several envs"
        return "wrap it in a subclass of gymnasium.Env, or make its class one"
    if isinstance(target, list | tuple) and not all(callable(part) for part in target):
        return "return the env, not the result of its reset or step"
    if callable(target) or isinstance(target, list | tuple):
        return NEEDS_SAMPLES
    return f"other libraries register a kind in the entry-point group {GROUP}"
