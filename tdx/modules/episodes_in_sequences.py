"""Run a recurrent network over sequences in which episodes begin at any step."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

States = tuple[Tensor, ...]


def run_sequences(
    network: nn.Module, value: Tensor, states: States, starts: Tensor
) -> tuple[Tensor, States]:
    """Run over ``N`` sequences of ``T`` steps; every episode in them begins with a zero state.

    Args:
        network: ``nn.GRU`` or ``nn.LSTM``, batch first.
        value: ``[N, T, F]``.
        states: each ``[N, T, L, H]``; of it counts the first step, unless an episode begins there.
        starts: whether an episode begins at a step, ``[N, T]``.

    Returns:
        the outputs ``[N, T, G]``, and each state ``[N, T, L, H]``: at the last step of an episode
        and of a sequence the state after it, elsewhere zeros.
    """
    first = tuple(_kept(state[:, 0], starts[:, 0]) for state in states)
    steps = value.shape[1]
    if steps == 1 or not bool(starts[:, 1:].any()):
        output, last = _run(network, value, first)
        rows = torch.arange(len(value), device=value.device)
        return output, _at_ends(states, rows, torch.full_like(rows, steps - 1), last)
    return _run_episodes(network, value, states, starts)


def _kept(state: Tensor, starts: Tensor) -> Tensor:
    """The state ``[N, L, H]``, zero where an episode begins."""
    return torch.where(starts[:, None, None], torch.zeros_like(state), state)


def _run_episodes(
    network: nn.Module, value: Tensor, states: States, starts: Tensor
) -> tuple[Tensor, States]:
    """Each episode as a row of its own, padded to the longest."""
    count, steps = starts.shape
    begins = starts.clone()
    begins[:, 0] = True
    flat = begins.flatten()
    row = flat.cumsum(0) - 1
    time = torch.arange(steps, device=value.device).repeat(count)
    place = time - time[flat][row]
    lengths = torch.bincount(row)
    padded = value.new_zeros(len(lengths), int(lengths.max()), value.shape[-1])
    padded = padded.index_put((row, place), value.flatten(0, 1))
    packed = pack_padded_sequence(padded, lengths.cpu(), batch_first=True, enforce_sorted=False)
    zeroed = starts.flatten()[flat]
    first = tuple(_kept(state.flatten(0, 1)[flat], zeroed) for state in states)
    output, last = _run(network, packed, first)
    output = pad_packed_sequence(output, batch_first=True)[0][row, place]
    sequence = torch.arange(count, device=value.device).repeat_interleave(begins.sum(1))
    ends = time[flat] + lengths - 1
    return output.unflatten(0, (count, steps)), _at_ends(states, sequence, ends, last)


def _run(network: nn.Module, value: Any, first: States) -> tuple[Any, States]:
    """One call; states ``[N, L, H]`` here, ``[L, N, H]`` in the network."""
    inner = tuple(state.transpose(0, 1).contiguous() for state in first)
    output, last = network(value, inner if len(inner) > 1 else inner[0])
    lasts = last if isinstance(last, tuple) else (last,)
    return output, tuple(state.transpose(0, 1) for state in lasts)


def _at_ends(states: States, rows: Tensor, steps: Tensor, after: States) -> States:
    """Zeros in the shapes of ``states``, but at these rows and steps what is ``after`` them."""
    return tuple(
        last.new_zeros(state.shape).index_put((rows, steps), last)
        for state, last in zip(states, after, strict=True)
    )
