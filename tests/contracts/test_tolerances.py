"""Tolerances by share of rows and by quantile, and the example rows of a difference."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

import tdx
from tdx.cli.process import run
from tdx.compare.values import Tolerance, Values, compare_values
from tdx.testing import assert_matches_contract
from tests.contracts import envs as made
from tests.programs import exhaustive

MODULE = """
import gymnasium as gym


def add(x, limit):
    x = x.copy()
    x[1] += 0.5 * (x[2] > limit)
    return x


def make(limit):
    env = gym.make("Pendulum-v1")
    return gym.wrappers.TransformObservation(env, lambda x: add(x, limit), None)


def train():
    return make(100)


def deploy():
    return make(0.5)
"""


def spinning(limit: float = math.inf, size: float = 0.5) -> Any:
    """Return a pendulum whose feature 1 is off while it spins faster than the limit."""

    def apply(x: Any) -> Any:
        x = np.array(x)
        x[..., 1] += size * (x[..., 2] > limit)
        return x

    return made.Mapped(made.pendulum(), apply)


def values_of(numbers: list[list[list[float]]]) -> Values:
    return Values.of([torch.tensor(record) for record in numbers])


@pytest.mark.parametrize(
    ("tolerance", "allowed", "words"),
    [
        (Tolerance(), False, ""),
        (Tolerance(rows=0.5), True, "2 of 4 rows differ, within the allowed 50%"),
        (Tolerance(rows=0.25), False, "2 of 4 rows differ, more than the allowed 25%"),
        (Tolerance(atol=1.0, rows=0.25), True, "1 of 4 rows differ, within the allowed 25%"),
        (
            Tolerance(quantile=0.8, limit=0.5),
            True,
            "the 0.8 quantile of the difference is 0.5, within the allowed 0.5",
        ),
        (
            Tolerance(quantile=1.0, limit=0.5),
            False,
            "the 1 quantile of the difference is inf, above the allowed 0.5",
        ),
        (
            Tolerance(rows=0.5, quantile=1.0, limit=0.5),
            False,
            "2 of 4 rows differ, within the allowed 50% and the 1 quantile of the difference is "
            "inf, above the allowed 0.5",
        ),
    ],
)
def test_rows_and_quantiles(tolerance: Tolerance, allowed: bool, words: str) -> None:
    nan = math.nan
    one = values_of([[[1.0, 2.0], [3.0, nan]], [[5.0, 6.0], [7.0, 8.0]]])
    other = values_of([[[1.5, 2.0], [3.0, nan]], [[5.0, 6.0], [7.0, nan]]])
    change = compare_values(one, other, tolerance)
    assert change is not None
    assert (change.is_allowed, change.allowance) == (allowed, words)


def test_shapes_and_dtypes_are_never_allowed() -> None:
    one = values_of([[[1.0, 2.0]]])
    loose = Tolerance(rows=1.0)
    for numbers in ([[[1.0]]], [[[1, 3]]]):
        change = compare_values(one, values_of(numbers), loose)  # type: ignore[arg-type]
        assert change is not None
        assert not change.is_allowed


def test_rows_of_large_images_on_disk_are_counted_by_hash() -> None:
    first = torch.zeros(2, 1, 60, 60, dtype=torch.uint8)
    second = first.clone()
    second[1, 0, 1, 1] = 9  # beside the pixels of the thumbnail
    one, other = Values.of(list(first)), Values.of(list(second))
    change = compare_values(one, other, Tolerance(rows=0.5))
    assert change is not None
    assert change.is_allowed
    assert change.allowance == "1 of 2 rows differ, within the allowed 50%"
    change = compare_values(one, other, Tolerance(rows=0.25))
    assert change is not None
    assert not change.is_allowed


@exhaustive
def test_share_of_rows_of_a_stack_is_allowed_and_stated() -> None:
    contract = tdx.freeze(spinning(), steps=20, tolerances={"observation": {"rows": 0.5}})
    report = tdx.check_contract(spinning(1.0), contract)
    (allowed,) = report.allowed
    assert report.same
    assert report.differences == ()
    assert allowed.key == "observation"
    assert "rows differ, within the allowed 50%; it differs by up to 0.5" in allowed.message
    stricter = tdx.check_contract(
        spinning(1.0), contract, tolerances={"observation": {"rows": 0.01}}
    )
    assert stricter.first is not None
    assert stricter.allowed == ()
    assert stricter.first.kind == "value"
    assert "rows differ, more than the allowed 1%" in stricter.first.message


@exhaustive
def test_quantile_of_a_stack_is_allowed() -> None:
    contract = tdx.freeze(spinning(), steps=20)
    few = {"observation": {"quantile": 0.5, "limit": 0.1}}
    assert tdx.check_contract(spinning(1.0), contract, tolerances=few).same
    many = {"observation": {"quantile": 0.95, "limit": 0.1}}
    report = tdx.check_contract(spinning(1.0), contract, tolerances=many)
    assert report.first is not None
    assert "the 0.95 quantile of the difference is 0.5" in report.first.message


@exhaustive
def test_tolerances_of_a_key_replace_those_of_its_stages() -> None:
    contract = tdx.freeze(spinning())
    assert tdx.check_contract(spinning(-9), contract, tolerances={"observation": {"atol": 1}}).same
    assert not tdx.check_contract(spinning(-9), contract, tolerances={"action": {"atol": 1}}).same


@exhaustive
def test_examples_are_the_worst_rows_with_their_episode_step_and_env() -> None:
    def make(size: float) -> Any:
        env = made.sb3_normalized(count=1000.0, n_envs=2)
        env.obs_rms.mean = np.add(made.MEAN, [0, size, 0])
        return env

    contract = tdx.freeze(make(0.0), steps=6)
    report = tdx.check_contract(make(5.0), contract)
    examples = report.first.examples if report.first is not None else ()
    assert len(examples) == 5
    assert {row.env for row in examples} <= {0, 1}
    assert {row.element for row in examples} == {(1,)}
    gaps = [row.expected - row.obtained for row in examples]
    assert gaps == pytest.approx([5 / math.sqrt(made.VAR[1])] * 5, rel=1e-4)
    steps = {(row.episode, row.step) for row in examples}
    assert steps <= {(episode, step) for episode in (0, 1) for step in (None, *range(6))}


@exhaustive
def test_examples_of_a_chain_of_tdx_name_the_step_of_the_value() -> None:
    def make(limit: float) -> Any:
        return made.chain(Late(limit), env=tdx.GymWrapper(Clock()))

    report = tdx.check_contract(make(6), tdx.freeze(make(100), steps=12))
    assert report.first is not None
    found = [(row.episode, row.step, row.expected, row.obtained) for row in report.first.examples]
    assert sorted(found) == [(0, 6, 7, 8), (0, 7, 8, 9)]


class Clock(gym.Env[Any, Any]):
    """Observes the number of its steps."""

    observation_space = gym.spaces.Box(0, 100, (1,), np.float32)
    action_space = gym.spaces.Discrete(2)
    steps = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.steps = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        self.steps += 1
        return np.full(1, self.steps, np.float32), 0.0, False, False, {}


class Late(tdx.Transform):
    """Adds 1 to counts above a limit, which its arguments do not show."""

    def __init__(self, limit: float) -> None:
        super().__init__(in_keys=["observation"], out_keys=["observation"])
        self.hidden = [limit]

    def _apply_transform(self, observation: torch.Tensor) -> torch.Tensor:
        return observation + (observation > self.hidden[0])


@exhaustive
def test_example_of_an_image_has_the_index_of_its_pixel() -> None:
    def brighten(x: Any) -> Any:
        x = np.array(x)
        x[33, 7, 2] //= 2
        return x

    def make(apply: Any) -> Any:
        return made.Mapped(made.Camera(), apply)

    report = tdx.check_contract(make(brighten), tdx.freeze(make(np.array), steps=4))
    assert report.first is not None
    assert {row.element for row in report.first.examples} == {(33, 7, 2)}
    assert all(row.obtained == row.expected // 2 for row in report.first.examples)


@exhaustive
def test_tolerances_are_written_and_read(tmp_path: Path) -> None:
    given = {"observation": {"rows": 0.5}, "action": {"quantile": 0.9, "limit": 0.1}}
    tdx.save_contract(tdx.freeze(spinning(), tolerances=given), tmp_path / "c")
    contract = tdx.load_contract(tmp_path / "c")
    assert contract.tolerances == given
    document = tmp_path / "c" / "contract.yaml"
    text = document.read_text()
    assert "tolerances:\n  observation:\n    rows: 0.5\n" in text
    # A contract without them is that of earlier versions.
    start, end = text.index("tolerances:"), text.index("golden:")
    document.write_text(text[:start] + text[end:])
    assert tdx.load_contract(tmp_path / "c").tolerances == {}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"observations": {"rows": 0.1}}, "has no key 'observations'"),
        ({"observation": {"row": 0.1}}, "unknown tolerance 'row'"),
        ({"observation": {"rows": 2}}, "must be a share from 0 to 1, got 2"),
        ({"observation": {"atol": math.nan}}, "must be a number from 0 to 1e300"),
        ({"observation": {"rows": True}}, "must be a share from 0 to 1"),
        ({"observation": {"limit": 0.1}}, "needs both quantile and limit"),
    ],
)
def test_invalid_tolerance(given: Any, message: str, tmp_path: Path) -> None:
    contract = tdx.freeze(made.pendulum(), steps=2)
    with pytest.raises(tdx.ArgumentError, match=message):
        tdx.check_contract(made.pendulum(), contract, tolerances=given)
    tdx.save_contract(contract, tmp_path / "c")
    document = tmp_path / "c" / "contract.yaml"
    (key, fields), *_ = given.items()
    (field, value), *_ = fields.items()
    entry = f"tolerances: {{{key}: {{{field}: {json.dumps(value).replace('NaN', '.nan')}}}}}\n"
    document.write_text(document.read_text().replace("golden:", f"{entry}golden:", 1))
    with pytest.raises(tdx.StorageError, match=message):
        tdx.load_contract(tmp_path / "c")


@exhaustive
def test_commands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    Path("envs.py").write_text(MODULE)
    rows = ["--tolerance", "observation:rows=0.75,atol=0.001"]
    assert run(["contract", "record", "envs.py:train", "--allow-code", *rows]) == 0
    assert run(["contract", "show"]) == 0
    assert "tolerance of observation: rows 0.75, atol 0.001" in capsys.readouterr().out
    check = ["contract", "check", "envs.py:deploy", "--allow-code"]
    assert run(check) == 0
    assert "allowed: stage 3 (TransformObservation), key 'observation': " in capsys.readouterr().out
    assert run([*check, "--format", "json"]) == 0
    (allowed,) = json.loads(capsys.readouterr().out)["allowed"]
    assert allowed["key"] == "observation"
    assert run([*check, "--tolerance", "observation:rows=0"]) == 1
    table = capsys.readouterr().out.split("\n\n")[-1].splitlines()
    assert table[0].split() == ["episode", "step", "env", "feature", "expected", "obtained"]
    assert len(table) == 6
    assert max(map(len, table)) <= 80
    assert run([*check, "--tolerance", "observation"]) == 2
    assert "has another form than KEY:FIELD=NUMBER" in capsys.readouterr().err
    assert run([*check, "--tolerance", "observation:rows=0.1,rows=1"]) == 2
    assert "names a field twice" in capsys.readouterr().err


@exhaustive
def test_failed_assertion_shows_the_rows() -> None:
    contract = tdx.freeze(spinning())
    with pytest.raises(AssertionError, match=r"\n  step \d, env 0, feature 1: expected"):
        assert_matches_contract(spinning(-9), contract)
    assert_matches_contract(spinning(-9), contract, tolerances={"observation": {"rows": 1}})
