"""Keep entries by key and drop all others."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from tensordict import TensorDictBase

from tdx.core.transforms import TimeBehavior
from tdx.core.transforms.families import KeyFilter
from tdx.core.transforms.kernels import Chunk, ChunkKernel, DictStep, EntryMapping
from tdx.core.transforms.spec_maps import normalize_keys, output_keys, require_keys, without_keys
from tdx.foundation.keys import NestedKey, normalize_key, split_key, unique_keys
from tdx.specs import Composite

FLAGS = {"done", "terminated", "truncated"}


class SelectTransform(KeyFilter):
    """Keep only the selected entries, the rewards and the done flags of the env's output.

    Actions and other inputs are kept. In stored data everything else is dropped, at the root and
    under ``next``, except entries named ``reward`` or like a done flag, and the rewards and flags
    of the env's specs.

    Args:
        *selected_keys: Entries to keep; the key of a group keeps the whole group.
        keep_rewards: Keep all rewards.
        keep_dones: Keep all done flags.

    Raises:
        ArgumentError: An element is not a key.
        KeyNotFoundError: The env has no such entry (when its specs are computed).
        ChainError: A group has no done flag left (when its specs are computed).

    Example:
        >>> from tdx import GymEnv, SelectTransform, StepCounter, TransformedEnv
        >>> env = TransformedEnv(GymEnv("Pendulum-v1"), StepCounter())
        >>> env = env.append_transform(SelectTransform("step_count"))
        >>> sorted(env.rollout(2)["next"].keys())
        ['done', 'reward', 'step_count', 'terminated', 'truncated']
    """

    _is_verified = True

    time_behavior = TimeBehavior.POINTWISE

    def __init__(
        self, *selected_keys: NestedKey, keep_rewards: bool = True, keep_dones: bool = True
    ) -> None:
        super().__init__()
        self.selected_keys = unique_keys(normalize_keys(selected_keys, "selected_keys"))
        self.keep_rewards, self.keep_dones = keep_rewards, keep_dones
        self._known_keys: list[NestedKey] = []
        self._dropped_keys: list[NestedKey] = []

    # Data

    def _keys_to_keep(self, keys: Iterable[NestedKey]) -> list[NestedKey]:
        """Return the keys to keep."""
        selected = {split_key(key) for key in (*self.selected_keys, *self._known_keys)}
        names = (FLAGS if self.keep_dones else set()) | ({"reward"} if self.keep_rewards else set())
        kept = []
        for key in keys:
            parts = split_key(key)
            inner = parts[1:] if parts[0] == "next" else parts
            heads = {inner[:length] for length in range(1, len(inner) + 1)}
            if heads & selected or parts in selected or inner[-1] in names:
                kept.append(key)
        return kept

    def _select(self, tensordict: TensorDictBase) -> TensorDictBase:
        kept = self._keys_to_keep(map(normalize_key, tensordict.keys(True, True)))
        return tensordict.select(*kept, inplace=True)

    def _call(self, next_tensordict: TensorDictBase) -> TensorDictBase:
        return self._select(next_tensordict)

    def _reset(
        self, tensordict: TensorDictBase | None, tensordict_reset: TensorDictBase
    ) -> TensorDictBase:
        return self._select(tensordict_reset)

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Drop the entries of stored data that are not selected, in place."""
        return self._select(tensordict)

    def make_dict_step(self) -> DictStep | None:
        if any(isinstance(key, tuple) for key in (*self.selected_keys, *self._known_keys)):
            return None
        drop = self._make_drop()
        return lambda root, fields: drop(fields)

    def _make_drop(self) -> Callable[[EntryMapping], None]:
        """Return a function that drops entries in place; it decides once about each key."""
        is_kept: dict[NestedKey, bool] = {}

        def drop(entries: EntryMapping) -> None:
            for key in list(entries.keys()):
                if key not in is_kept:
                    is_kept[key] = bool(self._keys_to_keep([key]))
                if not is_kept[key]:
                    del entries[key]

        return drop

    def make_chunk_kernel(self) -> ChunkKernel | None:
        drop = self._make_drop()

        def run(chunk: Chunk) -> None:
            drop(chunk.steps)
            drop(chunk.resets)

        return ChunkKernel(run, drops=tuple(self._dropped_keys))

    # Specs

    def _bind(self, input_spec: Composite, output_spec: Composite) -> None:
        if not self._missing_tolerance:
            require_keys(output_spec, self.selected_keys, "the env at this stage")
        kept = {"full_reward_spec": self.keep_rewards, "full_done_spec": self.keep_dones}
        self._known_keys = [
            normalize_key(key)
            for part, keep in kept.items()
            if keep
            for key in output_spec[part].keys(True, True)
        ]
        written = output_keys(output_spec)
        kept_keys = set(self._keys_to_keep(written))
        self._dropped_keys = [key for key in written if key not in kept_keys]

    def _map_spec(self, spec: Composite) -> Composite:
        return without_keys(spec, self._dropped_keys)

    def __repr__(self) -> str:
        keys = [repr(key) for key in self.selected_keys]
        given = [f"{name}=False" for name in ("keep_rewards", "keep_dones") if not vars(self)[name]]
        return f"SelectTransform({', '.join([*keys, *given])})"
