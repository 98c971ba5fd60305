"""A GRU over the entries of a TensorDict."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import nn

from tdx.keys import NestedKey
from tdx.modules.recurrent_module import RecurrentModule, chosen_network


class GRUModule(RecurrentModule):
    """An ``nn.GRU`` that reads its input and its state from a TensorDict.

    Outside recurrent mode each element of the TensorDict is one step; in recurrent mode the last
    batch dim is time (:class:`set_recurrent_mode`). Where ``is_init`` is true an episode begins
    with a zero state, also inside a sequence. The env writes ``is_init`` with ``InitTracker`` and
    carries the state with the primer that ``get_primers_from_module`` returns.

    Args:
        input_size: the number of features of the input.
        hidden_size: the number of features of the state.
        num_layers: how many layers are stacked.
        bias: whether the layers have biases.
        batch_first: must be true.
        dropout: the probability of dropping an output between layers, in training.
        bidirectional: whether a second network runs backwards over each episode.
        in_key: the key of the input; the state is then ``recurrent_state``.
        in_keys: instead, the keys of the input and the state, and of ``is_init`` where it has
            another name.
        out_key: the key of the output; the next state is then ``("next", "recurrent_state")``.
        out_keys: instead, the keys of the output and the next state.
        device: where the parameters are made.
        gru: a network to use, in the place of the arguments of one.
        default_recurrent_mode: the mode outside :class:`set_recurrent_mode`; off by default.

    Raises:
        ArgumentError: keys are missing or too many, sizes are missing, or the network is not
            batch first.

    Example:
        >>> from tdx import GRUModule, GymEnv, InitTracker, TransformedEnv
        >>> from tdx import get_primers_from_module
        >>> gru = GRUModule(3, 8, in_key="observation", out_key="features")
        >>> env = TransformedEnv(GymEnv("Pendulum-v1"), InitTracker())
        >>> env = env.append_transform(get_primers_from_module(gru))
        >>> step = gru(env.reset())
        >>> step["features"].shape, step["next", "recurrent_state"].shape
        (torch.Size([8]), torch.Size([1, 8]))
    """

    default_state_keys: ClassVar[tuple[str, ...]] = ("recurrent_state",)

    def __init__(
        self,
        input_size: int | None = None,
        hidden_size: int | None = None,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = True,
        dropout: float = 0,
        bidirectional: bool = False,
        *,
        in_key: NestedKey | None = None,
        in_keys: Sequence[NestedKey] | None = None,
        out_key: NestedKey | None = None,
        out_keys: Sequence[NestedKey] | None = None,
        device: torch.device | str | int | None = None,
        gru: nn.GRU | None = None,
        default_recurrent_mode: bool | None = None,
    ) -> None:
        super().__init__(in_key, in_keys, out_key, out_keys, default_recurrent_mode)
        self.gru = chosen_network(
            nn.GRU,
            gru,
            input_size,
            hidden_size,
            num_layers=num_layers,
            bias=bias,
            batch_first=batch_first,
            dropout=dropout,
            bidirectional=bidirectional,
            device=device,
        )

    @property
    def network(self) -> Any:
        """The GRU inside."""
        return self.gru

    def _state_sizes(self) -> tuple[tuple[int, int], ...]:
        layers = self.gru.num_layers * (2 if self.gru.bidirectional else 1)
        return ((layers, self.gru.hidden_size),)
