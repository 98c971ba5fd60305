"""Kinds of differences of two rollouts, of which only the values are known."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from tdx.compare.rollouts import compare_rollouts, explain_rollouts

STEPS, ENVS = 24, 2


@pytest.fixture(scope="module")
def rollout() -> TensorDictBase:
    """A rollout ``[2, 24]`` with episodes of eight steps."""
    generator = torch.Generator().manual_seed(0)
    states = torch.randn(ENVS, STEPS + 1, 4, generator=generator)
    images = torch.randint(256, (ENVS, STEPS, 3, 12, 10), generator=generator)
    done = torch.arange(STEPS).remainder(8).eq(7)[None, :, None].expand(ENVS, -1, -1).clone()
    step = {"observation": states[:, 1:], "done": done, "reward": states[:, 1:, :1]}
    entries = {
        "observation": states[:, :-1],
        "pixels": images.byte(),
        "action": torch.randn(ENVS, STEPS, 2, generator=generator),
        "task": torch.zeros(ENVS, STEPS, 1),
        "next": TensorDict(step, (ENVS, STEPS)),
    }
    return TensorDict(entries, (ENVS, STEPS))


def late(values: Tensor) -> Tensor:
    """Return each value one step later; the first one of an episode twice."""
    episodes = values.unflatten(1, (-1, 8))
    return torch.cat([episodes[:, :, :1], episodes[:, :, :-1]], 2).flatten(1, 2)


@pytest.mark.parametrize(
    ("key", "change", "kind", "parameters"),
    [
        ("observation", lambda x: 2 * x + 1, "scale", {"factor": 2.0, "offset": 1.0}),
        ("observation", lambda x: x[..., [1, 0, 2, 3]], "permutation", {"order": [1, 0, 2, 3]}),
        ("observation", lambda x: x[..., :3], "selection", {"order": [0, 1, 2]}),
        ("observation", late, "time shift", {"steps": 1}),
        ("observation", lambda x: x.half().float(), "rounding", {"to": "float16"}),
        ("pixels", lambda x: x.flip(2), "channel order", {"dim": 0, "order": [2, 1, 0]}),
        ("pixels", lambda x: x.movedim(2, -1), "axis order", {"axes": [1, 2, 0]}),
        ("pixels", lambda x: x / 255, "range", {"factor": 1 / 255, "offset": 0.0}),
    ],
)
def test_kinds_of_values(
    rollout: TensorDictBase,
    key: str,
    change: Callable[[Tensor], Tensor],
    kind: str,
    parameters: dict[str, object],
) -> None:
    other = rollout.clone()
    other[key] = change(rollout[key])
    explanations = explain_rollouts(rollout, other, compare_rollouts(rollout, other))
    assert list(explanations) == [key]
    assert (explanations[key].kind, explanations[key].parameters) == (kind, parameters)
    assert explanations[key].steps == STEPS * ENVS


def test_episodes_that_end_with_the_first_agent(rollout: TensorDictBase) -> None:
    rollout = rollout.clone()
    done = rollout["next"].pop("done").unsqueeze(2) & torch.tensor([[False], [True]])
    rollout["next", "agents"] = TensorDict({"done": done}, (ENVS, STEPS, 2))
    other = rollout.clone()
    other["observation"] = late(rollout["observation"])
    explanations = explain_rollouts(rollout, other, compare_rollouts(rollout, other))
    assert explanations["observation"].parameters == {"steps": 1}


def test_a_renamed_key(rollout: TensorDictBase) -> None:
    other = rollout.clone()
    other["state"] = other.pop("observation")
    explanations = explain_rollouts(rollout, other, compare_rollouts(rollout, other))
    assert {key: found.text for key, found in explanations.items()} == {
        "observation": "observation is called state"
    }


def test_noise_needs_equal_actions(rollout: TensorDictBase) -> None:
    other = rollout.clone()
    noise = torch.randn(rollout["observation"].shape, generator=torch.Generator().manual_seed(1))
    other["observation"] = rollout["observation"] + 0.1 * noise
    explanations = explain_rollouts(rollout, other, compare_rollouts(rollout, other))
    assert explanations["observation"].kind == "noise"
    other["action"] = rollout["action"].flip(1)
    assert explain_rollouts(rollout, other, compare_rollouts(rollout, other)) == {}


def test_a_constant_shows_no_cause_and_other_shapes_show_nothing(rollout: TensorDictBase) -> None:
    other = rollout.clone()
    other["task"] = torch.ones(ENVS, STEPS, 1)
    found = explain_rollouts(rollout, other, compare_rollouts(rollout, other))
    assert {key: each.text for key, each in found.items()} == {
        "task": "it is always 1 instead of 0"
    }
    half = rollout[:, :12]
    assert explain_rollouts(rollout, half, compare_rollouts(rollout, half)) == {}
