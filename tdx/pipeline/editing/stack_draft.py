"""Drafts whose env is a stack of another library: its wrappers are stages that cannot be edited."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tdx.pipeline.draft import Draft, DraftStage
from tdx.pipeline.model import Pipeline
from tdx.pipeline.values import StageConfig

FIRST_NUMBER = 100_000
"""Number of the innermost wrapper; smaller numbers belong to the stages of the pipeline."""


@dataclass(frozen=True, slots=True)
class Wrapper:
    """A stage of a stack of another library, as plain data.

    Args:
        name: Class name.
        arguments: Name and text of each argument of its constructor, as far as they are known.
        location: ``file:line`` of its class; ``None`` if it has no Python source.
        direction: ``forward`` from the env to the policy, ``inverse`` from the policy to the env.
        rows: Number of sub-envs that have this stage each; ``None`` outside of a vector env.
    """

    name: str
    arguments: tuple[tuple[str, str], ...] = ()
    location: str | None = None
    direction: Literal["forward", "inverse", "both"] = "both"
    rows: int | None = None

    @property
    def text(self) -> str:
        """The arguments on one line."""
        return ", ".join(f"{name}={value}" for name, value in self.arguments)


@dataclass(frozen=True, slots=True)
class StackFacts:
    """A stack of another library, as plain data.

    Args:
        env: Id of the env in the pipeline, ``module:function``.
        kind: Kind of the stack, such as ``gymnasium``.
        wrappers: Its stages, innermost first.
        notes: What the stack does not show, each a sentence.
        can_extend: True if a chain of tdx transforms can be added after the wrappers.
        runs_as_chain: True if rollouts of tdx run its stages: in modes, with policies that take
            TensorDicts, and into dumps.
        takes_env_settings: True if env settings other than its arguments and its seed apply.
    """

    env: str
    kind: str
    wrappers: tuple[Wrapper, ...]
    notes: tuple[str, ...] = ()
    can_extend: bool = False
    runs_as_chain: bool = False
    takes_env_settings: bool = False

    @property
    def reason(self) -> str:
        """Why its stages cannot be edited, on one line."""
        return f"the stages are Python code of {self.env}: edit them there"


@dataclass(frozen=True, slots=True)
class WrapperStage(DraftStage):
    """A stage that cannot be edited.

    Args:
        wrapper: What is known of it.
    """

    wrapper: Wrapper = Wrapper("")


@dataclass(frozen=True, slots=True)
class StackDraft(Draft):
    """A draft that shows the wrappers of its env before its own stages, which are all disabled.

    Args:
        facts: The stack.

    Example:
        >>> draft = Draft.of(Pipeline.of("my_envs:make"))
        >>> facts = StackFacts("my_envs:make", "gymnasium", (Wrapper("ClipAction"),))
        >>> shown = StackDraft.around(draft, facts)
        >>> [stage.config.name for stage in shown.stages], shown.edited() == draft
        (['ClipAction'], True)
        >>> shown.remove(0).edited() is None
        True
    """

    facts: StackFacts = StackFacts("", "", ())

    @classmethod
    def around(cls, draft: Draft, facts: StackFacts) -> StackDraft:
        """Return a draft with the wrappers of its env."""
        stages = (*_wrapper_stages(facts), *draft.stages)
        return cls(draft.env, stages, draft.policy, draft.rollout, draft.file, facts)

    @property
    def wrapper_count(self) -> int:
        """Number of wrappers."""
        return len(self.facts.wrappers)

    def edited(self) -> Draft | None:
        """Return the draft without the wrappers; ``None`` if one of them was edited."""
        count = self.wrapper_count
        own = self.stages[count:]
        is_intact = self.stages[:count] == _wrapper_stages(self.facts)
        if not is_intact or any(isinstance(each, WrapperStage) for each in own):
            return None
        return Draft(self.env, own, self.policy, self.rollout, self.file)

    def pipeline(self) -> Pipeline:
        """Return the pipeline, which has no stages: the factory of the env creates the wrappers."""
        stages = self.stages[self.wrapper_count :]
        return Draft(self.env, stages, self.policy, self.rollout, self.file).pipeline()


def _wrapper_stages(facts: StackFacts) -> tuple[DraftStage, ...]:
    return tuple(
        WrapperStage(FIRST_NUMBER + index, StageConfig(wrapper.name), True, wrapper)
        for index, wrapper in enumerate(facts.wrappers)
    )
