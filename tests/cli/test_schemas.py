"""``tdx schema --output``: JSON Schemas and the documents that they describe."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NotRequired, TypedDict

import gymnasium
import pytest
from jsonschema import Draft202012Validator  # type: ignore[import-untyped]

from tdx.cli.documents import DOCUMENTS, document_schema
from tdx.cli.schemas import SchemaBuilder
from tdx.cli.views.dumps import sharded_view
from tdx.foundation.keys import NestedKey
from tdx.foundation.serialization import Entries, Entry, Result, key_entry, to_plain
from tdx.inspection.watch import watch
from tdx.rollouts import open_dump
from tdx.rollouts.recording.sharded_rollout import ShardedRollout, ShardFailure
from tests.programs import exhaustive, sampled
from tests.stacks.checkpoints.datasets import draw, write_dataset
from tests.stacks.descriptors.exports import write_mjlab

if TYPE_CHECKING:
    from tests.cli.conftest import Tdx

ROOT = Path(__file__).parents[2]
CHAIN = (
    *("Pendulum-v1", "-t", "StepCounter(max_steps=3)", "-t", "VecNorm", "-t", "ActionScaling"),
    *("-t", 'RenameTransform(["observation"], ["angle"])', "--seed", "0"),
)
SHORT = ("--steps", "4", "--warmup", "1", "--repeat", "1", "--passes", "none")
COMMANDS: Mapping[str, list[tuple[str, ...]]] = {
    "spec": [("inspect", "spec", *CHAIN), ("inspect", "spec", *CHAIN, "--stages")],
    "descriptor": [("inspect", "spec", "policy.onnx")],
    "chain": [("inspect", "chain", *CHAIN)],
    "keys": [("inspect", "keys", "Pendulum-v1", "-t", "StepCounter")],
    "values": [("inspect", "values", *CHAIN, "--steps", "2")],
    "dataset": [("inspect", "values", "data")],
    "state": [("inspect", "state", *CHAIN, "--steps", "2")],
    "plan": [("inspect", "plan", *CHAIN), ("inspect", "plan", "Pendulum-v1")],
    "check": [("check", *CHAIN), ("check", "bad.yaml"), ("check", "bad.yaml", "--diff")],
    "checks": [("check", "a.yaml", "bad.yaml", "--statistics")],
    "explanation": [("explain", "TDX422"), ("explain", "TDX101")],
    "codes": [("explain",)],
    "contract": [("contract", "check", "a.yaml", "--against", "frozen")],
    "contract_contents": [("contract", "show", "frozen")],
    "diff": [("diff", "a.yaml", "bad.yaml", "--steps", "2")],
    "profile": [("profile", *CHAIN, *SHORT, "--save", "profile.json", "--force")],
    "profile_comparison": [("profile", "compare", "profile.json", "profile.json")],
    "profile_sweep": [("profile", "Pendulum-v1", *SHORT, "--sweep", "num_envs=1,2")],
    "profile_devices": [("profile", "Pendulum-v1", "--steps", "3", "--device", "simulated")],
    "profile_trace": [("profile", "--trace", "recorded.json")],
    "profile_estimate": [("profile", "Pendulum-v1", *SHORT, "--dry-run")],
    "profile_calibration": [("profile", "Pendulum-v1", *SHORT, "--calibrate")],
    "rollout_estimate": [("rollout", *CHAIN, "--steps", "5", "--dry-run")],
    "rollout": [("rollout", *CHAIN, "--steps", "5", "-o", "runs/a", "--force")],
    "dump": [("show", "runs/a")],
    "dumps": [("list", "dumps", "runs")],
    "watch": [("show", "watch.jsonl")],
    "verification": [("verify", "runs/a"), ("verify", "runs/a")],
    "repair": [("verify", "runs/a", "--repair")],
    "export": [("export", "runs/a", "--to", "jsonl", "-o", "a.jsonl", "--force")],
    "artifact": [("export-chain", *CHAIN, "--to", "pt2", "-o", "chain", "--force")],
    "artifact_check": [("check", "chain", "--allow-code")],
    "import": [("import", "a.jsonl", "-o", "b")],
    "envs": [("list", "envs", "Pong")],
    "env": [("show", "env", "CartPole-v1")],
    "stack_kinds": [("list", "kinds")],
    "transforms": [("list", "transforms", "reward")],
    "transform": [("show", "transform", "RewardSum"), ("show", "transform", "MultiStepTransform")],
    "init": [("init", "Pendulum-v1", "-o", "made.yaml", "--force")],
    "config": [("config", "show")],
    "setting": [("config", "get", "format")],
    "doctor": [],
    "kinds": [("schema", "--output")],
    "error": [("check", "missing.yaml"), ("inspect", "spec", "Pendulum-v1", "-t", "Nothing")],
    "sharded_rollout": [],
}
"""Commands that print each kind of document. For slow ones, see ``_without_command``."""

NEEDS: Mapping[str, tuple[str, ...]] = {
    "profile_comparison": ("profile",),
    **dict.fromkeys(("dump", "dumps", "verification", "repair", "export"), ("rollout",)),
    "import": ("rollout", "export"),
    "sharded_rollout": ("rollout",),
    "artifact_check": ("artifact",),
}
"""Kinds whose commands write what those of another kind read."""
WRITTEN = {"profile": "profile.json", "rollout": "runs/a", "export": "a.jsonl", "artifact": "chain"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Create a folder that the commands share."""
    folder = tmp_path_factory.mktemp("documents")
    (folder / "recorded.json").write_text(
        '[{"ph": "X", "cat": "kernel", "name": "k", "ts": 1, "dur": 2, "tid": 7}]'
    )
    (folder / "a.yaml").write_text("version: 1\nenv: Pendulum-v1\ntransforms: [StepCounter]\n")
    (folder / "bad.yaml").write_text(
        "version: 1\nenv: Pendulum-v1\ntransforms: [RewardSum, RewardSum, RewardScaling: [0, 1]]\n"
    )
    write_mjlab(folder / "policy.onnx")
    write_dataset(folder / "data", [draw(20)])
    env = gymnasium.make("Pendulum-v1")
    env.reset()
    with watch(env, every=1, to=folder / "watch.jsonl"):
        env.step(env.action_space.sample())
    return folder


@pytest.mark.parametrize("kind", COMMANDS)
@sampled(5)
@sampled(3)
def test_documents_match_their_schema(
    tdx: Tdx, folder: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.chdir(folder)
    if kind.startswith("contract") and not (folder / "frozen").exists():
        assert tdx("contract", "record", "a.yaml", "-o", "frozen").code == 0
    for needed in NEEDS.get(kind, ()):
        if not (folder / WRITTEN[needed]).exists():  # its own test may run in another process
            assert all(tdx(*arguments).code == 0 for arguments in COMMANDS[needed])
    schema = json.loads(tdx("schema", "--output", kind).out)
    Draft202012Validator.check_schema(schema)
    documents = list(_without_command(kind))
    for arguments in COMMANDS[kind]:
        outcome = tdx(*arguments, "--format", "json")
        documents.append(json.loads(outcome.err if kind == "error" else outcome.out))
    assert documents
    for document in documents:
        assert document["kind"] == kind
        Draft202012Validator(schema).validate(document)
        assert list(_unfriendly_names(document)) == []


def _without_command(kind: str) -> Iterator[dict[str, Any]]:
    """Yield documents of slow commands without running them."""
    if kind == "doctor":
        yield json.loads((ROOT / "tests/cli/golden/doctor.json").read_text())
    if kind == "sharded_rollout":
        result = ShardedRollout("runs/a", 2, 1, 0, (ShardFailure(1, 3, "no memory"),))
        view = sharded_view(result, open_dump("runs/a").manifest)
        yield {"schema_version": 1, "kind": view.kind, **view.data()}


_DATA = ("libraries", "packages", "versions", "point", "others")
"""Objects whose names are data."""


def _unfriendly_names(data: Any) -> Iterator[str]:
    """Yield names that need quotes in jq, and text that contains JSON."""
    if isinstance(data, dict):
        for name, value in data.items():
            if not re.fullmatch(r"[a-z][a-z0-9_]*", name):
                yield name
            if name not in _DATA:
                yield from _unfriendly_names(value)
    elif isinstance(data, list):
        for each in data:
            yield from _unfriendly_names(each)
    elif isinstance(data, str) and data[:1] in ("{", '"'):
        yield data


@exhaustive
def test_each_kind_of_document_has_a_schema() -> None:
    """Compare with the kinds of all views, which are read from the source."""
    kinds = {"error"}
    for path in (ROOT / "tdx/cli").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "View":
                assert isinstance(node.args[0], ast.Constant)
                kinds.add(str(node.args[0].value))
    assert kinds == set(DOCUMENTS) == set(COMMANDS)


def test_schema_rejects_documents_with_other_entries(tdx: Tdx) -> None:
    document = json.loads(tdx("config", "show", "--format", "json").out)
    validator = Draft202012Validator(document_schema("config"))
    assert validator.is_valid(document)
    assert not validator.is_valid({**document, "more": 1})
    assert not validator.is_valid({**document, "exists": "yes"})
    assert not validator.is_valid({**document, "kind": "spec"})


def test_output_option_lists_the_kinds_of_documents(tdx: Tdx) -> None:
    assert tdx("schema", "--output").out == tdx("schema", "--output", "list").out
    records = tdx("schema", "--format", "jsonl", "--output").out.splitlines()
    assert [json.loads(each)["name"] for each in records] == list(DOCUMENTS)
    wrong = tdx("schema", "--output", "spce")
    assert (wrong.code, wrong.out) == (2, "")
    assert "unknown kind of document 'spce'" in wrong.err
    assert "did you mean spec?" in wrong.err


class _Point(TypedDict):
    x: float
    note: NotRequired[str]


@dataclass(frozen=True, slots=True)
class _Inner(Result):
    name: str
    sizes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Outer(Result):
    """Result with every kind of entry.

    Args:
        key: A key.
    """

    json_entries = (
        *(key_entry("key"), Entry("short", "inner", without=("sizes",)), "point"),
        *(Entry("inner", inline=True), Entry("none", omit_none=True), "is_small"),
    )

    key: NestedKey
    inner: _Inner
    point: _Point
    none: int | None = None

    @property
    def is_small(self) -> bool:
        """True if it is small."""
        return True


def test_schema_matches_the_declared_entries() -> None:
    entries: Entries = _Outer.json_entries
    assert len(entries) == 6
    builder = SchemaBuilder()
    schema = builder.object_schema(_Outer) | {"$defs": builder.definitions}
    validator = Draft202012Validator(schema)
    data = to_plain(_Outer(("a", "b"), _Inner("n", (1, 2)), {"x": float("inf")}), strict=True)
    assert data["short"] == {"name": "n"}
    validator.validate(data)
    validator.validate({**data, "none": 3, "point": {"x": 1, "note": "so"}})
    for wrong in ({"none": None}, {"sizes": ["1"]}, {"point": {"x": "infinite"}}, {"key": ["a"]}):
        assert not validator.is_valid({**data, **wrong}), wrong
    assert schema["properties"]["key"]["description"] == "A key."
    assert schema["properties"]["is_small"]["description"] == "True if it is small."
