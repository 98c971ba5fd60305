"""A pipeline as plain data: env, stages, policy and rollout defaults."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, get_args

from tdx.foundation.html_repr import repr_html
from tdx.pipeline.grammar import parse_stage
from tdx.pipeline.values import CodeReference, StageConfig, Value

Batching = Literal["vector", "serial", "parallel"]
BATCHINGS: tuple[str, ...] = get_args(Batching)
VERSION = 1


@dataclass(frozen=True, slots=True)
class DisabledStage:
    """A stage that is switched off; it keeps its position for editors of the pipeline."""

    before: int  # Number of enabled stages before it.
    stage: StageConfig
    comment: str = field(default="", compare=False)  # On its line of the file; not compared.


@dataclass(frozen=True, slots=True)
class EnvConfig:
    """The env at the bottom of the chain.

    Args:
        id: Gymnasium id, name of a native env, or ``module:factory`` of Python code.
        kwargs: Arguments of the env's constructor.
        from_pixels: Add rendered frames under ``"pixels"``.
        pixels_only: With ``from_pixels``, drop every other observation.
        num_envs: Number of envs in the batch. ``None``: a single env without a batch dimension.
        batching: ``vector`` uses Gymnasium's vector env (or the native batch), ``serial`` a loop in
            this process, ``parallel`` worker processes.
        device: Device of the TensorDicts, such as ``"cuda:0"``. ``None``: the CPU.
        seed: Seed set when the env is built.
        worker_timeout: Seconds without an answer after which a worker of ``parallel`` counts as
            hung. ``None``: 120. Ignored by other kinds of batching.
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
        """Python factory that the id refers to; ``None`` for the id of an env."""
        return CodeReference.of(self.id)


@dataclass(frozen=True, slots=True)
class RolloutConfig:
    """Default settings of a rollout of the pipeline.

    Args:
        max_steps: Maximum number of steps.
        break_when_any_done: Stop at the first done of any env.
        auto_reset: Reset the env before the first step.
    """

    max_steps: int | None = None
    break_when_any_done: bool | None = None
    auto_reset: bool | None = None


@dataclass(frozen=True, slots=True)
class CheckConfig:
    """Rules that ``tdx check`` applies to a pipeline.

    Args:
        select: Codes of rules, or prefixes of codes. Empty: all rules.
        ignore: Codes of rules, or prefixes of codes, to skip.
    """

    select: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Pipeline:
    """An env plus a chain of transforms.

    Args:
        env: The env.
        transforms: Stages in order.
        policy: ``"random"``, ``"mlp:FILE"``, ``"sequence:FILE"``, or, if code is allowed,
            ``"module:FILE"`` and ``"module:name"``. ``None``: random actions.
        rollout: Defaults of a rollout.
        version: Version of the file format.
        check: Rules that apply to it; not compared.
        file: File the pipeline was read from; not compared.
        off: Stages that are switched off; not compared.

    Example:
        >>> from tdx.pipeline import Pipeline
        >>> pipeline = Pipeline.of("Pendulum-v1", "StepCounter(max_steps=200)", "RewardSum")
        >>> [stage.name for stage in pipeline.transforms]
        ['StepCounter', 'RewardSum']
    """

    _repr_html_ = repr_html

    env: EnvConfig
    transforms: tuple[StageConfig, ...] = ()
    policy: str | None = None
    rollout: RolloutConfig = RolloutConfig()
    version: int = VERSION
    check: CheckConfig = field(default=CheckConfig(), compare=False)
    file: str | None = field(default=None, compare=False)
    off: tuple[DisabledStage, ...] = field(default=(), compare=False)

    @classmethod
    def of(cls, env: str | EnvConfig, *stages: str | StageConfig) -> Pipeline:
        """Create a pipeline from an env and stages, given as configs or as ``-t`` text.

        Raises:
            PipelineError: A stage cannot be parsed.
        """
        config = EnvConfig(env) if isinstance(env, str) else env
        parsed = (parse_stage(stage) if isinstance(stage, str) else stage for stage in stages)
        return cls(config, tuple(parsed))

    @property
    def is_factory(self) -> bool:
        """True if it is only a factory, without stages or options that only tdx envs have."""
        env = self.env
        has_options = env.num_envs is not None or env.device is not None or env.from_pixels
        return env.code is not None and not self.transforms and not has_options

    def with_stages(self, *stages: StageConfig) -> Pipeline:
        """Return the same pipeline with other stages."""
        return replace(self, transforms=stages)


@dataclass(frozen=True, slots=True)
class Statistics:
    """The statistics of a feature that a stage keeps, as plain data."""

    feature: str
    names: tuple[str, ...]  # Such as mean; those that the mode of the feature reads come first.
    rows: tuple[tuple[float | None, ...], ...]  # A row for each of the first elements.
    size: int  # Number of elements.
    is_used: bool  # False if the stage has them without using them.


@dataclass(frozen=True, slots=True)
class Wrapper:
    """A stage of a stack of another library, as plain data."""

    name: str
    # Name and text of each argument of its constructor, as far as they are known.
    arguments: tuple[tuple[str, str], ...] = ()
    location: str | None = None  # file:line of its class, if it has Python source.
    # From the env to the policy, or from the policy to the env.
    direction: Literal["forward", "inverse", "both"] = "both"
    rows: int | None = None  # Number of sub-envs that have it. None: outside of a vector env.
    # The nested arguments that are not in ``arguments``, such as the mode of each feature.
    summary: str = ""
    statistics: tuple[Statistics, ...] = ()  # Of each feature, if the stage is read from files.

    @property
    def text(self) -> str:
        """The arguments on one line, except empty lists, such as the keys of a custom transform."""
        shown = [f"{name}={value}" for name, value in self.arguments if value != "[]"]
        return self.summary or ", ".join(shown)


@dataclass(frozen=True, slots=True)
class StackFacts:
    """A stack of another library, as plain data."""

    env: str  # Id of the env in the pipeline, module:function.
    kind: str  # Such as gymnasium.
    wrappers: tuple[Wrapper, ...]  # Innermost first.
    notes: tuple[str, ...] = ()  # What the stack does not show, each a sentence.
    can_extend: bool = False  # True if a chain of tdx transforms can be added after the wrappers.
    # True if rollouts of tdx run its stages: in modes, with policies that take TensorDicts, and
    # into dumps.
    runs_as_chain: bool = False
    # True if settings other than its arguments and its seed apply.
    takes_env_settings: bool = False
    is_data: bool = False  # True if it is read from files, such as those of a policy checkpoint.

    @property
    def reason(self) -> str:
        """Why its stages cannot be edited, on one line."""
        if self.is_data:
            return f"the stages are the files of {self.env}, which tdx does not edit"
        return f"the stages are Python code of {self.env}: edit them there"
