"""Hints take the next step: what a user types by mistake, and what the hint says."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import gymnasium
import pytest

from tdx.envs.gym import providers
from tdx.pipeline.catalog import load_catalog

if TYPE_CHECKING:
    from tests.cli.conftest import Tdx

PIPELINE = "version: 1\nenv: Pendulum-v1\ntransforms:\n  - RewardSum\n"
FUNCTION = """
import gymnasium

def _helper():
    return None

def make(size):
    return None

def make_env():
    return gymnasium.make("Pendulum-v1")
"""
# Envs of ale-py may be registered here, where the user's process has not imported it.
NAMESPACES = """
import gymnasium

def make_atari():
    raise gymnasium.error.NamespaceNotFound("Namespace ALE not found.")

def make_other():
    return gymnasium.make("Mine/Env-v0")

def make_skipping():
    return gymnasium.wrappers.AtariPreprocessing(gymnasium.make("Pendulum-v1"))

def make_without_space():
    env = gymnasium.make("Pendulum-v1")
    return gymnasium.wrappers.TransformObservation(env, abs)

def make_suites():
    return {"pusht": {0: gymnasium.make("Pendulum-v1")}}
"""
MINE = """
import gymnasium
from gymnasium.envs.classic_control.pendulum import PendulumEnv

gymnasium.register("HintsTest-v0", entry_point=PendulumEnv)
"""

CLEANRL = """
import gymnasium

def make_env(env_id, idx, capture_video, run_name, gamma=0.99, *, steps: int):
    def thunk():
        return gymnasium.make(env_id, max_episode_steps=steps)

    return thunk

def make_sized(gym_id, size: tuple, seed: int):
    return gymnasium.make(gym_id)
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Create and enter a folder with two pipelines, a script and an empty folder."""
    for name in ("a.yaml", "b.yaml"):
        (tmp_path / name).write_text(PIPELINE)
    (tmp_path / "code.py").write_text(FUNCTION)
    (tmp_path / "names.py").write_text(NAMESPACES)
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("arguments", "message", "hint"),
    [
        (
            ("report", "a.yaml", "b.yaml"),
            "got unexpected extra argument(s) (b.yaml)",
            "tdx report takes one target: run it again for b.yaml; tdx diff compares two",
        ),
        (
            ("replay", "dump", "b.yaml"),
            "got unexpected extra argument(s) (b.yaml)",
            "tdx replay takes no pipeline: write each stage of b.yaml as -t STAGE",
        ),
        (
            ("check", "Pendulum-v1", "RewardClipping(-1, 1)"),
            "RewardClipping(-1, 1) is a transform, not a target",
            "write a stage as -t 'RewardClipping(-1, 1)'",
        ),
        (
            ("report", "Pendulum-v1", "CartPole-v1"),
            "got unexpected extra argument(s) (CartPole-v1)",
            "tdx report --help lists the options",
        ),
        (
            ("report", "."),
            ". is a folder without a dump or a checkpoint",
            "name a file in it: a.yaml, b.yaml",
        ),
        (
            ("check", "empty"),
            "empty is a folder without a pipeline file, a dump or a checkpoint",
            "name an env, a pipeline file or a dump",
        ),
        (
            ("check", "a.yml"),
            "cannot read a.yml: no such file or directory",
            "did you mean a.yaml?",
        ),
        (("check", "a.ymal"), "no file a.ymal", "did you mean a.yaml?"),
        (
            ("check", "codee.py:make_env", "--allow-code"),
            "no file codee.py",
            "did you mean code.py:make_env?",
        ),
        (("inspect", "spec", "coed.py"), "no file coed.py", "did you mean code.py?"),
        (("check", "./empty/no/thing"), "no file ./empty/no/thing", "check the path"),
        (
            ("inspect", "spec", "Pendulum-v1", "-t", "DoubleToFloat(in_keys=['observaton'])"),
            "stage 0 (DoubleToFloat), key 'observaton': the env at this stage has no key"
            " 'observaton'",
            "did you mean observation? existing keys: observation, done, reward, terminated,"
            " truncated",
        ),
        (
            ("inspect", "spec", "code.py"),
            "env code.py:make_env: the env is Python code, and importing code is not allowed",
            "add --allow-code if you trust it",
        ),
        (
            ("check", "a.yaml", "--out", "x"),
            "no such option: --out",
            "redirect the output: tdx check … > FILE",
        ),
        (
            ("check", "a.yaml", "--silent"),
            "no such option: --silent",
            "use --quiet",
        ),
        (("check", "a.yaml", "--stirct"), "no such option: --stirct", "did you mean --strict?"),
        (
            ("rollout", "Pendulum-v1", "--policy", "ppo.zip", "--steps", "1", "--out", "dump"),
            "ppo.zip is a file without the kind of the policy",
            "for a model of Stable-Baselines3, write sb3:ppo.zip",
        ),
        (
            ("inspect", "values", "Pendulum-v1", "--policy", "lerobot:act"),
            "act is a policy of LeRobot, which can run code when it is loaded",
            "add --allow-code if you trust it, or use mlp:FILE.safetensors, which needs none",
        ),
        (
            ("inspect", "values", "Pendulum-v1", "--policy", 'sb3("a.zip", deterministic=1)'),
            "deterministic of sb3 must be True or False, got 1",
            'write sb3:FILE, or sb3("FILE", deterministic=False)',
        ),
        (
            ("show", "CatFrame"),
            "no env, transform, dump or recording is named 'CatFrame'",
            "did you mean CatFrames?",
        ),
        (
            ("show", "Pendulm"),
            "no env, transform, dump or recording is named 'Pendulm'",
            "did you mean Pendulum-v1 or tdx/Pendulum?",
        ),
        (
            ("show", "dmup"),
            "no env, transform, dump or recording is named 'dmup'",
            "did you mean dump?",
        ),
        (
            ("show", "qqqqqq"),
            "no env, transform, dump or recording is named 'qqqqqq'",
            "`tdx list envs`, `list transforms` and `list dumps` show the names",
        ),
        (
            ("show", "a.yaml"),
            "no env, transform, dump or recording is named 'a.yaml'",
            "for a pipeline, use tdx inspect a.yaml",
        ),
        (
            ("inspect", "names.py:make_atari", "--allow-code"),
            "env names.py:make_atari: make_atari() raised NamespaceNotFound: Namespace ALE not "
            "found. (names.py:5)",
            "import ale_py and call gymnasium.register_envs(ale_py) before gymnasium.make",
        ),
        (
            ("inspect", "names.py:make_other", "--allow-code"),
            "env names.py:make_other: make_other() raised NamespaceNotFound: Namespace Mine not "
            "found. Have you installed the proper package for Mine? (names.py:8)",
            "import the package that registers Mine/ before gymnasium.make",
        ),
        (
            ("inspect", "names.py:make_skipping", "--allow-code"),
            "env names.py:make_skipping: make_skipping() raised ValueError: Disable frame-skipping "
            "in the original env. Otherwise, more than one frame-skip will happen as through this "
            "wrapper (names.py:11)",
            "AtariPreprocessing skips frames itself: pass frameskip=1 to gymnasium.make, or "
            "frame_skip=1 to AtariPreprocessing",
        ),
        (
            ("inspect", "names.py:make_without_space", "--allow-code"),
            "env names.py:make_without_space: make_without_space() raised TypeError: "
            "TransformObservation.__init__() missing 1 required positional argument: "
            "'observation_space' (names.py:15)",
            "since Gymnasium 1, TransformObservation takes the observation_space of its result as "
            "third argument; if it does not change: env.observation_space",
        ),
        (
            ("inspect", "names.py:make_suites", "--allow-code"),
            "env names.py:make_suites: make_suites() returned an object of type dict, which is not "
            "supported",
            "return one of the envs in it, such as result['pusht'][0]",
        ),
        (
            ("check", "absent_module:Mine-v0", "--allow-code"),
            "env absent_module:Mine-v0: the module absent_module is not installed",
            "install the package that provides absent_module, or run tdx in its folder",
        ),
    ],
)
def test_hint_names_the_next_step(
    tdx: Tdx, folder: Path, arguments: tuple[str, ...], message: str, hint: str
) -> None:
    result = tdx(*arguments)
    assert result.code in (2, 3)
    assert result.err == f"error: {message}\nhint: {hint}\n"


def test_folder_named_like_an_env_is_no_obstacle(tdx: Tdx, folder: Path) -> None:
    (folder / "Pendulum-v1").mkdir()
    assert tdx("check", "Pendulum-v1").code == 0


def test_module_of_an_env_id_may_be_in_the_current_folder(
    tdx: Tdx, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "registers_hints_test.py").write_text(MINE)
    monkeypatch.setattr("sys.path", [*sys.path])
    assert "--allow-code" in tdx("check", "registers_hints_test:HintsTest-v0").out
    assert tdx("check", "registers_hints_test:HintsTest-v0", "--allow-code").code == 0
    gymnasium.registry.pop("HintsTest-v0")


@pytest.mark.parametrize("words", ["frame stack", "stack frames", "cat frames"])
def test_search_looks_into_the_documentation_of_transforms(words: str) -> None:
    assert "CatFrames" in [transform.name for transform in load_catalog().search(words)]


def test_search_for_envs_names_packages_that_are_not_installed(
    tdx: Tdx, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(providers, "is_installed", lambda module: module != "ale_py")
    shown = tdx("list", "envs", "no-such-env").out
    assert "  ale-py (Atari games, such as Pong): pip install ale-py\n" in shown
    assert "minigrid" not in shown


def test_search_for_envs_suggests_similar_ids_first(tdx: Tdx) -> None:
    first = tdx("list", "envs", "Pendulm").out.splitlines()[0]
    assert first == "no env matches 'Pendulm': did you mean Pendulum-v1 or tdx/Pendulum?"
    assert tdx("list", "envs", "no-such-env").out.splitlines()[0] == (
        "no env matches 'no-such-env': `tdx list envs` shows all; "
        "a function that makes one is FILE.py:NAME"
    )


def test_a_transform_of_another_library_comes_with_its_arguments(tdx: Tdx) -> None:
    shown = tdx("list", "transforms", "ClipAction").out
    assert "ClipTransform" in shown
    assert 'ClipAction of other libraries is ClipTransform(in_keys_inv=["action"]' in shown
    assert tdx("list", "transforms", "RewardWrapper").out == (
        "no transform matches 'RewardWrapper'\n"
    )


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("gpu", "cuda"),
        ("gpu:1", "cuda:1"),
        ("cdua", "cuda"),
        ("simulatd", "`tdx profile --device simulated` or `tdx check --accelerator`"),
        ("simulated", "`tdx profile --device simulated` or `tdx check --accelerator`"),
    ],
)
def test_mistyped_device_suggests_one_that_torch_knows(
    tdx: Tdx, monkeypatch: pytest.MonkeyPatch, name: str, near: str
) -> None:
    monkeypatch.setattr("tdx.foundation.accelerators.list_devices", list)
    shown = tdx("check", "Pendulum-v1", "--device", name).out
    assert f"did you mean {near}? available devices: cpu" in " ".join(shown.split())


def test_example_of_a_call_can_be_pasted(tdx: Tdx, folder: Path) -> None:
    (folder / "cleanrl.py").write_text(CLEANRL)
    for target in ("cleanrl.py:make_env", "cleanrl.py"):
        outcome = tdx("inspect", "spec", target, "--allow-code")
        example = re.search(r"hint: for example '(.*)' --allow-code\n", outcome.err)
        assert example is not None, outcome.err
        assert example[1] == "cleanrl.py:make_env(CartPole-v1, 0, False, run, steps=1)"
        assert tdx("inspect", "spec", example[1], "--allow-code").code == 0
    named = tdx("inspect", "spec", "cleanrl.py:make_sized", "--allow-code")
    call = "cleanrl.py:make_sized(CartPole-v1, size=…, seed=0)"
    assert named.err.endswith(f"hint: for example '{call}' --allow-code; fill in size\n")


def test_a_fix_that_needs_strict_says_so(tdx: Tdx, folder: Path) -> None:
    chain = folder / "chain.yaml"
    chain.write_text(PIPELINE.replace("- RewardSum", "- RewardSum\n  - RewardSum"))
    shown = tdx("check", chain.name)
    assert "1 suggestion" in shown.out
    options = re.findall(r"1 fixable with ([-\w ]+)\)", shown.out)
    assert len(options) == 1
    assert "--strict" in options[0].split()
    done = tdx("check", chain.name, "--fix", *options[0].replace("--fix ", "").split())
    assert "fixed 1 issue" in done.err


def test_the_example_in_the_help_of_stages_runs_on_any_env(tdx: Tdx) -> None:
    shown = " ".join(tdx("check", "--help").out.replace("│", " ").split())
    examples = re.search(r'Add a stage to the chain: (\w+) or "([^"]+)"', shown)
    assert examples is not None
    for stage in examples.groups():
        assert tdx("check", "Pendulum-v1", "-t", stage).code == 0
