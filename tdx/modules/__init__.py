"""Recurrent modules over TensorDicts, and the primers of their states."""

from tdx.core.recurrent_mode import recurrent_mode, set_recurrent_mode
from tdx.modules.python_networks import GRU, LSTM, GRUCell, LSTMCell
from tdx.modules.recurrent_module import get_env_transforms_from_module, get_primers_from_module
from tdx.modules.rnn_modules import GRUModule, LSTMModule

__all__ = [
    "GRU",
    "LSTM",
    "GRUCell",
    "GRUModule",
    "LSTMCell",
    "LSTMModule",
    "get_env_transforms_from_module",
    "get_primers_from_module",
    "recurrent_mode",
    "set_recurrent_mode",
]
