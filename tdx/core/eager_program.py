"""The eager step of an env with a chain: what ``env.step`` calls, in which order.

A new TensorDict per stage, with checked reads and writes, costs more than the arithmetic of most
transforms. If the env returns its step as a dict, the leading stages run on that dict, and one
TensorDict is created after them. With the hooks on TensorDicts instead, a loop that steps Pendulum
with six stages takes 1.15 times as long (``python -m tests.benchmarks.forms``). The calls of one
step::

    EnvBase.step(td)                        check the batch, write the result to td["next"]
    └─ TransformedEnv.completed_step       build the program if a spec has changed
       └─ EagerProgram.step
          ├─ chain._inv_call                from the last stage to the first, if any has an inverse
          ├─ inner.step_fields             the env's step, which returns a dict of root entries
          ├─ dict step                      of each leading stage that has one, on that dict
          ├─ one TensorDict of the dict
          └─ stage._step                    each later stage, on TensorDicts

Which stages run on dicts is decided once, by :func:`~tdx.core.chain.dict_step_of`: those of tdx do,
unless a key is nested, entries may be missing, or a subclass overrides ``_step`` or ``_call``. The
first stage without a dict step ends the run of leading stages.

The other path is on TensorDicts throughout. It is taken by an env without ``step_fields``, such as
a batched one or an env that is transformed itself, by stages that change the batch size, and by
nested entries under ``next`` in the input::

       └─ EagerProgram.step
          ├─ chain._inv_call
          ├─ inner.completed_step          another EagerProgram if the env inside is transformed
          └─ chain._step                    each stage in order

Entries that the caller has put under ``next`` (``given_next``) go the same way: those that the env
does not write are added to its output before the chain sees it, and at the end
:meth:`EnvBase.step <tdx.core.EnvBase.step>` writes all of them over the result.
"""

from __future__ import annotations

from typing import Any

from tensordict import TensorDictBase

from tdx.core.chain import dict_step_of
from tdx.core.envs.done_flags import keep_unmasked_rows
from tdx.core.envs.env_base import EnvBase
from tdx.core.envs.failures import note_stage
from tdx.core.meter import base_parts
from tdx.core.transforms import Compose, Transform
from tdx.core.transforms.chain_member import ChainOwner
from tdx.core.transforms.inner_steps import select_rows
from tdx.core.transforms.kernels import DictStep
from tdx.foundation.errors import TdxError
from tdx.foundation.tensordicts import (
    flat_entries,
    make_tensordict_factory,
    read,
    root_entries,
    write,
)
from tdx.specs import Composite


class EagerProgram:
    """Eager step and reset of an env and the chain around it.

    ``by_hooks`` calls the hooks of each stage on TensorDicts, which are observed.
    """

    def __init__(
        self,
        inner: EnvBase,
        chain: Transform,
        stages: tuple[Transform, ...],
        output_spec: Composite,
        *,
        by_hooks: bool = False,
    ) -> None:
        self.version = inner.env_specs.version
        self.inverts = chain.invertible
        self.exposed_keys = tuple(chain.exposed_keys)
        self._skips, self._output_spec = chain.skips_steps, output_spec
        self._inner, self._chain = inner, chain
        self._make = make_tensordict_factory(inner.batch_size, inner.device)
        self._step_inner = None if by_hooks or chain.changes_batch else inner.step_fields
        self._on_dicts: list[tuple[Transform, DictStep]] = []
        for stage in stages if self._step_inner is not None else ():
            dict_step = dict_step_of(stage)
            if dict_step is None:
                break
            self._on_dicts.append((stage, dict_step))
        self._on_tensordicts = stages[len(self._on_dicts) :]
        meter = inner.meter
        if meter is not None and self._step_inner is not None:
            part = inner.step_part or base_parts(inner.display_name)[0]
            self._step_inner = meter.timed(part, self._step_inner)
            timed = meter.in_turn([dict_step for _, dict_step in self._on_dicts])
            self._on_dicts = list(zip(stages, timed, strict=False))

    def step(self, tensordict: TensorDictBase, given_next: TensorDictBase | None) -> TensorDictBase:
        """Step the env and run the chain; return the output of the step, ``[*B]``.

        ``given_next`` has what the caller put under ``next``. The chain sees those entries that the
        env does not write.
        """
        if self.inverts:
            inner = self._chain._inv_call(tensordict.clone(recurse=False))
            for key in self.exposed_keys:
                write(tensordict, key, read(inner, key))
            if self._skips:
                return self._step_unless_skipped(tensordict, inner, given_next)
            tensordict = inner
        root, given = root_entries(tensordict), flat_entries(given_next)
        is_nested = given_next is not None and given is None
        if self._step_inner is None or root is None or is_nested:
            return self._step_on_tensordicts(tensordict, given_next)
        fields, _ = self._step_inner(tensordict)
        if given is not None:
            fields = {**given, **fields}
        stage: Transform
        try:
            for stage, dict_step in self._on_dicts:  # noqa: B007 - the handler names it
                dict_step(root, fields)
            following: TensorDictBase = self._make(fields)
            for stage in self._on_tensordicts:
                following = stage._step(tensordict, following)
        except Exception as error:
            if isinstance(self._chain, Compose):
                raise self._chain.locate_error(error, stage, "a step") from error.__cause__
            _note_only_stage(error, stage)
            raise
        return following

    def _step_unless_skipped(
        self, outer: TensorDictBase, inner: TensorDictBase, given_next: TensorDictBase | None
    ) -> TensorDictBase:
        """Step the rows that the chain does not skip; ``inner`` has the mask of these rows."""
        rows = inner["_step"]
        if bool(rows.all()):
            return self._step_on_tensordicts(inner.exclude("_step"), given_next)
        extra = outer.batch_size[: outer.ndim - self._output_spec.ndim]
        spec = self._output_spec.expand(*extra, *self._output_spec.shape)
        kept = outer.empty()
        for name, part in spec.items():
            zeros = part.zero()
            for key in part.keys(True, True):
                held = None if name == "full_reward_spec" else read(outer, key)
                kept.set(key, zeros[key] if held is None else held)
        if not bool(rows.any()):
            return kept
        inner = select_rows(self._inner, inner, rows)
        following = self._step_on_tensordicts(inner, given_next)
        keep_unmasked_rows(following, kept, {"_reset": rows}, outer.ndim)
        return following

    def _step_on_tensordicts(
        self, tensordict: TensorDictBase, given_next: TensorDictBase | None
    ) -> TensorDictBase:
        following = self._inner.completed_step(tensordict)
        if given_next is not None:
            written = set(following.keys(True, True))
            following.update(self._chain.to_inner_batch(given_next.exclude(*written)))
        try:
            return self._chain._step(tensordict, following)
        except Exception as error:
            _note_only_stage(error, self._chain)
            raise

    def reset(self, tensordict: TensorDictBase, is_new: bool, **kwargs: Any) -> TensorDictBase:
        """Reset the env and run the chain; return the output of the reset, ``[*B]``.

        ``is_new``: the input is an empty TensorDict that the caller did not pass.
        """
        chain = self._chain
        inner = chain._reset_env_preprocess(tensordict.clone(recurse=False))
        is_trivial = inner.is_empty() and inner.batch_size == self._inner.batch_size
        passed = None if is_new and is_trivial else inner
        result = self._inner.completed_reset(passed, **kwargs)
        try:
            return chain._reset(tensordict, result)
        except Exception as error:
            _note_only_stage(error, chain)
            raise


def _note_only_stage(error: Exception, chain: Transform) -> None:
    """Record that a lone stage raised an error; a ``Compose`` names its stages itself."""
    if isinstance(chain, Compose):
        return
    owner, name = chain.owner, type(chain).__name__
    index = owner.first_stage_index if isinstance(owner, ChainOwner) else 0
    if isinstance(error, TdxError):
        error.at(stage=index, transform=name)
    else:
        note_stage(error, index, name)
