"""A chain as far as it works."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path

from tdx.inspection.overview import EnvCache, inspect_overview
from tdx.inspection.spec_report import inspect_spec
from tdx.keys import format_key
from tdx.pipeline import Pipeline, build_env

ROOT = Path(__file__).parents[2]


def test_whole_chain_is_seen_as_the_reports_see_it() -> None:
    pipeline = Pipeline.of("Pendulum-v1", "RewardScaling(0.0, 0.1)", "RewardSum", "ActionScaling")
    seen = inspect_overview(pipeline)
    env = build_env(pipeline)
    report = inspect_spec(env)
    env.close()
    assert seen.problems == ()
    assert [stage.changes for stage in seen.stages] == [stage.changes for stage in report.stages]
    assert seen.lineage is not None
    assert "episode_reward" in seen.lineage.keys()


def test_stages_that_fail_are_left_out_and_the_rest_is_seen() -> None:
    seen = inspect_overview(
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
    assert [stage.index for stage in seen.stages if stage.problem] == [0, 2, 3, 4]
    assert seen.working == (1, 5)
    problem = seen.stages[2].problem
    assert problem is not None
    assert problem.where.stage == 2
    assert problem.where.transform == "ObservationNorm"
    last = {format_key(leaf.key) for leaf in seen.before(6)}
    assert {"episode_reward", "step_count"} <= last
    assert "step_count" not in {format_key(leaf.key) for leaf in seen.before(5)}


def test_env_that_cannot_be_made_is_a_problem_and_stages_are_still_checked() -> None:
    seen = inspect_overview(Pipeline.of("Pendulm-v1", "CatFrames"))
    assert seen.env is None
    assert seen.env_problem is not None
    assert "Pendulum-v1" in (seen.env_problem.hint or "")
    assert seen.stages[0].problem is not None


def test_bench_keeps_the_env_while_only_the_chain_changes() -> None:
    bench = EnvCache()
    first = Pipeline.of("Pendulum-v1", "RewardSum")
    inspect_overview(first, bench)
    kept = bench.base(first.env)
    inspect_overview(Pipeline.of("Pendulum-v1", "StepCounter"), bench)
    assert bench.base(first.env) is kept
    inspect_overview(Pipeline.of("CartPole-v1"), bench)
    assert kept.is_closed
    bench.close()


def test_what_was_seen_is_read_without_torch(tmp_path: Path) -> None:
    seen = inspect_overview(Pipeline.of("Pendulum-v1", "CatFrames", "RewardSum"))
    path = tmp_path / "seen"
    path.write_bytes(pickle.dumps(seen))
    code = (
        "import pickle, sys; seen = pickle.load(open(sys.argv[1], 'rb'));"
        "print(seen.stages[0].problem.message, 'torch' in sys.modules)"
    )
    command = [sys.executable, "-W", "ignore", "-c", code, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=True)
    assert done.stdout.split()[-1] == "False"
