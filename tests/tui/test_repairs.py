"""Repairs in the app: measured normalizers, excluded entries, and the source in an editor."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch

from tdx.foundation.errors import ArgumentError
from tdx.inspection.measured_norms import measure_norm
from tdx.pipeline import EnvConfig, Pipeline, PipelineFile, format_stage
from tdx.pipeline.editing import Draft
from tdx.stacks.building import build_env
from tdx.tui.app import TdxApp
from tdx.tui.backend.client import CANCELLED, RequestError, Ticket
from tdx.tui.backend.requests import ListEnvs, MeasureNorm
from tdx.tui.contract.requests import FreezeContract
from tests.programs import exhaustive
from tests.tui import wrapped_env
from tests.tui.driving import driven
from tests.tui.inline_backend import InlineBackend

MODULE = wrapped_env.__name__
HERE = Path(wrapped_env.__file__)


# Measuring


@exhaustive
async def test_measured_statistics_are_written_into_the_pipeline() -> None:
    async with driven("RewardSum", "ObservationNorm", "VecNorm") as app:
        # Measured statistics are written into the pipeline.
        measure = "Measure the normalizer"
        await app.press("down", "M")
        assert app.notices[-1] == "select an enabled ObservationNorm or VecNorm"
        assert measure not in app.commands()
        await app.press("down")
        assert {measure, "Exclude unstorable"} <= app.commands()
        assert "M measure them in random steps" in app.text("StageTab")
        await app.press("M", "text:1", "enter")
        assert app.notices[-1] == "enter 2 to 1,000,000 steps"
        await app.press("M", "text:50", "enter")
        await app.settle()
        assert app.stages[1].startswith("ObservationNorm(loc=[")
        assert "TDX446" not in app.text("StageTab")
        assert any("measured over 50 steps" in notice for notice in app.notices)
        await app.press("down", "M")
        assert "Replace VecNorm by its statistics after" in app.text()
        await app.press("text:20", "enter")
        await app.settle()
        assert [each.partition("(")[0] for each in app.stages] == [
            *("RewardSum", "ObservationNorm", "ObservationNorm", "ObservationNorm"),
        ]
        assert "in_keys=['reward']" in app.stages[3].replace('"', "'")
        await app.press("u", "u")
        assert app.stages == ["RewardSum", "ObservationNorm", "VecNorm"]

        # Refused measurement is explained.
        await app.open("ObservationNorm(in_keys=['nothing'])")
        await app.press("down", "M", "text:5", "enter")
        await app.settle()
        assert "nothing" in app.notices[-1]
        assert not app.app.workspace.editor.is_modified


@pytest.mark.parametrize(
    ("env", "stage"),
    [
        (EnvConfig("Pendulum-v1", seed=1), "ObservationNorm(in_keys=['observation'])"),
        (EnvConfig("Pendulum-v1"), "ObservationNorm(0.0, 1.0, standard_normal=True)"),
        (EnvConfig("Pendulum-v1", num_envs=2), "ObservationNorm"),
        (EnvConfig("Pendulum-v1"), "VecNorm(in_keys=['observation'])"),
    ],
)
def test_measured_observations_are_standard_normal(env: EnvConfig, stage: str) -> None:
    chain = Pipeline.of(env, stage)
    (found,) = measure_norm(chain, 200)
    assert format_stage(found) == format_stage(measure_norm(chain, 200)[0]), "it is repeatable"
    with torch.random.fork_rng():
        torch.manual_seed(env.seed or 0)
        built = build_env(chain.with_stages(found))
        built.set_seed(env.seed or 0)
        values = built.rollout(200, break_when_any_done=False)["observation"].flatten(0, -2)
    assert torch.allclose(values.mean(0), torch.zeros(3), atol=0.2)
    assert torch.allclose(values.std(0), torch.ones(3), atol=0.2)


class StuckBackend(InlineBackend):
    """Backend whose requests to freeze, measure and list envs never complete."""

    KINDS: tuple[type, ...] = (FreezeContract, MeasureNorm, ListEnvs)

    def __init__(self) -> None:
        super().__init__()
        self.stuck: dict[str, Ticket[Any]] = {}
        self.killed: list[str] = []

    def ask(self, request: Any, *, worker: str = "look", **options: Any) -> Any:
        if not isinstance(request, self.KINDS):
            return super().ask(request, worker=worker, **options)
        self.stuck[worker] = Ticket(0, asyncio.get_running_loop().create_future())
        return self.stuck[worker]

    def restart(self, worker: str) -> None:
        super().restart(worker)
        self.killed.append(worker)
        if worker in self.stuck:
            self.stuck.pop(worker).future.set_exception(RequestError(CANCELLED))


@pytest.mark.parametrize(
    ("keys", "worker"), [(("F", "enter"), "contract"), (("M", "text:50", "enter"), "repair")]
)
@exhaustive
async def test_same_key_cancels_in_every_tab(
    keys: tuple[str, ...], worker: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    backend = StuckBackend()
    async with driven("ObservationNorm", backend=backend) as app:
        await app.press("down", *keys)
        assert "· Ctrl+K cancels" in app.text("StatusBar")
        await app.press("3", "ctrl+k")
        assert app.notices[-1] == "cancelled"
        assert backend.killed == [worker], "the rollout continues"
        await app.press("1", "escape", "ctrl+k")
        assert backend.killed == [worker, "look"], "as without such a command"
        await app.press("e")
        assert "loading …" in app.text(".dialog")


def test_each_key_gets_its_own_statistics() -> None:
    chain = Pipeline.of(
        *("Pendulum-v1", "RewardSum"),
        "ObservationNorm(in_keys=['observation', 'episode_reward'], out_keys=['o', 'r'])",
    )
    first, second = measure_norm(chain, 20)
    assert (first.kwargs["in_keys"], first.kwargs["out_keys"]) == (("observation",), ("o",))
    assert (second.kwargs["in_keys"], second.kwargs["out_keys"]) == (("episode_reward",), ("r",))
    assert first.kwargs["loc"] != second.kwargs["loc"]


def test_images_get_one_number() -> None:
    env = EnvConfig("CartPole-v1", from_pixels=True)
    images = Pipeline.of(env, "ToTensorImage", "ObservationNorm(in_keys=['pixels'])")
    (found,) = measure_norm(images, 3)
    affine: Any = found.kwargs
    assert 0.5 < -affine["loc"] / affine["scale"] < 1.0, "most of a frame is white"
    running = Pipeline.of(env, "ToTensorImage", "VecNorm(in_keys=['pixels'])")
    with pytest.raises(ArgumentError, match="numbers, which is too many for arguments"):
        measure_norm(running, 3)


# Entries that cannot be stored


@exhaustive
async def test_entries_that_cannot_be_stored_are_excluded() -> None:
    async with driven(env=f"{MODULE}:make_mission", allow_code=True) as app:
        await app.press("X")
        await app.settle()
        assert app.stages == ['ExcludeTransform("mission")']
        assert app.notices[-1] == "excluded mission; u undoes it"
        await app.press("X")
        await app.settle()
        assert app.notices[-1] == "all entries can be stored"
        await app.press("u")
        assert "mission" not in "".join(app.stages)


# Source


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Return the file to which the editor writes its arguments."""
    editor, found = tmp_path / "editor", tmp_path / "arguments"
    editor.write_text(f'#!/bin/sh\necho "$@" > {found}\n')
    editor.chmod(0o755)
    monkeypatch.setenv("EDITOR", f"{editor} -R")
    monkeypatch.delenv("VISUAL", raising=False)
    monkeypatch.setattr(TdxApp, "suspend", lambda self: nullcontext())
    return found


def line_of(text: str) -> int:
    lines = HERE.read_text().splitlines()
    return next(number for number, line in enumerate(lines, 1) if line.startswith(text))


@exhaustive
async def test_the_code_of_the_env_of_a_wrapper_and_of_an_error_is_opened(opened: Path) -> None:
    async with driven(env=f"{MODULE}:make_untrue", allow_code=True) as app:
        await app.press("home", "o")
        assert opened.read_text().split() == [
            *("-R", f"+{line_of('def make_untrue')}", str(HERE.relative_to(Path.cwd()))),
        ]
        await app.press("end", "up", "o")
        assert opened.read_text().split()[1] == f"+{line_of('class _Untrue')}"
        await app.press("home", "down", "o")
        assert opened.read_text().strip().partition("gymnasium/")[2], "code of a library"
        app.app.workspace.edit("break it", Draft.of(Pipeline.of(f"{MODULE}:fail")))
        await app.press("home", "o")
        assert opened.read_text().split()[1] == f"+{line_of('def fail') + 2}"


@exhaustive
async def test_the_line_in_the_pipeline_file_is_opened_or_a_message_says_why_not(
    opened: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "chain.yaml"
    file.write_text("version: 1\nenv: Pendulum-v1\ntransforms:\n  - RewardSum\n  - StepCounter\n")
    async with driven(draft=Draft.of(PipelineFile.load(file).pipeline)) as app:
        await app.press("end", "up", "o")
        assert opened.read_text().split() == ["-R", "+5", str(file)]
        opened.unlink()
        monkeypatch.setenv("EDITOR", "no-such-editor")
        await app.press("o")
        assert "'no-such-editor' does not exist: set EDITOR to open" in app.notices[-1]
        monkeypatch.delenv("EDITOR")
        await app.press("o")
        assert app.notices[-1] == f"set EDITOR to open {file}:5"
        monkeypatch.undo()
        monkeypatch.setenv("EDITOR", "/bin/sh")
        await app.press("o")
        assert "an editor cannot be opened from here" in app.notices[-1], "in a browser"
        app.app.workspace.load(Draft.of(Pipeline.of("Pendulum-v1", "RewardSum")))
        await app.inspected()
        await app.press("end", "up", "o")
        await app.notified("RewardSum is not code of yours, so it has no line to open")
    assert not opened.exists()
