"""GRU and LSTM modules over TensorDicts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import nn

from tdx.foundation.keys import NestedKey
from tdx.modules.python_networks import GRU, LSTM
from tdx.modules.recurrent_module import RecurrentModule, build_network, check_backend


class GRUModule(RecurrentModule):
    """An ``nn.GRU`` that reads its input and state from a TensorDict.

    In recurrent mode the last batch dim is time, otherwise each element of the TensorDict is one
    step (:class:`set_recurrent_mode`). Where ``is_init`` is true, a single step starts with a zero
    state, and a sequence continues with the state in the data, which is zero at the start of an
    episode. Add ``InitTracker`` to the env, which writes ``is_init``, and the primer
    of ``get_primers_from_module``, which carries the state.

    Args:
        input_size: Number of input features.
        hidden_size: Number of features of the state.
        num_layers: Number of layers.
        bias: Use biases.
        batch_first: Must be true.
        dropout: Dropout probability between layers, in training.
        bidirectional: Run a second network backwards over each episode.
        python_based: Use tensor operations instead of the kernels of ``torch.nn``: slower, but
            usable under ``torch.vmap``.
        recurrent_backend: How episodes in a sequence are run: "pad", or "auto" and "scan", which
            are the same.
        in_key: Key of the input; the state is ``recurrent_state``.
        in_keys: Instead of ``in_key``, the keys of the input and the state, and of ``is_init`` if
            it has another name.
        out_key: Key of the output; the next state is ``("next", "recurrent_state")``.
        out_keys: Instead of ``out_key``, the keys of the output and the next state.
        device: Device of the parameters.
        gru: Network to use, instead of the arguments of a new one.
        default_recurrent_mode: Mode outside :class:`set_recurrent_mode`; off by default.

    Raises:
        ArgumentError: The number of keys is wrong, sizes are missing, or the network is not batch
            first.

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
    network_name = "gru"

    def __init__(
        self,
        input_size: int | None = None,
        hidden_size: int | None = None,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = True,
        dropout: float = 0,
        bidirectional: bool = False,
        python_based: bool = False,
        recurrent_backend: str = "pad",
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
        check_backend(recurrent_backend)
        self.gru = build_network(
            GRU if python_based else nn.GRU,
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


class LSTMModule(RecurrentModule):
    """An ``nn.LSTM`` that reads its input and both states from a TensorDict.

    In recurrent mode the last batch dim is time, otherwise each element of the TensorDict is one
    step (:class:`set_recurrent_mode`). Where ``is_init`` is true, a single step starts with zero
    states, and a sequence continues with the states in the data, which are zero at the start of
    an episode. Add ``InitTracker`` to the env, which writes ``is_init``, and the
    primer of ``get_primers_from_module``, which carries the states.

    Args:
        input_size: Number of input features.
        hidden_size: Number of features of the states.
        num_layers: Number of layers.
        bias: Use biases.
        batch_first: Must be true.
        dropout: Dropout probability between layers, in training.
        proj_size: Size to which outputs and hidden state are projected; 0: no projection.
        bidirectional: Run a second network backwards over each episode.
        python_based: Use tensor operations instead of the kernels of ``torch.nn``: slower, but
            usable under ``torch.vmap``.
        recurrent_backend: How episodes in a sequence are run: "pad", or "auto" and "scan", which
            are the same.
        in_key: Key of the input; the states are ``recurrent_state_h`` and
            ``recurrent_state_c``.
        in_keys: Instead of ``in_key``, the keys of the input, the hidden state and the cell
            state, and of ``is_init`` if it has another name.
        out_key: Key of the output; the next states are the default ones in ``next``.
        out_keys: Instead of ``out_key``, the keys of the output, the next hidden state and the
            next cell state.
        device: Device of the parameters.
        lstm: Network to use, instead of the arguments of a new one.
        default_recurrent_mode: Mode outside :class:`set_recurrent_mode`; off by default.

    Raises:
        ArgumentError: The number of keys is wrong, sizes are missing, or the network is not batch
            first.

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
    network_name = "lstm"

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
        python_based: bool = False,
        recurrent_backend: str = "pad",
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
        check_backend(recurrent_backend)
        self.lstm = build_network(
            LSTM if python_based else nn.LSTM,
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
