"""Performance targets, and the table of measured times."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from rich.table import Table

Contestant = Literal["tdx", "tdx eager", "TorchRL", "Gymnasium", "SB3", "bare", "single env"]
Times = Mapping[Contestant, Sequence[float]]
"""Times of all rounds, by contestant, in the order of the rounds."""
COLUMNS: tuple[Contestant, ...] = ("TorchRL", "Gymnasium", "bare", "tdx")


@dataclass(frozen=True)
class Goal:
    """Target for tdx: a time, or a ratio to the time of a contestant.

    Args:
        limit: Time in the unit of the bar, or ratio.
        of: Contestant to compare with. ``None``: ``limit`` is a time.
        faster: True if the ratio is the speedup of tdx. False: the relative time of tdx.
        stretch: True if the target is optional.
    """

    limit: float
    of: Contestant | None = None
    faster: bool = False
    stretch: bool = False

    def figures(self, times: Times, seconds: float) -> Sequence[float]:
        """Return the time or ratio of each round; empty if a contestant is missing.

        Args:
            times: Times in seconds.
            seconds: Seconds per unit of the bar.
        """
        if "tdx" not in times or (self.of is not None and self.of not in times):
            return ()
        own = np.asarray(times["tdx"])
        if self.of is None:
            return (own / seconds).tolist()
        other = np.asarray(times[self.of])
        return (other / own if self.faster else own / other).tolist()

    def is_met(self, figure: float) -> bool:
        """Return True if a figure reaches the target."""
        return figure >= self.limit if self.faster else figure <= self.limit

    def describe(self, unit: str) -> str:
        """Describe the target: ``≥ 5.5 × TorchRL``."""
        sign = "≥" if self.faster else "≤"
        words = f"{sign} {self.limit:g} {unit if self.of is None else f'× {self.of}'}"
        return f"{words} (stretch)" if self.stretch else words


@dataclass(frozen=True)
class Bar:
    """One row of the table.

    Args:
        name: Short name.
        work: Description of the timed work.
        unit: Unit of the times.
        seconds: Seconds per unit. Bytes for memory, a share for %.
        goals: Targets for tdx.
        bare: Meaning of the column "bare" in this row.
        above_bare: True if the bare time, which all other times include, is subtracted.
    """

    name: str
    work: str
    unit: str
    seconds: float
    goals: tuple[Goal, ...]
    bare: str = ""
    above_bare: bool = False

    def counted(self, measured: Times) -> Times:
        """Return the times to show and to compare with the goals.

        Args:
            measured: Measured times.
        """
        if not self.above_bare:
            return measured
        if "bare" not in measured:
            return {}
        bare = np.asarray(measured["bare"])
        above = {who: (np.asarray(times) - bare).tolist() for who, times in measured.items()}
        return {**above, "bare": measured["bare"]}


def _micros(
    name: str, work: str, goals: tuple[Goal, ...], bare: str = "", *, above_bare: bool = False
) -> Bar:
    return Bar(name, work, "µs", 1e-6, goals, bare, above_bare)


ROLLOUT = _micros(
    "P1",
    "a step of rollout(2000), random actions, chain 6",
    (Goal(1.25, "bare"), Goal(25, "TorchRL", faster=True), Goal(3, "Gymnasium", faster=True)),
)
POLICY_ROLLOUT = _micros(
    "P2",
    "the same with a policy, MLP 12-64-1 on the stacked observation",
    (Goal(1.4, "bare"), Goal(1.25, "bare", stretch=True), Goal(8, "TorchRL", faster=True)),
    "with policy",
)
POLICY_ROLLOUT_GRAD = _micros(
    "P2", "the same with gradients enabled", (Goal(1.5, "bare"),), "with policy"
)
SERIAL_ROLLOUT = _micros(
    "P5",
    "an env step of SerialEnv(8), random actions, chain 6",
    (Goal(1.25, "bare"), Goal(14, "TorchRL", faster=True)),
)
SERIAL_POLICY_ROLLOUT = _micros(
    "P5", "the same with the MLP as policy", (Goal(10, "TorchRL", faster=True),)
)
WORKER_ROLLOUT = _micros(
    "P12",
    "an env step of ParallelEnv(8) in 2 processes, random actions, chain 6",
    (Goal(1.7, "bare", faster=True), Goal(10, "Gymnasium", faster=True)),
    "one process",
)
WORKER_POLICY_ROLLOUT = _micros(
    "P12", "the same with the MLP as policy", (Goal(1.4, "bare", faster=True),), "one process"
)
STEPWISE_WORKERS = _micros(
    "P13", "an env step of ParallelEnv(8).step(td) in 2 processes", (Goal(1, "Gymnasium"),)
)
VEC_NORM_ROLLOUT = _micros(
    "P6",
    "a step of rollout(2000), random actions, VecNorm",
    (Goal(1.4, "bare"), Goal(20, "TorchRL", faster=True)),
)
_PROFILED_GOALS = (Goal(1.02, "bare"),)
PROFILED = _micros(
    "P9", "a step of rollout(2000) that is profiled, chain 6", _PROFILED_GOALS, "not profiled"
)
PROFILED_EAGER = _micros(
    "P9", "the same step by step, rollout(300)", _PROFILED_GOALS, "not profiled"
)
UNATTRIBUTED = Bar("P9", "what of it no part accounts for", "%", 0.01, (Goal(5),))
UNATTRIBUTED_EAGER = Bar("P9", "the same step by step", "%", 0.01, (Goal(5),))
KNOWN_COSTS = Bar("P9", "stages that spin a known time: largest error", "%", 0.01, (Goal(5),))
PROFILED_BLOCK = Bar("P9", "an empty block of tdx.profile", "ms", 1e-3, (Goal(10),))
EQUAL_PROFILES = Bar(
    "P19", "profiles of equal code that violate p50:10%, of 20 pairs", "", 1, (Goal(1),)
)
SLOWER_STAGE = Bar(
    "P19", "profiles that find a stage slower by 10 %, of 10", "", 1, (Goal(10, faster=True),)
)
TRUE_STEP = _micros(
    "P20",
    "a step that is profiled, chain 6, as measured against iter_rollout",
    (Goal(1.1, "bare"),),
    "not profiled",
)
TRUE_PIXELS = _micros(
    "P20", "the same, Pong: gray, 84 × 84, stacks of 4", (Goal(1.1, "bare"),), "not profiled"
)
STACK_CALL = _micros("S1", "a call of a Gymnasium wrapper that is profiled; added time", (Goal(5),))
STACK_TRACED_CALL = _micros(
    "S1", "a call of a Gymnasium wrapper whose values are recorded; added time", (Goal(5),)
)
STACK_STEP = _micros(
    "S2", "a step of 1 ms in 8 Gymnasium wrappers, profiled", (Goal(1.02, "bare"),)
)
STACK_TRACED_STEP = _micros("S2", "the same, values recorded", (Goal(1.02, "bare"),))
STACK_UNATTRIBUTED = Bar(
    "S3", "the same: time of no wrapper and not of the env", "%", 0.01, (Goal(5),)
)


def _stack_bars(kind: str) -> tuple[Bar, Bar, Bar]:
    """Return the bars of a recorded call, a profiled step and a recorded step."""
    call = f"a call of a {kind} transform whose values are recorded; added time"
    goals = (Goal(1.02, "bare"),)
    return (
        _micros("S1", call, (Goal(5),)),
        _micros("S2", f"a step of 1 ms in 8 {kind} transforms, profiled", goals),
        _micros("S2", f"the same in {kind} transforms, values recorded", goals),
    )


NATIVE_STACK = _stack_bars("tdx")
TORCHRL_STACK = _stack_bars("TorchRL")
MEMORY = Bar(
    "P10", "resident memory over iter_rollout(1_000_000), chain 6", "MiB", 2**20, (Goal(64),)
)
DUMP = _micros(
    "P10",
    "a step of a streaming dump, Pendulum-v1 + chain 6",
    (Goal(1.1, "bare"),),
    "the rollout alone",
)
DUMP_MEMORY = Bar("P10", "resident memory meanwhile", "MiB", 2**20, (Goal(64),))
ARTIFACT_STEP = _micros(
    "P28", "a step of a chain in C++: 100 floats, normalize, stack 4, clip", (Goal(2),)
)
STATISTICS = Bar("P27", "statistics of a dataset, 10,000,000 x 32 float32", "s", 1, (Goal(60),))
STATISTICS_MEMORY = Bar("P27", "resident memory of the process", "MB", 1e6, (Goal(500),))
SHARD_SHARE = Bar(
    "D1", "64 shards on Ray: everything but steps, in a shard of 30 s", "%", 1e-2, (Goal(5),)
)
SHARD_MEMORY = Bar("D1", "the driver's memory: 512 shards after 64", "MiB", 2**20, (Goal(8),))
PLAIN_GOAL = Goal(5.5, "TorchRL", faster=True)
CHAIN_6_GOAL = Goal(8, "TorchRL", faster=True)
PLAIN_STEP = _micros("P3", "env.step(td), no transform", (PLAIN_GOAL,))
CHAIN_6_STEP = _micros("P3", "env.step(td), chain 6", (CHAIN_6_GOAL,))
PLAIN_STEP_NEW = _micros(
    "P3", "the same, each step a new td", (Goal(1.1, "bare"),), "results in a TensorDict"
)
CHAIN_6_STEP_NEW = _micros("P3", "the same, each step a new td", (CHAIN_6_GOAL,))
BUILD = Bar("P7", "make the env, chain 6, read output_spec", "ms", 1e-3, (Goal(2),))
HELP = Bar("P8", "tdx --help", "s", 1, (Goal(1.2, "bare"),), "Typer alone")
LIST = Bar("P8", "tdx list envs", "s", 1, (Goal(0.2),))
COMPLETION = Bar("P8", "completion of an env id", "s", 1, (Goal(0.2),))
INSPECT = Bar("P8", "tdx inspect spec", "s", 1, (Goal(1.1, "bare"),), "import torch, tensordict")
CHECK_CODE = Bar(
    "P21",
    "tdx check of a function, three wrappers on CartPole",
    "s",
    1,
    (Goal(1.15, "bare"),),
    "import torch, tensordict, gymnasium",
)
APP_START = Bar("P8", "first screen of the app, whole process", "s", 1, (Goal(0.5),))
APP_KEYS = Bar(
    "A1", "a key answered, p95: 30 stages, a rollout and a profile run", "ms", 1e-3, (Goal(30),)
)
APP_IDLE_KEYS = Bar("A4", "a key answered by the idle app, p95: 30 stages", "ms", 1e-3, (Goal(30),))
APP_PACE = Bar(
    "A2",
    "live steps of 200/s wanted, all panes open, with pixels",
    "steps/s",
    1,
    (Goal(190, faster=True),),
)
APP_MEMORY = Bar(
    "A3", "resident memory of app and workers, 72,000 steps", "MiB", 2**20, (Goal(64),)
)
APP_IDLE = Bar(
    "P23", "CPU time of the idle app and its workers in a minute", "%", 0.01, (Goal(0.3),)
)
APP_TABS = Bar(
    *("P23", "memory of app and workers: specs, live and profile of Pong", "MB", 1e6),
    (Goal(750),),
    "PSS",
)
APP_PEAK = Bar(
    *("P23", "the same, highest while the profile runs and changes are tried", "MB", 1e6),
    (Goal(750, stretch=True),),
    "PSS",
)
APP_BUSY = Bar(
    *("P24", "50 live steps of Pong while each core trains", "s", 1),
    (Goal(4, "bare"),),
    "idle machine",
)
REPLAY_GOAL = Goal(3, "TorchRL", faster=True)
REPLAY = _micros("R1", "ReplayBuffer.sample(), 256 steps, chain of 3", (REPLAY_GOAL,))
REPLAY_SLICES = _micros("R1", "the same, 16 slices of 16 steps", (REPLAY_GOAL,))
PIXELS = _micros(
    "P4",
    "a frame of Pong: gray, 84 × 84, stacks of 4; above bare",
    (Goal(95), Goal(7, "TorchRL", faster=True)),
    "env alone",
    above_bare=True,
)
VECTOR_ROLLOUT = _micros(
    "P14",
    "an env step of GymEnv(Pendulum-v1, num_envs=8), random actions",
    (Goal(1.2, "Gymnasium"),),
)
VECTOR_CHAIN_ROLLOUT = _micros(
    "P14", "the same, CartPole-v1 and chain 6", (Goal(1.2, "Gymnasium"),)
)
SERIAL_PIXELS = _micros(
    "P15",
    "a frame of SerialEnv(4) of Pong, as in P4; above bare",
    (Goal(1.2, "single env"), Goal(1, "SB3", faster=True)),
    "envs alone",
    above_bare=True,
)
DICT_ENTRY = _micros("P16", "an entry of a Dict observation, per step", (Goal(0.5),))
NO_OP_CAST = _micros(
    "P17",
    "a step of rollout(2000), chain 6 and DoubleToFloat on float32",
    (Goal(1.1, "bare"),),
    "without the cast",
)
LONG_SPEC = Bar(
    "P18",
    "inspect spec of 200 stages and 300 keys, above 2 stages",
    "s",
    1,
    (Goal(1),),
    "2 stages",
    above_bare=True,
)
LONG_CHECK = Bar("P18", "check of the same", "s", 1, (Goal(1),), "2 stages", above_bare=True)


def _image_bar(name: str, dtype: str, batch: int) -> Bar:
    work = f"{name}, {batch} of {dtype}, 210 × 160"
    return _micros("I1", work, (Goal(1.2, "bare"),), "torchvision")


ImageCase = tuple[str, Literal["uint8", "float32"], Literal[1, 32]]
IMAGE_STAGES: dict[str, tuple[Literal["uint8", "float32"], ...]] = {
    "ToTensorImage": ("uint8",),
    "GrayScale": ("uint8", "float32"),
    "CenterCrop": ("uint8", "float32"),
    "Resize": ("uint8", "float32"),
}
BATCHES: tuple[Literal[1, 32], ...] = (1, 32)
IMAGES: dict[ImageCase, Bar] = {
    (name, dtype, batch): _image_bar(name, dtype, batch)
    for name, dtypes in IMAGE_STAGES.items()
    for dtype in dtypes
    for batch in BATCHES
}
BARS = (
    ROLLOUT,
    POLICY_ROLLOUT,
    POLICY_ROLLOUT_GRAD,
    PLAIN_STEP,
    PLAIN_STEP_NEW,
    CHAIN_6_STEP,
    CHAIN_6_STEP_NEW,
    PIXELS,
    SERIAL_ROLLOUT,
    SERIAL_POLICY_ROLLOUT,
    VEC_NORM_ROLLOUT,
    BUILD,
    PROFILED,
    UNATTRIBUTED,
    PROFILED_EAGER,
    UNATTRIBUTED_EAGER,
    KNOWN_COSTS,
    PROFILED_BLOCK,
    EQUAL_PROFILES,
    SLOWER_STAGE,
    TRUE_STEP,
    TRUE_PIXELS,
    STACK_CALL,
    STACK_TRACED_CALL,
    STACK_STEP,
    STACK_TRACED_STEP,
    STACK_UNATTRIBUTED,
    *NATIVE_STACK,
    *TORCHRL_STACK,
    MEMORY,
    DUMP,
    DUMP_MEMORY,
    ARTIFACT_STEP,
    STATISTICS,
    STATISTICS_MEMORY,
    SHARD_SHARE,
    SHARD_MEMORY,
    WORKER_ROLLOUT,
    WORKER_POLICY_ROLLOUT,
    STEPWISE_WORKERS,
    VECTOR_ROLLOUT,
    VECTOR_CHAIN_ROLLOUT,
    SERIAL_PIXELS,
    DICT_ENTRY,
    NO_OP_CAST,
    LONG_SPEC,
    LONG_CHECK,
    REPLAY,
    REPLAY_SLICES,
    *IMAGES.values(),
    HELP,
    LIST,
    COMPLETION,
    INSPECT,
    CHECK_CODE,
    APP_START,
    APP_KEYS,
    APP_IDLE_KEYS,
    APP_PACE,
    APP_MEMORY,
    APP_IDLE,
    APP_TABS,
    APP_PEAK,
    APP_BUSY,
)


def results_table(measured: Mapping[Bar, Times]) -> Table:
    """Return the table of the measured targets, with the median of all rounds."""
    table = Table("", "work", *COLUMNS, "bar", "today", "spread", "", title="Today's figures")
    for column in (*table.columns[2:6], *table.columns[7:9]):
        column.justify = "right"
    for bar in BARS:
        times = bar.counted(measured.get(bar, {}))
        if not times:
            continue
        cells = [_time(times.get(contestant), bar) for contestant in COLUMNS]
        if bar.bare and "bare" in times:
            cells[COLUMNS.index("bare")] += f" ({bar.bare})"
        for goal in bar.goals:
            table.add_row(bar.name, bar.work, *cells, *_goal_cells(goal, bar, times))
    return table


def _time(seconds: Sequence[float] | None, bar: Bar) -> str:
    return "" if seconds is None else f"{np.median(seconds) / bar.seconds:.3g} {bar.unit}"


def _goal_cells(goal: Goal, bar: Bar, times: Times) -> tuple[str, str, str, str]:
    figures = goal.figures(times, bar.seconds)
    if not figures:
        return goal.describe(bar.unit), "", "", ""
    low, figure, high = np.percentile(figures, (25, 50, 75)).tolist()
    today = f"{figure:.3g} {bar.unit if goal.of is None else '×'}"
    spread = "" if len(figures) == 1 else f"{low:.3g} to {high:.3g}"
    return goal.describe(bar.unit), today, spread, "ok" if goal.is_met(figure) else "missed"
