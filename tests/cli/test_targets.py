"""The target of a command: an env, a file, a dump or a function."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Tdx

PIPELINE = "version: 1\nenv: {id: Pendulum-v1}\ntransforms:\n  - StepCounter\n"
FACTORY = """import gymnasium
def make():
    return gymnasium.wrappers.FrameStackObservation(gymnasium.make("Pendulum-v1"), 2)
"""
COMMANDS = (
    ("inspect", "spec"),
    ("inspect", "chain"),
    ("inspect", "keys"),
    ("inspect", "values", "--seed", "0"),
    ("inspect", "state"),
    ("inspect", "plan"),
    ("check",),
    ("rollout", "--steps", "3", "--dry-run"),
    ("profile", "--dry-run"),
)


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_every_command_accepts_an_env_and_a_file(
    tdx: Tdx, tmp_path: Path, command: tuple[str, ...]
) -> None:
    file = tmp_path / "chain.yaml"
    file.write_text(PIPELINE)
    of_env = tdx(*command, "Pendulum-v1", "-t", "StepCounter")
    of_file = tdx(*command, str(file))
    assert of_env.code == of_file.code == 0, of_env.err + of_file.err
    assert tdx(*command, "--env", "Pendulum-v1", "--t", "StepCounter").code == 0


def test_target_and_option_give_the_same_output(
    tdx: Tdx, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "chain.yaml"
    file.write_text(PIPELINE)
    expected = tdx("inspect", "spec", "--pipeline", str(file))
    assert tdx("inspect", "spec", str(file)).out == expected.out
    monkeypatch.setattr("sys.stdin", io.StringIO(PIPELINE))
    assert tdx("inspect", "spec", "-").out == expected.out
    by_env = tdx("inspect", "spec", "--env", "Pendulum-v1", "--t", "StepCounter")
    assert tdx("inspect", "spec", "Pendulum-v1", "-t", "StepCounter").out == by_env.out


def test_dump_as_target_uses_its_pipeline(tdx: Tdx, tmp_path: Path) -> None:
    folder = tmp_path / "dump"
    arguments = ("Pendulum-v1", "-t", "StepCounter", "--steps", "3", "--out", str(folder))
    assert tdx("rollout", *arguments).code == 0
    outcome = tdx("inspect", "spec", str(folder))
    assert outcome.code == 0, outcome.err
    assert "step_count" in outcome.out


def test_folder_named_like_an_env_is_not_read_as_a_dump(
    tdx: Tdx, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "CartPole-v1").mkdir()
    monkeypatch.chdir(tmp_path)
    assert tdx("inspect", "spec", "CartPole-v1").out.startswith("CartPole-v1")


def test_function_requires_allow_code(tdx: Tdx, tmp_path: Path) -> None:
    file = tmp_path / "envs.py"
    file.write_text(FACTORY)
    refused = tdx("inspect", "spec", f"{file}:make")
    assert refused.code == 2
    assert "--allow-code" in refused.err
    allowed = tdx("inspect", "spec", f"{file}:make", "--allow-code")
    assert "FrameStackObservation" in allowed.out


def test_first_word_of_inspect_keys_is_the_target_unless_an_option_names_it(tdx: Tdx) -> None:
    by_option = tdx("inspect", "keys", "reward", "--env", "Pendulum-v1", "--t", "RewardSum")
    assert tdx("inspect", "keys", "Pendulum-v1", "reward", "-t", "RewardSum").out == by_option.out
    assert "reward@0" in by_option.out


def test_help_shows_the_target_and_hides_the_options_it_replaces(tdx: Tdx) -> None:
    text = tdx("inspect", "spec", "--help").out
    assert "[TARGET]" in text
    assert "--pipeline" not in text


def test_completion_offers_envs_files_and_dumps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tdx.cli.completion import complete_target

    (tmp_path / "pendulum.yaml").write_text(PIPELINE)
    (tmp_path / "runs" / "one").mkdir(parents=True)
    (tmp_path / "runs" / "one" / "manifest.json").write_text("{}")
    monkeypatch.chdir(tmp_path)
    words = [word for word, _ in complete_target("p")]
    assert words[0] == "pendulum.yaml"
    assert ("runs/one", "dump") in complete_target("runs/")
    assert "Pendulum-v1" in [word for word, _ in complete_target("Pend")]


SCRIPT = """import gymnasium as gym


def make_env(env_id, idx, capture_video=False, run_name="run"):
    def thunk():
        env = gym.make(env_id)
        return gym.wrappers.RecordEpisodeStatistics(env)

    return thunk


def make_all():
    return [make_env("CartPole-v1", index) for index in range(3)]


class Corridor(gym.Env):
    observation_space = gym.spaces.Box(0, 9)
    action_space = gym.spaces.Discrete(2)


def make_pair():
    return gym.make("CartPole-v1"), {"seed": 0}


def make_class():
    return Corridor
"""


@pytest.fixture
def script(tmp_path: Path) -> str:
    path = tmp_path / "training_script.py"
    path.write_text(SCRIPT)
    return str(path)


def _stages(tdx: Tdx, target: str) -> list[str]:
    outcome = tdx("inspect", "chain", target, "--allow-code", "--format", "json")
    assert outcome.code == 0, outcome.err
    return [stage["transform"] for stage in json.loads(outcome.out)["stages"]]


@pytest.mark.parametrize(
    "call",
    [
        "make_env(CartPole-v1, 0)",
        "make_env('CartPole-v1', 0, False, run)",
        'make_env(idx=0, env_id="CartPole-v1")',
    ],
)
def test_function_with_arguments_that_returns_a_thunk(tdx: Tdx, script: str, call: str) -> None:
    assert _stages(tdx, f"{script}:{call}")[-1] == "RecordEpisodeStatistics"


def test_list_of_thunks_is_a_vector_env(tdx: Tdx, script: str) -> None:
    assert _stages(tdx, f"{script}:make_all")[-1] == "SyncVectorEnv"
    outcome = tdx("inspect", "spec", f"{script}:make_all", "--allow-code")
    assert "[3, 4]" in outcome.out


def test_tuple_with_an_env_and_class_of_envs(tdx: Tdx, script: str) -> None:
    assert "PassiveEnvChecker" in _stages(tdx, f"{script}:make_pair")
    assert tdx("inspect", "spec", f"{script}:make_class", "--allow-code").code == 0
    chained = tdx("inspect", "spec", f"{script}:make_pair", "--allow-code", "-t", "StepCounter")
    assert chained.code == 0, chained.err


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("make_env(CartPole-v1, 0, True, run, 5)", "takes 4 arguments"),
        ("make_env(CartPole-v1, idx=0, env_id=x)", "'env_id' twice"),
        ("make_env(__import__('os').getcwd(), 0)", "is not a literal"),
        ("make_env(CartPole-v1)", "needs the argument idx"),
        ("make_env(Acrobot-v1)", "make_env(Acrobot-v1, 0)' --allow-code\n"),
        ("make_env", "make_env(CartPole-v1, 0)' --allow-code\n"),
    ],
)
def test_wrong_arguments_are_named(tdx: Tdx, script: str, target: str, message: str) -> None:
    outcome = tdx("inspect", "spec", f"{script}:{target}", "--allow-code")
    assert outcome.code == 2
    assert message in outcome.err


def test_arguments_as_an_option(tdx: Tdx, tmp_path: Path, script: str) -> None:
    def target_of(*words: str) -> str:
        outcome = tdx("inspect", "chain", *words, "--allow-code", "--format", "json")
        assert outcome.code == 0, outcome.err
        return str(json.loads(outcome.out)["stages"][-1]["transform"])

    args = ("--args", "CartPole-v1, 0, run_name=test")
    assert target_of(f"{script}:make_env", *args) == "RecordEpisodeStatistics"
    assert target_of("--env", f"{script}:make_env", *args) == "RecordEpisodeStatistics"
    path = tmp_path / "one_maker.py"
    path.write_text(SCRIPT[: SCRIPT.index("def make_all")] + "def layer_init(x):\n    return x\n")
    assert target_of(str(path), *args) == "RecordEpisodeStatistics"
    for words in (("Pendulum-v1", *args), args):
        refused = tdx("inspect", "chain", *words)
        assert refused.code == 2
        assert "--env-kwargs" in refused.err
    wrong = tdx("check", f"{script}:make_env", "--args", "CartPole-v1", "--allow-code")
    assert "needs the argument idx" in wrong.out + wrong.err


def test_script_in_a_subfolder_imports_from_the_current_folder(
    tdx: Tdx, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "scripts").mkdir()
    (tmp_path / "utilities_of_the_project.py").write_text("NAME = 'CartPole-v1'\n")
    (tmp_path / "scripts" / "of_a_subfolder.py").write_text(
        "import gymnasium\nfrom utilities_of_the_project import NAME\n\n"
        "def make_env():\n    return gymnasium.make(NAME)\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [*sys.path])
    assert _stages(tdx, "scripts/of_a_subfolder.py:make_env")[-1] == "TimeLimit"


def test_only_a_factory_is_chosen(tdx: Tdx, tmp_path: Path) -> None:
    parse = "def parse_args():\n    raise SystemExit(99)\n    return 1\n\n"
    path = tmp_path / "parsing_script.py"
    path.write_text(parse)
    refused = tdx("inspect", "spec", str(path), "--allow-code")
    assert (refused.code, "without a function that returns an env" in refused.err) == (2, True)
    path.write_text(parse + "def load(n=1):\n    return n\n\ndef test_env(env_id):\n    return 1\n")
    refused = tdx("inspect", "spec", str(path), "--allow-code")
    assert (refused.code, "test_env(env_id)" in refused.err) == (2, True)


def test_file_with_one_candidate_needs_no_name(tdx: Tdx, tmp_path: Path, script: str) -> None:
    path = tmp_path / "one_factory.py"
    path.write_text(FACTORY)
    assert _stages(tdx, str(path))[-1] == "FrameStackObservation"
    refused = tdx("inspect", "spec", str(path))
    assert refused.code == 2
    assert "--allow-code" in refused.err
    training = "def train():\n    raise SystemExit(99)\n\ndef main():\n    return 99\n"
    path.write_text(f"{FACTORY}\n{training}")
    assert _stages(tdx, str(path))[-1] == "FrameStackObservation"
    path.write_text(training)
    assert tdx("inspect", "spec", str(path), "--allow-code").code == 2
    several = tdx("inspect", "spec", script, "--allow-code")
    assert several.code == 2
    assert "make_all, make_pair, make_class" in several.err


def test_inspect_of_a_target_shows_its_specs(
    tdx: Tdx, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("chain.yaml").write_text("version: 1\nenv: Pendulum-v1\ntransforms: [RewardSum]\n")
    for words in (("Pendulum-v1", "-t", "RewardSum"), ("chain.yaml", "--format", "json")):
        outcome = tdx("inspect", *words)
        assert outcome.code == 0, outcome.err
        assert outcome.out == tdx("inspect", "spec", *words).out
    assert tdx("inspect", "missing.yaml").err == tdx("inspect", "spec", "missing.yaml").err
    typo = tdx("inspect", "spce", "Pendulum-v1")
    assert typo.code == 2
    assert "no such command: tdx inspect spce" in typo.err
    assert "did you mean spec?" in typo.err
