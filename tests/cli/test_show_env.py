"""``tdx show env`` and ``tdx list envs``: details of an env."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.cli.conftest import WIDTHS, Tdx, assert_fits


def _details(tdx: Tdx, *arguments: str) -> dict[str, Any]:
    outcome = tdx("show", "env", *arguments, "--format", "json")
    assert outcome.code == 0, outcome.err
    return dict(json.loads(outcome.out))


def test_details_of_a_gymnasium_env(tdx: Tdx) -> None:
    details = _details(tdx, "CartPole-v1")
    assert details["versions"] == ["CartPole-v1", "CartPole-v0"]
    assert details["replaced_by"] is None
    assert (details["time_limit"], details["reward_threshold"]) == (500, 475.0)
    assert details["render_modes"] == ["human", "rgb_array"]
    (argument,) = details["arguments"]
    assert (argument["name"], argument["default"]) == ("sutton_barto_reward", "False")
    assert {spec["part"] for spec in details["specs"]} == {
        "observation",
        "reward",
        "done",
        "action",
    }


def test_id_without_version_selects_the_latest_version(tdx: Tdx) -> None:
    assert _details(tdx, "Pendulum")["id"] == "Pendulum-v1"


def test_limit_and_reward_range_from_the_attributes_of_the_env(tdx: Tdx) -> None:
    details = _details(tdx, "MiniGrid-Empty-5x5-v0")
    assert (details["time_limit"], details["own_limit"]) == (None, 100)
    assert details["reward_range"] == [0.0, 1.0]


def test_registered_argument_is_marked(tdx: Tdx) -> None:
    arguments = {each["name"]: each for each in _details(tdx, "FrozenLake-v1")["arguments"]}
    assert arguments["map_name"]["default"] == "'4x4'"
    assert arguments["map_name"]["registered"]


def test_arguments_are_passed_to_the_env(tdx: Tdx) -> None:
    specs = _details(tdx, "FrozenLake-v1", "--env-kwargs", "map_name='8x8'")["specs"]
    (observation,) = (spec for spec in specs if spec["part"] == "observation")
    assert observation["shape"] == [64]


def test_details_of_a_native_env(tdx: Tdx) -> None:
    details = _details(tdx, "tdx/Pendulum")
    assert details["package"] == "tdx"
    assert "PendulumEnv" in details["entry_point"]


def test_unknown_env_exits_with_2_and_suggests_the_closest_match(tdx: Tdx) -> None:
    outcome = tdx("show", "env", "Pendlum")
    assert outcome.code == 2
    assert "did you mean Pendulum-v1?" in outcome.err
    for name in ("Quux", "nope"):
        far = tdx("show", "env", name)
        assert far.code == 2
        assert "did you mean" not in far.err


@pytest.mark.parametrize("columns", WIDTHS)
def test_description_fits_the_terminal(tdx: Tdx, columns: int) -> None:
    assert_fits(tdx("show", "env", "CartPole-v1", columns=columns).out, columns)


@pytest.mark.parametrize(
    ("name", "kind"), [("CartPole-v1", "env"), ("tdx/CartPole", "env"), ("CatFrames", "transform")]
)
def test_show_infers_the_kind_from_the_name(tdx: Tdx, name: str, kind: str) -> None:
    outcome = tdx("show", name)
    assert outcome.code == 0, outcome.err
    assert outcome.out == tdx("show", kind, name).out


def test_list_has_native_envs_and_marks_deprecated_versions(tdx: Tdx) -> None:
    document = json.loads(tdx("list", "envs", "cartpole", "--format", "json").out)
    found = {each["id"]: each["replaced_by"] for each in document["envs"]}
    assert found["tdx/CartPole"] is None
    assert found["CartPole-v0"] == "CartPole-v1"
    ids = list(found)
    assert ids.index("CartPole-v1") < ids.index("CartPole-v0")
    assert "deprecated: use CartPole-v1" in tdx("list", "envs", "cartpole").out
