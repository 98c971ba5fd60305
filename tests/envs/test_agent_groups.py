"""Groups of agents."""

from __future__ import annotations

import pytest

from tdx import ArgumentError, MarlGroupMapType, check_marl_grouping


@pytest.mark.parametrize("kind", list(MarlGroupMapType))
def test_each_agent_is_in_one_group(kind: MarlGroupMapType) -> None:
    groups = kind.get_group_map(["a", "b"])
    assert len(groups) == kind.value
    check_marl_grouping(groups, ["a", "b"])


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        ({"x": ["a", "a", "b"]}, "'a' is in several groups"),
        ({"x": ["a"], "y": ["a", "b"]}, "'a' is in several groups"),
        ({"x": ["a"]}, "'b' is in no group"),
        ({"x": ["a", "b", "c"]}, "no agent 'c'"),
        ({"x": [], "y": ["a", "b"]}, "'x' is empty"),
    ],
)
def test_invalid_groups(groups: dict[str, list[str]], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        check_marl_grouping(groups, ["a", "b"])
