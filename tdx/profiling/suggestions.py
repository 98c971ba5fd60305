"""Try changes that may make a pipeline cheaper and suggest the ones that saved time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from tensordict import TensorDictBase

from tdx.compare.rollouts import compare_rollouts, run_seeded_rollout
from tdx.compare.values import Tolerance
from tdx.core.envs import EnvBase
from tdx.core.transformed_env import TransformedEnv
from tdx.foundation.errors import TdxError
from tdx.foundation.serialization import Entries, Entry, Result, finite
from tdx.pipeline import Pipeline, StageConfig, format_stage
from tdx.profiling.candidates import Candidate, find_candidates
from tdx.profiling.interleaved import Contender, TimeDifference, measure_interleaved
from tdx.profiling.result import Mode, ModeProfile
from tdx.profiling.run import ProfilePlan
from tdx.stacks.building import build_env

Agreement = Literal["same", "close", "other"]
MAX_TRIED = 12
"""Maximum number of changes that are tried."""
_STEPS, _SEED = 12, 0
_CLOSE = Tolerance(0.01, 0.01)


def _format_stages(stages: Sequence[StageConfig]) -> list[str]:
    return [format_stage(stage) for stage in stages]


@dataclass(frozen=True, slots=True)
class TriedChange(Result):
    """A change that was measured.

    Args:
        candidate: The change, with the changed pipeline.
        saving: Time that it saves per step.
        values: Effect on values: ``same`` bit for bit, ``close`` within 1 %, or ``other``.
    """

    json_entries: ClassVar[Entries] = (
        *(Entry(name, f"candidate.{name}") for name in ("kind", "stages", "found", "change")),
        Entry("chain", "candidate.pipeline.transforms", _format_stages),
        Entry("mode", "candidate.mode"),
        *(
            Entry(name, f"saving.{name}", finite)
            for name in ("before_us", "after_us", "saved_us", "saved_share", "noise_us")
        ),
        "values",
    )

    candidate: Candidate
    saving: TimeDifference
    values: Agreement

    @property
    def message(self) -> str:
        """Message for the user."""
        saving = self.saving
        note = {"same": "", "close": "; values differ by rounding", "other": "; values differ"}
        return (
            f"{self.candidate.found}: {self.candidate.change}. "
            f"It saved {_format_us(saving.saved_us)} of "
            f"{_format_us(saving.before_us)} per step ({saving.saved_share:.0%}, "
            f"±{_format_us(saving.noise_us)}){note[self.values]}"
        )


def _format_us(time: float) -> str:
    return f"{time:.0f} µs" if abs(time) >= 100 else f"{time:.3g} µs"


@dataclass(frozen=True, slots=True)
class Suggestions(Result):
    """Results of all changes that were tried.

    Args:
        mode: Mode of the rollouts.
        advice: Changes that saved time, largest saving first.
        without_gain: Changes that saved no time beyond the noise.
        refused: Changes that could not be tried or change the values, each a sentence.
        interrupted: Whether Ctrl-C ended the measurement early.
    """

    mode: Mode
    advice: tuple[TriedChange, ...]
    without_gain: tuple[TriedChange, ...]
    refused: tuple[str, ...]
    interrupted: bool = False


def try_changes(
    pipeline: Pipeline,
    baseline: ModeProfile,
    plan: ProfilePlan | None = None,
    *,
    allow_code: bool = False,
    further: Sequence[Candidate] = (),
    policy_of: Callable[[EnvBase], Any] | None = None,
) -> Suggestions:
    """Measure changes that may make a pipeline cheaper, in alternation with the original pipeline.

    Args:
        pipeline: The pipeline.
        baseline: Its profile in the mode that should become faster.
        plan: Steps, warm-up, repeats, policy, seed, threads and clock of each try.
        allow_code: Allow importing Python objects that the pipeline names.
        further: Further changes to try, such as lint fixes.
        policy_of: Creates the policy for an env. ``None``: the policy of the plan.

    Raises:
        TdxError: The original pipeline cannot be build.

    Example:
        >>> from tdx.profiling.run import profile_env
        >>> pipeline = Pipeline.of("Pendulum-v1", "RewardSum")
        >>> plan = ProfilePlan(steps=20, warmup=0, repeats=2, passes=())
        >>> with build_env(pipeline) as env:
        ...     (baseline,) = profile_env(env, ["planned"], plan).modes
        >>> try_changes(pipeline, baseline, plan).advice
        ()
    """
    plan = plan or ProfilePlan()
    with ExitStack() as stack:
        trial = _Trial(pipeline, baseline, plan, allow_code, policy_of, stack)
        env = trial.build(Candidate("", (), "", "", pipeline))
        proposed: list[Candidate] = []
        for candidate in (*find_candidates(pipeline, env, baseline), *further):
            known = [pipeline, *(other.pipeline for other in proposed)]
            in_place = candidate.prepare is not None or candidate.mode is not None
            if in_place or candidate.pipeline not in known:
                proposed.append(candidate)
        return trial.run(env, proposed[:MAX_TRIED])


@dataclass(slots=True)
class _Trial:
    pipeline: Pipeline
    baseline: ModeProfile
    plan: ProfilePlan
    allow_code: bool
    policy_of: Callable[[EnvBase], Any] | None
    stack: ExitStack

    def build(self, candidate: Candidate) -> TransformedEnv:
        """Build the env with a change; it is closed at the end."""
        env = build_env(candidate.pipeline, self.allow_code)
        self.stack.callback(env.close)
        if candidate.prepare is not None:
            candidate.prepare(env)
        return env

    def run(self, env: TransformedEnv, proposed: Sequence[Candidate]) -> Suggestions:
        """Measure all changes in alternation."""
        refused: list[str] = []
        tried: list[tuple[Candidate, Agreement]] = []
        contenders = [self._contender(env, None)]
        expected = run_seeded_rollout(env, _STEPS, _SEED) if proposed else None
        for candidate in proposed:
            try:
                changed = self.build(candidate)
                values = find_agreement(expected, run_seeded_rollout(changed, _STEPS, _SEED))
            except TdxError as error:
                refused.append(f"{candidate.change}: {error}")
                continue
            if values == "other" and not candidate.changes_values:
                refused.append(f"{candidate.change}: the values change")
                continue
            tried.append((candidate, values))
            contenders.append(self._contender(changed, candidate))
        if not tried:
            return Suggestions(self.baseline.mode, (), (), tuple(refused))
        turns = measure_interleaved(contenders, self.baseline.mode, self.plan)
        changes: list[TriedChange] = []
        for place, (candidate, values) in enumerate(tried, 1):
            if place in turns.failures or 0 in turns.failures or not len(turns.step_us):
                refused.append(f"{candidate.change}: {turns.failures.get(place, 'not measured')}")
                continue
            changes.append(TriedChange(candidate, turns.difference(0, place), values))
        changes.sort(key=lambda change: -change.saving.saved_us)
        good = [
            change
            for change in changes
            if change.saving.is_significant and change.saving.saved_us > 0
        ]
        rest = [change for change in changes if change not in good]
        mode, interrupted = self.baseline.mode, turns.interrupted
        return Suggestions(mode, tuple(good), tuple(rest), tuple(refused), interrupted)

    def _contender(self, env: TransformedEnv, candidate: Candidate | None) -> Contender:
        policy = self.plan.policy if self.policy_of is None else self.policy_of(env)
        return Contender(env, policy, None if candidate is None else candidate.mode)


def find_agreement(expected: TensorDictBase | None, changed: TensorDictBase) -> Agreement:
    """Compare the values of two rollouts.

    Args:
        expected: Values of one rollout. ``None``: nothing to compare with.
        changed: Values of the other rollout.
    """
    if expected is None or expected.batch_size != changed.batch_size:
        return "other"
    if not any(compare_rollouts(expected, changed).values()):
        return "same"
    return "other" if any(compare_rollouts(expected, changed, _CLOSE).values()) else "close"
