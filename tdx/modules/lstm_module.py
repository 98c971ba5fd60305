"""An LSTM over the entries of a TensorDict."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import nn

from tdx.keys import NestedKey
from tdx.modules.recurrent_module import RecurrentModule, chosen_network


class LSTMModule(RecurrentModule):
    """An ``nn.LSTM`` that reads its input and its two states from a TensorDict.

    Outside recurrent mode each element of the TensorDict is one step; in recurrent mode the last
    batch dim is time (:class:`set_recurrent_mode`). Where ``is_init`` is true an episode begins
    with zero states, also inside a sequence. The env writes ``is_init`` with ``InitTracker`` and
    carries the states with the primer that ``get_primers_from_module`` returns.

    Args:
        input_size: the number of features of the input.
        hidden_size: the number of features of the states.
        num_layers: how many layers are stacked.
        bias: whether the layers have biases.
        batch_first: must be true.
        dropout: the probability of dropping an output between layers, in training.
        proj_size: the size that outputs and hidden state are projected to; 0 for no projection.
        bidirectional: whether a second network runs backwards over each episode.
        in_key: the key of the input; the states are then ``recurrent_state_h`` and
            ``recurrent_state_c``.
        in_keys: instead, the keys of the input, the hidden state and the cell state, and of
            ``is_init`` where it has another name.
        out_key: the key of the output; the next states are then the default ones in ``next``.
        out_keys: instead, the keys of the output, the next hidden state and the next cell state.
        device: where the parameters are made.
        lstm: a network to use, in the place of the arguments of one.
        default_recurrent_mode: the mode outside :class:`set_recurrent_mode`; off by default.

    Raises:
        ArgumentError: keys are missing or too many, sizes are missing, or the network is not
            batch first.

    Example:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> from tdx import LSTMModule
        >>> lstm = LSTMModule(3, 8, in_key="observation", out_key="features")
        >>> step = lstm(TensorDict(observation=torch.zeros(3), is_init=torch.tensor([True])))
        >>> step["features"].shape, step["next", "recurrent_state_c"].shape
        (torch.Size([8]), torch.Size([1, 8]))
    """

    default_state_keys: ClassVar[tuple[str, ...]] = ("recurrent_state_h", "recurrent_state_c")

    def __init__(
        self,
        input_size: int | None = None,
        hidden_size: int | None = None,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = True,
        dropout: float = 0,
        proj_size: int = 0,
        bidirectional: bool = False,
        *,
        in_key: NestedKey | None = None,
        in_keys: Sequence[NestedKey] | None = None,
        out_key: NestedKey | None = None,
        out_keys: Sequence[NestedKey] | None = None,
        device: torch.device | str | int | None = None,
        lstm: nn.LSTM | None = None,
        default_recurrent_mode: bool | None = None,
    ) -> None:
        super().__init__(in_key, in_keys, out_key, out_keys, default_recurrent_mode)
        self.lstm = chosen_network(
            nn.LSTM,
            lstm,
            input_size,
            hidden_size,
            num_layers=num_layers,
            bias=bias,
            batch_first=batch_first,
            dropout=dropout,
            proj_size=proj_size,
            bidirectional=bidirectional,
            device=device,
        )

    @property
    def network(self) -> Any:
        """The LSTM inside."""
        return self.lstm

    def _state_sizes(self) -> tuple[tuple[int, int], ...]:
        layers = self.lstm.num_layers * (2 if self.lstm.bidirectional else 1)
        return (layers, self.lstm.proj_size or self.lstm.hidden_size), (
            layers,
            self.lstm.hidden_size,
        )
