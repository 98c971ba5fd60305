"""A pipeline as plain data: env, stages, policy and rollout defaults."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, get_args

from tdx.pipeline.grammar import parse_stage
from tdx.pipeline.values import CodeReference, StageConfig, Value

Batching = Literal["vector", "serial", "parallel"]
BATCHINGS: tuple[str, ...] = get_args(Batching)
VERSION = 1


@dataclass(frozen=True, slots=True)
class DisabledStage:
    """A stage that is switched off: it only keeps its place for whoever edits the pipeline.

    Args:
        before: how many stages of the chain stand before it.
        stage: the stage.
        comment: what the file says of it on its line.
    """

    before: int
    stage: StageConfig
    comment: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class EnvConfig:
    """The env at the bottom of the chain.

    Args:
        id: an id of Gymnasium, the name of a native env, or ``module:factory`` in Python code.
        kwargs: what the env is made with.
        from_pixels: add rendered frames under ``"pixels"``.
        pixels_only: with ``from_pixels``, leave every other observation out.
        num_envs: how many envs; none for a single one without a batch dimension.
        batching: what batches them: Gymnasium's vector env (or the native batch), one loop in
            this process, or a process each.
        device: where the TensorDicts live, such as ``"cuda:0"``; none for the CPU.
        seed: the seed that the env gets when it is built.
        worker_timeout: seconds without an answer after which the processes of ``parallel`` count
            as hung; none for the usual 120, and without effect for other batching.
    """

    id: str
    kwargs: Mapping[str, Value] = field(default_factory=dict)
    from_pixels: bool = False
    pixels_only: bool = True
    num_envs: int | None = None
    batching: Batching = "vector"
    device: str | None = None
    seed: int | None = None
    worker_timeout: float | None = None

    @property
    def code(self) -> CodeReference | None:
        """The Python factory that it refers to, where it is not an id."""
        return CodeReference.of(self.id)


@dataclass(frozen=True, slots=True)
class RolloutConfig:
    """How a rollout of the pipeline runs unless told otherwise.

    Args:
        max_steps: steps that it takes at most.
        break_when_any_done: stop at the first done of any env.
        auto_reset: reset the env before the first step.
    """

    max_steps: int | None = None
    break_when_any_done: bool | None = None
    auto_reset: bool | None = None


@dataclass(frozen=True, slots=True)
class Pipeline:
    """An env plus a chain of transforms.

    Args:
        env: the env.
        transforms: the stages in order.
        policy: ``"random"``, ``"mlp:FILE"``, ``"sequence:FILE"``, or with permission
            ``"module:FILE"`` and ``"module:name"`` of Python code. ``None``: random actions.
        rollout: defaults of a rollout.
        version: version of the file format.
        file: the file it was read from; not part of its identity.
        off: stages that are switched off; not part of its identity.

    Example:
        >>> from tdx.pipeline import Pipeline
        >>> pipeline = Pipeline.of("Pendulum-v1", "StepCounter(max_steps=200)", "RewardSum")
        >>> [stage.name for stage in pipeline.transforms]
        ['StepCounter', 'RewardSum']
    """

    env: EnvConfig
    transforms: tuple[StageConfig, ...] = ()
    policy: str | None = None
    rollout: RolloutConfig = RolloutConfig()
    version: int = VERSION
    file: str | None = field(default=None, compare=False)
    off: tuple[DisabledStage, ...] = field(default=(), compare=False)

    @classmethod
    def of(cls, env: str | EnvConfig, *stages: str | StageConfig) -> Pipeline:
        """A pipeline from an env and stages, each as a config or as the text of ``--t``.

        Raises:
            PipelineError: a stage cannot be read.
        """
        config = EnvConfig(env) if isinstance(env, str) else env
        read = (parse_stage(stage) if isinstance(stage, str) else stage for stage in stages)
        return cls(config, tuple(read))

    def with_stages(self, *stages: StageConfig) -> Pipeline:
        """The same pipeline with other stages."""
        return replace(self, transforms=stages)
