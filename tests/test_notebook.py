"""HTML of values in notebooks (every kind; escaped, offline, limited), and the tutorial."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from tensordict import TensorDictBase

from tdx import (
    Binary,
    Bounded,
    Compose,
    Composite,
    EnvBase,
    GymEnv,
    ObservationNorm,
    ObservationTransform,
    Pipeline,
    ProfilePlan,
    RewardScaling,
    RewardSum,
    StepCounter,
    TransformedEnv,
    Unbounded,
    check,
    inspect,
    inspect_spec,
    open_dump,
    open_stack,
    profile_env,
    record_dump,
    to_html,
)
from tdx.cli.html import MAX_BYTES, html_fragment
from tdx.cli.views import Block, Code, Paragraph
from tdx.cli.views import Cell as TextCell
from tdx.contracts import check_contract, freeze
from tdx.inspection.diff import PipelineSide, compare_pipelines
from tdx.inspection.stack_import import import_stack
from tests.programs import exhaustive

ROOT = Path(__file__).parents[1]
NOTEBOOK = ROOT / "docs" / "tutorials" / "notebook.ipynb"
HOSTILE = "<script>alert(1)</script>\u202e&\"'"
KEYS = 300


class _Tags(HTMLParser):
    """Parser that collects tags, attributes and text, and checks that tags are closed."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: set[str] = set()
        self.text = ""
        self._open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self._open.append(tag)
        self.attributes |= {name for name, _ in attrs}

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self._open[-1:] != ["style"]:
            self.text += data

    def close(self) -> None:
        super().close()
        assert self._open == []


def read(html: str | None) -> _Tags:
    """Parse a fragment and check that it is small, offline and well-formed."""
    assert html is not None
    assert len(html.encode()) <= MAX_BYTES
    assert not re.search(r"https?:|url\(|@import|javascript:", html)
    assert "\u202e" not in html
    found = _Tags()
    found.feed(html)
    found.close()
    assert set(found.tags) <= {
        *("div", "style", "p", "span", "table", "tr", "th", "td", "pre", "details", "summary"),
        *("figure", "figcaption", "svg", "g", "title", "text", "rect", "line"),
    }
    shapes = {"viewbox", "width", "height", "xml:space", "role", "aria-label", "rx"}
    places = {"x", "y", "x1", "x2", "y1", "y2"}
    assert found.attributes <= {"class", "style"} | shapes | places
    return found


def chain_env() -> TransformedEnv:
    return TransformedEnv(GymEnv("Pendulum-v1"), Compose(RewardScaling(0, 0.1), RewardSum()))


def wrapped_env() -> Any:
    return gymnasium.wrappers.NormalizeObservation(gymnasium.make("Pendulum-v1"))


def contract_report() -> object:
    return check_contract(wrapped_env(), freeze(wrapped_env(), steps=2))


def pipeline_diff() -> object:
    sides = [
        PipelineSide(stage, Pipeline.of("Pendulum-v1", stage))
        for stage in ("RewardScaling(0, 2)", "RewardScaling(0, 3)")
    ]
    return compare_pipelines(*sides, steps=3, explain_values=True)


def converted() -> object:
    env = gymnasium.wrappers.RescaleAction(
        gymnasium.make("Pendulum-v1"), np.float32(-1), np.float32(1)
    )
    return import_stack(lambda: open_stack(env), steps=2)


def measured() -> object:
    plan = ProfilePlan(steps=3, warmup=0, repeats=1)
    return profile_env(chain_env(), ["eager"], plan)


VALUES: Mapping[str, tuple[Callable[[], object], str]] = {
    "pipeline": (lambda: Pipeline.of("Pendulum-v1", "RewardSum"), "tdx inspect spec Pendulum-v1"),
    "env": (lambda: GymEnv("Pendulum-v1"), "observation"),
    "chain": (chain_env, "episode_reward"),
    "compose": (lambda: chain_env().transform, "RewardScaling(loc=0.0000"),
    "composite": (lambda: chain_env().observation_spec, "episode_reward"),
    "spec": (lambda: Bounded(-2, 2, (1,)), "-2 … 2"),
    "spec report": (lambda: inspect_spec(chain_env()), "episode_reward"),
    "stack report": (lambda: inspect(wrapped_env()), "NormalizeObservation(epsilon=1e-08)"),
    "stack": (lambda: open_stack(wrapped_env()), "NormalizeObservation(epsilon=1e-08)"),
    "native stack": (lambda: open_stack(chain_env()), "RewardScaling"),
    "profile": (measured, "RewardScaling"),
    "contract": (lambda: freeze(wrapped_env(), steps=2), "normalize"),
    "diff": (pipeline_diff, "RewardScaling"),
    "conversion": (converted, "RescaleAction"),
    "contract report": (contract_report, "the target preprocesses as the contract does"),
}


@pytest.mark.parametrize("kind", VALUES)
def test_value_has_html(kind: str) -> None:
    create, expected = VALUES[kind]
    value: Any = create()
    found = read(value._repr_html_())
    assert expected in found.text
    assert value._repr_html_() == to_html(value)


def test_html_of_a_dump_does_not_read_its_steps(tmp_path: Path) -> None:
    record_dump(Pipeline.of("Pendulum-v1", "RewardSum"), tmp_path / "dump", steps=5, seed=0)
    without_steps: Any = None
    dump = replace(open_dump(tmp_path / "dump"), data=without_steps)
    text = read(dump._repr_html_()).text
    assert "RewardSum" in text
    assert "episode_reward" in text
    assert "Pendulum-v1" in text


def test_value_without_html_is_shown_as_text() -> None:
    assert check(chain_env())._repr_html_() is None
    assert to_html(3) is None


def test_names_are_escaped() -> None:
    spec = Composite({HOSTILE: Unbounded((2,)), "inner": Composite({HOSTILE: Unbounded(())})})
    pipeline = Pipeline.of(HOSTILE, "RewardSum")
    blocks: list[Block] = [Code(HOSTILE), Paragraph([TextCell(HOSTILE, "bad")])]
    for html in (to_html(spec), to_html(pipeline), html_fragment(blocks)):
        assert "<script>alert(1)" in read(html).text


class BrokenStage(ObservationTransform):
    def transform_observation_spec(self, observation_spec: Any) -> Any:
        raise ValueError(HOSTILE)


def test_invalid_chain_shows_its_stages_and_the_error() -> None:
    env = TransformedEnv(GymEnv("Pendulum-v1"), Compose(RewardSum()))
    env.append_transform(BrokenStage(in_keys=["observation"]))
    text = read(to_html(env)).text
    assert "RewardSum" in text
    assert "<script>alert(1)" in text


def test_closed_env_shows_its_error() -> None:
    env = GymEnv("Pendulum-v1")
    env.close()
    assert "EnvError: the GymEnv is closed" in read(to_html(env)).text


class WideEnv(EnvBase):
    """Env with many keys."""

    def __init__(self) -> None:
        super().__init__()
        low = -torch.arange(1.0, 9.0)
        self.observation_spec = Composite(
            {f"sensor_of_the_robot_{index}": Bounded(low, -low) for index in range(KEYS)}
        )
        self.action_spec = Bounded(-1, 1, (1,))
        self.reward_spec = Unbounded((1,))
        self.done_spec = Composite(done=Binary(1, dtype=torch.bool))

    def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
        raise NotImplementedError

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        raise NotImplementedError

    def _set_seed(self, seed: int | None) -> None:
        raise NotImplementedError


@exhaustive
def test_long_chain_with_many_keys_is_folded() -> None:
    stages = [
        ObservationNorm(
            0.0, 1.0, in_keys=[f"sensor_of_the_robot_{key}" for key in range(at, 300, 10)]
        )
        for at in range(10)
    ]
    counters = [StepCounter(10, step_count_key=f"count_{index}") for index in range(40)]
    env = TransformedEnv(WideEnv(), Compose(*stages, *counters))
    found = read(to_html(env))
    assert found.tags.count("details") == 2
    assert "10 more lines" in found.text
    rows = found.tags.count("tr") - 2
    left_out = re.search(r"… (\d+) more rows, left out", found.text)
    total = rows + (int(left_out[1]) if left_out else 0)
    assert total >= KEYS + len(counters)


def test_rows_above_the_limit_are_counted() -> None:
    spec = Composite({f"{'k' * 200}{index}": Unbounded((3,)) for index in range(2_000)})
    found = read(to_html(spec))
    shown = found.text.count("Unbounded")
    assert 0 < shown < 2_000
    assert f"… {2_000 - shown:,} more rows, left out" in found.text
    assert f"{shown - 40:,} more rows" in found.text, "folded rows"
    read(html_fragment([Code("x" * 50_000)] * 20))


def test_html_follows_the_themes_of_the_system_and_notebooks() -> None:
    html = to_html(Unbounded(()))
    assert html is not None
    for marker in (
        "prefers-color-scheme:dark",
        "[data-jp-theme-light=true]",
        "[data-jp-theme-light=false]",
        ".vscode-dark",
        "[data-theme=dark]",
    ):
        assert marker in html
    rules = re.findall(r"\}?([^{}]+)\{[^{}]*\}", html.partition("</style>")[0])
    assert all(".tdx-view" in rule for rule in rules)


def test_html_of_a_pipeline_does_not_import_torch() -> None:
    code = (
        "import sys, tdx; assert tdx.Pipeline.of('Pendulum-v1')._repr_html_();"
        "print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.stdout == "False\n", done.stderr


# Tutorial


def run_cell(source: str, names: dict[str, Any]) -> dict[str, Any] | None:
    """Run a cell like a notebook and return the data of its last expression."""
    tree = ast.parse(source)
    *statements, last = tree.body
    tree.body = statements if isinstance(last, ast.Expr) else tree.body
    exec(compile(tree, "cell", "exec"), names)
    if not isinstance(last, ast.Expr):
        return None
    value = eval(compile(ast.Expression(last.value), "cell", "eval"), names)
    if value is None:
        return None
    html = getattr(value, "_repr_html_", lambda: None)()
    data = {"text/plain": repr(value).splitlines(keepends=True)}
    return data if html is None else {"text/html": html.splitlines(keepends=True)}


@exhaustive
def test_outputs_of_the_tutorial_match_its_cells(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    notebook = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    names: dict[str, Any] = {}
    update = bool(os.environ.get("TDX_UPDATE_GOLDEN"))
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    for number, cell in enumerate(cells, 1):
        data = run_cell("".join(cell["source"]), names)
        result = {"data": data, "metadata": {}, "output_type": "execute_result"}
        outputs = [] if data is None else [{**result, "execution_count": number}]
        if update:
            cell.update(outputs=outputs, execution_count=number)
        elif "measured" in cell["metadata"].get("tags", ()):
            assert [list(each["data"]) for each in cell["outputs"]] == [["text/html"]]
        else:
            assert cell["outputs"] == outputs, "TDX_UPDATE_GOLDEN=1 updates the notebook"
    if update:
        NOTEBOOK.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n")
