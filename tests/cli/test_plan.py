"""``tdx inspect plan``: pipes, stdin, errors, diagrams and completion."""

from __future__ import annotations

import json
import os
import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, get_args

import pytest
import typer

from tdx import PendulumEnv, RewardSum, TransformedEnv
from tdx.cli.commands import build_root
from tdx.cli.pipelines import complete_policy_key
from tdx.cli.views.plan import plan_diagram
from tdx.core.plan import plan_of
from tdx.core.plan.build import When
from tdx.inspection.plan_report import PlanReport
from tests.cli.processes import run

if TYPE_CHECKING:
    from tests.cli.conftest import Tdx

LONG = 'CatFrames(4, dim=-1, in_keys=["observation"], out_keys=["the_last_four_observations"])'
FILE = "version: 1\nenv: Pendulum-v1\ntransforms:\n  - StepCounter: {max_steps: 3}\n"
NODE = r'\w+(?:\["[^"]*"\]|\(\["[^"]*"\]\))'
ARROW = r'(\w+) -\.?->\|"[^"]*"\| (\w+)'


def test_pipe_is_not_cut_at_the_terminal_width() -> None:
    completed = run(
        *("inspect", "plan", "--env", "Pendulum-v1", "--t", LONG, "--t", "RewardSum"),
        before=lambda: os.environ.update(COLUMNS="80"),
    )
    assert (completed.code, completed.err) == (0, "")
    lines = completed.out.splitlines()
    assert f"  0 {LONG}" in lines
    assert max(map(len, lines)) > 80
    assert "…" not in completed.out
    assert "the_last_four_observations@0" in completed.out


def test_pipeline_from_stdin() -> None:
    arguments = ("--pipeline", "-", "--format", "json", "--policy-reads", "done")
    completed = run("inspect", "plan", *arguments, stdin=FILE)
    assert completed.code == 0, completed.err
    shown = json.loads(completed.out)
    assert (shown["kind"], shown["executor"], shown["policy_reads"]) == (
        "plan",
        "planned",
        ["done"],
    )
    assert [(stage["call"], stage["when"]) for stage in shown["stages"]] == [
        ("StepCounter(max_steps=3)", "immediate")
    ]


def test_pipeline_from_file(tdx: Tdx, tmp_path: Path) -> None:
    path = tmp_path / "pipeline.yaml"
    path.write_text(FILE)
    outcome = tdx("inspect", "plan", "--pipeline", str(path), "--format", "jsonl")
    records = [json.loads(line) for line in outcome.out.splitlines()]
    assert [record["record"] for record in records[:2]] == ["stage", "version"]
    written = [record["version"] for record in records if record.get("writer") == "0 StepCounter"]
    assert written == ["step_count@0", "truncated@1", "done@1"]


def test_unknown_policy_key_suggests_the_closest_match(tdx: Tdx) -> None:
    outcome = tdx("inspect", "plan", "--env", "Pendulum-v1", "--policy-reads", "observatin")
    assert (outcome.code, outcome.out) == (2, "")
    assert "observatin" in outcome.err
    assert "did you mean observation?" in outcome.err
    assert (
        "it receives observation, done"
        in tdx(*("inspect", "plan", "--env", "Pendulum-v1", "--policy-reads", "reward")).err
    )


def test_plan_of_an_env_without_a_chain(tdx: Tdx) -> None:
    outcome = tdx("inspect", "plan", "--env", "Pendulum-v1")
    assert outcome.code == 0
    assert "Pendulum-v1  planned" in outcome.out
    assert "observation@0" in outcome.out


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("--t", LONG, "--t", "ActionScaling", "--t", "RewardSum", "--policy-reads", "done"),
        ("--t", "RewardSum", "--t", 'ExcludeTransform("episode_reward", "reward")'),
        ("--t", "NoopResetEnv(3)", "--t", LONG),
    ],
    ids=["bare", "policy", "unused", "eager"],
)
def test_diagram_is_valid_mermaid(tdx: Tdx, arguments: tuple[str, ...]) -> None:
    """Check that every line is a node, an arrow or a class that refers to existing nodes."""
    outcome = tdx("inspect", "plan", "--env", "Pendulum-v1", *arguments, "--format", "mermaid")
    first, *lines = outcome.out.splitlines()
    assert first == "flowchart TD"
    nodes, ends, colored, classes, used = set(), set(), set(), set(), set()
    for line in map(str.strip, lines):
        if arrow := re.fullmatch(ARROW, line):
            ends |= set(arrow.groups())
        elif re.fullmatch(NODE, line):
            nodes.add(re.split(r"[\[(]", line)[0])
        elif definition := re.fullmatch(r"classDef (\w+) \w+:#\w+(?:,\w+:#\w+)*", line):
            classes.add(definition[1])
        else:
            member = re.fullmatch(r"class (\w+(?:,\w+)*) (\w+)", line)
            assert member, line
            colored |= set(member[1].split(","))
            used.add(member[2])
    assert ends <= nodes
    assert {"env", "output", "policy"} <= ends
    assert used == classes
    assert {node for node in nodes if node.startswith("stage")} <= colored <= nodes


@pytest.mark.parametrize("when", get_args(When))
def test_each_execution_time_has_a_color(when: When) -> None:
    plan = plan_of(TransformedEnv(PendulumEnv(), RewardSum()))
    stages = tuple(replace(stage, when=when) for stage in plan.stages)
    report = PlanReport("pendulum", ("action",), replace(plan, stages=stages))
    drawn = plan_diagram(report, ["RewardSum"])
    assert f"    class stage0 {when}\n" in drawn
    assert f"    classDef {when} fill:" in drawn


def test_completion_of_policy_reads_includes_keys_of_the_chain() -> None:
    words = ("inspect", "plan", "--env", "Pendulum-v1", "--t", "StepCounter", "--policy-reads", "")
    environ = {
        "_TDX_COMPLETE": "complete_bash",
        "COMP_WORDS": "\n".join(("tdx", *words)),
        "COMP_CWORD": str(len(words)),
        # Finds the keys itself, instead of waiting a second for another process.
        "_TDX_FINDS_KEYS": "1",
    }
    completed = run(before=lambda: os.environ.update(environ))
    assert completed.err == ""
    assert completed.out.split() == ["observation", "step_count", "done", "terminated", "truncated"]


@pytest.mark.parametrize(
    ("given", "offered"),
    [
        ({"env": "Pendulum-v1"}, ["observation"]),
        ({"env": "NoSuchEnv-v1"}, []),
        ({"env": "Pendulum-v1", "transforms": ["NoSuchStage"]}, []),
        ({"pipeline": "-"}, []),
        ({}, []),
    ],
)
def test_completion_of_an_incomplete_command(given: dict[str, object], offered: list[str]) -> None:
    context = typer.Context(build_root())
    context.params.update(given)
    assert complete_policy_key(context, "ob") == offered
