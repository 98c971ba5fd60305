"""Gymnasium's vector envs: construction, and step and reset in each of their autoreset modes."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv
from gymnasium.vector.utils import concatenate, create_empty_array, iterate
from tensordict import NonTensorData, NonTensorStack, TensorDict, TensorDictBase

from tdx.core.planned.columns import as_tensordict
from tdx.envs.gym.autoreset import RESETS_ROWS, AutoresetMode, Build, create_without_autoreset
from tdx.envs.gym.collector import GymRows
from tdx.envs.gym.conversion import Conversion, create_conversion, reward_space_of, root_spec
from tdx.envs.gym.infos import merge_final_info
from tdx.envs.gym.interface import AnyEnv, AnyVectorEnv, Info, ResetResult
from tdx.envs.gym.numeric_spaces import CodecOptions
from tdx.envs.gym.single_env import PendingSeed, RawEnv, create_raw_env, reward_rows
from tdx.envs.gym.values import WrongValueError
from tdx.foundation.errors import EnvError, TdxError, Where
from tdx.foundation.keys import NestedKey, normalize_key
from tdx.foundation.safe_path import safe_path
from tdx.foundation.tensordicts import new_tensordict, read, write
from tdx.specs.arguments import Value

Rows = npt.NDArray[np.bool_]

_CPU = torch.device("cpu")
_ROWS_HINT = (
    'create it with vectorization_mode="sync", or reset all rows at once'
    if RESETS_ROWS
    else "install gymnasium>=1.1, let GymEnv(name, num_envs=N) create it, or reset all rows at once"
)


class VectorEnvRows:
    """Steps and resets a vector env so that only tdx decides when a row starts a new episode.

    In every autoreset mode ``next`` has the terminal observation of an ended row. Until the row is
    reset, steps repeat its last observation and flags, with a reward of 0.
    """

    step_fields: ClassVar[None] = None
    """``None``: its step returns no plain dict."""

    def __init__(self, env: AnyVectorEnv, seed: PendingSeed, conversion: Conversion) -> None:
        self.env = env
        self._seed = seed
        self.use(conversion)
        self._mode = autoreset_mode_of(env)
        self._resets_rows = resets_rows(env, self._mode)
        self._rows = conversion.batch_size[0]
        self._ended: Rows = np.zeros(self._rows, np.bool_)
        """Rows that ended and have not been reset since."""
        self._over: Rows = np.zeros(self._rows, np.bool_)
        """Rows that ended in the last step."""
        self._last: TensorDictBase | None = None
        self._current: ResetResult | None = None
        """Last observation and info of the env."""
        self._unseen: TensorDictBase | None = None
        """Last observations, if the rows made steps that the vector env did not see."""

    def use(self, conversion: Conversion) -> None:
        """Replace the conversion."""
        self.conversion = conversion
        self._raw: tuple[RawEnv | None, ...] | None = None
        self._act, self.finish = conversion.action_decoder(), conversion.result_finisher()

    def raw_rows(self, options: CodecOptions) -> GymRows | None:
        """Return the envs of the rows without TensorDicts; ``None`` if that is impossible."""
        if not isinstance(self.env, SyncRows) or type(self.env) is not SyncRows:
            return None
        known = self.conversion
        if self._raw is None:
            # Rows that reset by themselves have no seed: a pending one needs a step of the whole.
            options, size = replace(options, rows=None), torch.Size(())
            conversions = (
                create_conversion(env, known.name, options, size, known.device)
                for env in self.env.envs
            )
            self._raw = tuple(
                create_raw_env(env, lambda: None, replace(conversion, readers=known.readers))
                for env, conversion in zip(self.env.envs, conversions, strict=True)
            )
        envs = tuple(env for env in self._raw if env is not None)
        if len(envs) < self._rows:
            return None
        return GymRows(envs, known.batch_size, self.take_last_step, lambda: self.is_ready)

    @property
    def is_ready(self) -> bool:
        """True if the next step is the step of each row, and the next reset has no seed."""
        is_held = self._ended.any() or self._over.any()
        return self._current is not None and self._seed.value is None and not is_held

    def take_last_step(self, last: Mapping[NestedKey, torch.Tensor]) -> None:
        """Take over the output ``[N, ...]`` of the last step that the rows made by themselves."""
        self._over = last["done"].reshape(-1).numpy().copy()
        self._ended = self._over.copy()
        size = self.conversion.batch_size
        self._last = as_tensordict(last, size, _CPU) if self._over.any() else None
        keys = root_spec(self.conversion.observation).keys(True, True)
        seen = {key: last[key].clone() for key in map(normalize_key, keys)}
        self._unseen = as_tensordict(seen, size, _CPU)

    def step(self, tensordict: TensorDictBase) -> TensorDict:
        """Step every row that has not ended."""
        try:
            if self._current is None:
                self._reset_all(self._seed.take())
            if self._mode is AutoresetMode.DISABLED and self._over.any():
                self._reset_rows(self._over, None)
            observation, reward, terminated, truncated, info = self.env.step(self._act(tensordict))
            over = np.logical_or(terminated, truncated)
            current = (observation, info)
            if self._mode is AutoresetMode.SAME_STEP and over.any():
                observation = self._with_final(observation, info, over)
                info = merge_final_info(info)
            fields = self.conversion.observation.encode(observation)
            fields["reward"] = self._reward(reward)
        except Exception as error:
            raise self._failure(tensordict, "step", error) from error
        self._over, self._current, self._unseen = over, current, None
        fields.update(self._flags(self._over, terminated, truncated))
        return self._hold_ended_rows(self._finish_result(fields, info))

    def _failure(self, tensordict: TensorDictBase | None, phase: str, error: Exception) -> TdxError:
        """Create the error to raise, with the index of the env if it raised an error."""
        failure = self.conversion.failure(tensordict, phase, error)
        if not isinstance(error, TdxError | WrongValueError):
            failure.at(row=getattr(self.env, "failed_row", None))
        return failure

    def _reward(self, reward: Any) -> torch.Tensor:
        if self.conversion.reward is not None:
            return self.conversion.reward.encode(reward)
        return torch.from_numpy(reward_rows(reward))

    def _flags(self, done: Rows, terminated: Rows, truncated: Rows) -> dict[str, torch.Tensor]:
        named = {"done": done, "terminated": terminated, "truncated": truncated}
        return {
            name: torch.from_numpy(np.array(rows, np.bool_).reshape(-1, 1))
            for name, rows in named.items()
        }

    def _finish_result(self, fields: dict[str, Value], info: Info) -> TensorDict:
        result = new_tensordict(fields, self.conversion.batch_size, _CPU)
        if self.finish is None:
            return result
        hidden = ("final_obs", "final_info", "final_observation")
        return self.finish(result, {k: v for k, v in info.items() if k not in hidden})

    def _hold_ended_rows(self, result: TensorDict) -> TensorDict:
        """Restore the last values of rows that ended in an earlier step."""
        if self._last is not None and self._ended.any():
            keep_rows(result, self._last, self._ended)
            rows = torch.from_numpy(self._ended).to(self.conversion.device)
            reward = read(result, "reward")
            reward[rows] = 0
        self._ended = np.logical_or(self._ended, self._over)
        self._last = result.clone(recurse=False) if self._ended.any() else None
        return result

    def _with_final(self, observation: object, info: Info, over: Rows) -> object:
        """Replace the observation of rows that reset themselves by their terminal observation."""
        final = info.get("final_obs", info.get("final_observation"))
        if final is None:
            raise EnvError(
                "rows ended and reset themselves, but info has no final_obs",
                hint="create the env with autoreset_mode=AutoresetMode.DISABLED if it supports it",
                where=Where(env=self.conversion.name),
            )
        space, single = self.env.observation_space, self.env.single_observation_space
        rows = list(iterate(space, observation))
        for index in np.flatnonzero(over):
            rows[index] = final[index]
        empty: Any = create_empty_array(single, self._rows, fn=np.zeros)
        return concatenate(single, rows, empty)

    def reset(self, tensordict: TensorDictBase | None, **kwargs: Any) -> TensorDictBase:
        """Reset the rows in the ``_reset`` mask; all rows without a mask."""
        mask = None if tensordict is None else read(tensordict, "_reset")
        rows = None if mask is None else mask.reshape(-1).cpu().numpy().copy()
        if tensordict is not None and rows is not None and not rows.any():
            return self.conversion.keep_current_values(tensordict)
        seed = kwargs.pop("seed", self._seed.take())
        try:
            observation, info = self._reset_env(rows, seed, kwargs)
            self._current = (observation, info)
            fields = self.conversion.observation.encode(observation)
        except Exception as error:
            raise self._failure(None, "reset", error) from error
        none = np.zeros(self._rows, np.bool_)
        fields.update(self._flags(none, none, none))
        result = self._finish_result(fields, info)
        if tensordict is None or rows is None or rows.all():
            self._unseen = None
            return result
        if self._unseen is not None:
            keep_rows(result, self._unseen, ~rows)
            self._unseen = result.select(*self._unseen.keys(True, True))
        keep_rows(result, tensordict, ~rows)
        return result

    def _reset_env(
        self, rows: Rows | None, seed: int | None, kwargs: dict[str, Any]
    ) -> ResetResult:
        chosen = np.ones(self._rows, np.bool_) if rows is None else rows
        self._ended = self._ended & ~chosen
        if self._mode is AutoresetMode.SAME_STEP and rows is not None and seed is None:
            chosen = chosen & ~self._over
            self._over = self._over & ~rows
            if not chosen.any() and self._current is not None:
                return self._current
        else:
            self._over = self._over & ~chosen
        if chosen.all():
            return self._reset_all(seed, **kwargs)
        return self._reset_rows(chosen, seed, **kwargs)

    def _reset_all(self, seed: int | None, **kwargs: Any) -> ResetResult:
        if seed is not None:
            # A vector env creates the generators of its spaces, seeded by the system.
            names = ("action_space", "observation_space")
            for name in (*names, *(f"single_{name}" for name in names)):
                getattr(self.env, name).seed(seed)
        return self.env.reset(seed=seed, **kwargs)

    def _reset_rows(self, rows: Rows, seed: int | None, **kwargs: Any) -> ResetResult:
        if not self._resets_rows:
            raise EnvError(
                f"{type(self.env.unwrapped).__name__} resets rows by itself "
                f"({mode_name(self._mode)}) and cannot reset only some of them",
                hint=_ROWS_HINT,
                where=Where(env=self.conversion.name),
            )
        # A new dict, because the env removes the mask from the options.
        options = {**(kwargs.pop("options", None) or {}), "reset_mask": rows.copy()}
        seeds: Any = None  # Gymnasium takes a list, with None for rows that keep their generator
        if seed is not None:
            seeds = [seed + index if row else None for index, row in enumerate(rows)]
        return self.env.reset(seed=seeds, options=options, **kwargs)

    def probe(self, actions: Sequence[object]) -> list[Info]:
        """Return the infos of a reset and a few steps."""
        infos = [self.env.reset()[1]]
        for action in actions:
            _, _, terminated, truncated, info = self.env.step(action)
            infos.append(dict(merge_final_info(info)))
            if np.logical_or(terminated, truncated).any():
                break
        hidden = ("final_obs", "final_observation")
        return [{k: v for k, v in info.items() if k not in hidden} for info in infos]


def autoreset_mode_of(env: AnyVectorEnv) -> AutoresetMode:
    """Return the autoreset mode that a vector env declares; by default next-step, as Gymnasium."""
    return AutoresetMode(env.metadata.get("autoreset_mode", AutoresetMode.NEXT_STEP))


def mode_name(mode: AutoresetMode) -> str:
    """Return the name of a mode: ``disabled``, ``next_step`` or ``same_step``."""
    return mode.name.lower()


def resets_rows(env: AnyVectorEnv, mode: AutoresetMode) -> bool:
    """Return True if a vector env can reset only the rows in ``options["reset_mask"]``."""
    base = env.unwrapped
    if mode is AutoresetMode.DISABLED:
        return True
    if not RESETS_ROWS:
        return False
    if isinstance(base, SyncVectorEnv):
        return True
    if isinstance(base, AsyncVectorEnv):
        # Without shared memory its workers forget that they were reset, and do it again.
        return mode is AutoresetMode.SAME_STEP or bool(base.shared_memory)
    atari = getattr(sys.modules.get("ale_py.vector_env"), "AtariVectorEnv", None)
    return atari is not None and isinstance(base, atari)


def keep_rows(result: TensorDictBase, previous: TensorDictBase, rows: Rows) -> None:
    """Set some rows of every entry, ``[N, ...]``, to their values in ``previous``."""
    mask = torch.from_numpy(rows)
    for key in list(result.keys()):
        value = read(result, key)
        before = read(previous, key)
        if before is None:
            continue
        if isinstance(value, torch.Tensor):
            if not _alike(before, value):
                # A chain around the env wrote another entry of this name.
                continue
            wide = mask.to(value.device).reshape(-1, *[1] * (value.ndim - 1))
            write(result, key, torch.where(wide, before, value))
        elif isinstance(value, TensorDict):
            keep_rows(value, before, rows)
        else:
            pairs = zip(value.tolist(), before.tolist(), rows.tolist(), strict=True)
            merged = [NonTensorData(old if keep else new) for new, old, keep in pairs]
            write(result, key, NonTensorStack(*merged))


def _alike(before: object, value: torch.Tensor) -> bool:
    return (
        isinstance(before, torch.Tensor)
        and before.shape == value.shape
        and before.dtype == value.dtype
    )


class _RowList(list[AnyEnv]):
    """A list that remembers which of its items was used last."""

    last: int | None = None

    def __getitem__(self, index: Any) -> Any:
        self.last = index if isinstance(index, int) else None
        return super().__getitem__(index)

    def __iter__(self) -> Iterator[AnyEnv]:
        for index in range(len(self)):
            self.last = index
            yield super().__getitem__(index)
        self.last = None


class SyncRows(SyncVectorEnv):
    """A ``SyncVectorEnv`` whose rewards may be arrays, and that knows which env raised."""

    uses_own_generator = True
    envs: _RowList

    def __init__(self, env_fns: list[Build], **kwargs: Any) -> None:
        super().__init__(env_fns, **kwargs)
        self.envs = _RowList(self.envs)
        self.single_reward_space = reward_space_of(self.envs[0])
        if self.single_reward_space is not None:
            self._rewards = np.zeros((self.num_envs, *self.single_reward_space.shape))

    @property
    def failed_row(self) -> int | None:
        """The env whose step or reset raised, right after the error."""
        return self.envs.last


class AsyncRows(AsyncVectorEnv):
    """An ``AsyncVectorEnv`` whose rewards may be arrays, and whose errors are only raised."""

    uses_own_generator = True
    failed_row: int | None = None
    """The env whose step or reset raised."""

    def __init__(self, env_fns: list[Build], **kwargs: Any) -> None:
        reward_spaces: list[spaces.Box | None] = []

        def first() -> AnyEnv:
            env = env_fns[0]()
            reward_spaces.append(reward_space_of(env))
            return env

        # It makes the first env in this process, to read the spaces.
        super().__init__([first, *env_fns[1:]], **kwargs)
        self.single_reward_space = reward_spaces[0] if reward_spaces else None

    def _raise_if_errors(self, successes: Iterable[bool]) -> None:
        results = list(successes)
        if all(results):
            return
        failed = [row for row, success in enumerate(results) if not success]
        # Gymnasium does not tell whose error of several it raises.
        self.failed_row = failed[0] if len(failed) == 1 else None
        with warnings.catch_warnings():
            # Gymnasium reports the traceback of the worker as warnings.
            warnings.simplefilter("ignore")
            super()._raise_if_errors(results)


def make_vector_env(builds: list[Build], mode: str) -> SyncVectorEnv | AsyncVectorEnv:
    """Create a vector env that never resets by itself: ``sync``, or ``async`` in processes."""
    kind: Any = SyncRows if mode == "sync" else AsyncRows
    with safe_path():
        created: SyncVectorEnv | AsyncVectorEnv = create_without_autoreset(kind, builds, copy=False)
    return created
