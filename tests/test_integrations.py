"""The pre-commit hook, the scripts of the GitHub Action, and the metadata for GitHub."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from jsonschema import Draft202012Validator  # type: ignore[import-untyped]
from ruamel.yaml import YAML

import tdx
from tdx.cli.process import run
from tdx.pipeline.generate import SCHEMA_FILE, SCHEMA_ID
from tests.programs import exhaustive, require_program

ROOT = Path(__file__).parents[1]
ACTION = ROOT / ".github" / "actions" / "check"
CLEAN = "version: 1\nenv:\n  id: Pendulum-v1\ntransforms:\n  - RewardSum\n"
CLIPPED = (
    "version: 1\nenv:\n  id: Pendulum-v1\ntransforms:\n"
    "  - RewardClipping: {clamp_min: -1, clamp_max: 1}\n  - RewardScaling: {loc: 0, scale: 0.1}\n"
)


def load_yaml(path: Path) -> Any:
    return YAML(typ="safe", pure=True).load(path.read_text(encoding="utf-8"))


def git(*arguments: str) -> None:
    name = ("-c", "user.name=tdx", "-c", "user.email=tdx@example.org")
    subprocess.run([require_program("git"), *name, *arguments], check=True, capture_output=True)


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Create and enter a repository with two committed pipelines."""
    monkeypatch.chdir(tmp_path)
    git("init", "--quiet")
    (tmp_path / "pipelines").mkdir()
    for name in ("one", "two"):
        (tmp_path / "pipelines" / f"{name}.yaml").write_text(CLEAN)
    git("add", "--all")
    git("commit", "--quiet", "--message", "pipelines")
    return tmp_path


@pytest.fixture
def action(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> ModuleType:
    """Return the scripts of the action, which run tdx in this process."""
    spec = spec_from_file_location("check", ACTION / "check.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)

    def run_tdx(*arguments: str) -> subprocess.CompletedProcess[str]:
        capsys.readouterr()
        status = run(list(arguments))
        return subprocess.CompletedProcess(arguments, status, capsys.readouterr().out)

    monkeypatch.setattr(module, "run_tdx", run_tdx)
    return module


@pytest.mark.programs
def test_findings_of_all_files_are_in_one_run_with_locations(
    repository: Path, action: ModuleType
) -> None:
    (repository / "pipelines" / "two.yaml").write_text(CLIPPED)
    files = ["pipelines/one.yaml", "pipelines/two.yaml"]
    assert action.main(["findings", "--out", "tdx.sarif", "--options=--strict", *files]) == 1
    (only,) = json.loads((repository / "tdx.sarif").read_text())["runs"]
    assert [result["ruleId"] for result in only["results"]] == ["TDX421"]
    place = only["results"][0]["locations"][0]["physicalLocation"]
    assert place["artifactLocation"]["uri"] == "pipelines/two.yaml"
    assert place["region"]["startLine"] == 5


@pytest.mark.programs
def test_findings_of_clean_files_are_an_empty_run(repository: Path, action: ModuleType) -> None:
    assert action.main(["findings", "--out", "tdx.sarif", "pipelines/one.yaml"]) == 0
    (only,) = json.loads((repository / "tdx.sarif").read_text())["runs"]
    assert only["results"] == []


@pytest.mark.programs
def test_report_of_a_missing_file_is_valid(repository: Path, action: ModuleType) -> None:
    assert action.main(["findings", "--out", "tdx.sarif", "pipelines/missing.yaml"]) == 2
    assert json.loads((repository / "tdx.sarif").read_text()) == {"version": "2.1.0", "runs": []}


@pytest.mark.programs
@exhaustive
def test_changes_list_stages_specs_and_cost_of_changed_files(
    repository: Path, action: ModuleType
) -> None:
    (repository / "pipelines" / "two.yaml").write_text(f"{CLEAN}  - StepCounter\n")
    (repository / "pipelines" / "new.yaml").write_text(CLEAN)
    files = [f"pipelines/{name}.yaml" for name in ("one", "two", "new")]
    options = "--options=--steps 20 --repeat 2 --warmup 0"
    assert action.main(["changes", "--out", "tdx.md", options, *files]) == 0
    text = (repository / "tdx.md").read_text()
    assert "pipelines/one.yaml" not in text
    assert "### `pipelines/new.yaml`\n\nThis pipeline is new." in text
    assert "| + | 1 | StepCounter |" in text
    assert "| observation | + | step\\_count | – | [1]  int64  ≥ 0 |" in text
    assert "<summary>whole step: " in text
    assert tempfile.gettempdir() not in text


@pytest.mark.programs
def test_changes_are_empty_if_no_pipeline_changed(repository: Path, action: ModuleType) -> None:
    (repository / "pipelines" / "two.yaml").write_text(f"# a comment\n{CLEAN}")
    files = ["pipelines/one.yaml", "pipelines/two.yaml"]
    assert action.main(["changes", "--out", "tdx.md", *files]) == 0
    assert (repository / "tdx.md").read_text() == ""


@pytest.mark.programs
def test_pipeline_that_cannot_be_built_is_reported(repository: Path, action: ModuleType) -> None:
    (repository / "pipelines" / "two.yaml").write_text(f"{CLEAN}  - StepCouter\n")
    assert action.main(["changes", "--out", "tdx.md", "pipelines/two.yaml"]) == 0
    assert "cannot be built" in (repository / "tdx.md").read_text()


def run_step(name: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run the script of a step of the action in a shell, as the code host does."""
    (step,) = [
        step for step in load_yaml(ACTION / "action.yml")["runs"]["steps"] if name in step["name"]
    ]
    return subprocess.run(
        ["bash", "-eo", "pipefail", "-c", step["run"]],
        env={
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "GITHUB_ACTION_PATH": str(ACTION),
            "RUNNER_TEMP": str(Path.cwd()),
            **environ,
        },
        capture_output=True,
        text=True,
        check=False,
    )


HOSTILE_FILES = ("--options=--allow-code.yaml", "--allow-code.yaml")


@pytest.fixture
def hostile_repository(repository: Path) -> Path:
    """Add modules and files whose names look like options to the repository."""
    for name in ("argparse", "json", "pickle", "typer", "typing", "tdx", "torch"):
        (repository / f"{name}.py").write_text(f"open('imported', 'a').write('{name} ')\n")
    (repository / "code.py").write_text("open('imported', 'a').write('code ')\n")
    for name in HOSTILE_FILES:
        (repository / name).write_text(CLEAN.replace("Pendulum-v1", "code:make"))
    return repository


@pytest.mark.programs
@exhaustive
def test_action_runs_no_code_of_a_pull_request(hostile_repository: Path) -> None:
    git("branch", "base")
    git("remote", "add", "origin", str(hostile_repository))
    files = "*.yaml pipelines/*.yaml"
    checked = run_step("Check the pipelines", FILES=files, OPTIONS="")
    assert checked.returncode == 1, checked.stderr
    (only,) = json.loads((hostile_repository / "tdx.sarif").read_text())["runs"]
    texts = [result["message"]["text"] for result in only["results"]]
    assert len(texts) == len(HOSTILE_FILES)
    assert all("importing code is not allowed" in text for text in texts)
    compared = run_step("Compare", FILES=files, BASE="base", PROFILE_OPTIONS="--steps 9 --repeat 1")
    assert compared.returncode == 0, compared.stderr
    text = (hostile_repository / "tdx.md").read_text()
    assert all(f"### `{name}`" in text for name in HOSTILE_FILES)
    assert not (hostile_repository / "imported").exists()


@pytest.mark.programs
@exhaustive
def test_hook_runs_no_code_of_the_repository(hostile_repository: Path) -> None:
    (hook,) = load_yaml(ROOT / ".pre-commit-hooks.yaml")
    python = shlex.quote(sys.executable)
    words = shlex.split(hook["entry"].replace("tdx check", f"{python} -m tdx check"))
    done = subprocess.run(
        [*words, "--strict", *HOSTILE_FILES, "pipelines/one.yaml"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert (done.stdout + done.stderr).count("importing code is not allowed") == len(HOSTILE_FILES)
    assert not (hostile_repository / "imported").exists()


def test_workflows_pin_actions_and_grant_nothing_but_reading() -> None:
    for path in (ROOT / ".github").rglob("*.y*ml"):
        for line in path.read_text(encoding="utf-8").splitlines():
            name, _, version = line.partition("uses:")[2].partition("@")
            assert not name or re.match(r"[0-9a-f]{40} # v\d", version), f"{path}: {line}"
    for path in (ROOT / ".github" / "workflows").glob("*.yml"):
        assert load_yaml(path)["permissions"] == {"contents": "read"}


def test_only_the_comment_has_the_token() -> None:
    steps = load_yaml(ACTION / "action.yml")["runs"]["steps"]
    having = [step for step in steps if "inputs.token" in json.dumps(step)]
    assert [
        "gh pr comment" in step["run"] and "check.py" not in step["run"] for step in having
    ] == [True]


def test_steps_of_the_action_use_its_inputs_and_options() -> None:
    declared = load_yaml(ACTION / "action.yml")
    text = (ACTION / "action.yml").read_text()
    assert all(f"inputs.{name}" in text for name in declared["inputs"])
    scripts = [step.get("run", "") for step in declared["runs"]["steps"]]
    for task in ("findings", "changes"):
        (script,) = [script for script in scripts if f'check.py" {task}' in script]
        assert "--options=" in script
    documented = (ROOT / "docs" / "integrations.md").read_text()
    assert all(f"| `{name}` |" in documented for name in declared["inputs"])


@pytest.mark.programs
@exhaustive
def test_pre_commit_runs_the_hook_on_the_files_of_a_commit(repository: Path) -> None:
    (hook,) = load_yaml(ROOT / ".pre-commit-hooks.yaml")
    python = shlex.quote(sys.executable)
    # Use the environment of the tests instead of one that pre-commit creates.
    local = {**hook, "language": "system", "args": ["--ignore=TDX42"]}
    local["entry"] = hook["entry"].replace("tdx check", f"{python} -m tdx check")
    config = {"repos": [{"repo": "local", "hooks": [local]}]}
    (repository / ".pre-commit-config.yaml").write_text(json.dumps(config))
    (repository / "pipelines" / "two.yaml").write_text(f"{CLIPPED}  - StepCouter\n")
    git("add", "--all")
    for command in (["validate-manifest", str(ROOT / ".pre-commit-hooks.yaml")], ["run"]):
        done = subprocess.run(
            [sys.executable, "-m", "pre_commit", *command],
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == 1, done.stdout + done.stderr
    assert "unknown transform StepCouter" in done.stdout
    assert "TDX421" not in done.stdout
    assert "one.yaml" not in done.stdout


def test_schema_has_an_id_and_validates_pipelines() -> None:
    schema = json.loads(SCHEMA_FILE.read_text(encoding="utf-8"))
    assert schema["$id"] == SCHEMA_ID == "urn:tdx:schema:pipeline:1"
    validator = Draft202012Validator(schema)
    assert validator.is_valid({"version": 1, "env": "Pendulum-v1", "transforms": ["RewardSum"]})
    assert not validator.is_valid({"version": 1, "env": "Pendulum-v1", "transforms": ["RewardSun"]})


@pytest.mark.parametrize("path", sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml")))
def test_issue_templates_ask_for_the_output_of_doctor(path: Path) -> None:
    template = load_yaml(path)
    assert {"name", "description", "body"} <= set(template)
    labels = [part["attributes"]["label"] for part in template["body"]]
    assert "tdx doctor" in labels


def test_citation_has_the_version() -> None:
    citation = load_yaml(ROOT / ".github" / "CITATION.cff")
    assert citation["version"] == tdx.__version__
    assert {"cff-version", "message", "title", "authors"} <= set(citation)
