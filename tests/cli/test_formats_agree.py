"""JSON, JSON Lines and CSV of a command contain the same data."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tdx.cli.options import (
    DATA_FORMATS,
    Color,
    Format,
    OutputOptions,
)
from tdx.cli.output import render_view
from tdx.cli.views import Cell, Paragraph, View
from tests.programs import sampled

if TYPE_CHECKING:
    from tests.cli.conftest import Tdx

Document = dict[str, Any]
CHAIN = (
    *("--env", "Pendulum-v1", "--t", "StepCounter(max_steps=20)", "--t", "RewardSum"),
    *("--t", 'ObservationNorm(0.0, 2.0, in_keys=["observation"])', "--t", "InitTracker"),
    *("--t", 'RenameTransform(["observation"], ["angle"])', "--t", "RewardClipping(-1, 1)"),
    *("--t", "RewardScaling(0.0, 0.1)", "--t", "ActionScaling", "--seed", "0"),
)
SHORT = ("--steps", "4", "--warmup", "1", "--repeat", "1", "--passes", "none")
A = "version: 1\nenv: Pendulum-v1\ntransforms: [RewardSum, InitTracker, StepCounter: [3]]"
B = "version: 1\nenv: Pendulum-v1\ntransforms: [InitTracker, ActionScaling, StepCounter: [4]]"


def _of(*names: str) -> Callable[[Document], list[Any]]:
    return lambda document: [item for name in names for item in document[name]]


def _spec(document: Document) -> list[Any]:
    return [*document["keys"], *(key for stage in document["stages"] for key in _keys(stage))]


def _keys(stage: Document) -> list[Any]:
    place = {name: stage[name] for name in ("stage", "transform", "call")}
    return [{**place, **key} for key in stage.get("keys", ())]


def _chain(document: Document) -> list[Any]:
    return [item for stage in document["stages"] for item in _effects(stage)]


def _effects(stage: Document) -> Iterator[Any]:
    place = {name: stage[name] for name in ("stage", "transform", "call", "time_behavior")}
    for lane in ("forward", "inverse"):
        found = stage[lane]
        effects = [{"key": key} for key in found["reads"]]
        effects += [{"key": key} for key in stage["carried"] if lane == "forward"]
        effects += found["writes"]
        effects += found["renames"]
        effects += [{"key": key} for key in found["drops"]]
        yield from ({**place, "lane": lane, **effect} for effect in effects)
    idle = all(not any(stage[lane].values()) for lane in ("forward", "inverse"))
    if idle and not stage["carried"]:
        yield place


def _versions(document: Document) -> list[Any]:
    return [{**each, **_places(each)} for each in document["versions"]]


def _plan(document: Document) -> list[Any]:
    return [*document["stages"], *_versions(document)]


def _places(version: Document) -> Document:
    ended = version.get("ended")
    return {
        "writer": _place(version["writer"]),
        "readers": list(map(_place, version["readers"])),
        "ended": None if ended is None else _place(ended),
    }


def _place(place: Document) -> str:
    if "stage" not in place:
        return str(place["kind"])
    after = " (next step)" if place["next_step"] else ""
    return f"{place['stage']} {place['transform']}{after}"


def _values(document: Document) -> list[Any]:
    return [
        {name: phase[name] for name in ("phase", "first", "count")}
        | {name: stage[name] for name in ("kind", "stage", "name", "direction")}
        | value
        for phase in document["phases"]
        for stage in phase["stages"]
        for value in stage["values"]
    ]


def _components(document: Document) -> list[Any]:
    return [
        {name: value for name, value in feature.items() if name != "components"} | component
        for feature in document["features"]
        for component in feature["components"] or [{}]
    ]


def _differing(document: Document) -> list[Any]:
    found = list(document["env"])
    found += [stage for stage in document["stages"] if stage["status"] != "same"]
    for name in ("env_specs", "chain_specs"):
        found += [key for key in document[name] if key["change"] != "same"]
    found += [value for value in document["values"] if value["status"] != "same"]
    return found + [{"status": each["kind"]} for each in document["differences"]]


def _modes(document: Document) -> list[Any]:
    shown = ("label", "lane", "n", "mean", "p95", "step_us", "share")
    return [
        {"mode": mode["mode"], **{name: row[name] for name in shown}}
        for mode in document["modes"]
        for row in mode["rows"]
    ]


COMMANDS: dict[str, tuple[tuple[str, ...], Callable[[Document], list[Any]]]] = {
    "inspect spec": (("inspect", "spec", *CHAIN), _spec),
    "inspect spec --stages": (("inspect", "spec", *CHAIN, "--stages"), _spec),
    "inspect spec --key": (("inspect", "spec", *CHAIN, "--key", "reward"), _spec),
    "inspect chain": (("inspect", "chain", *CHAIN), _chain),
    "inspect keys": (("inspect", "keys", *CHAIN), _versions),
    "inspect values": (("inspect", "values", *CHAIN, "--steps", "5"), _values),
    "inspect plan": (("inspect", "plan", *CHAIN), _plan),
    "check": (("check", *CHAIN), _of("findings")),
    "diff": (("diff", "a.yaml", "b.yaml", "--steps", "5"), _differing),
    "profile compare": (("profile", "compare", "profile.json", "profile.json"), _of("changes")),
    "show transform": (("show", "transform", "CatFrames"), _of("arguments")),
    "list envs": (("list", "envs", "FrozenLake"), _of("envs")),
    "list kinds": (("list", "kinds"), _of("stack_kinds")),
    "list transforms": (("list", "transforms", "reward"), _of("transforms")),
    "explain": (("explain",), _of("codes")),
    "config show": (("config", "show"), _of("settings")),
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tdx: Tdx) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.yaml").write_text(A)
    (tmp_path / "b.yaml").write_text(B)
    return tmp_path


@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.usefixtures("folder")
@sampled(5)
def test_json_jsonl_and_csv_contain_the_same_data(tdx: Tdx, name: str) -> None:
    arguments, items_of = COMMANDS[name]
    if "profile.json" in arguments:
        assert tdx("profile", *CHAIN, *SHORT, "--save", "profile.json").code == 0
    outcomes = {form: tdx(*arguments, "--format", form) for form in ("json", "jsonl", "csv")}
    assert len({outcome.code for outcome in outcomes.values()}) == 1
    document = json.loads(outcomes["json"].out)
    agree(document, items_of(document), outcomes["jsonl"].out, outcomes["csv"].out)


def test_formats_of_a_dataset_contain_the_same_data(tdx: Tdx, tmp_path: Path) -> None:
    for package in ("av", "datasketches", "pyarrow"):
        pytest.importorskip(package)
    from tests.stacks.checkpoints.datasets import draw, write_dataset

    data = str(write_dataset(tmp_path / "data", [draw(20)]))
    texts = {
        form: tdx("inspect", "values", data, "--format", form).out
        for form in ("json", "jsonl", "csv")
    }
    document = json.loads(texts["json"])
    agree(document, _components(document), texts["jsonl"], texts["csv"])


def test_formats_of_a_profile_contain_the_same_data(
    tdx: Tdx, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tdx.profiling.saved import read_profile

    assert tdx("profile", *CHAIN, *SHORT, "--save", "profile.json").code == 0
    profile = read_profile(folder / "profile.json")
    monkeypatch.setattr("tdx.profiling.run.profile_env", lambda *_: profile)
    texts = {
        form: tdx("profile", *CHAIN, *SHORT, "--format", form).out
        for form in ("json", "jsonl", "csv")
    }
    document = json.loads(texts["json"])
    agree(document, _modes(document), texts["jsonl"], texts["csv"])


def agree(document: Document, items: list[Any], lines: str, table: str) -> None:
    """Check that each item has a line of JSON and a row of CSV with the same values."""
    records = [json.loads(line) for line in lines.splitlines()]
    rows = list(csv.DictReader(io.StringIO(table)))
    assert len(items) == len(records) == len(rows) > 0
    for item, record, row in zip(items, records, rows, strict=True):
        assert set(_facts(item)) <= set(_facts(record)), item
        head = {name: record.pop(name) for name in ("schema_version", "kind")}
        assert head == {name: document[name] for name in head}
        cells = {name: value for name, value in row.items() if value != ""}
        assert cells == {
            name: text for name, value in record.items() if (text := _cell(value)) != ""
        }


def _facts(data: Any) -> Iterator[str]:
    """Yield the plain values in nested data."""
    if isinstance(data, dict):
        data = list(data.values())
    if isinstance(data, list):
        for each in data:
            yield from _facts(each)
    elif data is not None:
        yield str(data)


def _cell(value: Any) -> str:
    """Format a value as in CSV."""
    if isinstance(value, list | dict):
        return json.dumps(value, ensure_ascii=False)
    return "" if value is None else str(value)


@pytest.mark.parametrize("form", DATA_FORMATS)
def test_format_creates_only_the_data_it_needs(form: Format) -> None:
    created: list[str] = []

    def data() -> Document:
        created.append("data")
        return {}

    def records() -> Iterator[Document]:
        created.append("records")
        yield {"key": "reward"}

    view = View("keys", data, lambda: [Paragraph([Cell("reward")])], records)
    render_view(view, OutputOptions(form, Color.NEVER))
    needed = {Format.JSON: ["data"], Format.JSONL: ["records"], Format.CSV: ["records"]}
    assert created == needed.get(form, [])
