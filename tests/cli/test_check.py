"""``tdx check`` and ``tdx explain``: findings, rules and fixes."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jsonschema  # type: ignore[import-untyped]
import pytest

from tdx.foundation.errors import ExitCode
from tdx.inspection.explanations import all_explanations
from tdx.pipeline import PipelineFile
from tests.cli.conftest import WIDTHS, assert_complete, assert_fits
from tests.cli.processes import run
from tests.cli.sarif_schema import SARIF
from tests.programs import exhaustive

if TYPE_CHECKING:
    from tests.cli.conftest import Golden, Tdx

ROOT = Path(__file__).parents[2]
CLIPPED = (
    *("--env", "Pendulum-v1", "--t", "RewardClipping(-1, 1)", "--t", "RewardScaling(0, 0.1)"),
    *("--t", "RewardSum", "--t", 'ObservationNorm(0.0, 2.0, in_keys=["obs"])'),
)
FIX, DIFF = ("--fix", "--unsafe-fixes"), ("--diff", "--unsafe-fixes")
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
FIXED = """\
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


@pytest.mark.parametrize("form", ["table", "json", "md", "sarif"])
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


def test_findings_in_a_narrow_terminal(tdx: Tdx) -> None:
    document = json.loads(tdx("check", *CLIPPED, "--format", "json").out)
    for columns in WIDTHS:
        text = tdx("check", *CLIPPED, columns=columns).out
        assert_fits(text, columns)
        assert_complete(text, document["findings"])


@pytest.mark.parametrize(
    ("code", "form"), [("TDX421", "table"), ("TDX421", "json"), ("TDX103", "table")]
)
def test_explanation_in_each_format(tdx: Tdx, golden: Golden, code: str, form: str) -> None:
    outcome = tdx("explain", code, "--format", form)
    assert (outcome.code, outcome.err) == (0, "")
    golden(f"explain_{code}.{'txt' if form == 'table' else form}", outcome.out)


def test_explain_lists_all_codes_and_suggests_the_closest_match(tdx: Tdx) -> None:
    listed = tdx("explain", "--format", "json")
    assert [each["code"] for each in json.loads(listed.out)["codes"]] == [
        each.code for each in all_explanations()
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
def test_select_and_ignore_filter_findings(
    tdx: Tdx, options: list[str], found: list[str], code: int
) -> None:
    outcome = tdx("check", *CLIPPED, *options, "--format", "json")
    assert outcome.code == code
    assert [each["code"] for each in json.loads(outcome.out)["findings"]] == found


def test_suggestions_fail_only_with_strict(tdx: Tdx) -> None:
    advised = ("check", "--env", "Pendulum-v1", "--t", "RewardClipping(-1, 1)", "--t", "RewardSum")
    assert tdx(*advised).code == 0
    assert tdx(*advised, "--strict").code == ExitCode.FINDINGS
    assert tdx(*advised, "--strict", "--ignore", "TDX422").code == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--env", "Pendulum-v1", "--select", "TDX999"], "unknown rule 'TDX999'"),
        (["--env", "Pendulum-v1", "--select", "TDX101"], "unknown rule 'TDX101'"),
        (["--env", "Pendulum-v1", "--format", "sariff"], "did you mean sarif?"),
        (["chain.yaml", "--pipeline", "chain.yaml"], "and --pipeline cannot be combined"),
        (["chain.yaml", "--fix", "--t", "RewardSum"], "cannot be fixed together with a file"),
        (["chain.yaml", "--fix", "--diff"], "--diff and --fix cannot be combined"),
        (["nowhere.yaml", "--fix"], "cannot read nowhere.yaml"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_usage_errors_do_not_change_the_file(
    tdx: Tdx, chain: Path, arguments: list[str], message: str
) -> None:
    outcome = tdx("check", *arguments)
    assert outcome.code == ExitCode.USAGE
    assert message in outcome.err
    assert chain.read_text() == TEXT


@exhaustive
def test_diff_does_not_write_the_file(tdx: Tdx, golden: Golden, chain: Path) -> None:
    outcome = tdx("check", chain.name, *DIFF)
    assert outcome.code == ExitCode.FINDINGS
    golden("findings.diff", outcome.out)
    assert chain.read_text() == TEXT
    document = json.loads(tdx("check", chain.name, *DIFF, "--format", "json").out)
    assert document["fixed"]["diff"] == outcome.out
    assert [each["code"] for each in document["fixed"]["fixes"]] == ["TDX421", "TDX451"]


@exhaustive
def test_fix_keeps_comments(tdx: Tdx, chain: Path) -> None:
    outcome = tdx("check", chain.name, *FIX)
    assert outcome.code == 0, outcome.err
    assert chain.read_text() == FIXED
    assert "chain.yaml: fixed 2 issues: TDX421" in outcome.err
    assert "nothing to fix" in tdx("check", chain.name, *FIX).err
    assert chain.read_text() == FIXED


def test_fix_does_not_overwrite_a_changed_file(
    tdx: Tdx, chain: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load, others = PipelineFile.load, TEXT + "policy: random\n"

    def loaded_then_edited(path: str) -> PipelineFile:
        file = load(path)
        chain.write_text(others)
        return file

    monkeypatch.setattr(PipelineFile, "load", loaded_then_edited)
    outcome = tdx("check", chain.name, *FIX)
    assert outcome.code == ExitCode.USAGE
    assert "changed during the check" in outcome.err
    assert chain.read_text() == others


MISSING = "cuda:63"


def test_missing_device_is_a_finding(tdx: Tdx, tmp_path: Path) -> None:
    file = tmp_path / "chain.yaml"
    file.write_text(
        TEXT.replace("env: Pendulum-v1", f"env: {{id: Pendulum-v1, device: {MISSING}}}")
    )
    outcome = tdx("check", str(file), "--format", "json")
    assert (outcome.code, outcome.err) == (ExitCode.FINDINGS, "")
    missing, *others = json.loads(outcome.out)["findings"]
    assert (missing["code"], missing["check"]) == ("TDX304", "specs")
    assert missing["message"] == f"device {MISSING} is not available"
    assert missing["hint"].endswith("; everything else was checked on the CPU")
    assert [each["code"] for each in others] == ["TDX421", "TDX451"]
    alone = tdx("check", "--env", "Pendulum-v1", "--device", MISSING)
    assert (alone.code, alone.err) == (ExitCode.ENVIRONMENT, "")
    assert f"Pendulum-v1: TDX304 device {MISSING} is not available" in alone.out
    cast = f"DeviceCastTransform('{MISSING}')"
    staged = tdx("check", "--env", "Pendulum-v1", "--t", cast, *CLIPPED[2:6])
    assert staged.code == ExitCode.FINDINGS
    assert "TDX421" in staged.out


@pytest.mark.parametrize("option", ["--diff", "--fix"])
def test_fix_of_options_prints_the_fixed_command(tdx: Tdx, option: str) -> None:
    outcome = tdx("check", *CLIPPED[:6], option, "--unsafe-fixes")
    wanted = "tdx check Pendulum-v1 -t 'RewardScaling(0, 0.1)' -t 'RewardClipping(-1, 1)'\n"
    assert outcome.out == wanted
    assert "fixed 1 issue: TDX421" in outcome.err
    assert outcome.code == (0 if option == "--fix" else ExitCode.FINDINGS)


def test_keys_of_a_custom_policy_are_checked(
    tdx: Tdx, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tdx.inspection.explanations import explain_code

    example = explain_code("TDX481")
    assert example.python is not None
    assert example.wrong is not None
    (tmp_path / "my_code.py").write_text(example.python)
    monkeypatch.syspath_prepend(str(tmp_path))
    try:
        outcome = tdx(*shlex.split(example.wrong)[1:])
    finally:
        sys.modules.pop("my_code", None)
    assert "TDX481 key 'recurrent_state': the policy reads" in outcome.out


@pytest.mark.parametrize(
    "each",
    [
        each
        for each in all_explanations()
        if each.kind == "error" and each.wrong and each.code != "TDX204"
    ],
    ids=lambda each: each.code,
)
def test_wrong_examples_fail_and_right_examples_pass(tdx: Tdx, each: Any) -> None:
    wrong = tdx(*shlex.split(each.wrong)[1:])
    assert wrong.code != 0
    assert each.wrong.startswith("tdx ")
    assert tdx(*shlex.split(each.right)[1:]).code == 0


def test_fix_of_stdin_prints_the_fixed_file() -> None:
    completed = run("check", "-", *FIX, stdin=TEXT)
    assert (completed.code, completed.out) == (0, FIXED)


@exhaustive
def test_sarif_conforms_to_the_schema(tdx: Tdx, chain: Path) -> None:
    outcome = tdx("check", chain.name, "--format", "sarif")
    jsonschema.validate(json.loads(outcome.out), SARIF)
    typed = tdx("check", *CLIPPED, "--format", "sarif")
    jsonschema.validate(json.loads(typed.out), SARIF)
    (run,) = json.loads(outcome.out)["runs"]
    first = run["results"][0]
    assert run["tool"]["driver"]["rules"][first["ruleIndex"]]["id"] == first["ruleId"] == "TDX421"
    physical = first["locations"][0]["physicalLocation"]
    assert physical == {
        "artifactLocation": {"uri": "chain.yaml"},
        "region": {"startLine": 6, "startColumn": 5},
    }


@pytest.mark.parametrize("end", ["\n", "\r\n", ""], ids=["lf", "crlf", "no end"])
@exhaustive
def test_sarif_fixes_can_be_applied(tdx: Tdx, chain: Path, end: str) -> None:
    text = TEXT.replace("\n", end) if end else TEXT.rstrip("\n")
    chain.write_bytes(text.encode())
    outcome = tdx("check", chain.name, "--format", "sarif")
    (run,) = json.loads(outcome.out)["runs"]
    fixed = [result for result in run["results"] if "fixes" in result]
    assert [result["ruleId"] for result in fixed] == ["TDX421", "TDX451"]
    for result in fixed:
        (fix,) = result["fixes"]
        (change,) = fix["artifactChanges"]
        assert change["artifactLocation"]["uri"] == "chain.yaml"
        text = _replaced(text, change["replacements"])
    assert text.replace("\r\n", "\n").rstrip("\n") == FIXED.rstrip("\n")
    assert text.count("\r\n") == (text.count("\n") if end == "\r\n" else 0)
    fixed_again = tdx("check", chain.name, *FIX, "--format", "sarif")
    assert json.loads(fixed_again.out)["runs"][0]["results"] == []
    typed = tdx("check", *CLIPPED, "--format", "sarif")
    assert "fixes" not in typed.out


def _replaced(text: str, replacements: list[dict[str, Any]]) -> str:
    """Apply the replacements of a SARIF fix in reverse order."""
    starts = [0]
    for line in text.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    for replacement in reversed(replacements):
        region = replacement["deletedRegion"]
        start, end = (
            starts[region[f"{side}Line"] - 1] + region[f"{side}Column"] - 1
            for side in ("start", "end")
        )
        inserted = replacement.get("insertedContent", {"text": ""})["text"]
        text = text[:start] + inserted + text[end:]
    return text


def test_summary_of_each_check(tdx: Tdx) -> None:
    chain = ("check", "-v", "--env", "Pendulum-v1", "--t", "RewardClipping(-1, 1)")
    outcome = tdx(*chain, "--t", "RewardScaling(0.0, 0.1)", "--t", "RewardSum")
    shown = outcome.out.splitlines()
    assert shown[5].split(maxsplit=2) == ["warning", "lints", "1 warning, 1 suggestion"]
    assert "why: RewardClipping before RewardScaling" in outcome.out
    assert shown[-1].startswith("Found 2 issues in Pendulum-v1, 3 stages: 1 warning, 1 suggestion")
    shown = tdx("check", "-v", "Pendulum-v1", "-t", "StepCounter('many')").out.splitlines()
    assert [line.split("  ")[0] for line in shown[2:6]] == ["error", *["skipped"] * 3]
    assert shown[2].endswith("  1 error")
    assert all(line.endswith("  skipped because of the errors in arguments") for line in shown[3:6])


def test_passed_checks_are_listed_on_one_line(tdx: Tdx) -> None:
    shown = tdx("check", "Pendulum-v1", "-t", "StepCounter").out
    passed = "all checks passed (arguments, specs, steps, lints)"
    assert shown == f"Pendulum-v1, 1 stage: {passed}\n"
    document = json.loads(tdx("check", "Pendulum-v1", "--format", "json").out)
    assert set(document["checks"].values()) == {"passed"}


def test_status_of_each_check_in_json(tdx: Tdx, chain: Path) -> None:
    document = json.loads(tdx("check", chain.name, "--format", "json").out)
    passed = dict.fromkeys(("arguments", "specs", "steps"), "passed")
    assert document["checks"] == {**passed, "lints": "warning"}


def test_excerpt_points_to_the_stage_or_its_key(tdx: Tdx, chain: Path) -> None:
    stage = "  - ObservationNorm: {loc: 0.0, scale: 2.0, in_keys: [observations]}\n"
    chain.write_text("version: 1\nenv: Pendulum-v1\ntransforms:\n" + stage)
    place, line, pointer, *_ = tdx("check", chain.name).out.splitlines()
    assert place.startswith("chain.yaml:4:5: TDX413 [*] stage 0 (ObservationNorm): ")
    assert line == f"  4 | {stage.rstrip()}"
    start = pointer.index("^")
    assert line[start : start + pointer.count("^")] == "observations"
    narrow = tdx("check", chain.name, columns=50).out.splitlines()
    assert all(len(each) <= 50 for each in narrow)
    assert any("observations" in each and " | " in each for each in narrow)


@exhaustive
def test_fix_without_unsafe_fixes_changes_no_values(tdx: Tdx, chain: Path) -> None:
    text = TEXT + "  - ObservationNorm: {loc: 0.0, scale: 2.0, in_keys: [observations]}\n"
    chain.write_text(text)
    outcome = tdx("check", chain.name, "--fix")
    assert chain.read_text() == text.replace("observations", "observation")
    assert outcome.code == ExitCode.FINDINGS
    assert ": 2 warnings (2 fixable with --unsafe-fixes)" in outcome.out
    assert "would fix 2 issues" in tdx("check", chain.name, *DIFF).err
    assert "nothing to fix" in tdx("check", chain.name, "--diff").err


def test_ambiguous_key_has_no_fix(tdx: Tdx) -> None:
    rename = "RenameTransform(['observation'], ['frame_a'], create_copy=True)"
    other = "RenameTransform(['observation'], ['frame_b'], create_copy=True)"
    norm = "ObservationNorm(0.0, 2.0, in_keys=['frame_c'])"
    chain = ("Pendulum-v1", "-t", rename, "-t", other, "-t", norm)
    document = json.loads(tdx("check", *chain, "--format", "json").out)
    finding = next(each for each in document["findings"] if each["code"] == "TDX413")
    assert finding["hint"] == "did you mean frame_b or frame_a?"
    assert finding["fix"] is None


@pytest.mark.parametrize(
    ("comment", "codes", "suppressed"),
    [
        ("# tdx: ignore[TDX451]", ["TDX421"], 1),
        ("# why; # tdx: ignore[TDX45, TDX421]", ["TDX421"], 1),
        ("# tdx: ignore", ["TDX421"], 1),
        ("# tdx: ignore[TDX421]", ["TDX421", "TDX451"], 0),
        ("# tdx: ignored", ["TDX421", "TDX451"], 0),
    ],
)
def test_comment_suppresses_findings_of_its_stage(
    tdx: Tdx, chain: Path, comment: str, codes: list[str], suppressed: int
) -> None:
    chain.write_text(TEXT.replace("# short", comment))
    document = json.loads(tdx("check", chain.name, "--format", "json").out)
    assert [each["code"] for each in document["findings"]] == codes
    assert document["suppressed"] == suppressed


def test_comment_does_not_suppress_errors(tdx: Tdx, chain: Path) -> None:
    stage = "  - ObservationNorm: {loc: 0.0, scale: 2.0, in_keys: [image]}  # tdx: ignore\n"
    chain.write_text("version: 1\nenv: Pendulum-v1\ntransforms:\n" + stage)
    assert "TDX413" in tdx("check", chain.name).out


@exhaustive
def test_file_and_settings_select_rules(
    tdx: Tdx, chain: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def codes(*options: str) -> list[str]:
        document = json.loads(tdx("check", chain.name, "--format", "json", *options).out)
        return [each["code"] for each in document["findings"]]

    chain.write_text(TEXT + "check: {ignore: [TDX451]}\n")
    assert codes() == ["TDX421"]
    chain.write_text(TEXT + "check:\n  select: [TDX45]\n")
    assert codes() == ["TDX451"]
    assert codes("--select", "TDX421") == ["TDX421"]
    chain.write_text(TEXT)
    monkeypatch.setenv("TDX_CHECK_IGNORE", "TDX421,TDX49")
    assert codes() == ["TDX451"]
    monkeypatch.setenv("TDX_CHECK_SELECT", "TDX42")
    assert codes() == []


def test_error_of_an_unknown_code_names_the_file(tdx: Tdx, chain: Path) -> None:
    chain.write_text(TEXT + "check: {ignore: [TDX999]}\n")
    outcome = tdx("check", chain.name)
    assert outcome.code == ExitCode.USAGE
    assert "chain.yaml: unknown rule 'TDX999'" in outcome.err


def test_rules_about_accelerators_are_not_said_to_pass_without_one(tdx: Tdx) -> None:
    outcome = tdx("check", "Pendulum-v1", "--select", "TDX701")
    assert outcome.code == ExitCode.USAGE
    assert "hint: add --accelerator" in outcome.err


def test_a_wait_that_a_transform_is_for_is_a_suggestion(tdx: Tdx) -> None:
    outcome = tdx("check", "tdx/Pendulum", "-t", "FiniteTensorDictCheck", "--accelerator")
    assert outcome.code == ExitCode.OK
    assert "TDX704" in outcome.out
    assert "check stored rollouts instead" in outcome.out


def test_simulated_accelerator_that_was_not_reached_is_mentioned(tdx: Tdx) -> None:
    stage = ("-t", "CatFrames(4, -1, in_keys=['no'])")
    outcome = tdx("check", "Pendulum-v1", *stage, "--accelerator")
    assert "TDX413" in outcome.out
    assert "did not run on the simulated GPU" in outcome.out
