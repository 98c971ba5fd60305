"""Hold what an env does against what its specs promise."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

import torch
from tensordict import TensorDictBase
from torch import Tensor

from tdx.core.envs.done_flags import as_row_mask, mask_for
from tdx.core.envs.failures import OWN_ERROR
from tdx.core.envs.spec_findings import (
    Phase,
    SpecFinding,
    entry_at,
    held_against,
    leaf_keys,
    leaves_of,
    unique_findings,
    wrong_batch_size,
)
from tdx.errors import ArgumentError, EnvError, TdxError, Where, get_first_line
from tdx.keys import NestedKey, sibling_key, split_key
from tdx.specs import NonTensor, TensorSpec

if TYPE_CHECKING:
    from tdx.core.envs import EnvBase

STEPS = 3
"""Steps of the rollout that is looked at."""

Break = bool | Literal["both"] | None


def check_env_specs(
    env: EnvBase,
    return_contiguous: bool | None = None,
    check_dtype: bool = True,
    seed: int | None = None,
    tensordict: TensorDictBase | None = None,
    break_when_any_done: Break = None,
) -> None:
    """Check that an env keeps what its specs promise; the env is reset and stepped for it.

    Args:
        env: the env, transformed or not.
        return_contiguous: whether the rollout must stack into one block; by default it must
            where every declared shape is fixed.
        check_dtype: whether dtypes are compared.
        seed: for the env and for the random actions; none leaves the env's as it is.
        tensordict: what the env is reset with, ``[*B]``; nothing by default.
        break_when_any_done: what the rollout does at a done flag: stop, reset those rows and go
            on (the default), or ``"both"`` for a rollout of each.

    Raises:
        CheckError: a spec lies; it names the key and, in a chain, the stage.
        EnvError: the env raised in a reset or a step.
        ChainError: a transform raised in a reset or a step.

    Example:
        >>> from tdx import PendulumEnv, StepCounter, TransformedEnv
        >>> check_env_specs(TransformedEnv(PendulumEnv(batch_size=[2]), StepCounter()))
    """
    findings = find_spec_lies(
        env, return_contiguous, check_dtype, seed, tensordict, break_when_any_done
    )
    # A spec without bounds allows nan.
    findings = [finding for finding in findings if finding.code != "nan"]
    if findings:
        raise findings[0].to_error(len(findings) - 1)


def find_spec_lies(
    env: EnvBase,
    return_contiguous: bool | None = None,
    check_dtype: bool = True,
    seed: int | None = None,
    tensordict: TensorDictBase | None = None,
    break_when_any_done: Break = None,
) -> list[SpecFinding]:
    """Everything that :func:`check_env_specs` would find, each lie once, and nan anywhere.

    Args:
        env: the env, transformed or not.
        return_contiguous: as in :func:`check_env_specs`.
        check_dtype: as in :func:`check_env_specs`.
        seed: as in :func:`check_env_specs`.
        tensordict: as in :func:`check_env_specs`.
        break_when_any_done: as in :func:`check_env_specs`.

    Returns:
        the findings in the order they were made: first those of the chain's stages.

    Raises:
        EnvError: the env raised in a reset or a step.
        ChainError: a transform raised in a reset or a step.
    """
    if break_when_any_done not in (None, True, False, "both"):
        raise ArgumentError(
            f"break_when_any_done must be a bool or 'both', got {break_when_any_done!r}",
            hint="both makes a rollout of each kind",
        )
    breaks = (True, False) if break_when_any_done == "both" else (bool(break_when_any_done),)
    devices = [env.device] if env.device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        if seed is not None:
            torch.manual_seed(seed)
            env.set_seed(seed)
        check = _Check(env, check_dtype, tensordict)
        found = env._stage_lies(check_dtype, tensordict, STEPS)
        found += check.specs()
        found += check.fake()
        found += check.reset_and_step()
        for stop in breaks:
            found += check.rollout(stop, return_contiguous)
        found += check.partial_reset()
    return unique_findings(found)


@contextmanager
def attributed(env: EnvBase, doing: str, step: int | None = None) -> Iterator[None]:
    """Convert what an env raises to an ``EnvError`` that says when it did.

    Args:
        env: The env.
        doing: The method that is called.
        step: Number of the step since the check began.

    Raises:
        EnvError: Something was raised that is no error of tdx.
    """
    try:
        yield
    except TdxError as error:
        raise error.at(step=step) from error.__cause__
    except Exception as error:
        raise EnvError(
            f"the env raised {type(error).__name__} in {doing}: {get_first_line(error)}",
            hint=OWN_ERROR,
            where=Where(env=type(env).__name__, step=step),
        ) from error


def _without_mask(leaf: TensorSpec) -> TensorSpec:
    """The spec with every category allowed: a mask is of one step, and actions are of several."""
    if getattr(leaf, "mask", None) is None:
        return leaf
    copied: Any = leaf.clone()
    copied.update_mask(None)
    unmasked: TensorSpec = copied
    return unmasked


class _Check:
    """The checks of one env, each a phase."""

    def __init__(self, env: EnvBase, check_dtype: bool, tensordict: TensorDictBase | None) -> None:
        self.env, self.check_dtype, self.given = env, check_dtype, tensordict
        seen = leaves_of(env.full_observation_spec) | leaves_of(env.full_done_spec)
        self.state = leaves_of(env.full_state_spec)
        self.root = seen
        self.following = seen | leaves_of(env.full_reward_spec)
        actions = leaves_of(env.full_action_spec)
        self.action = {key: _without_mask(leaf) for key, leaf in actions.items()}
        self.entered = self.root | self.state | self.action
        self.passed = set() if tensordict is None else set(leaf_keys(tensordict))

    def specs(self) -> Iterator[SpecFinding]:
        """Whether the env's own random action lies in the action spec."""
        with attributed(self.env, "rand_action"):
            drawn = self.env.rand_action()
        for finding in held_against(drawn, self.action, "specs", allowed=None):
            yield SpecFinding(
                "action", finding.key, "specs", "rand_action writes no action of the spec"
            )

    def reset(self) -> TensorDictBase:
        given = None if self.given is None else self.given.clone(recurse=False)
        with attributed(self.env, "reset"):
            return self.env.reset(given)

    def step(self, tensordict: TensorDictBase) -> TensorDictBase:
        with attributed(self.env, "step", 0):
            return self.env.rand_step(tensordict)

    def reset_and_step(self) -> Iterator[SpecFinding]:
        """A reset and a step, against the specs."""
        begun = self.reset()
        yield from self._held(begun, self.root, "reset", self.passed | set(self.state))
        yield from self._flags(begun, "reset")
        stepped = self.step(begun)
        following = stepped.get("next")
        yield from self._held(following, self.following, "step", set(self.state))
        yield from self._flags(following, "step")
        yield from self._state_there(stepped)

    def _held(
        self,
        tensordict: TensorDictBase,
        declared: dict[NestedKey, TensorSpec],
        phase: Phase,
        allowed: set[NestedKey],
    ) -> Iterator[SpecFinding]:
        yield from wrong_batch_size(tensordict, self.env.batch_size, phase)
        yield from held_against(
            tensordict, declared, phase, check_dtype=self.check_dtype, allowed=allowed
        )

    def _state_there(self, stepped: TensorDictBase) -> Iterator[SpecFinding]:
        yield from held_against(
            stepped, self.state, "reset", check_dtype=self.check_dtype, allowed=None
        )

    def _flags(self, tensordict: TensorDictBase, phase: Phase) -> Iterator[SpecFinding]:
        """Whether done is what the flags beside it say, and false after a reset."""
        for group in self.env.done_keys_groups:
            flags = {split_key(key)[-1]: tensordict.get(key, None) for key in group}
            done = flags.get("done")
            if done is None or done.device.type == "meta":
                continue
            key = sibling_key(group[0], "done")
            if phase == "reset" and bool(done.any()):
                yield SpecFinding("done", key, phase, "the episode is done right after a reset")
            terminated, truncated = flags.get("terminated"), flags.get("truncated")
            if terminated is None or truncated is None:
                continue
            if terminated.shape != done.shape or truncated.shape != done.shape:
                continue
            if hasattr(self.env, "base_env"):
                # A stage may end episodes by a flag of its own, or truncate without ending them.
                others = [
                    part.bool()
                    for name, part in flags.items()
                    if name != "done" and part is not None and part.shape == done.shape
                ]
                wrong = (done & ~torch.stack(others).any(0)) | (terminated & ~done)
                message = f"after a {phase} done and the flags beside it contradict each other"
            else:
                wrong = done != (terminated | truncated)
                message = f"after a {phase} done is not terminated | truncated"
            if bool(wrong.any()):
                yield SpecFinding("done", key, phase, message)

    def fake(self) -> Iterator[SpecFinding]:
        """Whether ``fake_tensordict`` is what the specs say a rollout's step is."""
        fake = self.env.fake_tensordict()
        for made, declared in (
            (fake.exclude("next"), self.entered),
            (fake.get("next"), self.following),
        ):
            for finding in held_against(made, declared, "fake_tensordict"):
                if finding.code not in ("bounds", "nan"):
                    yield replace(finding, code="fake")

    def rollout(self, stop: bool, contiguous: bool | None) -> list[SpecFinding]:
        """A rollout of a few steps, at the root and in ``next``."""
        begun = self.reset()
        with attributed(self.env, "rollout"):
            rollout = self.env.rollout(
                STEPS,
                auto_reset=False,
                tensordict=begun,
                break_when_any_done=stop,
                return_contiguous=False,
            )
        found = [
            finding for moment in rollout.unbind(self.env.ndim) for finding in self._moment(moment)
        ]
        if contiguous is None:
            every = [*self.following.values(), *self.entered.values()]
            contiguous = all(-1 not in leaf.shape for leaf in every)
        if contiguous and not found:
            found.extend(_stacking(rollout))
        return found

    def _moment(self, moment: TensorDictBase) -> Iterator[SpecFinding]:
        yield from self._held(moment.exclude("next"), self.entered, "rollout", self.passed)
        following = moment.get("next")
        yield from self._held(following, self.following, "rollout", set(self.state))
        yield from self._flags(following, "rollout")

    def partial_reset(self) -> Iterator[SpecFinding]:
        """Whether a reset of the first row is of that row only, and leaves the mask alone."""
        env = self.env
        if env.numel() < 2 or env.device.type == "meta":
            return
        before = env.step_mdp(self.step(self.reset()))
        masks = self._first_row_masks()
        given = before.clone()
        kept = {key: mask.clone() for key, mask in masks.items()}
        for key, mask in masks.items():
            given.set(key, mask)
        with attributed(env, "a partial reset"):
            after = env.reset(given)
        for key, mask in masks.items():
            if not bool((mask == kept[key]).all()):
                yield SpecFinding("partial_reset", key, "partial reset", "the mask was written to")
        allowed = set(leaf_keys(before)) | set(self.state)
        yield from self._held(after, self.root, "partial reset", allowed)
        yield from self._other_rows(before, after, kept)

    def _first_row_masks(self) -> dict[NestedKey, Tensor]:
        masks = {}
        for group in self.env.done_keys_groups:
            mask = self.env.full_done_spec[group[0]].zero()
            mask.view(self.env.numel(), -1)[0] = True
            masks[sibling_key(group[0], "_reset")] = mask
        return masks

    def _other_rows(
        self, before: TensorDictBase, after: TensorDictBase, masks: dict[NestedKey, Tensor]
    ) -> Iterator[SpecFinding]:
        first = next(iter(masks.values()))
        for key, leaf in self.root.items():
            old, new = entry_at(before, key), entry_at(after, key)
            if isinstance(leaf, NonTensor) or not _both_tensors(old, new):
                continue
            if old.shape != new.shape or old.dtype != new.dtype:
                continue
            governing = mask_for(key, masks)
            rows = as_row_mask(first if governing is None else governing, new, self.env.ndim)
            same = (old == new) | ((old != old) & (new != new)) | rows
            if not bool(same.all()):
                message = "a reset of the first row changed it in another row"
                yield SpecFinding("partial_reset", key, "partial reset", message)
            if split_key(key)[-1] == "done" and bool((new & rows).any()):
                message = "it is still set in the row that was reset"
                yield SpecFinding("done", key, "partial reset", message)


def _both_tensors(*values: Any) -> bool:
    return all(isinstance(value, Tensor) for value in values)


def _stacking(rollout: TensorDictBase) -> Iterator[SpecFinding]:
    try:
        rollout.contiguous()
    except RuntimeError as error:
        message = f"the steps of a rollout do not stack into one block: {get_first_line(error)}"
        hint = "declare the shapes that vary as -1"
        yield SpecFinding("unstackable", None, "rollout", message, hint)
