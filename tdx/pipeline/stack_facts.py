"""An env that is a stack of another library, as plain data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


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
        is_data: True if it is read from files, such as those of a policy checkpoint.
    """

    env: str
    kind: str
    wrappers: tuple[Wrapper, ...]
    notes: tuple[str, ...] = ()
    can_extend: bool = False
    runs_as_chain: bool = False
    takes_env_settings: bool = False
    is_data: bool = False

    @property
    def reason(self) -> str:
        """Why its stages cannot be edited, on one line."""
        if self.is_data:
            return f"the stages are the files of {self.env}, which tdx does not edit"
        return f"the stages are Python code of {self.env}: edit them there"
