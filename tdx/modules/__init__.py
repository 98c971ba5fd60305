"""Recurrent modules over TensorDicts, and the primers that put their states into an env."""

from tdx.modules.gru_module import GRUModule
from tdx.modules.lstm_module import LSTMModule
from tdx.modules.primers import get_primers_from_module
from tdx.modules.recurrent_mode import recurrent_mode, set_recurrent_mode

__all__ = [
    "GRUModule",
    "LSTMModule",
    "get_primers_from_module",
    "recurrent_mode",
    "set_recurrent_mode",
]
