"""The eager step of an env with a chain: what ``env.step`` calls, in which order.

A new TensorDict per stage, with checked reads and writes, costs more than the arithmetic of most
transforms. If the env returns its step as a dict, the leading stages that have a function over
dicts run on it, and one TensorDict is created at the end. The calls of one step::

    EnvBase.step(td)                        check the action, complete td["next"]
    └─ TransformedEnv._completed_step       build the program if a spec has changed
       └─ EagerProgram.step
          ├─ chain._inv_call                the last stage first, if any has an inverse
          ├─ inner._step_fields             the env's step as a dict of root entries
          ├─ stage._step_dict()             each leading stage that has one, on that dict
          ├─ one TensorDict of the dict
          └─ stage._step                    each later stage, on TensorDicts

A stage whose class overrides ``_step`` below the class that implements ``_step_dict`` has no
function over dicts (:func:`~tdx.core.chain.has_step_dict`), and neither has a stage with nested
keys. A :class:`~tdx.StepCounter` at the front therefore makes the whole chain run on TensorDicts.

An env without ``_step_fields``, nested entries and stages that change the batch size take the
other path, on TensorDicts throughout::

       └─ EagerProgram.step
          ├─ chain._inv_call
          ├─ inner._completed_step          another EagerProgram if the env inside is transformed
          └─ chain._step                    each stage in order
"""

from __future__ import annotations

from typing import Any

from tensordict import TensorDictBase

from tdx.core.chain import has_step_dict
from tdx.core.envs.capabilities import StepFields
from tdx.core.envs.env_base import EnvBase
from tdx.core.envs.failures import note_stage
from tdx.core.meter import base_parts
from tdx.core.transforms import Compose, Transform
from tdx.core.transforms.kernels import DictStep
from tdx.foundation.errors import TdxError
from tdx.foundation.keys import NestedKey
from tdx.foundation.tensordicts import (
    TensorDictFactory,
    flat_entries,
    make_tensordict_factory,
    read,
    root_entries,
    write,
)


class EagerProgram:
    """Eager step and reset of an env and the chain around it.

    Args:
        inner: The env inside.
        chain: The chain.
        stages: Its stages in order.
        by_hooks: True to call the hooks of each stage on TensorDicts, which are observed.
    """

    def __init__(
        self,
        inner: EnvBase,
        chain: Transform,
        stages: tuple[Transform, ...],
        *,
        by_hooks: bool = False,
    ) -> None:
        self.version = inner._specs.version
        self.inverts = chain.invertible
        self.exposed_keys: tuple[NestedKey, ...] = tuple(chain._exposed_keys)
        self._inner, self._chain = inner, chain
        self._fields_of: StepFields | None = (
            None if by_hooks or chain._changes_batch else inner._step_fields
        )
        self._on_dicts: list[tuple[Transform, DictStep]] = []
        self._make: TensorDictFactory = make_tensordict_factory(inner.batch_size, inner.device)
        if self._fields_of is not None:
            for stage in stages:
                kind: type = type(stage)
                step = stage._step_dict() if has_step_dict(kind) else None
                if step is None:
                    break  # It takes a TensorDict, and so does every stage after it.
                self._on_dicts.append((stage, step))
            if inner._meter is not None:
                self._measure(inner)
        self._rest = stages[len(self._on_dicts) :]

    def _measure(self, inner: EnvBase) -> None:
        meter = inner._meter
        self._fields_of = meter.timed(inner._step_part or base_parts(inner)[0], self._fields_of)
        steps = meter.in_turn([step for _, step in self._on_dicts])
        self._on_dicts = [
            (stage, step) for (stage, _), step in zip(self._on_dicts, steps, strict=True)
        ]

    def step(self, tensordict: TensorDictBase, preset: TensorDictBase | None) -> TensorDictBase:
        """Step the env and run the chain; return the output of the step, ``[*B]``.

        Args:
            tensordict: Input of the step, ``[*B]``.
            preset: Existing entries of ``next``. The chain sees the entries that the env does not
                write.
        """
        if self.inverts:
            inner = self._chain._inv_call(tensordict.clone(recurse=False))
            for key in self.exposed_keys:
                write(tensordict, key, read(inner, key))
            tensordict = inner
        fields_of, root = self._fields_of, root_entries(tensordict)
        preset_entries = None if preset is None else flat_entries(preset)
        has_nested_preset = preset is not None and preset_entries is None
        if fields_of is None or root is None or has_nested_preset:
            return self._step_by_hooks(tensordict, preset)
        fields, _ = fields_of(tensordict)
        if preset_entries is not None:
            fields = {**preset_entries, **fields}
        stage: Transform
        try:
            for stage, step in self._on_dicts:  # noqa: B007 - the handler names it
                step(root, fields)
            following: TensorDictBase = self._make(fields)
            for stage in self._rest:
                following = stage._step(tensordict, following)
        except Exception as error:
            if isinstance(self._chain, Compose):
                raise self._chain._located(error, stage, "a step") from error.__cause__
            _note_only_stage(error, stage)
            raise
        return following

    def _step_by_hooks(
        self, tensordict: TensorDictBase, preset: TensorDictBase | None
    ) -> TensorDictBase:
        following = self._inner._completed_step(tensordict)
        if preset is not None:
            known = set(following.keys(True, True))
            following.update(self._chain._to_inner_batch(preset.exclude(*known)))
        try:
            return self._chain._step(tensordict, following)
        except Exception as error:
            _note_only_stage(error, self._chain)
            raise

    def reset(self, tensordict: TensorDictBase, is_new: bool, **kwargs: Any) -> TensorDictBase:
        """Reset the env and run the chain; return the output of the reset, ``[*B]``.

        Args:
            tensordict: Input of the reset, ``[*B]``.
            is_new: True if it is an empty TensorDict that the caller did not pass.
            **kwargs: Passed to the env.
        """
        chain = self._chain
        inner = chain._reset_env_preprocess(tensordict.clone(recurse=False))
        is_trivial = inner.is_empty() and inner.batch_size == self._inner.batch_size
        passed = None if is_new and is_trivial else inner
        result = self._inner._completed_reset(passed, **kwargs)
        try:
            return chain._reset(tensordict, result)
        except Exception as error:
            _note_only_stage(error, chain)
            raise


def _note_only_stage(error: Exception, chain: Transform) -> None:
    """Record that a lone stage raised an error; a ``Compose`` names its stages itself."""
    if isinstance(chain, Compose):
        return
    name, index = type(chain).__name__, getattr(chain._owner, "_first_stage", 0)
    if isinstance(error, TdxError):
        error.at(stage=index, transform=name)
    else:
        note_stage(error, index, name)
