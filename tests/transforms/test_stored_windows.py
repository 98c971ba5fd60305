"""Windows of stored data: following frames, masks, data with time in another dim."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tensordict import TensorDict
from torch import nn

from tdx import CatFrames, ChainError, TransformedEnv
from tdx.transforms import functional
from tests.transforms.envs import RowsEnv


def stored(steps: int = 4, end: int | None = 1) -> TensorDict:
    """Return one row of frames 0, 1, ..., with the end of an episode."""
    done = torch.zeros(1, steps, 1, dtype=torch.bool)
    if end is not None:
        done[0, end] = True
    frames = torch.arange(float(steps)).reshape(1, steps, 1)
    return TensorDict({"x": frames, ("next", "done"): done}, batch_size=[1, steps])


def stack(**kwargs: Any) -> CatFrames:
    return CatFrames(3, dim=-1, in_keys=["x"], out_keys=["stacked"], **kwargs)


def test_following_frames_stay_in_the_episode() -> None:
    mapped = stack(future=True, mask_key="padded")(stored())
    assert mapped["stacked"][0].tolist() == [[0, 1, 1], [1, 1, 1], [2, 3, 3], [3, 3, 3]]
    expected = [[0, 0, 1], [0, 1, 1], [0, 0, 1], [0, 1, 1]]
    assert mapped["padded"][0].int().tolist() == expected


def test_without_flags_following_frames_are_one_episode() -> None:
    data = stored(end=None).exclude("next")
    mapped = stack(future=True, padding="constant", padding_value=-1.0)(data)
    assert mapped["stacked"][0].tolist() == [[0, 1, 2], [1, 2, 3], [2, 3, -1], [3, -1, -1]]


def test_the_mask_of_the_last_frames() -> None:
    mapped = stack(mask_key="padded")(stored())
    expected = [[1, 1, 0], [1, 0, 0], [1, 1, 0], [1, 0, 0]]
    assert mapped["padded"][0].int().tolist() == expected


@pytest.mark.parametrize("arguments", [{"future": True}, {"mask_key": "padded"}])
def test_env_is_refused_by_both(arguments: dict[str, Any]) -> None:
    transform = CatFrames(2, dim=-1, in_keys=["observation"], **arguments)
    with pytest.raises(ChainError, match="offline only"):
        TransformedEnv(RowsEnv(), transform).output_spec  # noqa: B018


@pytest.mark.parametrize("padding", ["same", "constant"])
def test_the_function_equals_the_transform(padding: Any) -> None:
    data = stored(12, end=None)
    expected = stack(padding=padding, padding_value=2.0).unfolding(data.clone())["stacked"]
    made = functional.cat_frames(data["x"], 3, -1, padding=padding, padding_value=2.0, time_dim=-2)
    assert torch.equal(made, expected)
    with pytest.raises(ValueError, match="time_dim must be < 0"):
        functional.cat_frames(data["x"], 3, -1, time_dim=1)


def test_the_function_takes_a_mask_of_padded_frames() -> None:
    mapped = stack(mask_key="padded")(stored())
    made = functional.cat_frames(stored()["x"], 3, -1, time_dim=-2, done_mask=mapped["padded"])
    assert torch.equal(made, mapped["stacked"])
    wide = mapped["padded"].unsqueeze(-2)
    made = functional.cat_frames(stored()["x"], 3, -1, time_dim=-2, done_mask=wide)
    assert torch.equal(made, mapped["stacked"])


def test_time_can_be_another_named_dim() -> None:
    expected = stack()(stored())["stacked"]
    turned = stored().transpose(0, 1).clone()
    turned.names = ["time", None]
    mapped = nn.Sequential(stack(), nn.Identity())(turned)
    assert mapped.batch_size == (4, 1)
    assert torch.equal(mapped["stacked"], expected.transpose(0, 1))


def test_the_done_key_is_looked_up_under_next() -> None:
    assert stack(done_key="done").done_key == stack().done_key == ("next", "done")


def test_frames_before_the_first_reset_are_zero() -> None:
    first = stack()._call(TensorDict(x=torch.ones(2)))
    assert first["stacked"].tolist() == [0, 0, 0, 0, 1, 1]
