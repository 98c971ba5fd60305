"""Step an env for a while, and keep its rewards, its episodes, and frames of its image stages."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from tdx.inspection.report.contents import Episode, Picture, RewardCurve, Rollout
from tdx.inspection.report.images import is_image, png_of
from tdx.inspection.seeded import seeded_run
from tdx.keys import NestedKey, format_key, split_key

if TYPE_CHECKING:
    from torch import Tensor

    from tdx.core import StepTrace
    from tdx.core.tracing import ValueVersion
    from tdx.envs import EnvBase

MOST_ENVS = 8
_PICTURE_STEP = 10


def observe(env: EnvBase, steps: int, seed: int) -> Rollout:
    """A rollout with random actions that the seed repeats.

    Args:
        env: the env; it is seeded, reset and stepped.
        steps: how many steps.
        seed: of the env and of the actions.

    Raises:
        TdxError: the env or a stage raised.
    """
    import torch

    watch = _Watch(env)
    step = min(_PICTURE_STEP, steps - 1)
    with torch.no_grad(), seeded_run(env, seed):
        for chunk in env.iter_rollout(steps):
            for following in chunk.get("next").unbind(-1):
                watch.see(following)
    with seeded_run(env, seed):
        pictures = tuple(_pictures(_trace_of(env, step), len(env.batch_size)))
    return Rollout(steps, seed, tuple(watch.curves()), tuple(watch.episodes()), pictures, step)


def _trace_of(env: EnvBase, step: int) -> StepTrace:
    """All values of one step of a rollout."""
    from tdx.core import Tracer

    tracer = Tracer(env, values=False)
    for _ in range(step):
        tracer.step()
    tracer.values = True
    return tracer.step()


class _Watch:
    """Keeps the rewards of the first envs of a batch, and where their episodes end."""

    def __init__(self, env: EnvBase) -> None:
        self._count = min(env.batch_size.numel(), MOST_ENVS)
        self._batch = env.batch_size.numel()
        self._rewards: dict[NestedKey, list[list[float]]] = {key: [] for key in env.reward_keys}
        self._flags = [key for key in env.done_keys if len(split_key(key)) == 1]
        self._flags = self._flags or list(env.done_keys)
        self._ends: list[list[str]] = []

    def see(self, following: Any) -> None:
        """Take note of a step's output, ``[*B]``."""
        for key, rows in self._rewards.items():
            value = following.get(key, None)
            if value is not None:
                rows.append(self._rows(value).double().sum(-1).tolist())
        ends = [""] * self._count
        for key in self._flags:
            flags = self._rows(following.get(key)).any(-1).tolist()
            kind = split_key(key)[-1]
            for row, flag in enumerate(flags):
                if flag and (kind != "done" or not ends[row]):
                    ends[row] = kind
        self._ends.append(ends)

    def _rows(self, value: Tensor) -> Tensor:
        """The first envs, ``[N, X]``."""
        return value.detach().cpu().reshape(self._batch, -1)[: self._count]

    def curves(self) -> Iterator[RewardCurve]:
        for key, rows in self._rewards.items():
            if rows:
                for env, values in enumerate(zip(*rows, strict=True)):
                    yield RewardCurve(format_key(key), env, tuple(values))

    def episodes(self) -> Iterator[Episode]:
        """The episodes by the first reward."""
        rows = next((rows for rows in self._rewards.values() if rows), None)
        starts = [0] * self._count
        last = len(self._ends) - 1
        for step, ends in enumerate(self._ends):
            for env, end in enumerate(ends):
                if end or step == last:
                    begun = starts[env]
                    total = sum(row[env] for row in rows[begun : step + 1]) if rows else None
                    yield Episode(env, begun, step + 1 - begun, total, end or "cut")
                    starts[env] = step + 1


def _pictures(trace: StepTrace, batch_dims: int) -> Iterator[Picture]:
    """What each stage that writes an image made of it."""
    seen: dict[NestedKey, ValueVersion] = {}
    for stage in trace.stages:
        if stage.direction != "forward":
            continue
        for key, version in stage.written.items():
            image = is_image(version.value, batch_dims)
            if image and stage.kind == "stage":
                read = seen.get(key) or next(
                    (each for each in stage.read if is_image(each.value, batch_dims)), None
                )
                yield Picture(
                    stage=stage.index,
                    key=format_key(key),
                    before=png_of(read.value, batch_dims) if read else None,
                    after=png_of(version.value, batch_dims),
                    before_text=_text(read) if read else "",
                    after_text=_text(version),
                )
            if image:
                seen[key] = version


def _text(version: ValueVersion) -> str:
    dtype = str(version.value.dtype).removeprefix("torch.")
    return f"{version.name} {list(version.value.shape)} {dtype}"
