"""What the rules look at: a pipeline, and its specs stage by stage as far as they are known."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from tdx.inspection.lint.lineage import Lineage
from tdx.keys import NestedKey, normal_key
from tdx.pipeline.arguments import bind_stage
from tdx.pipeline.catalog import TransformInfo
from tdx.pipeline.coercion import coerce, parse_or_none
from tdx.pipeline.grammar import parse_value
from tdx.pipeline.model import Pipeline
from tdx.pipeline.values import StageConfig

if TYPE_CHECKING:
    from torch import nn

    from tdx.core import TransformedEnv
    from tdx.core.envs.spec_findings import SpecFinding
    from tdx.core.transforms import Transform
    from tdx.specs import Composite, TensorSpec

_OUTPUT = ("full_observation_spec", "full_reward_spec", "full_done_spec")


@dataclass(frozen=True, slots=True)
class Place:
    """The specs at one place of the chain.

    Args:
        output: the specs of what comes out there, by key.
        given: the specs of what is given there, by key: actions and state.
        actions: which of those are actions.
        rewards: which keys of ``output`` are rewards.
        flags: which keys of ``output`` are done flags.
    """

    output: Mapping[NestedKey, TensorSpec]
    given: Mapping[NestedKey, TensorSpec]
    actions: Collection[NestedKey]
    rewards: Collection[NestedKey]
    flags: Collection[NestedKey]

    @classmethod
    def of(cls, input_spec: Composite, output_spec: Composite) -> Place:
        """The place with these specs."""
        parts = {name: _leaves(output_spec.get(name, None)) for name in _OUTPUT}
        actions = _leaves(input_spec.get("full_action_spec", None))
        state = _leaves(input_spec.get("full_state_spec", None))
        output = {key: spec for part in parts.values() for key, spec in part.items()}
        return cls(
            output,
            {**state, **actions},
            tuple(actions),
            tuple(parts["full_reward_spec"]),
            tuple(parts["full_done_spec"]),
        )


def _leaves(spec: Composite | None) -> dict[NestedKey, TensorSpec]:
    if spec is None:
        return {}
    return {normal_key(key): spec[key] for key in spec.keys(True, True)}


@dataclass(frozen=True)
class LintStage:
    """One stage of the chain.

    Args:
        index: its place in the chain, from 0.
        config: how the pipeline has it.
        info: what its transform declares; none for Python code.
        transform: the transform itself, where it could be made.
        before: the specs that it meets, as far as they are known.
        after: the specs that it leaves.
    """

    index: int
    config: StageConfig
    info: TransformInfo | None
    transform: Transform | None = None
    before: Place | None = None
    after: Place | None = None

    @property
    def name(self) -> str:
        """Class name of its transform."""
        return self.config.name

    @property
    def opaque(self) -> bool:
        """Whether it may read and write more than its keys say."""
        return self.info is None or self.name in ("Compose", "TerminateTransform")

    @cached_property
    def arguments(self) -> Mapping[str, Any]:
        """All its arguments by name as plain values, the defaults of those not given too."""
        if self.info is None:
            return dict(self.config.kwargs)
        bound = bind_stage(self.config)
        names = [each.name for each in self.info.parameters if each.kind == "positional"]
        defaults = {
            each.name: _default(each.default, each.type)
            for each in self.info.parameters
            if each.default is not None
        }
        return {**defaults, **dict(zip(names, bound.args, strict=False)), **bound.kwargs}

    @cached_property
    def in_keys(self) -> list[NestedKey]:
        """The entries of the env's output that it reads."""
        if self.transform is not None:
            return [normal_key(key) for key in self.transform.in_keys]
        return self._written_keys("in_keys") or self._default_keys()

    @cached_property
    def out_keys(self) -> list[NestedKey]:
        """The entries that it writes, one for each in-key."""
        if self.transform is not None:
            return [normal_key(key) for key in self.transform.out_keys]
        return self._written_keys("out_keys") or self.in_keys

    @cached_property
    def in_keys_inv(self) -> list[NestedKey]:
        """The inputs of the env that it maps."""
        if self.transform is not None:
            return [normal_key(key) for key in self.transform.in_keys_inv]
        return self._written_keys("in_keys_inv")

    @property
    def names_its_keys(self) -> bool:
        """Whether the pipeline says which entries it reads."""
        return self.arguments.get("in_keys") is not None

    def _written_keys(self, argument: str) -> list[NestedKey]:
        value = self.arguments.get(argument)
        if isinstance(value, str):
            return [value]
        return [normal_key(key) for key in value] if isinstance(value, list | tuple) else []

    def _default_keys(self) -> list[NestedKey]:
        if self.info is None:
            return []
        if self.info.default_in_keys is not None:
            return list(self.info.default_in_keys)
        return ["reward"] if self.info.category == "reward" else []


def _default(text: str | None, declared: Any) -> Any:
    value = None if text is None else parse_or_none(parse_value, text)
    try:
        return coerce(declared, value)
    except Exception:
        return value


@dataclass(frozen=True)
class LintContext:
    """A pipeline as the rules see it.

    Args:
        pipeline: the pipeline.
        stages: its stages.
        env: the env with its chain, where it could be built.
        policy: the policy that the pipeline names, where it may be and could be imported.
        lies: what was seen in steps that the specs do not promise.
    """

    pipeline: Pipeline
    stages: Sequence[LintStage]
    env: TransformedEnv | None = None
    policy: nn.Module | None = None
    lies: Sequence[SpecFinding] = field(default=())

    @cached_property
    def lineage(self) -> Lineage:
        """Who writes and who reads each version of each key, as far as the specs are known."""
        return Lineage.of([stage for stage in self.stages if stage.after is not None])

    @property
    def last(self) -> Place | None:
        """The specs at the end of the chain, where they are known."""
        if self.stages:
            return self.stages[-1].after
        if self.env is None:
            return None
        return Place.of(self.env.input_spec, self.env.output_spec)

    def named(self, *names: str) -> Iterator[LintStage]:
        """The stages with these transforms."""
        return (stage for stage in self.stages if stage.name in names)

    def pairs(
        self, first: Collection[str], then: Collection[str]
    ) -> Iterator[tuple[LintStage, LintStage, NestedKey]]:
        """Every stage of ``first`` with each later one of ``then`` that reads what it writes."""
        for early in self.named(*first):
            followed = set(early.out_keys)
            for late in self.stages[early.index + 1 :]:
                if late.name in then:
                    shared = [key for key in late.in_keys if key in followed]
                    if shared:
                        yield early, late, shared[0]
                pairs = zip(late.in_keys, late.out_keys, strict=False)
                followed |= {new for old, new in pairs if old in followed}
