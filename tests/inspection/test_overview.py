"""Overview of a chain, leaving out stages that fail."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path

from tdx.foundation.keys import format_key
from tdx.inspection.overview import EnvCache, inspect_overview
from tdx.inspection.spec_report import inspect_spec
from tdx.pipeline import Pipeline, build_checked_env

ROOT = Path(__file__).parents[2]


def test_overview_of_a_valid_chain_equals_the_reports() -> None:
    pipeline = Pipeline.of("Pendulum-v1", "RewardScaling(0.0, 0.1)", "RewardSum", "ActionScaling")
    result = inspect_overview(pipeline)
    env = build_checked_env(pipeline)
    report = inspect_spec(env)
    env.close()
    assert result.problems == ()
    assert [stage.changes for stage in result.stages] == [stage.changes for stage in report.stages]
    assert result.lineage is not None
    assert "episode_reward" in result.lineage.keys()


def test_failing_stages_are_left_out() -> None:
    result = inspect_overview(
        Pipeline.of(
            "Pendulum-v1",
            "CatFrames",
            "RewardSum",
            'ObservationNorm(0.0, 1.0, in_keys=["nope"])',
            "NoSuchTransform",
            "UnsqueezeTransform(9)",
            "StepCounter",
        )
    )
    assert [stage.index for stage in result.stages if stage.problem] == [0, 2, 3, 4]
    assert result.working == (1, 5)
    problem = result.stages[2].problem
    assert problem is not None
    assert problem.where.stage == 2
    assert problem.where.transform == "ObservationNorm"
    last = {format_key(leaf.key) for leaf in result.before(6)}
    assert {"episode_reward", "step_count"} <= last
    assert "step_count" not in {format_key(leaf.key) for leaf in result.before(5)}


def test_stages_are_checked_without_an_env() -> None:
    result = inspect_overview(Pipeline.of("Pendulm-v1", "CatFrames"))
    assert result.env is None
    assert result.env_problem is not None
    assert "Pendulum-v1" in (result.env_problem.hint or "")
    assert result.stages[0].problem is not None


def test_env_is_kept_if_only_the_chain_changes() -> None:
    cache = EnvCache()
    first = Pipeline.of("Pendulum-v1", "RewardSum")
    inspect_overview(first, cache)
    env = cache.base(first.env)
    inspect_overview(Pipeline.of("Pendulum-v1", "StepCounter"), cache)
    assert cache.base(first.env) is env
    inspect_overview(Pipeline.of("CartPole-v1"), cache)
    assert env.is_closed
    cache.close()


def test_overview_is_unpickled_without_torch(tmp_path: Path) -> None:
    result = inspect_overview(Pipeline.of("Pendulum-v1", "CatFrames", "RewardSum"))
    path = tmp_path / "result"
    path.write_bytes(pickle.dumps(result))
    code = (
        "import pickle, sys; result = pickle.load(open(sys.argv[1], 'rb'));"
        "print(result.stages[0].problem.message, 'torch' in sys.modules)"
    )
    command = [sys.executable, "-W", "ignore", "-c", code, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=True)
    assert done.stdout.split()[-1] == "False"
