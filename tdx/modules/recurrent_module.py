"""Base class of recurrent modules, and the primers of their states."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self

import torch
from tensordict import TensorDictBase
from tensordict.nn import TensorDictModuleBase, dispatch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from tdx.core.recurrent_mode import recurrent_mode
from tdx.core.transforms import Compose
from tdx.foundation.errors import ArgumentError, KeyNotFoundError, Where
from tdx.foundation.keys import NestedKey, format_key, join_keys, normalize_key
from tdx.modules.python_networks import GRU, LSTM, rebuild_network
from tdx.specs import Unbounded
from tdx.transforms.episode.init_tracker import InitTracker
from tdx.transforms.episode.tensordict_primer import TensorDictPrimer

IS_INIT = "is_init"
States = tuple[Tensor, ...]


class RecurrentModule(TensorDictModuleBase):  # type: ignore[misc]
    """A recurrent network over the entries of a TensorDict."""

    default_state_keys: ClassVar[tuple[str, ...]]
    network_name: ClassVar[str]
    """Attribute of the network."""
    in_keys: list[NestedKey]
    out_keys: list[NestedKey]

    def __init__(
        self,
        in_key: NestedKey | None,
        in_keys: Sequence[NestedKey] | None,
        out_key: NestedKey | None,
        out_keys: Sequence[NestedKey] | None,
        default_recurrent_mode: bool | None,
    ) -> None:
        super().__init__()
        states = list(self.default_state_keys)
        following = [join_keys("next", key) for key in states]
        ins = _collect_keys(in_key, in_keys, states, "in_key")
        if len(ins) == 1 + len(states):
            ins.append(IS_INIT)
        outs = _collect_keys(out_key, out_keys, following, "out_key")
        self._check_count(ins, 2 + len(states), "in_keys", "the input, {}, and is_init")
        self._check_count(outs, 1 + len(states), "out_keys", "the output and {}")
        self.in_keys, self.out_keys = ins, outs
        self.default_recurrent_mode = bool(default_recurrent_mode)

    def _check_count(self, keys: list[NestedKey], count: int, name: str, what: str) -> None:
        if len(keys) != count:
            states = "one state" if len(self.default_state_keys) == 1 else "two states"
            raise ArgumentError(
                f"{name} of {type(self).__name__} must name {what.format(states)}, "
                f"got {', '.join(map(format_key, keys))}",
                hint="name every key, or leave the argument out for the default keys",
            )

    @property
    def network(self) -> Any:
        """Recurrent network, batch first."""
        return getattr(self, self.network_name)

    def make_python_based(self) -> Self:
        """Replace the network by one in tensor operations with the same parameters."""
        return self._rebuild(GRU if isinstance(self.network, nn.GRU) else LSTM)

    def make_cudnn_based(self) -> Self:
        """Replace the network by that of ``torch.nn`` with the same parameters."""
        return self._rebuild(nn.GRU if isinstance(self.network, nn.GRU) else nn.LSTM)

    def _rebuild(self, kind: type[nn.RNNBase]) -> Self:
        setattr(self, self.network_name, rebuild_network(self.network, kind))
        return self

    def _state_sizes(self) -> tuple[tuple[int, int], ...]:
        """Return the number of layers (times directions) and the size of each state."""
        network = self.network
        layers = network.num_layers * (2 if network.bidirectional else 1)
        # Only the first state is projected.
        sizes = network.proj_size or network.hidden_size, network.hidden_size
        return tuple((layers, size) for size in sizes[: len(self.default_state_keys)])

    @property
    def recurrent_mode(self) -> bool:
        """True if the last batch dim is time."""
        mode = recurrent_mode()
        return self.default_recurrent_mode if mode is None else mode

    @property
    def state_keys(self) -> list[NestedKey]:
        """Keys of the states."""
        return self.in_keys[1:-1]

    def make_tensordict_primer(self) -> TensorDictPrimer:
        """Return the primer of the states: zero at each reset, carried from step to step.

        Example:
            >>> from tdx import GRUModule, GymEnv, TransformedEnv
            >>> gru = GRUModule(3, 4, in_keys=["observation", "h"], out_keys=["f", ("next", "h")])
            >>> env = TransformedEnv(GymEnv("Pendulum-v1"), gru.make_tensordict_primer())
            >>> env.reset()["h"].shape
            torch.Size([1, 4])
        """
        weight = next(iter(self.network.parameters()))
        specs: Mapping[NestedKey, Unbounded] = {
            key: Unbounded(size, dtype=weight.dtype, device=weight.device)
            for key, size in zip(self.state_keys, self._state_sizes(), strict=True)
        }
        return TensorDictPrimer(specs, default_value=dict.fromkeys(specs, 0.0))

    @dispatch  # type: ignore[untyped-decorator]
    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Write the output and the next states.

        Args:
            tensordict: Data ``[*B]`` with an input ``[*B, F]``, states ``[*B, L, H]`` (zeros if
                missing) and ``is_init`` ``[*B, 1]``; in recurrent mode ``[*B, T]``, with ``T``
                steps in each entry.

        Raises:
            KeyNotFoundError: The input or ``is_init`` is missing.
            ArgumentError: The shapes do not fit, or the time dim is missing in recurrent mode.
        """
        value, starts = (self._read(tensordict, key) for key in (self.in_keys[0], self.in_keys[-1]))
        sequences = self.recurrent_mode
        lead = value.shape[:-1]
        self._check(value, starts, sequences)
        shape = lead if sequences else (*lead, 1)
        count, steps = lead[:-1].numel() if sequences else lead.numel(), shape[-1]
        states = tuple(
            self._state(tensordict, key, value, size).reshape(count, steps, *size)
            for key, size in zip(self.state_keys, self._state_sizes(), strict=True)
        )
        output, after = run_sequences(
            self.network,
            value.reshape(count, steps, value.shape[-1]),
            states,
            starts.reshape(count, steps),
            zero_starts=not sequences,
        )
        for key, result in zip(self.out_keys, (output, *after), strict=True):
            tensordict.set(key, result.reshape(*lead, *result.shape[2:]))
        return tensordict

    def _read(self, tensordict: TensorDictBase, key: NestedKey) -> Tensor:
        value = tensordict.get(key, None)
        if value is None:
            append = (
                "append InitTracker() to the env"
                if key == self.in_keys[-1]
                else "write the entry before the module, or choose another key in in_keys"
            )
            raise KeyNotFoundError(
                f"{type(self).__name__} reads {format_key(key)!r}, which is missing",
                hint=append,
                where=Where(key=key),
            )
        result: Tensor = value
        return result

    def _check(self, value: Tensor, starts: Tensor, sequences: bool) -> None:
        size = self.network.input_size
        name = type(self).__name__
        if not value.ndim or value.shape[-1] != size:
            raise ArgumentError(
                f"{name} has input_size={size}, its input has shape {tuple(value.shape)}",
                where=Where(key=self.in_keys[0]),
                hint="build the module with input_size equal to the last dim of its input",
            )
        if sequences and value.ndim < 2:
            raise ArgumentError(
                f"{name} is in recurrent mode, but its input of shape {tuple(value.shape)} has no "
                "time dim",
                hint="use set_recurrent_mode(False) for single steps",
                where=Where(key=self.in_keys[0]),
            )
        if starts.numel() != value.shape[:-1].numel():
            raise ArgumentError(
                f"is_init must have shape {(*value.shape[:-1], 1)}, got {tuple(starts.shape)}",
                where=Where(key=self.in_keys[-1]),
                hint="add InitTracker to the chain, which writes is_init in this shape",
            )

    def _state(
        self, tensordict: TensorDictBase, key: NestedKey, value: Tensor, size: tuple[int, int]
    ) -> Tensor:
        shape = (*value.shape[:-1], *size)
        state = tensordict.get(key, None)
        if state is None:
            return torch.zeros(shape, dtype=value.dtype, device=value.device)
        if state.shape != shape:
            raise ArgumentError(
                f"the state must have shape {shape}, got {tuple(state.shape)}",
                where=Where(key=key),
                hint="add the primers of the module to the chain: module.make_tensordict_primer()",
            )
        result: Tensor = state
        return result


def _collect_keys(
    key: NestedKey | None, keys: Sequence[NestedKey] | None, states: Sequence[NestedKey], name: str
) -> list[NestedKey]:
    """Return all keys, given as such or by the first key alone."""
    if isinstance(keys, str):
        raise ArgumentError(
            f"{name}s must be a list of keys, got {keys!r}", hint=f"pass {name}={keys!r}"
        )
    if (key is None) == (keys is None):
        raise ArgumentError(
            f"pass {name} or {name}s" + ("" if key is None else ", not both"),
            hint=f'for example {name}="features"',
        )
    return [normalize_key(name) for name in ([key, *states] if keys is None else keys)]


def build_network(
    kind: type[Any],
    network: nn.Module | None,
    input_size: int | None,
    hidden_size: int | None,
    **options: Any,
) -> Any:
    """Return the given network, or a new one of the class ``kind``: ``nn.GRU`` or ``nn.LSTM``."""
    name = kind.__name__
    sizes = (input_size, hidden_size)
    if network is None:
        if None in sizes:
            raise ArgumentError(
                f"pass input_size and hidden_size, or {name.lower()}=nn.{name}(...)",
                hint="pass either the sizes or a network",
            )
        network = kind(input_size, hidden_size, **options)
    elif not isinstance(network, nn.GRU if issubclass(kind, nn.GRU) else nn.LSTM):
        raise ArgumentError(
            f"{name.lower()} must be an nn.{name}, got {type(network).__name__}",
            hint="pass a torch.nn module of this class, or the two sizes",
        )
    elif sizes != (None, None):
        raise ArgumentError(
            f"{name.lower()} and the sizes of a new one are both given",
            hint="remove one of them",
        )
    if not network.batch_first:
        raise ArgumentError(
            "batch_first must be true: batch dims come before time", hint="remove batch_first"
        )
    return network


def check_backend(backend: str) -> None:
    """Check the choice of kernels."""
    if backend not in ("auto", "pad", "scan"):
        raise ArgumentError(
            f"recurrent_backend {backend!r} is not available",
            hint='use "pad", or "auto" and "scan", which are the same',
        )


def get_env_transforms_from_module(
    module: nn.Module, init_key: str = "is_init"
) -> InitTracker | Compose:
    """Return the transforms that an env needs for a policy with recurrent modules.

    Args:
        module: Policy.
        init_key: Flag of the first step of an episode.

    Returns:
        ``InitTracker``, followed by the primers of the module if it has any.

    Raises:
        ArgumentError: Two modules use the same key for a state.

    Example:
        >>> from tdx import GRUModule, GymEnv, TransformedEnv, get_env_transforms_from_module
        >>> gru = GRUModule(3, 4, in_key="observation", out_key="features")
        >>> env = TransformedEnv(GymEnv("Pendulum-v1"), get_env_transforms_from_module(gru))
        >>> gru(env.reset())["features"].shape
        torch.Size([4])
    """
    primers = get_primers_from_module(module, warn=False)
    tracker = InitTracker(init_key)
    return tracker if primers is None else Compose(tracker, primers)


def get_primers_from_module(
    module: nn.Module, warn: bool = True, strict: bool = True
) -> TensorDictPrimer | Compose | None:
    """Return the transform that carries the recurrent states of a module in an env.

    Args:
        module: Module, such as a policy. All submodules with a ``make_tensordict_primer`` count.
        warn: Warn if there are none.
        strict: If False, a submodule that fails to make its primer is left out, with a warning.

    Returns:
        Primer, a ``Compose`` of several primers, or ``None``.

    Raises:
        ArgumentError: Two modules use the same key for a state.

    Example:
        >>> from tdx import GRUModule, GymEnv, SerialEnv, TransformedEnv, get_primers_from_module
        >>> gru = GRUModule(input_size=3, hidden_size=2, in_key="observation", out_key="action")
        >>> env = TransformedEnv(SerialEnv(2, lambda: GymEnv("Pendulum-v1")))
        >>> env = env.append_transform(get_primers_from_module(gru))
        >>> env.reset()["recurrent_state"].shape
        torch.Size([2, 1, 2])
    """
    primers: list[TensorDictPrimer] = []
    for submodule in module.modules():
        make = getattr(submodule, "make_tensordict_primer", None)
        if make is None:
            continue
        try:
            primers.append(make())
        except Exception as error:
            if strict:
                raise
            warnings.warn(f"{type(submodule).__name__} has no primer: {error}", stacklevel=2)
    _check_distinct(primers)
    if not primers:
        if warn:
            warnings.warn(f"no module in {type(module).__name__} has a primer", stacklevel=2)
        return None
    return primers[0] if len(primers) == 1 else Compose(*primers)


def _check_distinct(primers: list[TensorDictPrimer]) -> None:
    seen = set()
    for primer in primers:
        for key in primer.primers.keys(True, True):
            if key in seen:
                raise ArgumentError(
                    f"two modules use {format_key(key)!r} for a state",
                    hint="pass different keys as in_keys and out_keys",
                )
            seen.add(key)


def run_sequences(
    network: nn.Module, value: Tensor, states: States, starts: Tensor, *, zero_starts: bool
) -> tuple[Tensor, States]:
    """Run a network over sequences of inputs ``[N, T, F]``; each episode starts with its own state.

    ``starts`` ``[N, T]`` marks the steps that start an episode. Of the states ``[N, T, L, H]``
    those of the first step and of these steps are read; with ``zero_starts`` they are zeros.

    Returns:
        Outputs ``[N, T, G]`` and states ``[N, T, L, H]``: the state after the last step of each
        episode and sequence, zeros elsewhere.
    """
    if zero_starts:
        states = tuple(torch.where(starts[..., None, None], 0.0, state) for state in states)
    first = tuple(state[:, 0] for state in states)
    steps = value.shape[1]
    if steps == 1 or not bool(starts[:, 1:].any()):
        output, last = _run(network, value, first)
        rows = torch.arange(len(value), device=value.device)
        return output, _at_ends(states, rows, torch.full_like(rows, steps - 1), last)
    return _run_episodes(network, value, states, starts)


def _run_episodes(
    network: nn.Module, value: Tensor, states: States, starts: Tensor
) -> tuple[Tensor, States]:
    """Run each episode as a row, padded to the longest episode."""
    count, steps = starts.shape
    first_steps = starts.clone()
    first_steps[:, 0] = True
    flat = first_steps.flatten()
    row = flat.cumsum(0) - 1
    time = torch.arange(steps, device=value.device).repeat(count)
    place = time - time[flat][row]
    lengths = torch.bincount(row)
    padded = value.new_zeros(len(lengths), int(lengths.max()), value.shape[-1])
    padded = padded.index_put((row, place), value.flatten(0, 1))
    packed = pack_padded_sequence(padded, lengths.cpu(), batch_first=True, enforce_sorted=False)
    first = tuple(state.flatten(0, 1)[flat] for state in states)
    output, last = _run(network, packed, first)
    output = pad_packed_sequence(output, batch_first=True)[0][row, place]
    sequence = torch.arange(count, device=value.device).repeat_interleave(first_steps.sum(1))
    ends = time[flat] + lengths - 1
    return output.unflatten(0, (count, steps)), _at_ends(states, sequence, ends, last)


def _run(network: nn.Module, value: Tensor | PackedSequence, first: States) -> tuple[Any, States]:
    """Run the network with states ``[N, L, H]``, which it expects as ``[L, N, H]``."""
    inner = tuple(state.transpose(0, 1).contiguous() for state in first)
    output, last = network(value, inner if len(inner) > 1 else inner[0])
    lasts = last if isinstance(last, tuple) else (last,)
    return output, tuple(state.transpose(0, 1) for state in lasts)


def _at_ends(states: States, rows: Tensor, steps: Tensor, after: States) -> States:
    """Return zeros like ``states``, with the states ``after`` some steps at these steps."""
    return tuple(
        last.new_zeros(state.shape).index_put((rows, steps), last)
        for state, last in zip(states, after, strict=True)
    )
