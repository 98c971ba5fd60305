"""Collect the data of the HTML report on a pipeline.

Rewards, episodes and images are those of a seeded rollout.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tdx.core.envs.done_flags import episode_ends
from tdx.foundation.keys import NestedKey, format_key
from tdx.foundation.plugins import installed_version
from tdx.inspection.chain import ChainReport, find_flow, report_flow
from tdx.inspection.check_report import Finding
from tdx.inspection.lineage import Lineage, trace_flow
from tdx.inspection.live.arrays import as_array, is_image_shape, make_strip, to_frames
from tdx.inspection.live.stack_env import StackEnv
from tdx.inspection.plan_report import PlanReport, inspect_plan
from tdx.inspection.spec_report import SpecReport, inspect_spec
from tdx.pipeline import Pipeline, write_pipeline
from tdx.pipeline.build import count_env_stages
from tdx.stacks.native import seed_run

if TYPE_CHECKING:
    from tensordict import TensorDictBase
    from torch import Tensor

    from tdx.core import StepTrace
    from tdx.core.tracing import ValueVersion
    from tdx.envs import EnvBase
    from tdx.stacks import Stack

MAX_ENVS = 8
MAX_EXTRA_STEPS = 2_000
"""Limit of the steps after the requested ones, in which the running episodes end."""
OnSteps = Callable[[str, int, int], None]
"""Callback: the activity, the number of finished steps and their maximum."""
_CHUNK_STEPS = 100
_IMAGE_STEP = 10
_MAX_FRAMES, _SPACE = 8, 2


@dataclass(frozen=True, slots=True)
class ImagePair:
    """Input and output of an image stage for one frame, as PNG; not all inputs are images."""

    stage: int
    key: str
    before: bytes | None
    after: bytes
    before_text: str
    after_text: str


@dataclass(frozen=True, slots=True)
class RewardPlot:
    """Rewards of one env at every step."""

    key: str
    env: int
    values: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class EpisodeSummary:
    """One episode of the rollout.

    Args:
        total: Sum of its rewards; ``None`` without rewards.
        ended: ``terminated``, ``truncated``, or ``cut`` if it did not end within the limit.
    """

    env: int
    start: int
    steps: int
    total: float | None
    ended: str


@dataclass(frozen=True, slots=True)
class RolloutSummary:
    """A seeded rollout with random actions, in which each env finishes its last episode."""

    steps: int
    seed: int
    plots: tuple[RewardPlot, ...]
    episodes: tuple[EpisodeSummary, ...]
    images: tuple[ImagePair, ...]
    image_step: int


def summarize_rollout(
    stack: Stack, steps: int, seed: int, on_steps: OnSteps | None = None
) -> RolloutSummary:
    """Run a reproducible rollout with random actions, to the end of its episodes.

    Each env makes at least ``steps`` steps and continues until its episode ends, for at most
    :data:`MAX_EXTRA_STEPS` more.
    """
    import torch

    from tdx.core import Tracer

    image_step, chain = min(_IMAGE_STEP, steps - 1), stack.chain_env
    env = StackEnv(stack) if chain is None else chain
    recorder = _RolloutRecorder(env, steps, on_steps or (lambda activity, done, total: None))
    images: list[ImagePair] = []
    if chain is None:
        # The library of the stack makes the steps.
        stack_tracer = stack.tracer()

        def record(trace: StepTrace) -> None:
            if trace.phase == "step":
                recorder.record(trace.tensordict.get("next"))
                if trace.step == image_step:
                    images.extend(_image_pairs(trace, recorder.batch_dims))
                if recorder.is_complete:
                    stack_tracer.cancel()

        with stack.seeded(seed):
            stack_tracer.run(recorder.max_steps, on_step=record)
    else:
        with torch.no_grad(), seed_run(chain, seed):
            for chunk in chain.iter_rollout(recorder.max_steps, chunk_steps=_CHUNK_STEPS):
                for following in chunk.get("next").unbind(-1):
                    recorder.record(following)
                if recorder.is_complete:
                    break
        # The images are those of the same step of another rollout.
        tracer = Tracer(chain, values=False)
        with seed_run(chain, seed):
            for _ in range(image_step):
                tracer.step()
            tracer.values = True
            images.extend(_image_pairs(tracer.step(), recorder.batch_dims))
    plots, episodes = tuple(recorder.plots()), tuple(recorder.episodes())
    return RolloutSummary(steps, seed, plots, episodes, tuple(images), image_step)


class _RolloutRecorder:
    """Records the rewards and episode ends of the first envs of a batch."""

    def __init__(self, env: EnvBase | StackEnv, steps: int, on_steps: OnSteps) -> None:
        self.batch_dims = len(env.batch_size)
        # The samples of a data pipeline belong to no episodes.
        self.max_steps = steps + (MAX_EXTRA_STEPS if env.done_keys else 0)
        self._steps, self._on_steps = steps, on_steps
        self._count = min(env.batch_size.numel(), MAX_ENVS)
        self._batch = env.batch_size.numel()
        self._rewards: dict[NestedKey, list[list[float]]] = {key: [] for key in env.reward_keys}
        self._flags = env.done_keys
        self._ends_with_last_agent = isinstance(env, StackEnv) and env.ends_with_last_agent
        self._episode_ends: list[list[str]] = []
        self._lengths: dict[int, int] = {}

    @property
    def is_complete(self) -> bool:
        """True if each env made its steps and finished its last episode."""
        return len(self._lengths) == self._count

    def record(self, following: TensorDictBase) -> None:
        """Record the output of a step, ``[*B]``."""
        if self.is_complete:
            return
        for key, rows in self._rewards.items():
            value = following.get(key, None)
            if value is not None:
                rows.append(self._rows(value).double().sum(-1).tolist())
        by_row = episode_ends(following, self._flags, self._batch, self._ends_with_last_agent)
        ends = [by_row.get(row, "") for row in range(self._count)]
        self._episode_ends.append(ends)
        done = len(self._episode_ends)
        if done >= self._steps:
            for env, end in enumerate(ends):
                if end:
                    self._lengths.setdefault(env, done)
        if done < self._steps:
            self._on_steps("rollout steps", done, self._steps)
        else:
            self._on_steps("steps to the end of the episodes", done, self.max_steps)

    def _rows(self, value: Tensor) -> Tensor:
        """Return the values of the first envs, ``[N, X]``."""
        return value.detach().cpu().reshape(self._batch, -1)[: self._count]

    def _length(self, env: int) -> int:
        """Return the number of steps of an env until the end of its last episode."""
        return self._lengths.get(env, len(self._episode_ends))

    def plots(self) -> Iterator[RewardPlot]:
        for key, rows in self._rewards.items():
            if rows:
                for env, values in enumerate(zip(*rows, strict=True)):
                    yield RewardPlot(format_key(key), env, tuple(values[: self._length(env)]))

    def episodes(self) -> Iterator[EpisodeSummary]:
        """Yield the episodes, with the sum of the first reward."""
        if not self._flags:
            return
        rows = next((rows for rows in self._rewards.values() if rows), None)
        starts = [0] * self._count
        for step, ends in enumerate(self._episode_ends):
            for env, end in enumerate(ends):
                length = self._length(env)
                if step < length and (end or step == length - 1):
                    start = starts[env]
                    total = sum(row[env] for row in rows[start : step + 1]) if rows else None
                    yield EpisodeSummary(env, start, step + 1 - start, total, end or "cut")
                    starts[env] = step + 1


def _image_pairs(trace: StepTrace, batch_dims: int) -> Iterator[ImagePair]:
    """Yield input and output of each stage that writes an image."""
    written: dict[NestedKey, ValueVersion] = {}
    for stage in trace.stages:
        if stage.direction != "forward":
            continue
        for key, version in stage.written.items():
            image = is_image(version.value, batch_dims)
            if image and stage.kind == "stage":
                read = written.get(key) or next(
                    (each for each in stage.read if is_image(each.value, batch_dims)), None
                )
                yield ImagePair(
                    stage=stage.index,
                    key=format_key(key),
                    before=to_png(read.value, batch_dims) if read else None,
                    after=to_png(version.value, batch_dims),
                    before_text=_version_text(read) if read else "",
                    after_text=_version_text(version),
                )
            if image:
                written[key] = version


def _version_text(version: ValueVersion) -> str:
    dtype = str(version.value.dtype).removeprefix("torch.")
    return f"{version.name} {list(version.value.shape)} {dtype}"


def is_image(value: object, batch_dims: int) -> bool:
    """Return True if the value looks like images ``[*B, C, H, W]`` or ``[*B, H, W, C]``."""
    array = as_array(value)
    if array is None or array.ndim - batch_dims != 3:
        return False
    return is_image_shape(array.shape[batch_dims:], array.dtype.kind)


def to_png(value: Tensor, batch_dims: int) -> bytes:
    """Encode the image of the first env; frames stacked along the channels are placed side by side.

    The images are ``[*B, C, H, W]`` or ``[*B, H, W, C]``. Floats in 0 … 1 are scaled to bytes;
    others are stretched from their minimum to their maximum.
    """
    image = as_array(value[(0,) * batch_dims])
    assert image is not None
    frames = to_frames(image)[:_MAX_FRAMES]
    strip = make_strip(frames, frames[0].shape[1], frames[0].shape[0], _SPACE)
    return encode_png(strip.tobytes(), strip.shape[1], strip.shape[0])


def encode_png(pixels: bytes, width: int, height: int) -> bytes:
    """Encode bytes ``[height, width, 3]`` as a PNG file."""
    stride = width * 3
    rows = b"".join(
        b"\0" + pixels[start : start + stride] for start in range(0, height * stride, stride)
    )
    # 8 bits of each of three colors.
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(rows, 9)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
        for name, data in chunks
    )


_PACKAGES = ("torch", "tensordict", "torchvision", "gymnasium")
_MAX_TITLE_STAGES = 3


@dataclass(frozen=True, slots=True)
class PipelineReport:
    """Data of the report.

    Args:
        plan: How a rollout runs. ``None``: another library steps the env.
    """

    name: str
    env: str
    text: str
    calls: tuple[str, ...]
    chain: ChainReport
    lineage: Lineage
    specs: SpecReport
    plan: PlanReport | None
    lints: tuple[Finding, ...]
    rollout: RolloutSummary
    versions: tuple[tuple[str, str], ...]

    @property
    def stages(self) -> tuple[str, ...]:
        """Names of the stages."""
        return tuple(stage.name for stage in self.chain.stages)

    @property
    def title(self) -> str:
        """Env and stages on one short line.

        Example:
            >>> from tdx.pipeline import Pipeline
            >>> from tdx.stacks.building import build_stack
            >>> pipeline = Pipeline.of("Pendulum-v1", "InitTracker", "RewardSum")
            >>> build_report(build_stack(pipeline), pipeline, "Pendulum-v1", steps=1).title
            'Pendulum-v1 with InitTracker and RewardSum'
        """
        if not self.stages:
            return self.env
        *first, last = self.stages
        if len(first) >= _MAX_TITLE_STAGES:
            first, last = first[:_MAX_TITLE_STAGES], f"{len(self.stages) - _MAX_TITLE_STAGES} more"
        names = f"{', '.join(first)} and {last}" if first else last
        return f"{self.env} with {names}"


def build_report(
    stack: Stack,
    pipeline: Pipeline,
    name: str,
    *,
    steps: int = 200,
    seed: int = 0,
    on_steps: OnSteps | None = None,
) -> PipelineReport:
    """Collect the data of the report; the env is reset and stepped."""
    from tdx import __version__

    flow = find_flow(stack)
    known = [(package, installed_version(package)) for package in _PACKAGES]
    env = stack.name if stack.chain_env is None else pipeline.env.id
    return PipelineReport(
        name=name,
        env=env,
        text=write_pipeline(pipeline),
        calls=tuple(stack.calls),
        chain=report_flow(stack, flow, env),
        lineage=trace_flow(flow, env),
        specs=inspect_spec(stack, env),
        plan=None if stack.chain_env is None else inspect_plan(stack.chain_env, env),
        lints=tuple(_find_lints(stack, pipeline, seed)),
        rollout=summarize_rollout(stack, steps, seed, on_steps),
        versions=(("tdx", __version__), *((name, text) for name, text in known if text)),
    )


def _find_lints(stack: Stack, pipeline: Pipeline, seed: int) -> Sequence[Finding]:
    """Return the findings of the rules for the pipeline, or those for the stack of its factory."""
    from tdx.core import TransformedEnv
    from tdx.inspection.lint.linter import build_lint_context, lint
    from tdx.inspection.stack_check import check

    env = stack.chain_env
    if env is None or pipeline.is_factory:
        return check(stack, pipeline.env.id, seed=seed).findings
    first = count_env_stages(env, pipeline)
    context = build_lint_context(pipeline, env if isinstance(env, TransformedEnv) else None)
    return [Finding.from_lint(finding, pipeline, first) for finding in lint(context)]
