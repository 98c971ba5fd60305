"""GRU and LSTM written in tensor operations, for ``torch.vmap`` and other function transforms."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import dropout, linear
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from tdx.foundation.errors import ArgumentError

States = tuple[Tensor, ...]


class _PythonNetwork(nn.RNNBase):
    """Loop over layers and steps that both networks share."""

    def _step(self, value: Tensor, states: States, layer: int) -> States:
        """Return the states after one step; the first is the output."""
        raise NotImplementedError

    def _weights(self, layer: int) -> tuple[Tensor | None, ...]:
        """Return the input and hidden weights of a layer, and their biases."""
        names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
        return tuple(getattr(self, f"{name}_l{layer}", None) for name in names)

    def _gates(self, value: Tensor, hidden: Tensor, layer: int) -> tuple[Tensor, Tensor]:
        weight_ih, weight_hh, bias_ih, bias_hh = self._weights(layer)
        assert weight_ih is not None
        assert weight_hh is not None
        return linear(value, weight_ih, bias_ih), linear(hidden, weight_hh, bias_hh)

    def _run(
        self, value: Tensor | PackedSequence, first: States | None, sizes: tuple[int, ...]
    ) -> tuple[Any, States]:
        """Run all layers on an input in the form of ``torch.nn``.

        States are ``[L, N, H]``, or ``[L, H]`` for a single sequence; zeros if there are none.
        """
        if self.bidirectional:
            raise ArgumentError(
                "networks in Python are not bidirectional", hint="pass python_based=False"
            )
        lengths: Tensor | None = None
        if isinstance(value, PackedSequence):
            value, lengths = pad_packed_sequence(value, batch_first=True)
        single = value.ndim == 2
        if single:
            value = value.unsqueeze(0)
            first = None if first is None else tuple(state.unsqueeze(1) for state in first)
        elif lengths is None and not self.batch_first:
            value = value.transpose(0, 1)
        if first is None:
            first = tuple(value.new_zeros(self.num_layers, len(value), size) for size in sizes)
        active = None
        if lengths is not None:
            steps = torch.arange(value.shape[1], device=value.device)
            active = (steps < lengths.to(value.device).unsqueeze(1)).unsqueeze(-1)
        last: list[States] = []
        for layer in range(self.num_layers):
            states = tuple(state[layer] for state in first)
            value, states = self._run_layer(value, states, layer, active)
            last.append(states)
            if layer < self.num_layers - 1:
                value = dropout(value, self.dropout, self.training)
        after = tuple(torch.stack(layers) for layers in zip(*last, strict=True))
        if lengths is not None:
            packed = pack_padded_sequence(value, lengths, batch_first=True, enforce_sorted=False)
            return packed, after
        if single:
            return value.squeeze(0), tuple(state.squeeze(1) for state in after)
        return value if self.batch_first else value.transpose(0, 1), after

    def _run_layer(
        self, value: Tensor, states: States, layer: int, active: Tensor | None
    ) -> tuple[Tensor, States]:
        outputs = []
        for time, step in enumerate(value.unbind(1)):
            after = self._step(step, states, layer)
            if active is not None:
                pairs = zip(after, states, strict=True)
                after = tuple(torch.where(active[:, time], new, old) for new, old in pairs)
            states = after
            outputs.append(states[0])
        return torch.stack(outputs, 1), states


class GRU(_PythonNetwork, nn.GRU):
    """An ``nn.GRU`` written in tensor operations: slower, but usable under ``torch.vmap``.

    Args:
        input_size: See ``torch.nn.GRU``, as the other arguments. ``bidirectional`` must be false.

    Example:
        >>> import torch
        >>> from tdx import GRU
        >>> output, state = GRU(3, 4, batch_first=True)(torch.zeros(2, 5, 3))
        >>> output.shape, state.shape
        (torch.Size([2, 5, 4]), torch.Size([1, 2, 4]))
    """

    def forward(
        self, input: Tensor | PackedSequence, hx: Tensor | None = None
    ) -> tuple[Any, Tensor]:
        """Return the outputs and the last state, as ``torch.nn.GRU``."""
        first = None if hx is None else (hx,)
        output, last = self._run(input, first, (self.hidden_size,))
        return output, last[0]

    def _step(self, value: Tensor, states: States, layer: int) -> States:
        (hidden,) = states
        from_input, from_hidden = self._gates(value, hidden, layer)
        return (_gru_step(from_input, from_hidden, hidden),)


class LSTM(_PythonNetwork, nn.LSTM):
    """An ``nn.LSTM`` written in tensor operations: slower, but usable under ``torch.vmap``.

    Args:
        input_size: See ``torch.nn.LSTM``, as the other arguments. ``bidirectional`` must be
            false.

    Example:
        >>> import torch
        >>> from tdx import LSTM
        >>> output, (hidden, cell) = LSTM(3, 4, batch_first=True)(torch.zeros(2, 5, 3))
        >>> output.shape, cell.shape
        (torch.Size([2, 5, 4]), torch.Size([1, 2, 4]))
    """

    def forward(
        self, input: Tensor | PackedSequence, hx: Sequence[Tensor] | None = None
    ) -> tuple[Any, tuple[Tensor, Tensor]]:
        """Return the outputs and the last states, as ``torch.nn.LSTM``."""
        sizes = (self.proj_size or self.hidden_size, self.hidden_size)
        output, last = self._run(input, None if hx is None else tuple(hx), sizes)
        return output, (last[0], last[1])

    def _step(self, value: Tensor, states: States, layer: int) -> States:
        hidden, cell = states
        from_input, from_hidden = self._gates(value, hidden, layer)
        hidden, cell = _lstm_step(from_input + from_hidden, cell)
        if self.proj_size:
            hidden = linear(hidden, getattr(self, f"weight_hr_l{layer}"))
        return hidden, cell


class GRUCell(nn.GRUCell):
    """An ``nn.GRUCell`` written in tensor operations, for ``torch.vmap``.

    Args:
        input_size: See ``torch.nn.GRUCell``, as the other arguments.

    Example:
        >>> import torch
        >>> from tdx import GRUCell
        >>> GRUCell(3, 4)(torch.zeros(2, 3)).shape
        torch.Size([2, 4])
    """

    def forward(self, input: Tensor, hx: Tensor | None = None) -> Tensor:
        """Return the state after one step, ``[N, H]`` or ``[H]``."""
        if hx is None:
            hx = input.new_zeros(*input.shape[:-1], self.hidden_size)
        return _gru_step(
            linear(input, self.weight_ih, self.bias_ih),
            linear(hx, self.weight_hh, self.bias_hh),
            hx,
        )


class LSTMCell(nn.LSTMCell):
    """An ``nn.LSTMCell`` written in tensor operations, for ``torch.vmap``.

    Args:
        input_size: See ``torch.nn.LSTMCell``, as the other arguments.

    Example:
        >>> import torch
        >>> from tdx import LSTMCell
        >>> hidden, cell = LSTMCell(3, 4)(torch.zeros(2, 3))
        >>> hidden.shape
        torch.Size([2, 4])
    """

    def forward(
        self, input: Tensor, hx: tuple[Tensor, Tensor] | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return hidden state and cell after one step, ``[N, H]`` or ``[H]``."""
        if hx is None:
            zeros = input.new_zeros(*input.shape[:-1], self.hidden_size)
            hx = (zeros, zeros)
        from_input = linear(input, self.weight_ih, self.bias_ih)
        return _lstm_step(from_input + linear(hx[0], self.weight_hh, self.bias_hh), hx[1])


def _gru_step(from_input: Tensor, from_hidden: Tensor, hidden: Tensor) -> Tensor:
    reset_in, update_in, new_in = from_input.chunk(3, -1)
    reset_hidden, update_hidden, new_hidden = from_hidden.chunk(3, -1)
    update = torch.sigmoid(update_in + update_hidden)
    new = torch.tanh(new_in + torch.sigmoid(reset_in + reset_hidden) * new_hidden)
    return new + update * (hidden - new)


def _lstm_step(gates: Tensor, cell: Tensor) -> tuple[Tensor, Tensor]:
    enter, forget, new, leave = gates.chunk(4, -1)
    cell = torch.sigmoid(forget) * cell + torch.sigmoid(enter) * torch.tanh(new)
    return torch.sigmoid(leave) * torch.tanh(cell), cell


def rebuild_network(network: nn.RNNBase, kind: type[nn.RNNBase]) -> nn.RNNBase:
    """Return a network of another class with the same parameters."""
    names = ["input_size", "hidden_size", "num_layers", "bias", "batch_first", "dropout"]
    names += ["bidirectional"]
    options = {name: getattr(network, name) for name in names}
    if isinstance(network, nn.LSTM):
        options["proj_size"] = network.proj_size
    built = kind(**options, device="meta")
    for name, parameter in network.named_parameters():
        setattr(built, name, parameter)
    return built.train(network.training)
