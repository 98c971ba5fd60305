"""``tdx init`` with and without the dialog."""

from __future__ import annotations

import os
import pty
import select
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import gymnasium
import pytest

from tdx.cli.init import PipelineDialog
from tdx.cli.options import Color
from tdx.inspection.check_report import check_pipeline
from tdx.inspection.envs import suggest_stages
from tdx.pipeline import EnvConfig, PipelineFile, format_stage
from tests.cli.processes import start
from tests.programs import exhaustive

if TYPE_CHECKING:
    from tests.cli.conftest import Golden, Tdx

PIXELS = EnvConfig("CartPole-v1", from_pixels=True)


def fitting(env: EnvConfig) -> list[str]:
    return [format_stage(each.stage) for each in suggest_stages(env)]


def answers(*texts: str) -> Callable[[str], str]:
    remaining: Iterator[str] = iter(texts)

    def ask(question: str) -> str:
        try:
            return next(remaining)
        except StopIteration:
            raise EOFError from None

    return ask


def interview(*texts: str, env: str = "") -> PipelineDialog:
    config = EnvConfig(env)
    return PipelineDialog(config, (), allow_code=False, color=Color.NEVER, ask=answers(*texts))


def test_suggested_stages_for_images() -> None:
    assert fitting(PIXELS) == [
        "ToTensorImage",
        "GrayScale",
        "Resize(w=84, h=84)",
        "CatFrames(N=4, dim=-3)",
        "InitTracker",
        "RewardSum",
        "StepCounter",
    ]


def test_suggested_step_limit_for_an_env_without_one() -> None:
    endless = EnvConfig("Pendulum-v1", kwargs={"max_episode_steps": -1})
    assert fitting(endless)[-1] == "StepCounter(max_steps=1000)"
    assert fitting(EnvConfig("Pendulum-v1"))[-1] == "StepCounter"


def test_suggested_stages_for_double_precision() -> None:
    pytest.importorskip("mujoco", reason="the only envs with float64 observations")
    assert fitting(EnvConfig("InvertedPendulum-v5"))[0] == "DoubleToFloat"


@pytest.mark.parametrize("arguments", [(), ("--from-pixels",), ("--num-envs", "2")])
def test_suggested_pipeline_passes_the_check(tdx: Tdx, arguments: tuple[str, ...]) -> None:
    outcome = tdx("init", "-", "--env", "CartPole-v1", *arguments, "-y")
    assert outcome.code == 0, outcome.err
    pipeline = PipelineFile(outcome.out).pipeline
    assert check_pipeline(pipeline).ok


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("fits", ("--env", "Pendulum-v1", "-y")),
        ("given", ("--env", "Pendulum-v1", "--t", "RewardScaling(0., 0.1)", "--t", "StepCounter")),
    ],
)
def test_written_file_matches_the_golden_file(
    tdx: Tdx, golden: Golden, name: str, arguments: tuple[str, ...]
) -> None:
    golden(f"init_{name}.yaml", tdx("init", "-", *arguments).out)


@pytest.mark.parametrize(
    "arguments",
    [
        ("Pendulum-v1", "-o", "new.yaml"),
        ("new.yaml", "--env", "Pendulum-v1"),
        ("-o", "new.yaml", "--env", "Pendulum-v1"),
    ],
)
def test_target_and_file_in_both_spellings(
    tdx: Tdx, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...]
) -> None:
    monkeypatch.chdir(tmp_path)
    outcome = tdx("init", *arguments, "-t", "RewardSum")
    assert outcome.err == "wrote new.yaml; next: tdx check new.yaml\n"
    written = PipelineFile.load("new.yaml").pipeline
    assert (written.env.id, len(written.transforms)) == ("Pendulum-v1", 1)


def test_target_alone_is_written_to_the_default_file(
    tdx: Tdx, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert tdx("init", "Pendulum-v1", "-t", "RewardSum", "-q").err == ""
    assert PipelineFile.load("pipeline.yaml").pipeline.env.id == "Pendulum-v1"
    misspelled = tdx("init", "Pendulm", "-o", "other.yaml")
    assert "did you mean Pendulum" in misspelled.err


def test_existing_file_needs_force(tdx: Tdx, tmp_path: Path) -> None:
    file = tmp_path / "chain.yaml"
    arguments = ("init", str(file), "--env", "Pendulum-v1", "-y")
    assert tdx(*arguments).code == 0
    first = file.read_text()
    file.write_text("mine")
    refused = tdx(*arguments)
    assert (refused.code, file.read_text()) == (2, "mine")
    assert "use --force to replace it" in refused.err
    assert tdx(*arguments, "--force").code == 0
    assert file.read_text() == first


@pytest.mark.parametrize(
    ("arguments", "code", "hint"),
    [
        ((), 2, "name an env"),
        (("--env", "Pendulm-v1"), 2, "Pendulum-v1"),
        (("--env", "Pendulum-v1", "--t", "StepCouter"), 2, "did you mean StepCounter?"),
    ],
)
def test_errors_write_nothing(
    tdx: Tdx, tmp_path: Path, arguments: tuple[str, ...], code: int, hint: str
) -> None:
    outcome = tdx("init", str(tmp_path / "x.yaml"), *arguments, "-y")
    assert outcome.code == code
    assert hint in outcome.err
    assert not list(tmp_path.iterdir())


def test_unwritable_file_is_reported(tdx: Tdx, tmp_path: Path) -> None:
    outcome = tdx("init", str(tmp_path / "no" / "x.yaml"), "--env", "Pendulum-v1", "-y")
    assert outcome.code == 3
    assert "cannot write" in outcome.err


def test_dialog_corrects_misspelled_names(capsys: pytest.CaptureFixture[str]) -> None:
    pipeline = interview(
        *("Pendulm-v1", "Pendulum-v1", "n", "StepCouter", "RewardSum", "StepCounter"),
        *("-", "InitTracker", ""),
    ).run()
    assert pipeline.env.id == "Pendulum-v1"
    assert [stage.name for stage in pipeline.transforms] == ["RewardSum", "InitTracker"]
    shown = capsys.readouterr().err
    assert "did you mean StepCounter?" in shown
    assert "episode_reward" in shown
    assert "Pendulum-v1" in shown.partition("hint: ")[2].splitlines()[0]


def test_enter_accepts_the_suggestions(capsys: pytest.CaptureFixture[str]) -> None:
    pipeline = interview("", env="Pendulum-v1").run()
    assert [stage.name for stage in pipeline.transforms] == [
        "InitTracker",
        "RewardSum",
        "StepCounter",
    ]
    assert "marks the first step of each episode" in capsys.readouterr().err


@pytest.mark.parametrize("quiet", [(), ("-q",)])
def test_dialog_completes_names_on_a_terminal(tmp_path: Path, quiet: tuple[str, ...]) -> None:
    def before() -> None:
        os.chdir(tmp_path)
        os.environ["TERM"] = "xterm"

    terminal, slave = pty.openpty()
    process = start(("init", *quiet), dict.fromkeys(range(3), slave), before)
    os.close(slave)
    for awaited, typed in (
        ("env: ", "Pendulum-v\t\n"),
        ("use them?", "n\n"),
        ("stage 0", "StepCo\t\n"),
        ("stage 1", "\n"),
    ):
        expect(terminal, awaited)
        os.write(terminal, typed.encode())
    if not quiet:
        expect(terminal, "wrote pipeline.yaml")
    assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == 0
    os.close(terminal)
    written = PipelineFile.load(tmp_path / "pipeline.yaml").pipeline
    assert written.env.id == "Pendulum-v1"
    assert [stage.name for stage in written.transforms] == ["StepCounter"]


def expect(terminal: int, text: str) -> None:
    """Read the terminal until ``text`` appears."""
    shown = ""
    end = time.monotonic() + 60
    while text not in shown:
        assert time.monotonic() < end, shown
        if select.select([terminal], [], [], 1)[0]:
            shown += os.read(terminal, 65536).decode(errors="replace")


@exhaustive
def test_next_command_allows_what_the_file_names(
    tdx: Tdx, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def make(model: str, **options: Any) -> gymnasium.Env[Any, Any]:
        return gymnasium.make("Pendulum-v1")

    monkeypatch.setattr(gymnasium.envs.registration, "registry", {**gymnasium.registry})
    gymnasium.register("Modelled-v0", cast(Any, make))
    for model, needed in (("large", ""), ("large.xml", " --allow-code")):
        file = tmp_path / f"{model}.yaml"
        arguments = ("--env", "Modelled-v0", "--env-kwargs", f"model={model!r}")
        outcome = tdx("init", str(file), *arguments, "-y")
        assert outcome.err.splitlines()[-1] == f"wrote {file}; next: tdx check {file}{needed}"
        assert tdx("check", str(file), *needed.split()).code == 0
        assert tdx("check", str(file)).code == bool(needed)
