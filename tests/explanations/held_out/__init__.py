"""Faults in real stacks of four libraries, which were written before they were run.

Unlike the generated mutations, most are in functions and subclasses of users, whose arguments do
not show the fault, or they are faults of the env's actions and rewards.
"""

from __future__ import annotations

from tests.explanations.held_out import (
    gymnasium_stacks,
    lerobot_folders,
    sb3_stacks,
    training_stacks,
    user_wrappers,
)
from tests.explanations.held_out import torchrl_stacks as torchrl
from tests.explanations.held_out.model import Case, Fault, is_explained

CASES: dict[str, Case] = {
    **gymnasium_stacks.CASES,
    **sb3_stacks.CASES,
    **torchrl.CASES,
    **lerobot_folders.CASES,
    **training_stacks.CASES,
    **user_wrappers.CASES,
}

__all__ = ["CASES", "Case", "Fault", "is_explained"]
