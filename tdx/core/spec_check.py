"""``check_env_specs``: checks that an env and its chain return what their specs declare."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Literal

import torch
from tensordict import TensorDictBase
from torch import Tensor

from tdx.core.envs.done_flags import expand_mask, mask_for_entry
from tdx.core.envs.env_base import EnvBase
from tdx.core.envs.failures import env_errors
from tdx.foundation.errors import ArgumentError, get_first_line
from tdx.foundation.keys import NestedKey, sibling_key, split_key
from tdx.specs import TensorSpec
from tdx.specs.composite import spec_leaves
from tdx.specs.non_tensor import holds_objects
from tdx.specs.violations import (
    Phase,
    SpecViolation,
    check_batch_size,
    entry_keys,
    find_violations,
    get_entry,
    unique_violations,
)

STEPS = 3
"""Number of steps of the rollout that is checked."""

Break = bool | Literal["both"] | None


def check_env_specs(
    env: EnvBase,
    return_contiguous: bool | None = None,
    check_dtype: bool = True,
    seed: int | None = None,
    tensordict: TensorDictBase | None = None,
    break_when_any_done: Break = None,
) -> None:
    """Check that an env returns what its specs declare; the env is reset and stepped for it.

    Args:
        env: The env, transformed or not.
        return_contiguous: If True, the rollout has to be one block. ``None``: it has to be if
            all declared shapes are fixed.
        check_dtype: If True, compare dtypes.
        seed: Seed of the env and of the random actions. ``None``: the env is not seeded.
        tensordict: Argument of the reset, ``[*B]``. ``None``: no argument.
        break_when_any_done: If True, the rollout stops at a done flag. Otherwise it resets the
            done rows and continues. ``"both"``: one rollout of each kind.

    Raises:
        CheckError: A spec is violated; the error names the key and, in a chain, the stage.
        EnvError: The env raised in a reset or a step.
        ChainError: A transform raised in a reset or a step.

    Example:
        >>> from tdx import PendulumEnv, StepCounter, TransformedEnv
        >>> check_env_specs(TransformedEnv(PendulumEnv(batch_size=[2]), StepCounter()))
    """
    findings = find_spec_violations(
        env, return_contiguous, check_dtype, seed, tensordict, break_when_any_done
    )
    # A spec without bounds allows NaN; undeclared state is lost in some batched envs only.
    findings = [finding for finding in findings if finding.code not in ("nan", "carried")]
    if findings:
        raise findings[0].to_error(len(findings) - 1)


def find_spec_violations(
    env: EnvBase,
    return_contiguous: bool | None = None,
    check_dtype: bool = True,
    seed: int | None = None,
    tensordict: TensorDictBase | None = None,
    break_when_any_done: Break = None,
) -> list[SpecViolation]:
    """Return all violations that :func:`check_env_specs` checks for, NaN and undeclared state.

    Each is returned once, in the order in which they were found; those of the chain's stages first.
    """
    if break_when_any_done not in (None, True, False, "both"):
        raise ArgumentError(
            f"break_when_any_done must be a bool or 'both', got {break_when_any_done!r}",
            hint="'both' makes one rollout of each kind",
        )
    breaks = (True, False) if break_when_any_done == "both" else (bool(break_when_any_done),)
    devices = [env.main_device] if env.main_device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        if seed is not None:
            torch.manual_seed(seed)
            env.set_seed(seed)
        check = _Check(env, check_dtype, tensordict)
        violations = env.find_stage_violations(check_dtype, tensordict, STEPS)
        violations += check.specs()
        violations += check.fake()
        violations += check.reset_and_step()
        for stop in breaks:
            violations += check.rollout(stop, return_contiguous)
        violations += check.partial_reset()
    return unique_violations(violations)


def _without_mask(leaf: TensorSpec) -> TensorSpec:
    """Return the spec with every category allowed, because a mask belongs to one step only."""
    if getattr(leaf, "mask", None) is None:
        return leaf
    copied: Any = leaf.clone()
    copied.update_mask(None)
    unmasked: TensorSpec = copied
    return unmasked


class _Check:
    """The checks of one env, a method for each phase."""

    def __init__(self, env: EnvBase, check_dtype: bool, tensordict: TensorDictBase | None) -> None:
        self.env, self.check_dtype, self.reset_input = env, check_dtype, tensordict
        observed = spec_leaves(env.full_observation_spec) | spec_leaves(env.full_done_spec)
        self.state = spec_leaves(env.full_state_spec)
        self.root = observed
        self.following = observed | spec_leaves(env.full_reward_spec)
        actions = spec_leaves(env.full_action_spec)
        self.action = {key: _without_mask(leaf) for key, leaf in actions.items()}
        self.entered = self.root | self.state | self.action
        self.passed = set() if tensordict is None else set(entry_keys(tensordict))

    def specs(self) -> Iterator[SpecViolation]:
        """Check that a random action is in the action spec."""
        with env_errors(self.env, "rand_action"):
            drawn = self.env.rand_action()
        for finding in find_violations(drawn, self.action, "specs", allowed=None):
            yield SpecViolation(
                "action",
                finding.key,
                "specs",
                "rand_action writes an action that is not in the action spec",
            )

    def reset(self) -> TensorDictBase:
        reset_input = None if self.reset_input is None else self.reset_input.clone(recurse=False)
        with env_errors(self.env, "reset"):
            return self.env.reset(reset_input)

    def step(self, tensordict: TensorDictBase) -> TensorDictBase:
        with env_errors(self.env, "step", 0):
            return self.env.rand_step(tensordict)

    def reset_and_step(self) -> Iterator[SpecViolation]:
        """Check a reset and a step."""
        first = self.reset()
        yield from self._check(first, self.root, "reset", self.passed | set(self.state))
        yield from self._flags(first, "reset")
        stepped = self.step(first)
        following = stepped.get("next")
        yield from self._check(following, self.following, "step", set(self.state))
        yield from self._flags(following, "step")
        yield from find_violations(
            stepped, self.state, "reset", check_dtype=self.check_dtype, allowed=None
        )

    def _check(
        self,
        tensordict: TensorDictBase,
        declared: dict[NestedKey, TensorSpec],
        phase: Phase,
        allowed: set[NestedKey],
    ) -> Iterator[SpecViolation]:
        yield from check_batch_size(tensordict, self.env.batch_size, phase)
        yield from find_violations(
            tensordict, declared, phase, check_dtype=self.check_dtype, allowed=allowed
        )

    def _flags(self, tensordict: TensorDictBase, phase: Phase) -> Iterator[SpecViolation]:
        """Check that done follows from the other flags, and that it is false after a reset."""
        for group in self.env.done_keys_groups:
            flags = {split_key(key)[-1]: tensordict.get(key, None) for key in group}
            done = flags.get("done")
            if done is None or done.device.type == "meta":
                continue
            key = sibling_key(group[0], "done")
            may_be_done = self.env.allow_done_after_reset
            if phase == "reset" and bool(done.any()) and not may_be_done:
                yield SpecViolation("done", key, phase, "the episode is done right after a reset")
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
                message = f"after a {phase} done and the other flags contradict each other"
            else:
                wrong = done != (terminated | truncated)
                message = f"after a {phase} done is not terminated | truncated"
            if bool(wrong.any()):
                yield SpecViolation("done", key, phase, message)

    def fake(self) -> Iterator[SpecViolation]:
        """Check that ``fake_tensordict`` returns the declared entries of a step."""
        fake = self.env.fake_tensordict()
        for data, declared in (
            (fake.exclude("next"), self.entered),
            (fake.get("next"), self.following),
        ):
            for finding in find_violations(data, declared, "fake_tensordict"):
                if finding.code not in ("bounds", "nan"):
                    yield replace(finding, code="fake")

    def rollout(self, stop: bool, contiguous: bool | None) -> list[SpecViolation]:
        """Check a rollout of a few steps, at the root and in ``next``."""
        first = self.reset()
        with env_errors(self.env, "rollout"):
            rollout = self.env.rollout(
                STEPS,
                auto_reset=False,
                tensordict=first,
                break_when_any_done=stop,
                return_contiguous=False,
            )
        violations: list[SpecViolation] = []
        for step in rollout.unbind(self.env.ndim):
            following = step.get("next")
            root = step.exclude("next")
            violations += self._check(root, self.entered, "rollout", self.passed)
            violations += self._check(following, self.following, "rollout", set(self.state))
            violations += self._flags(following, "rollout")
        if contiguous is None:
            every = [*self.following.values(), *self.entered.values()]
            contiguous = all(-1 not in leaf.shape for leaf in every)
        if contiguous and not violations:
            try:
                rollout.contiguous()
            except RuntimeError as error:
                problem = get_first_line(error)
                message = f"the steps of a rollout do not stack into one block: {problem}"
                hint = "declare the shapes that vary as -1"
                violations.append(SpecViolation("unstackable", None, "rollout", message, hint))
        return violations

    def partial_reset(self) -> Iterator[SpecViolation]:
        """Check that a reset of the first row changes neither other rows nor the mask."""
        env = self.env
        if env.numel() < 2 or env.main_device.type == "meta":
            return
        before = env.step_mdp(self.step(self.reset()))
        masks = {}
        for group in env.done_keys_groups:
            mask = env.full_done_spec[group[0]].zero()
            mask.view(env.numel(), -1)[0] = True
            masks[sibling_key(group[0], "_reset")] = mask
        reset_input = before.clone()
        unchanged_masks = {key: mask.clone() for key, mask in masks.items()}
        for key, mask in masks.items():
            reset_input.set(key, mask)
        with env_errors(env, "a partial reset"):
            after = env.reset(reset_input)
        for key, mask in masks.items():
            if not bool((mask == unchanged_masks[key]).all()):
                yield SpecViolation(
                    "partial_reset", key, "partial reset", "the mask was written to"
                )
        allowed = set(entry_keys(before)) | set(self.state)
        yield from self._check(after, self.root, "partial reset", allowed)
        yield from self._other_rows(before, after, unchanged_masks)

    def _other_rows(
        self, before: TensorDictBase, after: TensorDictBase, masks: dict[NestedKey, Tensor]
    ) -> Iterator[SpecViolation]:
        for key, leaf in self.root.items():
            old, new = get_entry(before, key), get_entry(after, key)
            if holds_objects(leaf):
                continue
            if not isinstance(old, Tensor) or not isinstance(new, Tensor):
                continue
            if old.shape != new.shape or old.dtype != new.dtype:
                continue
            mask = mask_for_entry(key, masks, self.env.ndim)
            assert mask is not None
            rows = expand_mask(mask, new, self.env.ndim)
            same = (old == new) | ((old != old) & (new != new)) | rows
            if not bool(same.all()):
                message = "a reset of the first row changed it in another row"
                yield SpecViolation("partial_reset", key, "partial reset", message)
            if split_key(key)[-1] == "done" and bool((new & rows).any()):
                message = "it is still set in the row that was reset"
                yield SpecViolation("done", key, "partial reset", message)
