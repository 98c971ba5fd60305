"""Keep entries by name and drop all others."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tensordict import TensorDictBase

from tdx.core.transforms import TimeBehaviour
from tdx.core.transforms.chunk import Chunk, TimeForm
from tdx.core.transforms.key_filter import KeyFilter
from tdx.core.transforms.key_pairs import key_list, output_keys, require_keys
from tdx.core.transforms.spec_edits import without_keys
from tdx.core.transforms.transform import Entries, RowStep
from tdx.keys import NestedKey, normalize_key, split_key, unique_keys
from tdx.specs import Composite

FLAGS = {"done", "terminated", "truncated"}


class SelectTransform(KeyFilter):
    """Keep only the entries named, the rewards and the done flags of the env's output.

    Actions and other inputs are no output and stay. Of stored data whatever is not selected is
    dropped, at the root and under ``next``; entries called ``reward``, or like a done flag, stay
    there too, and so do those that the env's specs say are rewards or flags.

    Args:
        *selected_keys: the entries to keep; a key of a group keeps the whole group.
        keep_rewards: whether rewards are kept without being named.
        keep_dones: whether done flags are kept without being named.

    Raises:
        ArgumentError: one of them is no key.
        KeyNotFoundError: the env has no such entry (when its specs are computed).
        ChainError: no done flag of a group would be left (when its specs are computed).

    Example:
        >>> from tdx import GymEnv, SelectTransform, StepCounter, TransformedEnv
        >>> env = TransformedEnv(GymEnv("Pendulum-v1"), StepCounter())
        >>> env = env.append_transform(SelectTransform("step_count"))
        >>> sorted(env.rollout(2)["next"].keys())
        ['done', 'reward', 'step_count', 'terminated', 'truncated']
    """

    _is_verified = True

    time_behaviour = TimeBehaviour.POINTWISE

    def __init__(
        self, *selected_keys: NestedKey, keep_rewards: bool = True, keep_dones: bool = True
    ) -> None:
        super().__init__()
        self.selected_keys = unique_keys(key_list(selected_keys, "selected_keys"))
        self.keep_rewards, self.keep_dones = keep_rewards, keep_dones
        self._known_keys: list[NestedKey] = []
        self._dropped_keys: list[NestedKey] = []

    # Data

    def _kept(self, keys: Iterable[NestedKey]) -> list[NestedKey]:
        """Those of the keys that are kept."""
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

    def _selected(self, tensordict: TensorDictBase) -> TensorDictBase:
        kept = self._kept(map(normalize_key, tensordict.keys(True, True)))
        return tensordict.select(*kept, inplace=True)

    def _call(self, next_tensordict: TensorDictBase) -> TensorDictBase:
        return self._selected(next_tensordict)

    def _reset(
        self, tensordict: TensorDictBase | None, tensordict_reset: TensorDictBase
    ) -> TensorDictBase:
        return self._selected(tensordict_reset)

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Drop what is not selected from stored data, in place."""
        return self._selected(tensordict)

    def _row_step(self) -> RowStep | None:
        if any(isinstance(key, tuple) for key in (*self.selected_keys, *self._known_keys)):
            return None
        verdicts: dict[str, bool] = {}

        def step(tensordict: Entries, fields: dict[str, Any]) -> None:
            for name in list(fields):
                if name not in verdicts:
                    verdicts[name] = bool(self._kept([name]))
                if not verdicts[name]:
                    del fields[name]

        return step

    def _time_form(self) -> TimeForm | None:
        def run(chunk: Chunk) -> None:
            for columns in (chunk.steps, chunk.resets):
                for key in set(columns).difference(self._kept(list(columns))):
                    del columns[key]

        return TimeForm(run, drops=tuple(self._dropped_keys))

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
        kept_keys = set(self._kept(written))
        self._dropped_keys = [key for key in written if key not in kept_keys]

    def _mapped(self, spec: Composite) -> Composite:
        return without_keys(spec, self._dropped_keys)

    def __repr__(self) -> str:
        keys = [repr(key) for key in self.selected_keys]
        given = [f"{name}=False" for name in ("keep_rewards", "keep_dones") if not vars(self)[name]]
        return f"SelectTransform({', '.join([*keys, *given])})"
