"""``tdx check`` and ``tdx explain``: rules chosen, files mended, findings in each format."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jsonschema  # type: ignore[import-untyped]
import pytest

from tdx.errors import ExitCode
from tdx.inspection.explanations import explanations
from tdx.pipeline import PipelineFile

if TYPE_CHECKING:
    from tests.cli.conftest import Golden, Tdx

ROOT = Path(__file__).parents[2]
CLIPPED = (
    *("--env", "Pendulum-v1", "--t", "RewardClipping(-1, 1)", "--t", "RewardScaling(0, 0.1)"),
    *("--t", "RewardSum", "--t", 'ObservationNorm(0.0, 2.0, in_keys=["obs"])'),
)
TEXT = """\
# Pendulum with its rewards the wrong way round.
version: 1
env: Pendulum-v1
transforms:
  # keeps the tails away
  - RewardClipping: {clamp_min: -1.0, clamp_max: 1.0}   # to one
  - RewardScaling: {loc: 0.0, scale: 0.1}
  - StepCounter: {max_steps: 20, update_done: false}   # short
"""
MENDED = """\
# Pendulum with its rewards the wrong way round.
version: 1
env: Pendulum-v1
transforms:
  - RewardScaling: {loc: 0.0, scale: 0.1}
  # keeps the tails away
  - RewardClipping: {clamp_min: -1.0, clamp_max: 1.0}   # to one
  - StepCounter: {max_steps: 20}                       # short
"""


@pytest.fixture
def chain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "chain.yaml"
    path.write_text(TEXT)
    return path


@pytest.mark.parametrize("form", ["table", "json", "jsonl", "csv", "md", "sarif"])
def test_findings_in_each_format(tdx: Tdx, golden: Golden, chain: Path, form: str) -> None:
    outcome = tdx("check", chain.name, "--format", form)
    assert (outcome.code, outcome.err) == (ExitCode.FINDINGS, "")
    text = outcome.out
    if form == "sarif":
        document = json.loads(text)
        rules = document["runs"][0]["tool"]["driver"]["rules"]
        assert [rule["id"] for rule in rules if "TDX4" not in rule["id"]] == []
        del rules[1:], document["runs"][0]["tool"]["driver"]["version"]
        text = json.dumps(document, indent=2) + "\n"
    golden(f"findings.{'txt' if form == 'table' else form}", text)


def test_findings_in_a_narrow_terminal(tdx: Tdx, golden: Golden) -> None:
    golden("findings.60.txt", tdx("check", *CLIPPED, columns=60).out)


@pytest.mark.parametrize("form", ["table", "json", "jsonl", "csv", "md"])
@pytest.mark.parametrize("code", ["TDX421", "TDX103"])
def test_explanation_in_each_format(tdx: Tdx, golden: Golden, code: str, form: str) -> None:
    outcome = tdx("explain", code, "--format", form)
    assert (outcome.code, outcome.err) == (0, "")
    golden(f"explain_{code}.{'txt' if form == 'table' else form}", outcome.out)


def test_explain_lists_all_codes_and_knows_near_ones(tdx: Tdx) -> None:
    listed = tdx("explain", "--format", "json")
    assert [each["code"] for each in json.loads(listed.out)["codes"]] == [
        each.code for each in explanations()
    ]
    assert max(map(len, tdx("explain", columns=60).out.splitlines())) <= 60
    assert tdx("explain", "tdx421").out == tdx("explain", "clipped-before-scaled").out
    wrong = tdx("explain", "TDX42")
    assert wrong.code == ExitCode.USAGE
    assert "did you mean TDX42" in wrong.err


@pytest.mark.parametrize(
    ("options", "found", "code"),
    [
        ([], ["TDX421", "TDX422", "TDX413"], 1),
        (["--select", "TDX422"], ["TDX422", "TDX102"], 1),
        (["--ignore", "TDX421,tdx41"], ["TDX422", "TDX102"], 1),
        (["--ignore", "TDX421", "--ignore", "TDX422"], ["TDX413"], 1),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_rules_can_be_chosen(tdx: Tdx, options: list[str], found: list[str], code: int) -> None:
    outcome = tdx("check", *CLIPPED, *options, "--format", "json")
    assert outcome.code == code
    assert [each["code"] for each in json.loads(outcome.out)["findings"]] == found


def test_advice_fails_only_when_strict(tdx: Tdx) -> None:
    advised = ("check", "--env", "Pendulum-v1", "--t", "RewardClipping(-1, 1)", "--t", "RewardSum")
    assert tdx(*advised).code == 0
    assert tdx(*advised, "--strict").code == ExitCode.FINDINGS
    assert tdx(*advised, "--strict", "--ignore", "TDX422").code == 0


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--env", "Pendulum-v1", "--select", "TDX999"], "no rule has the code 'TDX999'"),
        (["--env", "Pendulum-v1", "--select", "TDX101"], "no rule has the code 'TDX101'"),
        (["--env", "Pendulum-v1", "--format", "sariff"], "did you mean sarif?"),
        (["chain.yaml", "--pipeline", "chain.yaml"], "FILE and --pipeline are given"),
        (["chain.yaml", "--fix", "--t", "RewardSum"], "not in the file that is to be mended"),
        (["chain.yaml", "--fix", "--diff"], "--diff and --fix are given"),
        (["nowhere.yaml", "--fix"], "cannot read nowhere.yaml"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_wrong_usage(tdx: Tdx, chain: Path, arguments: list[str], told: str) -> None:
    outcome = tdx("check", *arguments)
    assert outcome.code == ExitCode.USAGE
    assert told in outcome.err
    assert chain.read_text() == TEXT


def test_diff_shows_the_mended_file_and_leaves_it(tdx: Tdx, golden: Golden, chain: Path) -> None:
    outcome = tdx("check", chain.name, "--diff")
    assert outcome.code == ExitCode.FINDINGS
    golden("findings.diff", outcome.out)
    assert chain.read_text() == TEXT
    document = json.loads(tdx("check", chain.name, "--diff", "--format", "json").out)
    assert document["mended"]["diff"] == outcome.out
    assert [each["code"] for each in document["mended"]["fixes"]] == ["TDX421", "TDX451"]


def test_fix_writes_the_file_with_its_comments(tdx: Tdx, chain: Path) -> None:
    outcome = tdx("check", chain.name, "--fix")
    assert outcome.code == 0, outcome.err
    assert chain.read_text() == MENDED
    assert "chain.yaml: mended TDX421" in outcome.err
    assert "nothing to mend" in tdx("check", chain.name, "--fix").err
    assert chain.read_text() == MENDED


def test_fix_leaves_a_file_alone_that_changed_meanwhile(
    tdx: Tdx, chain: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load, others = PipelineFile.load, TEXT + "policy: random\n"

    def loaded_then_edited(path: str) -> PipelineFile:
        file = load(path)
        chain.write_text(others)
        return file

    monkeypatch.setattr(PipelineFile, "load", loaded_then_edited)
    outcome = tdx("check", chain.name, "--fix")
    assert outcome.code == ExitCode.USAGE
    assert "changed while it was checked" in outcome.err
    assert chain.read_text() == others


@pytest.mark.parametrize("option", ["--diff", "--fix"])
def test_mended_command_line(tdx: Tdx, option: str) -> None:
    outcome = tdx("check", *CLIPPED[:6], option)
    wanted = "tdx check --env Pendulum-v1 --t 'RewardScaling(0, 0.1)' --t 'RewardClipping(-1, 1)'\n"
    assert outcome.out == wanted
    assert "mended TDX421" in outcome.err
    assert outcome.code == (0 if option == "--fix" else ExitCode.FINDINGS)


def test_policy_of_ones_own_is_looked_at(
    tdx: Tdx, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tdx.inspection.explanations import explanation

    told = explanation("TDX481")
    assert told.python is not None
    assert told.wrong is not None
    (tmp_path / "my_code.py").write_text(told.python)
    monkeypatch.syspath_prepend(str(tmp_path))
    try:
        outcome = tdx(*shlex.split(told.wrong)[1:])
    finally:
        sys.modules.pop("my_code", None)
    assert "TDX481 error key 'recurrent_state': the policy carries" in outcome.out


@pytest.mark.parametrize(
    "each",
    [
        each
        for each in explanations()
        if each.kind == "error" and each.wrong and each.code != "TDX204"
    ],
    ids=lambda each: each.code,
)
def test_examples_of_errors(tdx: Tdx, each: Any) -> None:
    wrong = tdx(*shlex.split(each.wrong)[1:])
    assert wrong.code != 0
    assert each.wrong.startswith("tdx ")
    assert tdx(*shlex.split(each.right)[1:]).code == 0


def test_whole_process(chain: Path) -> None:
    """Exit codes, and a file from standard input that comes out mended."""
    tdx = [sys.executable, "-m", "tdx", "check"]
    environ = {"PYTHONPATH": str(ROOT), "PATH": "", "HOME": str(chain.parent)}

    def process(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*tdx, *arguments], input=TEXT, capture_output=True, text=True, env=environ, check=False
        )

    assert process(chain.name).returncode == 1
    fixed = process("-", "--fix")
    assert (fixed.returncode, fixed.stdout) == (0, MENDED)
    assert process(chain.name, "--format", "sarif", "--select", "TDX9").returncode == 2


def test_sarif_keeps_to_the_published_structure(tdx: Tdx, chain: Path) -> None:
    outcome = tdx("check", chain.name, "--format", "sarif")
    jsonschema.validate(json.loads(outcome.out), SARIF)
    typed = tdx("check", *CLIPPED, "--format", "sarif")
    jsonschema.validate(json.loads(typed.out), SARIF)
    (run,) = json.loads(outcome.out)["runs"]
    first = run["results"][0]
    assert run["tool"]["driver"]["rules"][first["ruleIndex"]]["id"] == first["ruleId"] == "TDX421"
    physical = first["locations"][0]["physicalLocation"]
    assert physical == {"artifactLocation": {"uri": "chain.yaml"}, "region": {"startLine": 6}}


def _closed(required: list[str], **properties: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "required": required,
        "properties": properties,
        "additionalProperties": False,
    }


def _many(items: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": items, "uniqueItems": True}


_STRING: dict[str, Any] = {"type": "string"}
_INDEX: dict[str, Any] = {"type": "integer", "minimum": -1}
_ONE: dict[str, Any] = {"type": "integer", "minimum": 1}
_MESSAGE = _closed(["text"], text=_STRING, markdown=_STRING)
_LEVEL = {"enum": ["none", "note", "warning", "error"]}
_URI = {"type": "string", "format": "uri-reference", "pattern": r"^(file://)?[\w./%~-]+$"}
_RULE = _closed(
    ["id"],
    id=_STRING,
    name=_STRING,
    shortDescription=_MESSAGE,
    fullDescription=_MESSAGE,
    help=_MESSAGE,
    defaultConfiguration=_closed([], level=_LEVEL),
)
_LOCATION = _closed(
    [],
    physicalLocation=_closed(
        ["artifactLocation"],
        artifactLocation=_closed([], uri=_URI),
        region=_closed([], startLine=_ONE, startColumn=_ONE),
    ),
    logicalLocations=_many(_closed([], name=_STRING, fullyQualifiedName=_STRING, kind=_STRING)),
)
_RESULT = _closed(
    ["message"],
    ruleId=_STRING,
    ruleIndex=_INDEX,
    level=_LEVEL,
    message=_MESSAGE,
    locations=_many(_LOCATION),
)
SARIF = _closed(
    ["version", "runs"],
    **{"$schema": {"type": "string", "format": "uri"}},
    version={"enum": ["2.1.0"]},
    runs=_many(
        _closed(
            ["tool"],
            tool=_closed(
                ["driver"],
                driver=_closed(["name"], name=_STRING, version=_STRING, rules=_many(_RULE)),
            ),
            columnKind={"enum": ["utf16CodeUnits", "unicodeCodePoints"]},
            results=_many(_RESULT),
        )
    ),
)
"""The parts of the published schema that tdx writes, with its names, enums and required keys."""
