"""Run a recurrent network over sequences with episodes that start at any step."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

States = tuple[Tensor, ...]


def run_sequences(
    network: nn.Module, value: Tensor, states: States, starts: Tensor
) -> tuple[Tensor, States]:
    """Run a network over ``N`` sequences of ``T`` steps; each episode starts with a zero state.

    Args:
        network: ``nn.GRU`` or ``nn.LSTM``, batch first.
        value: Inputs ``[N, T, F]``.
        states: States ``[N, T, L, H]``. Only the first step is read, unless an episode starts
            there.
        starts: Mask of the steps that start an episode, ``[N, T]``.

    Returns:
        Outputs ``[N, T, G]`` and states ``[N, T, L, H]``: the state after the last step of each
        episode and sequence, zeros elsewhere.
    """
    first = tuple(_zero_at_starts(state[:, 0], starts[:, 0]) for state in states)
    steps = value.shape[1]
    if steps == 1 or not bool(starts[:, 1:].any()):
        output, last = _run(network, value, first)
        rows = torch.arange(len(value), device=value.device)
        return output, _at_ends(states, rows, torch.full_like(rows, steps - 1), last)
    return _run_episodes(network, value, states, starts)


def _zero_at_starts(state: Tensor, starts: Tensor) -> Tensor:
    """Return the state ``[N, L, H]``, zero at the start of an episode."""
    return torch.where(starts[:, None, None], torch.zeros_like(state), state)


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
    zeroed = starts.flatten()[flat]
    first = tuple(_zero_at_starts(state.flatten(0, 1)[flat], zeroed) for state in states)
    output, last = _run(network, packed, first)
    output = pad_packed_sequence(output, batch_first=True)[0][row, place]
    sequence = torch.arange(count, device=value.device).repeat_interleave(first_steps.sum(1))
    ends = time[flat] + lengths - 1
    return output.unflatten(0, (count, steps)), _at_ends(states, sequence, ends, last)


def _run(network: nn.Module, value: Any, first: States) -> tuple[Any, States]:
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
