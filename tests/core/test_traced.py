"""Traces: versions, writers, times and errors."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tensordict import TensorDict, TensorDictBase
from torch.utils._python_dispatch import TorchDispatchMode

from tdx import (
    ActionScaling,
    ArgumentError,
    CartPoleEnv,
    ChainError,
    Compose,
    EnvBase,
    EnvError,
    FrameSkipTransform,
    GymEnv,
    KeyNotFoundError,
    NoopResetEnv,
    PendulumEnv,
    RenameTransform,
    RewardClipping,
    RewardScaling,
    RewardSum,
    SerialEnv,
    StepCounter,
    StepTrace,
    TraceHistory,
    Tracer,
    Transform,
    TransformedEnv,
)
from tests.envs.mocks import CountingEnv


class Clock:
    """Clock that advances by given times, and by 1 ns per reading."""

    def __init__(self) -> None:
        self.now = 0

    def __call__(self) -> int:
        self.now += 1
        return self.now


class Spends(Transform):
    """Stage whose hooks take given times."""

    def __init__(self, clock: Clock, **costs: int) -> None:
        super().__init__(in_keys_inv=["action"])
        self.clock, self.costs = clock, costs

    def _step(self, tensordict: TensorDictBase, next_tensordict: TensorDictBase) -> TensorDictBase:
        self.clock.now += self.costs.get("step", 0)
        return next_tensordict

    def _reset(
        self, tensordict: TensorDictBase | None, tensordict_reset: TensorDictBase
    ) -> TensorDictBase:
        self.clock.now += self.costs.get("reset", 0)
        return tensordict_reset

    def _inv_call(self, tensordict: TensorDictBase) -> TensorDictBase:
        self.clock.now += self.costs.get("inverse", 0)
        return tensordict

    def _reset_env_preprocess(self, tensordict: TensorDictBase) -> TensorDictBase:
        self.clock.now += self.costs.get("preprocess", 0)
        return tensordict


class Fails(Transform):
    """Stage that raises in one hook after a number of calls."""

    def __init__(self, hook: str, after: int, error: Exception) -> None:
        super().__init__(in_keys=["reward"], in_keys_inv=["action"])
        self.hook, self.left, self.error = hook, after, error

    def _count(self, hook: str) -> None:
        if hook == self.hook:
            if self.left == 0:
                raise self.error
            self.left -= 1

    def _step(self, tensordict: TensorDictBase, next_tensordict: TensorDictBase) -> TensorDictBase:
        self._count("step")
        return next_tensordict

    def _inv_call(self, tensordict: TensorDictBase) -> TensorDictBase:
        self._count("inverse")
        return tensordict


class DoublesInPlace(Transform):
    def _apply_transform(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.mul_(2)


def pendulum(*stages: Any) -> TransformedEnv:
    return TransformedEnv(GymEnv("Pendulum-v1"), Compose(*stages))


def names_written(trace: StepTrace) -> dict[str, list[str]]:
    found = {}
    for stage in trace.stages:
        found[f"{stage.place} {stage.direction}"] = [v.name for v in stage.written.values()]
    return found


def test_each_write_creates_a_version_and_readers_refer_to_it() -> None:
    trace = Tracer(pendulum(RewardScaling(0.0, 0.5), RewardClipping(-1, 1), RewardSum())).step()
    assert names_written(trace) == {
        "random inverse": ["action@0"],
        "GymEnv forward": [
            "observation@0",
            "reward@0",
            "done@0",
            "terminated@0",
            "truncated@0",
        ],
        "0 RewardScaling forward": ["reward@1"],
        "1 RewardClipping forward": ["reward@2"],
        "2 RewardSum forward": ["episode_reward@1"],
    }
    assert [stage.read[0].name for stage in trace.stages[2:]] == [
        "reward@0",
        "reward@1",
        "reward@2",
    ]
    assert trace.version("reward@1").value == trace.version("reward@0").value * 0.5
    assert trace.version("reward").name == "reward@2"
    assert trace.after(0)["reward"].name == "reward@1"
    assert trace.after(-1)["reward"].name == "reward@0"
    assert "episode_reward" not in trace.after(1)
    with pytest.raises(KeyNotFoundError, match="did you mean reward@2"):
        trace.version("reward@22")


def test_inverse_path_has_its_own_versions() -> None:
    env = pendulum(ActionScaling(), RenameTransform([], [], ["action"], ["push"]))
    tracer = Tracer(env)
    tracer.step()
    trace = tracer.step(0.5)
    given, renamed, scaled, base, *_ = trace.stages
    assert given.kind == "given"
    assert given.written["push"].value.tolist() == [0.5]
    assert renamed.place == "1 RenameTransform"
    assert renamed.dropped == ("push",)
    assert renamed.written["action"].name == "action@1"
    assert scaled.written["action"].value.tolist() == [1.0]
    assert base.read == (scaled.written["action"],)
    assert trace.after(1, "inverse")["action"].name == "action@1"
    assert trace.after(-1, "inverse")["action"].name == "action@2"
    assert trace.tensordict["push"].tolist() == [0.5]
    with pytest.raises(ArgumentError, match=r"the action has shape \(2,\), the env takes \(1,\)"):
        tracer.step([0.1, 0.2])
    assert tracer.step(TensorDict(push=torch.zeros(1))).tensordict["push"].tolist() == [0.0]


def test_undeclared_writes_are_reported() -> None:
    def adds(tensordict: TensorDictBase) -> TensorDictBase:
        return tensordict.set("surprise", tensordict["observation"] + 1)

    trace = Tracer(pendulum(StepCounter(3), adds)).step()
    counter, function = trace.stages[-2:]
    assert set(counter.written) == {"step_count", "truncated", "done"}
    assert counter.undeclared == ()
    assert function.undeclared == ("surprise",)


def test_in_place_write_does_not_change_earlier_versions() -> None:
    env = pendulum(RewardClipping(1.0, 1.0), DoublesInPlace(["reward"]), RewardScaling(0.0, 3.0))
    trace = Tracer(env).step()
    double = trace.stages[-2].written["reward"]
    assert double.in_place
    values = [trace.version(f"reward@{number}").value.item() for number in (1, 2, 3)]
    assert values == [1.0, 2.0, 6.0]


def test_overwritten_value_is_kept() -> None:
    held: list[torch.Tensor] = []

    def replace(tensordict: TensorDictBase) -> TensorDictBase:
        held.append(tensordict["observation"])
        return tensordict.set("observation", torch.full((3,), 4.0))

    def restore(tensordict: TensorDictBase) -> TensorDictBase:
        return tensordict.set("observation", held[-1].fill_(3.0))

    env = pendulum(replace, restore, DoublesInPlace(["observation"]))
    trace = Tracer(env).step()
    values = [trace.version(f"observation@{number}").value[0].item() for number in (1, 2, 3)]
    assert values == [4.0, 3.0, 6.0]


def test_values_are_copied_once_for_all_stages() -> None:
    class Copies(TorchDispatchMode):
        def __init__(self) -> None:
            super().__init__()  # type: ignore[no-untyped-call]
            self.count = 0

        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            self.count += func is torch.ops.aten.clone.default
            return func(*args, **(kwargs or {}))

    class Passes(Transform):
        def _call(self, next_tensordict: TensorDictBase) -> TensorDictBase:
            return next_tensordict

    counts = []
    for stages in (1, 6):
        tracer = Tracer(pendulum(*(Passes() for _ in range(stages))))
        tracer.step()
        with Copies() as copies:
            tracer.step()
        counts.append(copies.count)
    assert counts[0] == counts[1] > 0


def test_write_into_an_earlier_step_does_not_change_its_trace() -> None:
    class Spoils(Transform):
        def _step(self, tensordict: TensorDictBase, next_tensordict: TensorDictBase) -> Any:
            tensordict["observation"].zero_()
            return next_tensordict

    env = pendulum(Spoils())
    tracer = Tracer(env)
    first = tracer.step()
    seen = first.tensordict["next", "observation"].clone()
    second = tracer.step()
    assert second.tensordict["observation"].tolist() == [0, 0, 0]
    assert first.tensordict["next", "observation"].equal(seen)
    assert first.version("observation").value.equal(seen)
    assert second.given["observation"].value.equal(seen)
    assert [s.undeclared for s in second.stages if s.undeclared] == [("observation",)]


def test_traces_that_are_read_late_show_the_values_of_their_step() -> None:
    class Spoils(Transform):
        def _step(self, tensordict: TensorDictBase, next_tensordict: TensorDictBase) -> Any:
            tensordict["observation"].zero_()
            return next_tensordict

    def traced(*stages: Any) -> list[StepTrace]:
        env = pendulum(RewardClipping(1.0, 1.0), DoublesInPlace(["reward"]), *stages)
        env.set_seed(0)
        tracer = Tracer(env)
        return [tracer.reset(), *(tracer.step(0.5) for _ in range(4))]

    for late, expected in zip(traced(Spoils()), traced(), strict=True):
        assert late.after(9)["observation"].value.equal(expected.after(9)["observation"].value)
        if late.phase == "step":
            assert late.given["observation"].value.equal(expected.given["observation"].value)
            assert [late.version(f"reward@{number}").value.item() for number in (1, 2)] == [1, 2]
            assert late.tensordict["observation"].count_nonzero() == 0


def test_a_stage_adds_few_calls_to_a_recorded_step() -> None:
    counts = []
    for stages in (1, 5):
        env = pendulum(*(RewardScaling(0.0, 0.5) for _ in range(stages)))
        tracer = Tracer(env)
        tracer.step()
        calls = 0

        def count(frame: Any, event: str, argument: Any) -> None:
            nonlocal calls
            calls += event == "call" and "tracing" in frame.f_code.co_filename

        with tracer.attached():
            sys.setprofile(count)
            try:
                trace = tracer.step()
            finally:
                sys.setprofile(None)
        counts.append(calls)
        assert len(trace.stages) == 2 + stages
    assert (counts[1] - counts[0]) / 4 <= 3


def test_times_are_those_of_each_hook() -> None:
    clock = Clock()
    costs = {"step": 1000, "reset": 200, "inverse": 30, "preprocess": 4}
    env = TransformedEnv(
        TransformedEnv(CountingEnv(), Spends(clock, **costs)),
        Compose(Spends(clock, step=5), StepCounter()),
    )
    tracer = Tracer(env, clock=clock)
    reset, step = tracer.reset(), tracer.step()

    def times(trace: StepTrace) -> list[tuple[str, str, int]]:
        return [(s.place, s.direction, s.time_ns - 1) for s in trace.stages if "Spends" in s.name]

    assert times(reset) == [
        ("1 Spends", "inverse", 0),
        ("0 Spends", "inverse", 4),
        ("0 Spends", "forward", 200),
        ("1 Spends", "forward", 0),
    ]
    assert times(step) == [
        ("1 Spends", "inverse", 0),
        ("0 Spends", "inverse", 30),
        ("0 Spends", "forward", 1000),
        ("1 Spends", "forward", 5),
    ]
    assert 0 <= step.unattributed_ns < 20
    assert step.time_ns == step.unattributed_ns + sum(stage.time_ns for stage in step.stages)


def test_time_of_a_stage_includes_the_steps_that_it_makes() -> None:
    clock = Clock()
    env = TransformedEnv(
        CountingEnv(50),
        Compose(Spends(clock, step=100), FrameSkipTransform(3), NoopResetEnv(2, False)),
    )
    tracer = Tracer(env, clock=clock)
    reset, step = tracer.reset(), tracer.step()
    took = {stage.name: stage.time_ns - 1 for stage in step.stages if stage.direction == "forward"}
    assert (took["Spends"], took["FrameSkipTransform"]) == (100, 200)
    assert reset.stages[-1].name == "NoopResetEnv"
    assert reset.stages[-1].time_ns - 1 == 2 * 3 * 100
    assert step.after(0)["observation"].value.item() == 7
    assert step.after(1)["observation"].value.item() == 9


def test_a_copy_of_a_stage_in_a_traced_step_runs_its_own_hooks() -> None:
    class Counts(Transform):
        count = 0

        def _call(self, next_tensordict: TensorDictBase) -> TensorDictBase:
            self.count += 1
            return next_tensordict

    class Copies(Transform):
        def _call(self, next_tensordict: TensorDictBase) -> TensorDictBase:
            env: Any = self.container
            copied = env.transform[0].clone()
            copied._step(next_tensordict, next_tensordict)
            return next_tensordict

    env = pendulum(Counts(), Copies())
    tracer = Tracer(env)
    tracer.run(3)
    assert [stage.place for stage in tracer.step().stages][-2:] == ["0 Counts", "1 Copies"]
    assert env.transform[0].count == 4


def test_trace_without_values_has_times() -> None:
    trace = Tracer(pendulum(RewardScaling(0.0, 0.5)), values=False).step()
    assert [stage.name for stage in trace.stages] == ["random", "GymEnv", "RewardScaling"]
    assert list(trace.versions()) == []
    assert trace.nbytes == 0
    assert trace.tensordict["next", "reward"].shape == (1,)


def test_a_probe_is_called_around_each_hook() -> None:
    class Notes:
        def __init__(self) -> None:
            self.seen: list[str] = []

        def before(self, place: Any, direction: str, hook: str) -> None:
            self.seen.append(f"before {place.name} {direction} {hook}")

        def after(self, place: Any, direction: str, hook: str) -> None:
            self.seen.append(f"after {place.name} {direction} {hook}")

    notes = Notes()
    Tracer(pendulum(RewardSum()), probe=notes).reset()
    assert notes.seen == [
        "before GymEnv forward reset",
        "after GymEnv forward reset",
        "before RewardSum forward reset",
        "after RewardSum forward reset",
    ]


def test_trace_of_a_partial_reset_shows_the_kept_rows() -> None:
    env = TransformedEnv(
        SerialEnv(2, [lambda: CountingEnv(2), lambda: CountingEnv(3)]), RewardSum()
    )
    tracer = Tracer(env)
    tracer.step()
    tracer.step()
    assert tracer.reset_due
    trace = tracer.reset_done()
    assert trace is not None
    assert (trace.phase, trace.episode, trace.step) == ("reset", 1, 2)
    assert trace.tensordict["observation"].tolist() == [[0], [2]]
    assert trace.after(0)["observation"].value.tolist() == [[0], [2]]
    assert not tracer.reset_due
    assert tracer.reset_done() is None
    assert [trace.step for trace in (tracer.step(), tracer.step())] == [2, 3]


def test_policy_has_a_time_and_versions() -> None:
    class Constant(torch.nn.Module):
        in_keys = ("observation",)

        def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
            return tensordict.set("action", torch.ones(1)).set("value", torch.zeros(1))

    first = Tracer(pendulum(), Constant()).step().stages[0]
    assert (first.kind, first.name) == ("policy", "Constant")
    assert [version.name for version in first.read] == ["observation@0"]
    assert [version.name for version in first.written.values()] == ["action@0", "value@0"]


@pytest.mark.parametrize("hook", ["step", "inverse"])
def test_a_stage_that_raises_is_named_with_the_step(hook: str) -> None:
    history = TraceHistory()
    env = pendulum(RewardSum(), Fails(hook, 2, ValueError("broken\nin two")), StepCounter())
    tracer = Tracer(env, history=history)
    during = "the inverse of step 2" if hook == "inverse" else "step 2"
    with pytest.raises(
        ChainError, match=rf"stage 1 \(Fails\): it raised ValueError in {during}: broken"
    ) as info:
        tracer.run(10)
    assert isinstance(info.value.__cause__, ValueError)
    assert [trace.phase for trace in history] == ["reset", "step", "step", "step"]
    assert tracer.last is history[-1]
    assert history[-1].error is info.value
    assert history[-1].stages[-1].place == "1 Fails"
    assert ("reward" in history[-1].after(0)) is (hook == "step")
    assert tracer.reset().step == 2


def test_an_error_of_tdx_keeps_its_kind() -> None:
    env = pendulum(Fails("step", 1, KeyNotFoundError("no key 'x'")))
    tracer = Tracer(env)
    tracer.step()
    with pytest.raises(KeyNotFoundError, match=r"stage 0 \(Fails\): no key 'x', in step 1"):
        tracer.step()


def test_an_env_or_a_policy_that_raises_is_named() -> None:
    class Breaks(CountingEnv):
        def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
            if int(self.count) == 1:
                raise OSError("out of fuel")
            return super()._step(tensordict)

    tracer = Tracer(TransformedEnv(Breaks(), RewardSum()))
    with pytest.raises(EnvError, match="env Breaks: the env raised OSError in step 1: out of fuel"):
        tracer.run(5)

    def clumsy(tensordict: TensorDictBase) -> TensorDictBase:
        raise IndexError("which one?")

    with pytest.raises(
        ChainError, match="the policy clumsy raised IndexError in step 0: which one"
    ):
        Tracer(CountingEnv(), clumsy).step()
    with pytest.raises(ChainError, match="returned NoneType instead of a TensorDict"):
        Tracer(CountingEnv(), lambda tensordict: None).step()


@pytest.mark.parametrize("fails", [False, True])
def test_tracer_leaves_the_env_unchanged(fails: bool) -> None:
    env = pendulum(RewardSum(), Fails("step", 0 if fails else 9, ValueError("no")))
    env.reset()
    before = set(env.__dict__)
    tracer = Tracer(env)
    tracer.reset()
    if fails:
        with pytest.raises(ChainError):
            tracer.step()
    else:
        tracer.step()
    assert set(env.__dict__) == before
    if not fails:
        assert pickle.loads(pickle.dumps(env)).rollout(1)["next", "reward"].shape == (1, 1)


def test_a_chain_may_change_between_steps() -> None:
    env = pendulum(RewardSum())
    tracer = Tracer(env)
    tracer.step()
    env.append_transform(StepCounter())
    assert [stage.name for stage in tracer.step().stages][-2:] == ["RewardSum", "StepCounter"]


def test_an_env_without_a_chain_and_one_with_its_own_step() -> None:
    class Louder(TransformedEnv):
        def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
            following = super()._step(tensordict)
            return following.set("reward", following["reward"] * 10)

    assert [stage.name for stage in Tracer(CartPoleEnv()).step().stages] == [
        "random",
        "CartPoleEnv",
    ]
    inner = Louder(CountingEnv(), RewardScaling(0.0, 2.0))
    trace = Tracer(TransformedEnv(inner, RewardScaling(0.0, 2.0))).step(torch.ones(2))
    assert [stage.place for stage in trace.stages] == ["given", "Louder", "1 RewardScaling"]
    assert trace.after(0)["reward"].value.item() == 40.0
    assert trace.tensordict["next", "reward"].item() == 80.0


def test_envs_that_cannot_be_stacked() -> None:
    makers: list[Callable[[], EnvBase]] = [
        lambda: GymEnv("Pendulum-v1"),
        lambda: GymEnv("MountainCarContinuous-v0"),
    ]
    env = TransformedEnv(SerialEnv(2, makers), RewardScaling(0.0, 2.0))
    trace = Tracer(env).step()
    observed = trace.version("observation").value
    assert [row.shape for row in observed] == [(3,), (2,)]
    assert list(trace.stages[-1].written) == ["reward"]
    reset = Tracer(SerialEnv(2, makers)).reset()
    assert [stage.place for stage in reset.stages] == ["SerialEnv"]
    assert "observation" in reset.stages[0].written


def test_overwritten_input_followed_by_a_replacement_or_an_error() -> None:
    class Replaces(Transform):
        fails = False

        def _call(self, next_tensordict: TensorDictBase) -> TensorDictBase:
            next_tensordict["reward"].zero_()
            if self.fails:
                raise ValueError("too late")
            return next_tensordict.set("reward", torch.full((1,), 9.0))

    env = pendulum(RewardClipping(5.0, 5.0), Replaces(in_keys=["reward"]))
    tracer = Tracer(env)
    trace = tracer.step()
    assert [trace.version(f"reward@{number}").value.item() for number in (1, 2)] == [5.0, 9.0]
    assert not trace.version("reward@2").in_place
    env.transform[1].fails = True
    with pytest.raises(ChainError, match="too late"):
        tracer.step()
    assert tracer.last is not None
    assert tracer.last.version("reward@1").value.item() == 5.0


def test_tracer_refuses_other_objects() -> None:
    with pytest.raises(ArgumentError, match="env must be an env, got TensorDict"):
        Tracer(TensorDict())


def test_history_is_limited_by_length_and_memory() -> None:
    history = TraceHistory(max_traces=4)
    tracer = Tracer(PendulumEnv(max_episode_steps=3), history=history)
    tracer.run(7)
    assert [trace.index for trace in history] == [6, 7, 8, 9]
    assert (len(history), history.forgotten) == (4, 6)
    assert [(e.episode, e.first, e.last, e.steps) for e in history.episodes()] == [
        (1, 6, 7, 2),
        (2, 8, 9, 1),
    ]
    assert history.find(8) is history[2]
    assert history.find(2) is None
    assert history.nbytes == sum(trace.nbytes for trace in history)
    small = TraceHistory(max_bytes=history[0].nbytes * 2)
    for trace in history:
        small.append(trace)
        assert small.nbytes <= small.max_bytes
    assert len(small) == 2
    small.clear()
    assert (len(small), small.nbytes) == (0, 0)
    with pytest.raises(ArgumentError, match="max_bytes must be at least 1"):
        TraceHistory(max_bytes=0)
