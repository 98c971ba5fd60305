"""Mark the loss of a life."""

from __future__ import annotations

from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor

from tdx.core.envs.done_flags import expand_mask
from tdx.core.transforms import EnvOnlyTransform, TimeBehavior
from tdx.core.transforms.spec_maps import missing_key_error, require_free_key, with_entries
from tdx.foundation.errors import ArgumentError, ChainError, EnvError, Where
from tdx.foundation.keys import NestedKey, normalize_key
from tdx.foundation.tensordicts import read, write
from tdx.specs import Categorical, Composite, TensorSpec, Unbounded


class EndOfLifeTransform(EnvOnlyTransform):
    """Write a flag that is true if the step cost a life or ended the episode.

    The flag is an observation, not a done flag, so it does not reset the env. A loss reads it
    instead of ``done``. The number of lives is read from the base env, usually an Atari game.

    Args:
        eol_key: Key of the flag, which has the shape of the done flag.
        lives_key: Key of the number of lives, int64 ``[*B]``.
        done_key: Done flag of the env.
        eol_attribute: Public attribute of the env, or path of such attributes, with the number of
            lives: an integer, an array ``[*B]``, or a function that returns one.

    Raises:
        ArgumentError: A name in ``eol_attribute`` is not public.
        KeyNotFoundError: The env has no such done flag (when its specs are computed).
        ChainError: The env already writes a key (when its specs are computed), or the transform
            is not in an env.
        EnvError: The env has no such attribute (in a reset).

    Example:
        >>> from tdx import EndOfLifeTransform
        >>> EndOfLifeTransform(lives_key="chances").out_keys
        ['end-of-life', 'chances']
    """

    why_not_exported = "it reads an attribute of the env"
    _is_verified = True
    STORED_ERR = "it reads the lives from an env, and stored data has none"

    time_behavior = TimeBehavior.CONTROL
    episode_memory = ("_last",)
    _last: dict[NestedKey, Tensor]

    def __init__(
        self,
        eol_key: NestedKey = "end-of-life",
        lives_key: NestedKey = "lives",
        done_key: NestedKey = "done",
        eol_attribute: str = "unwrapped.ale.lives",
    ) -> None:
        self.eol_key, self.lives_key = normalize_key(eol_key), normalize_key(lives_key)
        self.done_key = normalize_key(done_key)
        super().__init__(in_keys=[], out_keys=[self.eol_key, self.lives_key])
        self.eol_attribute = eol_attribute
        # The path may come from the pipeline file of a stranger and what it leads to is called:
        # private names would lead to modules' globals (unwrapped.step.__globals__.clear).
        for name in eol_attribute.split("."):
            if not name.isidentifier() or name.startswith("_"):
                raise ArgumentError(
                    f"eol_attribute {eol_attribute!r} has a name that is not public: {name!r}",
                    where=Where(transform="EndOfLifeTransform"),
                )
        self._done_spec: TensorSpec | None = None
        self._batch_size = torch.Size(())

    # Data

    def _read_lives(self) -> Tensor:
        """Return the lives of each env, int64 ``[*B]``."""
        env = getattr(self.container, "base_env", None)
        if env is None or self._done_spec is None:
            raise ChainError(
                "it reads the lives from an env, but is not part of one",
                hint="put it into a TransformedEnv; stored data has none of the lives",
                where=Where(transform="EndOfLifeTransform"),
            )
        try:
            lives = _follow(env, self.eol_attribute.split("."))
        except AttributeError as error:
            raise EnvError(
                f"the env has no attribute {self.eol_attribute!r} with the number of lives: "
                f"{error}",
                hint="name it: eol_attribute='unwrapped.lives'; in worker processes, put the "
                "transform into the envs",
                where=Where(transform="EndOfLifeTransform"),
            ) from error
        counted = torch.as_tensor(lives, dtype=torch.int64).expand(self._batch_size).clone()
        return counted.to(self._done_spec.device, non_blocking=True)

    def _step(self, tensordict: TensorDictBase, next_tensordict: TensorDictBase) -> TensorDictBase:
        before, lives = read(tensordict, self.lives_key), self._read_lives()
        if before is None:
            # A later stage may have renamed the entry.
            before = self._last.get(self.lives_key, lives)
        done = self._entry(next_tensordict, self.done_key)
        lost = expand_mask((before > lives).unsqueeze(-1), done, len(self._batch_size))
        self._last[self.lives_key] = lives
        write(next_tensordict, self.eol_key, lost | done)
        write(next_tensordict, self.lives_key, lives.clone())
        return next_tensordict

    def _reset(
        self, tensordict: TensorDictBase | None, tensordict_reset: TensorDictBase
    ) -> TensorDictBase:
        lives = self._read_lives()
        assert self._done_spec is not None
        self._last[self.lives_key] = lives
        flag = torch.zeros(self._done_spec.shape, dtype=torch.bool, device=self._done_spec.device)
        write(tensordict_reset, self.eol_key, flag)
        write(tensordict_reset, self.lives_key, lives.clone())
        return tensordict_reset

    def register_keys(self, loss_or_advantage: Any) -> None:
        """Tell a loss or an advantage to read the flag instead of ``done`` and ``terminated``.

        Args:
            loss_or_advantage: Object with a method ``set_keys``.
        """
        loss_or_advantage.set_keys(done=self.eol_key, terminated=self.eol_key)

    # Specs

    def _bind(self, input_spec: Composite, output_spec: Composite) -> None:
        flags = output_spec["full_done_spec"]
        self._done_spec = flags.get(self.done_key, None)
        if self._done_spec is None:
            known = list(map(normalize_key, flags.keys(True, True)))
            raise missing_key_error(self.done_key, known, "the done spec")
        self._batch_size = output_spec.shape

    def transform_observation_spec(self, observation_spec: Composite) -> Composite:
        """Return the observation spec with the flag and the lives."""
        if self._done_spec is None:
            return observation_spec
        for key in self.out_keys:
            require_free_key(observation_spec, key)
        shape, device = self._done_spec.shape, self._done_spec.device
        flag = Categorical(2, shape=shape, dtype=torch.bool, device=device)
        lives = Unbounded(self._batch_size, dtype=torch.int64, device=device)
        return with_entries(observation_spec, {self.eol_key: flag, self.lives_key: lives})

    def __repr__(self) -> str:
        return f"EndOfLifeTransform(eol_attribute={self.eol_attribute!r}, keys={self.out_keys})"


def _follow(owner: Any, path: list[str]) -> Any:
    """Return the value at a path of attributes, called if it is a function.

    The attribute of a batch of envs is a list with that of each env.
    """
    for name in path:
        if isinstance(owner, list):
            owner = [getattr(row, name) for row in owner]
        else:
            owner = getattr(owner, name)
    if isinstance(owner, list):
        return [row() if callable(row) else row for row in owner]
    return owner() if callable(owner) else owner
