"""The plan of a rollout, from a chain, the env's specs and the keys that a policy reads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from tdx.core.envs import EnvBase
from tdx.core.plan.forms import StageForm, flattened, stage_form
from tdx.core.plan.fusion import FusedImages, fused_images
from tdx.core.plan.model import Plan, PlanStage, Version, When
from tdx.core.plan.reasons import why_eager
from tdx.keys import NestedKey, format_key, normalize_key, split_key


@dataclass(frozen=True, slots=True)
class Program:
    """A plan with the stages that carry it out.

    Args:
        plan: the plan, as it is shown.
        base: the env before all chains.
        forms: the stages in order.
        now: the indices of those that run step by step.
        fused: those that run on each image as it arrives, if there are any.
    """

    plan: Plan
    base: EnvBase
    forms: tuple[StageForm, ...]
    now: frozenset[int]
    fused: FusedImages | None = None


def plan_of(env: EnvBase, policy_reads: Sequence[NestedKey] | None = None) -> Plan:
    """How a rollout of the env runs: what must run step by step, what can wait, and why.

    Args:
        env: the env, with its chain.
        policy_reads: the keys that the policy reads; none for actions that look at nothing.

    Raises:
        TdxError: the specs of the chain cannot be computed.

    Example:
        >>> from tdx import CatFrames, GymEnv, RewardSum, TransformedEnv
        >>> env = TransformedEnv(
        ...     GymEnv("Pendulum-v1"), CatFrames(4, -1, in_keys=["observation"])
        ... ).append_transform(RewardSum())
        >>> [(stage.name, stage.when) for stage in plan_of(env, ["observation"]).stages]
        [('CatFrames', 'now'), ('RewardSum', 'later')]
    """
    return program_of(env, policy_reads).plan


def program_of(env: EnvBase, policy_reads: Sequence[NestedKey] | None = None) -> Program:
    """The plan, with the stages themselves; see :func:`plan_of`."""
    _ = env.output_spec  # Stages learn from it which keys they read and write.
    base, stages = flattened(env)
    forms = tuple(stage_form(index, stage) for index, stage in enumerate(stages))
    reads = None if policy_reads is None else tuple(map(normalize_key, policy_reads))
    reason = why_eager(env, base, forms) or _why_not_for_policy(forms, reads)
    needed = _needed_now(forms, reads or ())
    versions, used = _versions(env, base, forms, reads or ())
    arrays = base._raw_envs is not None and all(each.dense for each in base._raw_envs)
    fused = fused_images(base, forms) if arrays and not reason else None
    arriving = () if fused is None else fused.indices
    now = frozenset(needed).difference(arriving)
    raw = base._raw_envs is not None and all(forms[index].row is not None for index in now)
    if not raw:
        fused, arriving, now = None, (), frozenset(needed)
    shown = tuple(
        _shown(form, used[form.index], needed.get(form.index), bool(reason), arriving)
        for form in forms
    )
    plan = Plan(
        env=type(base).__name__,
        executor="eager" if reason else "planned",
        why_eager=reason,
        rows="raw" if raw and not reason else "tensordict",
        stages=shown,
        versions=versions,
        policy_reads=None if reads is None else tuple(map(format_key, reads)),
    )
    return Program(plan, base, forms, now, fused)


def _why_not_for_policy(forms: Sequence[StageForm], reads: Sequence[NestedKey] | None) -> str:
    """What forbids a plan with a policy and lets one with open-loop actions be."""
    moving = [form for form in forms if form.stage._changes_batch]
    if reads is None or not moving:
        return ""
    return f"stage {moving[0].index} ({moving[0].name}) moves what the policy reads in each step"


def _needed_now(forms: Sequence[StageForm], policy_reads: Sequence[NestedKey]) -> dict[int, str]:
    """The stages that run step by step, each with what it is for."""
    wanted: dict[NestedKey, str] = dict.fromkeys(policy_reads, "the policy")
    found: dict[int, str] = {}
    opaque = max((form.index for form in forms if form.is_opaque), default=-1)
    for form in reversed(forms):
        if form.index <= opaque:
            what = "it may read and write any entry"
            found[form.index] = what if form.is_opaque else f"stage {opaque} may read any entry"
            continue
        written = [key for key in wanted if _among(key, form.writes or ())]
        hides = bool(form.drops) and bool(found)
        if not written and form.form is not None and not hides:
            continue
        if written:
            found[form.index] = f"{wanted[written[0]]} needs {format_key(written[0])}"
        elif hides:
            found[form.index] = "a later stage that runs now must not see what it takes away"
        else:
            found[form.index] = "it does not say that it can wait"
        for key in written:
            del wanted[key]
        wanted.update(dict.fromkeys(form.reads or (), f"stage {form.index}"))
    return found


def _among(key: NestedKey, keys: Sequence[NestedKey]) -> bool:
    """Whether a key, or a group that it is in or that it is, is among others."""
    parts = split_key(key)
    return any(
        parts[: len(other)] == other or other[: len(parts)] == parts
        for other in map(split_key, keys)
    )


@dataclass(slots=True)
class _Lineage:
    """The versions so far, and which of each key is the present one."""

    made: list[Version] = field(default_factory=list)
    present: dict[NestedKey, int] = field(default_factory=dict)
    counts: dict[NestedKey, int] = field(default_factory=dict)

    def write(self, key: NestedKey, writer: int) -> str:
        number = self.counts.get(key, -1) + 1
        self.counts[key] = number
        self.present[key] = len(self.made)
        self.made.append(Version(key, number, writer))
        return self.made[-1].name

    def read(self, key: NestedKey, reader: int) -> str | None:
        place = self.present.get(key)
        if place is None:
            return None
        version = self.made[place]
        self.made[place] = replace(version, readers=(*version.readers, reader))
        return version.name


def _versions(
    env: EnvBase, base: EnvBase, forms: Sequence[StageForm], policy_reads: Sequence[NestedKey]
) -> tuple[tuple[Version, ...], list[tuple[tuple[str, ...], tuple[str, ...]]]]:
    """Every version of every key, and what each stage reads and writes of them."""
    lineage = _Lineage()
    for part in base.output_spec.values():
        for key in part.keys(True, True):
            lineage.write(normalize_key(key), -1)
    used = []
    for form in forms:
        seen = tuple(lineage.present) if form.reads is None else form.reads
        reads = [lineage.read(key, form.index) for key in seen]
        for key in form.drops:
            lineage.present.pop(key, None)
        writes = tuple(lineage.write(key, form.index) for key in form.writes or ())
        used.append((tuple(name for name in reads if name is not None), writes))
    for key, place in lineage.present.items():
        final = replace(lineage.made[place], final=True, policy=key in policy_reads)
        lineage.made[place] = final
    return tuple(lineage.made), used


def _shown(
    form: StageForm,
    used: tuple[tuple[str, ...], tuple[str, ...]],
    needed: str | None,
    eager: bool,
    arriving: Sequence[int],
) -> PlanStage:
    when: When = "now" if eager or needed is not None else "later"
    if eager:
        why = "the whole chain runs step by step"
    elif form.index in arriving:
        when, why = "fused", "stages " + ", ".join(map(str, arriving)) + " are one map of an image"
    elif needed is not None:
        why = needed
    else:
        why = "nothing needs it before the chunk is complete"
    return PlanStage(
        index=form.index,
        name=form.name,
        behaviour=form.stage.time_behaviour.value,
        when=when,
        why=why,
        reads=used[0],
        writes=used[1],
        drops=tuple(map(format_key, form.drops)),
        inverse=tuple(map(format_key, form.stage.in_keys_inv)) if form.stage.invertible else (),
    )
