"""Options that several commands share."""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tdx.cli.options import Color

if TYPE_CHECKING:
    from tests.cli.conftest import Tdx


@pytest.mark.parametrize(
    ("color", "environ", "terminal", "wanted"),
    [
        (Color.AUTO, {}, True, True),
        (Color.AUTO, {}, False, False),
        (Color.AUTO, {"NO_COLOR": "1"}, True, False),
        (Color.AUTO, {"NO_COLOR": ""}, True, True),
        (Color.AUTO, {"FORCE_COLOR": "1"}, False, True),
        (Color.AUTO, {"FORCE_COLOR": "1", "NO_COLOR": "1"}, True, False),
        (Color.AUTO, {"TERM": "dumb"}, True, False),
        (Color.ALWAYS, {"NO_COLOR": "1"}, False, True),
        (Color.NEVER, {"FORCE_COLOR": "1"}, True, False),
    ],
)
def test_color_option_and_variables(
    monkeypatch: pytest.MonkeyPatch,
    color: Color,
    environ: dict[str, str],
    terminal: bool,
    wanted: bool,
) -> None:
    for name, text in {"TERM": "xterm", **environ}.items():
        monkeypatch.setenv(name, text)
    for name in {"NO_COLOR", "FORCE_COLOR"} - set(environ):
        monkeypatch.delenv(name, raising=False)
    stream = io.StringIO()
    monkeypatch.setattr(stream, "isatty", lambda: terminal)
    assert color.is_enabled(stream) is wanted


def test_repeated_transform_options_keep_their_order(tdx: Tdx) -> None:
    outcome = tdx(
        *("inspect", "spec", "--env", "Pendulum-v1"),
        *("--t", "RewardSum", "-t", "StepCounter", "--transform", "InitTracker"),
    )
    assert outcome.out.splitlines()[1:4] == ["  0 RewardSum", "  1 StepCounter", "  2 InitTracker"]


@pytest.mark.parametrize("kwargs", ["g=3.0", '{"g": 3.0}', "{'g': 3.0}"])
def test_env_kwargs_in_each_form(tdx: Tdx, kwargs: str) -> None:
    outcome = tdx("inspect", "spec", "--env", "Pendulum-v1", "--env-kwargs", kwargs)
    assert outcome.code == 0, outcome.err


def test_options_override_the_file(tdx: Tdx, tmp_path: Path) -> None:
    file = tmp_path / "chain.yaml"
    file.write_text("version: 1\nenv: {id: Pendulum-v1, num_envs: 2}\ntransforms: [RewardSum]\n")
    outcome = tdx(
        "inspect", "spec", "--pipeline", str(file), "--num-envs", "3", "--t", "InitTracker"
    )
    assert outcome.out.splitlines()[:3] == [
        "Pendulum-v1  batch [3]  device cpu",
        "  0 RewardSum",
        "  1 InitTracker",
    ]


@pytest.mark.parametrize("search", ["no such thing at all", "reward"])
def test_list_shows_only_matches_of_a_search(tdx: Tdx, search: str) -> None:
    outcome = tdx("list", "transforms", *search.split())
    assert outcome.code == 0
    assert ("RewardSum" in outcome.out) == (search == "reward")
    assert outcome.out.strip()


def test_hint_for_an_export_format_as_output_format(tdx: Tdx) -> None:
    outcome = tdx("rollout", "--env", "CartPole-v1", "--out", "runs", "--format", "parquet")
    assert outcome.code == 2
    assert "invalid value 'parquet' for --format" in outcome.err
    assert "tdx export DUMP --to parquet" in outcome.err
