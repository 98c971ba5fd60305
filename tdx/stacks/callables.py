"""Data pipelines of callables as stacks: ``Compose``, ``Sequential``, lists, scikit-learn, LeRobot.

A pipeline is run on its first sample when it is opened: so the form in which it takes a sample is
found, and what each part returns.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any

import numpy as np
import torch
from gymnasium.spaces import Box
from torch import Tensor

from tdx.foundation.errors import ArgumentError, summarize_error
from tdx.stacks.gymnasium.levels import Level, arguments_of
from tdx.stacks.gymnasium.snapshots import level_state
from tdx.stacks.observe import preserved_generators
from tdx.stacks.samples import (
    Part,
    Sample,
    SampleStack,
    Spaces,
    StageArrays,
    to_array,
    unbounded_box,
)
from tdx.stacks.sources import class_location
from tdx.stacks.states import StateKeeper

_FUNCTIONS = (FunctionType, BuiltinFunctionType, MethodType, np.ufunc)
Form = Callable[[object], object]
"""Converts an array to what a part takes."""


def list_parts(target: object) -> list[tuple[object, Callable[[Any], Any]]] | None:
    """Return the parts of a data pipeline and how each is called; ``None`` for anything else.

    Pipelines are a ``torch.nn.Sequential``, a list of callables, a pipeline or a transformer of
    scikit-learn, a ``DataProcessorPipeline`` of LeRobot, an object with its parts in
    ``transforms``, such as torchvision's ``Compose``, and a group of openpi, whose ``inputs`` are
    the parts.
    """
    if isinstance(target, torch.nn.Sequential):
        return [(part, part) for part in target]
    if (estimators := _list_estimators(target)) is not None:
        return [(part, part.transform) for part in estimators if hasattr(part, "transform")]
    steps = getattr(target, "steps", None)
    if (to_transition := getattr(target, "to_transition", None)) is not None:
        own = [] if steps is None else list(steps)
        calls: list[_TransitionStep] = []
        for step in own:
            calls.append(_TransitionStep(to_transition, step, calls[-1] if calls else None))
        return list(zip(own, calls, strict=True))
    parts = target if isinstance(target, list | tuple) else getattr(target, "transforms", None)
    if parts is None and hasattr(target, "outputs"):
        # The outputs of a group run on what the policy returns: they are another pipeline.
        parts = getattr(target, "inputs", None)
    if isinstance(parts, torch.nn.ModuleList):
        parts = list(parts)
    is_list = isinstance(parts, list | tuple) and len(parts) > 0 and all(map(callable, parts))
    return [(part, part) for part in parts] if is_list and parts is not None else None


def _list_estimators(target: object) -> list[object] | None:
    """Return the estimators of scikit-learn; ``None`` for anything else.

    A pipeline that ends with a classifier has no ``transform``, and one in another is taken apart.
    """
    steps = getattr(target, "steps", None)
    has_pairs = isinstance(steps, list) and all(
        isinstance(step, tuple) and len(step) == 2 for step in steps
    )
    if isinstance(steps, list) and has_pairs and (steps or hasattr(target, "fit")):
        nested = [(step, _list_estimators(step)) for _, step in steps]
        return [part for step, parts in nested for part in ([step] if parts is None else parts)]
    is_estimator = hasattr(target, "transform") and hasattr(target, "fit")
    return [target] if is_estimator and not callable(target) else None


class _TransitionStep:
    """Runs a step of LeRobot, which takes and returns a transition, on a flat sample.

    The public hooks of a pipeline, ``before_step_hooks`` and ``after_step_hooks`` of LeRobot 0.4.4,
    are not used: they show the transition before and after each step while the whole pipeline runs,
    and what they return is ignored. A contract gives each step its recorded input, and a profile
    times one step without the others, which needs the call of the step itself. Then the hooks would
    be a second way to observe, beside the calls of the parts that all data pipelines have.
    """

    def __init__(
        self,
        to_transition: Callable[[Any], Mapping[Any, Any]],
        step: Callable[[Any], Any],
        previous: _TransitionStep | None,
    ) -> None:
        self._to_transition, self._step, self._previous = to_transition, step, previous
        self._parts: dict[str, str] = {}

    def __call__(self, sample: Sample) -> Sample:
        try:
            transition = self._to_transition(sample)
        except (TypeError, ValueError, KeyError, AttributeError):
            # A postprocessor takes what the policy returned.
            transition = self._to_transition(sample["action"])
        if self._previous is not None:
            transition = self._previous.complete(transition, sample)
        named = _by_name(self._step(transition))
        self._parts = {key: part for part in _PARTS for key in named.get(part) or {}}
        return _flatten(named)

    def complete(self, transition: Mapping[Any, Any], sample: Sample) -> Mapping[Any, Any]:
        """Return the transition after this step with the entries that the converter dropped.

        It knows the names of a dataset, and not those that steps write, such as the domain of a
        robot.
        """
        known = _flatten(_by_name(transition))
        for part in _PARTS:
            written = {
                key: value
                for key, value in sample.items()
                if key not in known and self._parts.get(key) == part
            }
            if written:
                key = next((key for key in transition if _name(key) == part), part)
                transition = {**transition, key: {**(transition.get(key) or {}), **written}}
        return transition


_PARTS = ("observation", "complementary_data")


def _name(key: object) -> str:
    """Return the text of a member of an enum, or of a key that is text already."""
    return str(getattr(key, "value", key))


def _by_name(transition: Mapping[Any, Any]) -> dict[str, Any]:
    return {_name(key): value for key, value in transition.items()}


def _flatten(named: Mapping[str, Any]) -> dict[str, Any]:
    flat = {key: value for part in _PARTS for key, value in (named.get(part) or {}).items()}
    return flat if named.get("action") is None else {**flat, "action": named["action"]}


def is_pipeline(target: object) -> bool:
    """Return True for an object that is a data pipeline, not a function that returns one.

    Example:
        >>> is_pipeline([np.square]), is_pipeline(lambda: [np.square]), is_pipeline(lambda x: x)
        (True, False, True)
    """
    if isinstance(target, type):
        return False
    if list_parts(target) is not None or isinstance(target, torch.nn.Module):
        return True
    if not callable(target):
        return False
    try:
        parameters = inspect.signature(target).parameters.values()
    except (TypeError, ValueError):
        return isinstance(target, np.ufunc)
    required = [p for p in parameters if p.default is p.empty and p.kind in (0, 1)]
    return len(required) == 1


class CallableStack(SampleStack):
    """A data pipeline of callables.

    Another callable than those of :func:`list_parts` is a pipeline of one part. A sample of a
    single array is passed as such, one of several as a dict.
    """

    def __init__(self, target: Any, samples: Sequence[Sample]) -> None:
        if not samples:
            raise ArgumentError("a data pipeline needs at least one sample")
        listed = list_parts(target)
        listed = [(target, target)] if listed is None else listed
        parts = [_CallablePart(owner, call) for owner, call in listed]
        takes_dict = len(samples[0]) > 1 or hasattr(target, "to_transition")
        trace = _find_form(parts, samples[0], _forms_of(target, samples[0]), takes_dict=takes_dict)
        spaces = [Spaces(dict(_boxes(sample))) for sample in trace]
        super().__init__(target, parts, spaces, samples)

    @property
    def notes(self) -> Sequence[str]:
        """See :class:`~tdx.stacks.Stack`; the estimators that change no samples."""
        # scikit-learn skips the steps that are "passthrough" or None.
        return [
            f"{type(part).__name__} is passed over: it has no transform"
            for part in _list_estimators(self.original) or ()
            if not hasattr(part, "transform") and part not in (None, "passthrough")
        ]


class _CallablePart(Part):
    def __init__(self, owner: object, call: Callable[[Any], Any]) -> None:
        self._owner, self._call = owner, call
        self._is_function = isinstance(owner, _FUNCTIONS)
        self._forms: dict[str, Form] = {}
        self.is_bare, self.returns_value = True, True
        kind = type(owner)
        self.name = kind.__name__
        if self._is_function:
            self.name = str(getattr(owner, "__name__", self.name))
            code = getattr(owner, "__code__", None)
            if code is not None:
                self.location = f"{code.co_filename}:{code.co_firstlineno}"
        else:
            self.arguments, self.location = arguments_of(owner), class_location(kind)

    def learn(self, sample: Sample, form: Form | None, *, is_bare: bool) -> None:
        """Remember the form of the values: a recorded one may be an array in its place."""
        self.is_bare = is_bare
        self._forms = {key: form or _form_of(value) for key, value in sample.items()}

    def forward(self, sample: Sample) -> Sample:
        values = {key: self._forms.get(key, _keep)(value) for key, value in sample.items()}
        key = next(iter(values), "sample")
        result = self._call(values[key] if self.is_bare else values)
        self.returns_value = not isinstance(result, Mapping)
        if isinstance(result, Mapping):
            return {str(name): value for name, value in result.items()}
        if isinstance(result, tuple):
            return {f"{key}.{index}": value for index, value in enumerate(result)}
        return {key: result}

    def state(self) -> StageArrays:
        if self._is_function:
            return {}
        state = level_state(Level(0, (self._owner,), None))
        return {name: value.numpy() for name, value in state.items()}

    def owners(self) -> Sequence[object]:
        return () if self._is_function else (self._owner,)


def _keep(value: object) -> object:
    # A part may write in place.
    return value.copy() if isinstance(value, np.ndarray) else value


def _to_tensor(value: Any) -> object:
    return torch.from_numpy(np.array(value)) if isinstance(value, np.ndarray) else value


def _to_image(value: object) -> object:
    from PIL import Image

    return Image.fromarray(value) if isinstance(value, np.ndarray) else value


def _to_row(value: object) -> object:
    """scikit-learn takes one row for each sample."""
    return value[None] if isinstance(value, np.ndarray) and value.ndim == 1 else value


def _form_of(value: object) -> Form:
    if isinstance(value, Tensor):
        return _to_tensor
    return _keep if isinstance(value, np.ndarray) or not hasattr(value, "getbands") else _to_image


def _find_form(
    parts: Sequence[_CallablePart], sample: Sample, forms: Sequence[Form], *, takes_dict: bool
) -> list[Sample]:
    """Return a sample before the parts and after each, in the first form that they can process.

    With ``takes_dict``, a single array is never passed as such.
    """
    owners = [owner for part in parts for owner in part.owners()]
    keeper = StateKeeper(owners)
    failures: list[tuple[int, str, Exception]] = []
    for is_bare in (False,) if takes_dict else (True, False):
        for form in forms:
            at = 0
            try:
                with preserved_generators(), torch.no_grad():
                    trace = [sample]
                    passes_value = is_bare
                    for at, part in enumerate(parts):
                        part.learn(trace[-1], None if at else form, is_bare=passes_value)
                        trace.append(part.forward(trace[-1]))
                        passes_value &= part.returns_value and len(trace[-1]) == 1
                return trace
            except Exception as error:
                failures.append((at, parts[at].name, error))
            finally:
                keeper.restore()
    # The form that came farthest is the one that the pipeline takes.
    at, name, cause = max(failures, key=lambda failure: failure[0])
    raise ArgumentError(
        f"{name} cannot process the first sample: {summarize_error(cause)}",
        hint="one array in the file is passed as such, and several arrays as a dict",
    ).at(stage=at, transform=name) from cause


def _forms_of(target: object, sample: Sample) -> Sequence[Form]:
    """Return the forms in which a pipeline may take an array, the likeliest first."""
    if hasattr(target, "transforms") and any(map(_is_image, sample.values())):
        # The second version of torchvision passes an array on unchanged.
        return _to_image, _keep, _to_tensor
    has_tensors = hasattr(target, "transforms") or hasattr(target, "to_transition")
    if has_tensors or isinstance(target, torch.nn.Module):
        return _to_tensor, _keep
    return _keep, _to_tensor, _to_row, _to_image


def _is_image(value: object) -> bool:
    if not isinstance(value, np.ndarray) or value.dtype != np.uint8 or value.ndim != 3:
        return False
    return value.shape[2] in (1, 3, 4)


def _boxes(sample: Sample) -> Iterator[tuple[str, Box]]:
    for key, value in sample.items():
        array = to_array(value)
        if array is not None:
            yield key, unbounded_box(array)
