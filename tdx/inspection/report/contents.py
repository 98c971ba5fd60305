"""What a page about a pipeline holds, before it is laid out."""

from __future__ import annotations

from dataclasses import dataclass

from tdx.inspection.chain_report import ChainReport
from tdx.inspection.lineage import Lineage
from tdx.inspection.spec_report import SpecReport
from tdx.inspection.stage_flow import ChainFlow


@dataclass(frozen=True, slots=True)
class Picture:
    """What an image stage made of one frame.

    Args:
        stage: the stage's index.
        key: the key that it writes.
        before: a PNG of what it read; none where that was no image.
        after: a PNG of what it wrote.
        before_text: name, shape and dtype of what it read.
        after_text: the same of what it wrote.
    """

    stage: int
    key: str
    before: bytes | None
    after: bytes
    before_text: str
    after_text: str


@dataclass(frozen=True, slots=True)
class RewardCurve:
    """One reward at every step.

    Args:
        key: the reward's key.
        env: which env of the batch, from 0.
        values: one for each step.
    """

    key: str
    env: int
    values: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Episode:
    """One episode of the rollout.

    Args:
        env: which env of the batch, from 0.
        start: its first step.
        steps: how many steps it has.
        total: the sum of its rewards; none where there are no rewards.
        ended: ``terminated``, ``truncated``, or ``cut`` where the rollout ended first.
    """

    env: int
    start: int
    steps: int
    total: float | None
    ended: str


@dataclass(frozen=True, slots=True)
class Rollout:
    """A short seeded rollout with random actions.

    Args:
        steps: how many steps.
        seed: its seed.
        curves: the rewards.
        episodes: the episodes in the order of their ends.
        pictures: frames before and after each image stage, at one step.
        picture_step: that step.
    """

    steps: int
    seed: int
    curves: tuple[RewardCurve, ...]
    episodes: tuple[Episode, ...]
    pictures: tuple[Picture, ...]
    picture_step: int


@dataclass(frozen=True, slots=True)
class Lint:
    """One finding of the linter.

    Args:
        code: its code.
        severity: ``error``, ``warning`` or ``advice``.
        title: the rule in a few words.
        place: the stage.
        message: what is wrong there.
        hint: what to do about it.
    """

    code: str
    severity: str
    title: str
    place: str
    message: str
    hint: str


@dataclass(frozen=True, slots=True)
class PipelineReport:
    """All of the page.

    Args:
        name: what the pipeline is called.
        text: the pipeline file.
        calls: each stage as the text of ``--t``.
        chain: what each stage does.
        flow: the specs at each place of the chain.
        lineage: every version of every key.
        specs: the specs before and after the chain.
        lints: what the linter found.
        rollout: what a short rollout showed.
        versions: the versions of tdx and of what it runs on.
    """

    name: str
    text: str
    calls: tuple[str, ...]
    chain: ChainReport
    flow: ChainFlow
    lineage: Lineage
    specs: SpecReport
    lints: tuple[Lint, ...]
    rollout: Rollout
    versions: tuple[tuple[str, str], ...]
