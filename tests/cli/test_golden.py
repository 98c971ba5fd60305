"""Output of the commands, compared with golden files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING
from xml.etree import ElementTree

import pytest

from tests.cli.conftest import GOLDEN, WIDTHS, assert_complete

if TYPE_CHECKING:
    from tests.cli.conftest import Golden, Layout, Tdx

PENDULUM = ("inspect", "spec", "--env", "Pendulum-v1", "--t", "StepCounter(max_steps=200)")
CARTPOLE = (
    *("inspect", "spec", "--env", "CartPole-v1", "--num-envs", "4"),
    *("--t", 'CatFrames(4, dim=-1, in_keys=["observation"])'),
    *("--t", "RewardScaling(0.0, 0.1)", "--t", "RewardSum", "--t", "InitTracker"),
)
RENAMED = (
    *("inspect", "spec", "--env", "Pendulum-v1"),
    *("--t", 'RenameTransform(["observation"], ["state_vector"])'),
    *("--t", 'ObservationNorm(0.0, 2.0, in_keys=["state_vector"])'),
)
ENVS = ("list", "envs", "FrozenLake")
TRANSFORMS = ("list", "transforms", "clip")
SHOW = ("show", "transform", "CatFrames")
FLOW = (
    *("--env", "Pendulum-v1", "--t", "StepCounter(max_steps=200)", "--t", "RewardSum"),
    *("--t", "ActionScaling", "--t", 'RenameTransform(["observation"], ["angle"])'),
    *("--t", 'ObservationNorm(0.0, 2.0, in_keys=["angle"], out_keys=["scaled"])'),
    *("--t", 'ExcludeTransform("reward")'),
)
CHAIN = ("inspect", "chain", *FLOW)
KEYS = ("inspect", "keys", *FLOW)

PLAN = (
    *("inspect", "plan", "--env", "Pendulum-v1", "--t", "StepCounter(max_steps=200)"),
    *("--t", 'CatFrames(4, dim=-1, in_keys=["observation"])', "--t", "RewardSum"),
    *("--t", 'ObservationNorm(0.0, 2.0, in_keys=["observation"], out_keys=["scaled"])'),
    *("--t", "ActionScaling", "--t", 'ExcludeTransform("scaled")'),
)
POLICY = (*PLAN, "--policy-reads", "observation", "--policy-reads", "done")
EAGER = ("inspect", "plan", "--env", "Pendulum-v1", "--t", "NoopResetEnv(3)", "--t", "RewardSum")


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("spec", PENDULUM),
        ("spec_batch", CARTPOLE),
        ("spec_renamed", RENAMED),
        ("spec_no_chain", PENDULUM[:4]),
        ("spec_stages", (*CARTPOLE, "--stages")),
        ("spec_key", (*CARTPOLE, "--key", "observation")),
        ("list_envs", ENVS),
        ("list_transforms", TRANSFORMS),
        ("show_transform", SHOW),
        ("check", ("check", *CARTPOLE[2:])),
        ("chain", CHAIN),
        ("keys", KEYS),
        ("keys_some", (*KEYS, "angle", "done")),
        ("plan", PLAN),
        ("plan_policy", POLICY),
        ("plan_eager", EAGER),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_table_matches_the_golden_file(
    layout: Layout, name: str, arguments: tuple[str, ...]
) -> None:
    layout(name, *arguments)


@pytest.mark.parametrize("columns", WIDTHS)
def test_layout_in_narrow_terminals(tdx: Tdx, golden: Golden, columns: int) -> None:
    """Compare a table whose layout depends on the width with one golden file per width."""
    golden(f"chain.{columns}.txt", tdx(*CHAIN, columns=columns).out)


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("spec", PENDULUM),
        ("list_envs", ENVS),
        ("list_transforms", TRANSFORMS),
        ("show_transform", (*SHOW, "--no-example")),
        ("check", ("check", *PENDULUM[2:])),
        ("chain", CHAIN),
        ("keys", KEYS),
        ("plan", PLAN),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_json_matches_the_golden_file(
    tdx: Tdx, golden: Golden, name: str, arguments: tuple[str, ...]
) -> None:
    """Check JSON only: ``test_formats_agree.py`` compares the other formats with it."""
    outcome = tdx(*arguments, "--format", "json")
    assert outcome.code == 0, outcome.err
    golden(f"{name}.json", outcome.out)


@pytest.mark.parametrize("form", ["jsonl", "csv", "md"])
@pytest.mark.parametrize(("name", "arguments"), [("spec", PENDULUM), ("list_envs", ENVS)])
def test_other_formats_match_the_golden_files(
    tdx: Tdx, golden: Golden, name: str, arguments: tuple[str, ...], form: str
) -> None:
    outcome = tdx(*arguments, "--format", form)
    assert outcome.code == 0, outcome.err
    golden(f"{name}.{form}", outcome.out)


@pytest.mark.parametrize("arguments", [CHAIN, KEYS, PLAN, SHOW, PENDULUM])
def test_markdown_is_complete(tdx: Tdx, arguments: tuple[str, ...]) -> None:
    document = json.loads(tdx(*arguments, "--format", "json").out)
    markdown = tdx(*arguments, "--format", "md").out
    assert_complete(markdown.replace("\\", ""), document)


@pytest.mark.parametrize("form", ["mermaid", "svg"])
def test_chain_as_an_image(tdx: Tdx, golden: Golden, form: str) -> None:
    image = tdx(*CHAIN, "--format", form).out
    golden(f"chain.{form}", image)
    if form == "svg":
        root = ElementTree.fromstring(image)
        assert root.tag == "{http://www.w3.org/2000/svg}svg"
        assert "prefers-color-scheme:dark" in image
    else:
        assert tdx(*CHAIN, "--graph", "--format", "md").out == f"```mermaid\n{image}```\n"


def test_chain_as_a_diagram_in_a_terminal(tdx: Tdx, golden: Golden) -> None:
    text = tdx(*CHAIN, "--graph", columns=60).out
    golden("chain_graph.60.txt", text)
    diagram = text.splitlines()[1:]
    assert {len(line) for line in diagram} <= {58, 60}
    long = tdx(*CHAIN, "--t", f"StepCounter(step_count_key={'a' * 90!r})", "--graph", columns=60)
    assert max(map(len, long.out.splitlines())) == 60
    assert long.out.replace("\n", "").count("a" * 50) == 1
    assert tdx("inspect", "chain", "Pendulum-v1", "--graph").out.endswith("no stages.\n")


def test_lineage_as_a_diagram(tdx: Tdx, golden: Golden) -> None:
    golden("keys.mermaid", tdx(*KEYS, "--format", "mermaid").out)


@pytest.mark.parametrize(
    "arguments",
    [
        ("check", *PENDULUM[2:]),
        ("list", "envs", "no such env"),
        ("list", "transforms", "zzqqxx"),
        ("diff", "same.yaml", "same.yaml"),
    ],
    ids=lambda arguments: " ".join(arguments[:2]),
)
def test_csv_without_rows_has_a_header(
    tdx: Tdx, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("same.yaml").write_text("version: 1\nenv: Pendulum-v1\n")
    (heading,) = tdx(*arguments, "--format", "csv").out.splitlines()
    assert heading.count(",") > 2


@pytest.mark.parametrize(("name", "arguments"), [("plan_policy", POLICY), ("plan_eager", EAGER)])
def test_plan_as_a_diagram(tdx: Tdx, golden: Golden, name: str, arguments: tuple[str, ...]) -> None:
    golden(f"{name}.mermaid", tdx(*arguments, "--format", "mermaid").out)


def test_colors_of_the_change_marks(tdx: Tdx, golden: Golden) -> None:
    golden("spec.ansi", tdx(*PENDULUM, "--color", "always", columns=60).out)


def test_lines_have_the_kind_of_the_document() -> None:
    """Compare the kind in each line of JSON Lines with that of the whole document."""
    pairs = [(lines, lines.with_suffix(".json")) for lines in GOLDEN.glob("*.jsonl")]
    assert pairs
    for lines, whole in pairs:
        kind = json.loads(whole.read_text())["kind"]
        kinds = {json.loads(line)["kind"] for line in lines.read_text().splitlines()}
        assert kinds <= {kind}, lines.name
        assert kind not in ("error", "rule")
