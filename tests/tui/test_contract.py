"""The Contract view: the chain side by side with a contract or another target."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from textual.widgets import OptionList

import tdx
from tdx.compare.report import Coverage
from tdx.foundation.errors import TdxError
from tdx.foundation.files import is_contract
from tdx.pipeline import Pipeline
from tdx.pipeline.editing import Draft
from tdx.stacks.building import build_stack
from tdx.tui.backend.client import Ticket
from tdx.tui.backend.messages import Request
from tdx.tui.contract.contract_screen import ContractScreen
from tdx.tui.contract.lines import Line, details, heading, list_lines, start_line
from tdx.tui.contract.messages import Comparison, StageText
from tdx.tui.contract.requests import CompareContract, FreezeContract
from tests.programs import exhaustive
from tests.test_imports import HEAVY, loaded_by
from tests.tui import wrapped_env
from tests.tui.driving import Driver, driven, job
from tests.tui.idle import resize
from tests.tui.inline_backend import InlineBackend

NORM = "ObservationNorm(0.0, {scale}, in_keys=['observation'])"
CLIP = "ClipTransform(low=-1.0, high=1.0, in_keys=['observation'])"
FRAMES = "CatFrames(3, -1, in_keys=['observation'])"
CHAIN = (NORM.format(scale=1.0), CLIP, FRAMES, "RewardSum")


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def freeze(*stages: str, path: str = "contract") -> None:
    tdx.save_contract(tdx.freeze(build_stack(Pipeline.of("Pendulum-v1", *stages))), path)


async def compare(app: Driver, reference: str) -> ContractScreen:
    """Open the view and wait for the comparison."""
    await app.press("C", f"text:{reference}", "enter")
    await app.settle()
    screen = app.app.screen
    assert isinstance(screen, ContractScreen)
    assert not screen.is_comparing
    return screen


def shown(app: Driver, part: str) -> str:
    """Return the text of a part of the view without its frame."""
    return " ".join(app.text(f"#contract-{part}").replace("│", " ").split())


def cursor_line(app: Driver) -> str:
    listed: OptionList = app.find("#contract-list")
    assert listed.highlighted is not None
    return str(listed.get_option_at_index(listed.highlighted).prompt)


@exhaustive
async def test_differences_are_listed_and_visited() -> None:
    freeze(*CHAIN)
    async with driven(NORM.format(scale=2.0), "StepCounter", FRAMES, "RewardSum") as app:
        # Stages are side by side and the first difference is marked.
        await app.press("C")
        assert "contract contract" in app.text(), "the contract here is offered"
        await app.press("enter")
        assert "≠ 2 differences, 3 follow from them 12 reference steps" in shown(app, "head")
        stages = shown(app, "list")
        for expected in (
            *("env Pendulum-v1 = env Pendulum-v1", "▶ 0 ObservationNorm ≠ 0 ObservationNorm"),
            *("1 ClipTransform -", "· 1 StepCounter", "2 CatFrames ↳ 2 CatFrames"),
            "3 RewardSum · 3 RewardSum",
        ):
            assert expected in stages, stages
        # The cursor is on the key of the first difference, with the values of both sides.
        assert "observation" in cursor_line(app)
        found = shown(app, "details")
        assert "▶ first difference TDX511 value" in found
        assert "contract target difference ≠ [0]" in found
        assert "reset 1 of 14 ≠≠≠" in found
        assert "follows from the differences ↳ stage 0 (ObservationNorm)" in found
        await app.press("right", "right")
        assert "step 1 3 of 14" in shown(app, "details")
        await app.press("f1")
        assert "The stages of both sides are paired" in app.text(".dialog")
        await app.press("escape")

        # Keys visit each difference and leave level by level.
        await app.open(*CHAIN[:1], *CHAIN[2:])
        screen = await compare(app, "contract")
        await app.press("up")
        assert "1 ClipTransform" in cursor_line(app)
        details = shown(app, "details")
        assert "TDX501 missing stage" in details
        assert "add ClipTransform to the target" in details
        await app.press("n", "n")
        assert "CatFrames" in cursor_line(app)
        cause = "follows from stage 1 (ClipTransform) of the contract"
        assert cause in shown(app, "details")
        await app.press("N", "N")
        assert "1 ClipTransform" in cursor_line(app)
        await app.press("enter")
        assert screen.focused is app.find("#contract-details")
        await app.press("escape")
        assert screen.focused is app.find("#contract-list")
        await app.press("escape")
        assert app.app.screen is not screen

        # Both sides and values are visible at every size.
        await app.open(NORM.format(scale=2.0), *CHAIN[1:], size=(60, 20))
        await compare(app, "contract")
        for width, height in ((60, 20), (80, 24), (200, 60)):
            await resize(app.pilot, width, height)
            assert "▶ 0 ObservationNorm ≠ 0 ObservationNorm" in shown(app, "list")
            assert "observation" in cursor_line(app)
            assert "first difference" in shown(app, "details")
            assert "reset 1 of 14" in shown(app, "details") or height < 40
            assert "· not compared" in shown(app, "list"), "the legend is complete"
        assert "0.652 0.758 -0.46 ≠" in shown(app, "list"), "values next to the keys"


def run(request: CompareContract) -> Comparison:
    """Answer a request as the worker does."""
    return request.answer(job())


def start_of(comparison: Comparison) -> Line:
    lines = list_lines(comparison)
    return lines[start_line(lines)]


def texts(comparison: Comparison) -> str:
    """Return all lines of the list, with single spaces."""
    lines = [line.render(200).plain for line in list_lines(comparison)]
    return "\n".join(" ".join(line.split()) for line in lines)


@exhaustive
def test_chains_of_two_libraries_are_compared() -> None:
    factory = Pipeline.of(f"{wrapped_env.__name__}:make")
    found = run(CompareContract(factory, "Pendulum-v1", allow_code=True))
    assert "+ 4 FrameStackObservation" in texts(found)
    assert "+ 2 RescaleAction" in texts(found)


@exhaustive
def test_counters_are_paired_next_to_a_missing_stage() -> None:
    freeze(FRAMES, "RewardSum", CLIP)
    found = run(CompareContract(Pipeline.of("Pendulum-v1", FRAMES, "RewardSum"), "contract"))
    assert "1 RewardSum · 1 RewardSum\n▶ 2 ClipTransform -" in texts(found)


@exhaustive
def test_comparison_with_another_env_lists_the_differing_keys() -> None:
    freeze(*CHAIN)
    found = run(CompareContract(Pipeline.of("CartPole-v1", *CHAIN), "contract"))
    assert "▶ env Pendulum-v1 ≠ env CartPole-v1" in texts(found)
    line = start_of(found)
    text = details(found, line, 0, 60).plain
    assert "the shape is [4] instead of [3]" in text
    # The target ran with the observations of the contract, cut or filled up: no values of its own.
    assert "not compared: the env of the target returns observation [4] instead of [3]" in text
    for line in list_lines(found):
        assert line.key is None or (line.key.a and not line.key.b) or line.key.is_inverse
        assert "difference\n" not in details(found, line, 0, 60).plain


@exhaustive
def test_values_of_different_shapes_are_shown_one_side_at_a_time() -> None:
    freeze("CatFrames(2, -1, in_keys=['observation'])")
    found = run(CompareContract(Pipeline.of("Pendulum-v1", FRAMES), "contract"))
    text = details(found, start_of(found), 0, 120).plain
    assert "the shapes differ, so the values are not compared: [6] float32 and [9] float32" in text
    sides = {line.split()[0]: line.split()[1:] for line in text.splitlines() if "0.652" in line}
    assert (len(sides["contract"]), len(sides["target"])) == (6, 9)
    assert "–" not in text


@pytest.mark.parametrize("compared", [["observation", "action"], ["observation", "reward"]])
@exhaustive
def test_missing_stage_lists_the_keys_that_it_changes(compared: list[str]) -> None:
    clipped = build_stack(Pipeline.of("Pendulum-v1", "RewardClipping(-1.0, 1.0)", FRAMES))
    tdx.save_contract(tdx.freeze(clipped, compare=compared), "contract")
    found = run(CompareContract(Pipeline.of("Pendulum-v1", FRAMES), "contract"))
    line = next(line for line in list_lines(found) if "RewardClipping" in line.render(200).plain)
    text = details(found, line, 0, 120).plain
    specs = text.partition("specs\n")[2].partition("\n\n")[0]
    assert specs == "  reward  [] float32 -1 … 1"
    is_compared = "reward" in compared
    note = "writes reward, not compared: the contract compares observation and action"
    assert (note in text) is not is_compared
    assert ("missing stage" in text) is is_compared
    assert [each.name for each in causes(found)] == (["RewardClipping"] if is_compared else [])
    if is_compared:
        pipeline = Pipeline.of("Pendulum-v1", FRAMES)
        found = run(CompareContract(pipeline, "contract", evaluation=True))
        assert causes(found) == []
        line = next(
            line for line in list_lines(found) if "RewardClipping" in line.render(200).plain
        )
        assert "belongs to training only" in details(found, line, 0, 120).plain


def causes(found: Comparison) -> list[StageText]:
    """Return the stages of the contract that differ."""
    return [each.a for each in found.stages if each.status == "differs" and each.a is not None]


@exhaustive
def test_a_comparison_of_too_little_is_no_answer() -> None:
    freeze(*CHAIN)
    found = run(CompareContract(Pipeline.of("Pendulum-v1", *CHAIN), "contract"))
    assert found.report.same
    # The one that is not compared counts in the same line.
    assert str(found.report.coverage).startswith(
        "compared 3 of 4 stages of the contract (1 changes nothing that a policy reads or does), "
    )
    coverage = Coverage(1, 3, 1, 9)
    text = heading(replace(found.report, coverage=coverage))
    assert text == (
        "? not comparable: compared 1 of 3 stages of the contract (2 not compared), 1 of 9 values"
    )


def test_rewards_are_named_by_their_steps() -> None:
    stack = build_stack(Pipeline.of("Pendulum-v1"))
    tdx.save_contract(tdx.freeze(stack, compare=["reward"]), "contract")
    found = run(CompareContract(Pipeline.of("Pendulum-v1"), "contract"))
    line = next(line for line in list_lines(found) if line.key and line.key.key == "reward")
    assert "step 0  1 of 12" in details(found, line, 0, 120).plain


@exhaustive
def test_names_from_untrusted_files_are_escaped() -> None:
    freeze("RewardSum", CLIP)
    document = Path("contract/contract.yaml")
    text = document.read_text().replace("name: ClipTransform", 'name: "Cl\\e[31mip\\u202e"')
    document.write_text(text)
    found = run(CompareContract(Pipeline.of("Pendulum-v1", "RewardSum"), "contract"))
    assert "1 Cl\\x1b[31mip\\u202e" in texts(found)
    line = start_of(found)
    assert not {"\x1b", "\u202e"} & set(texts(found) + details(found, line, 0, 60).plain)


@pytest.mark.parametrize(
    ("reference", "sentence"),
    [
        ("folder", "folder has no contract.yaml"),
        ("Pendulm-v1", "Pendulm-v1: no env of this id is registered"),
        ("nowhere:make", "nowhere:make: the env is Python code, and importing"),
        ("./missing.yaml", "./missing.yaml"),
    ],
)
def test_invalid_reference_is_reported_in_one_sentence(reference: str, sentence: str) -> None:
    Path("folder").mkdir()
    with pytest.raises(TdxError) as caught:
        run(CompareContract(Pipeline.of("Pendulum-v1"), reference))
    assert sentence in caught.value.message
    assert "\n" not in caught.value.message


@exhaustive
async def test_damaged_contract_is_reported_in_an_empty_view() -> None:
    freeze("RewardSum", path="damaged")
    golden = Path("damaged/golden.safetensors")
    golden.write_bytes(golden.read_bytes()[:-1])
    async with driven("RewardSum") as app:
        await compare(app, "damaged")
        head = shown(app, "head")
        assert "✕ damaged/golden.safetensors is damaged: its content does not match the" in head
        assert app.app.focused is None  # the list is not displayed
        await app.press("n", "right", "enter")  # the list is empty
        await app.press("escape")
        assert not isinstance(app.app.screen, ContractScreen)


@exhaustive
async def test_freeze_asks_before_replacing_and_reports_learning_in_evaluation() -> None:
    async with driven("VecNorm(in_keys=['observation'])") as app:
        await app.press("F", "enter")
        await app.settle()
        assert "wrote contract (1 stage)" in app.notices
        assert is_contract("contract")
        before = Path("contract/contract.yaml").stat().st_ino
        await app.press("F", "enter", "k")
        assert Path("contract/contract.yaml").stat().st_ino == before
        await app.press("F", "enter", "r")
        await app.settle()
        assert Path("contract/contract.yaml").stat().st_ino != before
        Path("mine").mkdir()
        Path("mine/notes.txt").write_text("mine")
        await app.press("F", *["backspace"] * len("contract"), "text:mine", "enter")
        await app.settle()
        assert any("exists and is not a contract" in notice for notice in app.notices)
        await compare(app, "contract")
        assert "= same: compared " in shown(app, "head")
        await app.press("e")
        assert "≠ 1 difference" in shown(app, "head")
        assert "as an evaluation" in shown(app, "head")
        assert "TDX510 state still learning" in shown(app, "details")


class SlowBackend(InlineBackend):
    """Backend that answers requests about contracts when it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self._held: list[tuple[Ticket[Any], Request[Any]]] = []

    def _answer(self, ticket: Ticket[Any], request: Request[Any]) -> None:
        if isinstance(request, FreezeContract | CompareContract):
            self._held.append((ticket, request))
        else:
            super()._answer(ticket, request)

    def answer_all(self) -> None:
        """Answer the requests in their order."""
        for ticket, request in self._held:
            super()._answer(ticket, request)


@exhaustive
async def test_contract_that_is_being_recorded_is_offered_first() -> None:
    Path("another.yaml").write_text("env: Pendulum-v1\n")
    slow = SlowBackend()
    async with driven("RewardSum", backend=slow) as app:
        await app.press("F", "enter", "C")
        assert "contract being recorded" in app.text()
        await app.press("enter")
        assert "comparing …" in shown(app, "head")
        slow.answer_all()
        await app.settle()
        assert "= same: compared " in shown(app, "head")


@exhaustive
async def test_failed_freeze_is_not_offered() -> None:
    Path("mine").mkdir()
    Path("mine/notes.txt").write_text("mine")
    Path("another.yaml").write_text("env: Pendulum-v1\n")
    async with driven("RewardSum") as app:
        await app.press("F", *["backspace"] * len("contract"), "text:mine", "enter")
        await app.settle()
        await app.press("C")
        assert "another.yaml pipeline" in app.text()
        assert "mine last time" not in app.text()


@exhaustive
async def test_both_commands_explain_the_next_step_without_an_env() -> None:
    async with driven(draft=Draft()) as app:
        await app.press("C", "F")
        assert app.notices == ["no pipeline yet; press e to choose an env"] * 2


@exhaustive
def test_view_does_not_import_torch() -> None:
    loaded = loaded_by("import tdx.tui.contract.contract_screen, tdx.tui.contract.commands")
    assert not loaded & (HEAVY - {"textual"})
