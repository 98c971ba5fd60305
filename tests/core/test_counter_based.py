"""Random numbers by position, against SplitMix64 in integers of Python."""

from __future__ import annotations

import pytest
import torch

from tdx.core.counter_based import row_keys, uniform_at

WORD = 2**64


def mixed(word: int) -> int:
    word = (word ^ (word >> 30)) * 0xBF58476D1CE4E5B9 % WORD
    word = (word ^ (word >> 27)) * 0x94D049BB133111EB % WORD
    return word ^ (word >> 31)


def number_at(seed: int, position: int, digits: int) -> float:
    """Return the leading digits of a word, as a signed number from [-1, 1)."""
    word = mixed((mixed(seed % WORD) + (position + 1) * 0x9E3779B97F4A7C15) % WORD)
    signed = word - WORD if word >= WORD // 2 else word
    return (signed >> (64 - digits)) * 2.0 ** (1 - digits)


@pytest.mark.parametrize(("dtype", "digits"), [(torch.float64, 53), (torch.float32, 24)])
@pytest.mark.parametrize("seed", [0, 7, -3, 2**63 - 1, 2**64 - 1])
def test_numbers_follow_from_seed_and_position(seed: int, dtype: torch.dtype, digits: int) -> None:
    keys = row_keys(seed, (2, 2), None)
    first = torch.tensor([[0, 1], [1000, 2**40]])
    drawn = uniform_at(keys, first, 3, dtype)
    assert drawn.dtype is dtype
    expected = [
        [
            number_at(seed + row, start + index, digits)
            for row, start in enumerate(first.flatten().tolist())
        ]
        for index in range(3)
    ]
    assert drawn.flatten(1).tolist() == expected


def test_numbers_are_uniform_and_independent() -> None:
    drawn = uniform_at(row_keys(0, (300,), None), torch.zeros(300).long(), 300, torch.float64)
    assert drawn.min() >= -1
    assert drawn.max() < 1
    shares = torch.histc(drawn, 20, -1, 1) / drawn.numel()
    assert (shares - 0.05).abs().max() < 0.003
    for lag in (1, 2, 4):
        assert (drawn[lag:] * drawn[:-lag]).mean().abs() < 0.005
        assert (drawn[:, lag:] * drawn[:, :-lag]).mean().abs() < 0.005
