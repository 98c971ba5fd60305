"""Plan a rollout: which stages of a chain run in each step, which are deferred, and why.

:func:`program_of` makes the plan from the chain, the specs of the env and the keys that the policy
reads. It follows every version of every key through the chain. A stage is immediate if the policy
or an immediate stage reads what it writes. If a plan is not possible, ``why_eager`` says why.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

from tdx.core.chain import StageForms, declares, flatten_chain, stage_forms
from tdx.core.envs.env_base import EnvBase
from tdx.core.plan.image_fusion import FusedImages, fuse_images
from tdx.core.transformed_env import TransformedEnv
from tdx.core.transforms import TimeBehavior, Transform
from tdx.core.transforms.kernels import owner
from tdx.foundation.keys import NestedKey, format_key, normalize_key, split_key
from tdx.foundation.serialization import Entries, Entry, Result
from tdx.specs import Composite
from tdx.specs.composite import all_leaves
from tdx.specs.non_tensor import NonTensor

Executor = Literal["planned", "eager"]
When = Literal["immediate", "deferred", "fused"]


@dataclass(frozen=True, slots=True)
class Version:
    """One assignment to a key in the chain.

    Args:
        key: The key.
        number: 0 for the first assignment, by the env or a stage.
        writer: Index of the stage that writes it; -1 for the env.
        readers: Indices of the stages that read it.
        policy: True if the policy reads it.
        final: True if it is part of the output of the chain.
    """

    key: NestedKey
    number: int
    writer: int
    readers: tuple[int, ...] = ()
    policy: bool = False
    final: bool = False

    @property
    def name(self) -> str:
        """Display name: ``observation@2``."""
        return f"{format_key(self.key)}@{self.number}"

    @property
    def dead(self) -> bool:
        """True if nothing reads it and it is not part of the output."""
        return not self.readers and not self.policy and not self.final


@dataclass(frozen=True, slots=True)
class StagePlan(Result):
    """One stage, and when it runs.

    Args:
        index: Position in the chain, from 0.
        name: Class name of the transform.
        behavior: Time behavior: ``pointwise``, ``scan`` or ``control``.
        when: ``immediate``: in each step. ``deferred``: once per chunk. ``fused``: on each image as
            it arrives, as one operator with its neighbors.
        why: Reason why it runs then.
        reads: Names of the versions that it reads.
        writes: Names of the versions that it writes.
        drops: Keys that it removes.
        inverse: Keys that its inverse maps.
    """

    json_entries: ClassVar[Entries] = (
        *(Entry("stage", "index"), Entry("transform", "name"), Entry("time_behavior", "behavior")),
        *("when", "why", "reads", "writes", "drops", "inverse"),
    )

    index: int
    name: str
    behavior: str
    when: When
    why: str
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    drops: tuple[str, ...]
    inverse: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """How a rollout of an env runs.

    Args:
        env: Name of the env before the chain.
        executor: ``planned``, or ``eager`` if a plan is not possible.
        why_eager: Reason why a plan is not possible; empty if it is.
        rows: How the env is stepped: ``raw`` without TensorDicts, or ``tensordict``.
        stages: The stages in order.
        versions: All versions of all keys, in the order in which they are written.
        policy_reads: Keys that the policy reads. ``None``: the actions depend on no observation.
        processes: Number of worker processes of the env. ``None``: it has none.
        why_stepwise: Reason why they cannot run whole chunks; empty if they can.
    """

    env: str
    executor: Executor
    why_eager: str
    rows: Literal["raw", "tensordict"]
    stages: tuple[StagePlan, ...]
    versions: tuple[Version, ...]
    policy_reads: tuple[str, ...] | None = None
    processes: int | None = None
    why_stepwise: str = ""

    @property
    def dead(self) -> tuple[Version, ...]:
        """Versions that nothing reads and that are not part of the output."""
        return tuple(version for version in self.versions if version.dead)


@dataclass(frozen=True, slots=True)
class Program:
    """A plan with the stages that execute it."""

    plan: Plan
    base: EnvBase
    stages: tuple[StageForms, ...]
    immediate: frozenset[int]  # indices of the stages that run in each step
    fused: FusedImages | None = None  # the stages that run on each image as it arrives


class PlanCache(dict[Any, Any]):
    """Programs of an env, by what they depend on. A copy of the env starts with an empty cache."""

    def __reduce__(self) -> tuple[Any, ...]:
        return PlanCache, ()

    def __deepcopy__(self, memo: dict[int, Any]) -> PlanCache:
        return PlanCache()


def plan_of(env: EnvBase, policy_reads: Sequence[NestedKey] | None = None) -> Plan:
    """Return how a rollout of an env runs: what runs in each step, what is deferred, and why.

    Args:
        env: The env with its chain.
        policy_reads: Keys that the policy reads. ``None``: the actions depend on no observation.

    Raises:
        TdxError: The specs of the chain cannot be computed.

    Example:
        >>> from tdx import CatFrames, GymEnv, RewardSum, TransformedEnv
        >>> env = TransformedEnv(
        ...     GymEnv("Pendulum-v1"), CatFrames(4, -1, in_keys=["observation"])
        ... ).append_transform(RewardSum())
        >>> [(stage.name, stage.when) for stage in plan_of(env, ["observation"]).stages]
        [('CatFrames', 'immediate'), ('RewardSum', 'deferred')]
    """
    return program_of(env, policy_reads).plan


def program_of(env: EnvBase, policy_reads: Sequence[NestedKey] | None = None) -> Program:
    """Return the plan with the stages themselves; see :func:`plan_of`."""
    _ = env.output_spec  # Stages learn from it which keys they read and write.
    base, transforms = flatten_chain(env)
    stages = tuple(stage_forms(index, stage) for index, stage in enumerate(transforms))
    reads = None if policy_reads is None else tuple(map(normalize_key, policy_reads))
    reason = next(_eager_reasons(env, base, stages, reads), "")
    needed = _immediate_stages(stages, reads or ())
    versions, used = _versions(base, stages, reads or ())
    rows, workers = base.raw_rows, base.chunk_workers
    why = ""
    if workers is not None:
        why = reason or workers.reason or next(_stepwise_reasons(stages), "")
    kinds = [type(forms.stage) for forms in stages]
    has_images = any(owner(kind, "linear_image") is not Transform for kind in kinds)
    can_fuse = rows is not None and rows.has_array_observations and has_images and not reason
    fused = fuse_images(base, stages) if can_fuse else None
    indices = () if fused is None else fused.indices
    immediate = frozenset(needed).difference(indices)
    raw = rows is not None and all(stages[index].dict_step is not None for index in immediate)
    if not raw:
        fused, indices, immediate = None, (), frozenset(needed)
    described = tuple(
        _describe(forms, used[forms.index], needed.get(forms.index), bool(reason), indices)
        for forms in stages
    )
    plan = Plan(
        env=type(base).__name__,
        executor="eager" if reason else "planned",
        why_eager=reason,
        rows="raw" if raw and not reason else "tensordict",
        stages=described,
        versions=versions,
        policy_reads=None if reads is None else tuple(map(format_key, reads)),
        processes=None if workers is None else len(workers.groups),
        why_stepwise=why,
    )
    return Program(plan, base, stages, immediate, fused)


def _immediate_stages(
    stages: Sequence[StageForms], policy_reads: Sequence[NestedKey]
) -> dict[int, str]:
    """Return the stages that run in each step, with the reason for each."""
    wanted: dict[NestedKey, str] = dict.fromkeys(policy_reads, "the policy")
    reasons: dict[int, str] = {}
    opaque = max((forms.index for forms in stages if forms.is_opaque), default=-1)
    for forms in reversed(stages):
        index = forms.index
        if index <= opaque:
            what = "it may read and write any entry"
            reasons[index] = what if forms.is_opaque else f"stage {opaque} may read any entry"
            continue
        written = [key for key in wanted if _overlaps(key, forms.writes or ())]
        hides = bool(forms.drops) and bool(reasons)
        if not written and forms.chunk_kernel is not None and not hides:
            continue
        if written:
            reasons[index] = f"{wanted[written[0]]} needs {format_key(written[0])}"
        elif hides:
            reasons[index] = "a later stage that runs now must not see the keys that it removes"
        else:
            reasons[index] = "it does not declare that it can be deferred"
        for key in written:
            del wanted[key]
        wanted.update(dict.fromkeys(forms.reads or (), f"stage {index}"))
    return reasons


def _overlaps(key: NestedKey, keys: Sequence[NestedKey]) -> bool:
    """Return True if a key, a group of it or an entry in it is one of the others."""
    parts = split_key(key)
    return any(
        parts[: len(other)] == other or other[: len(parts)] == parts
        for other in map(split_key, keys)
    )


@dataclass(slots=True)
class _VersionLog:
    """The versions so far, and the current one of each key."""

    versions: list[Version] = field(default_factory=list)
    current: dict[NestedKey, int] = field(default_factory=dict)
    counts: dict[NestedKey, int] = field(default_factory=dict)

    def write(self, key: NestedKey, writer: int) -> str:
        number = self.counts.get(key, -1) + 1
        self.counts[key] = number
        self.current[key] = len(self.versions)
        self.versions.append(Version(key, number, writer))
        return self.versions[-1].name

    def read(self, key: NestedKey, reader: int) -> str | None:
        place = self.current.get(key)
        if place is None:
            return None
        version = self.versions[place]
        self.versions[place] = replace(version, readers=(*version.readers, reader))
        return version.name


def _versions(
    base: EnvBase, stages: Sequence[StageForms], policy_reads: Sequence[NestedKey]
) -> tuple[tuple[Version, ...], list[tuple[tuple[str, ...], tuple[str, ...]]]]:
    """Return every version of every key, and the names that each stage reads and writes."""
    log = _VersionLog()
    for part in base.output_spec.values():
        for key in part.keys(True, True):
            log.write(normalize_key(key), -1)
    used = []
    for forms in stages:
        keys = tuple(log.current) if forms.reads is None else forms.reads
        reads = [log.read(key, forms.index) for key in keys]
        for key in forms.drops:
            log.current.pop(key, None)
        writes = tuple(log.write(key, forms.index) for key in forms.writes or ())
        used.append((tuple(name for name in reads if name is not None), writes))
    for key, place in log.current.items():
        final = replace(log.versions[place], final=True, policy=key in policy_reads)
        log.versions[place] = final
    return tuple(log.versions), used


def _describe(
    forms: StageForms,
    used: tuple[tuple[str, ...], tuple[str, ...]],
    needed: str | None,
    eager: bool,
    fused: Sequence[int],
) -> StagePlan:
    when: When = "immediate" if eager or needed is not None else "deferred"
    if eager:
        why = "the whole chain runs step by step"
    elif forms.index in fused:
        when, why = "fused", f"stages {', '.join(map(str, fused))} are one operator on an image"
    elif needed is not None:
        why = needed
    else:
        why = "nothing needs it before the chunk is complete"
    return StagePlan(
        index=forms.index,
        name=forms.name,
        behavior=forms.stage.time_behavior.value,
        when=when,
        why=why,
        reads=used[0],
        writes=used[1],
        drops=tuple(map(format_key, forms.drops)),
        inverse=tuple(map(format_key, forms.stage.in_keys_inv)) if forms.stage.invertible else (),
    )


# Why a plan is not possible


def _eager_reasons(
    env: EnvBase,
    base: EnvBase,
    stages: Sequence[StageForms],
    policy_reads: Sequence[NestedKey] | None,
) -> Iterator[str]:
    """Yield every reason why the chain has to run step by step."""
    inner = env
    while isinstance(inner, TransformedEnv):
        if not inner.planned:
            yield "planned=False"
        if type(inner) is not TransformedEnv:
            yield f"{type(inner).__name__} may override how it steps"
        if inner is not env and inner.chain.exposed_keys:
            yield "an env inside writes entries for the policy when it maps an action"
        inner = inner.base_env
    if not base.planned:
        yield "planned=False"
    if base.step_reads is None:
        yield f"{type(base).__name__} may read any entry in its steps"
    for forms in stages:
        where, stage = forms.label, forms.stage
        if stage.changes_batch and forms.chunk_kernel is None:
            yield f"{where} changes the batch size or the device"
        if forms.chunk_kernel is None and forms.sees_input:
            yield f"{where} overrides _step or _reset, which may read any entry"
        if stage.invertible and stage.time_behavior is not TimeBehavior.POINTWISE:
            yield f"the inverse of {where} depends on time"
    yield from _read_reasons(base, stages)
    yield from _inverse_reasons(env, base, stages)
    yield from _feedback_reasons(base, stages)
    yield from _end_reasons(env, base, stages)
    for spec in (env.input_spec, env.output_spec):
        for key, leaf in spec.items(True, True):
            is_plain = not isinstance(leaf, NonTensor) and leaf.dtype is not None
            if not is_plain or any(size < 0 for size in leaf.shape):
                yield f"{format_key(key)} holds objects, or tensors of several shapes"
        for part in spec.values(True):
            if isinstance(part, Composite) and type(part) is not Composite:
                yield "the envs of the batch have different specs"
    for forms in stages if policy_reads is not None else ():
        if forms.stage.changes_batch:
            yield f"{forms.label} moves what the policy reads in each step"


def _read_reasons(base: EnvBase, stages: Sequence[StageForms]) -> Iterator[str]:
    """Every key that a stage reads has to be an existing tensor, not a group."""
    present = set(all_leaves(base.output_spec))
    for forms in stages:
        for key in forms.reads or ():
            if key not in present:
                yield f"{forms.label} reads {format_key(key)}, which is not a tensor"
        present.difference_update(forms.drops)
        present.update(forms.writes or ())


def _inverse_reasons(env: EnvBase, base: EnvBase, stages: Sequence[StageForms]) -> Iterator[str]:
    """The inverse of the chain has to map actions and nothing else."""
    actions = set(base.action_keys)
    for forms in stages:
        if not forms.stage.invertible:
            continue
        inner, outer = forms.stage.in_keys_inv, forms.stage.out_keys_inv
        if not actions.issuperset(inner):
            other = next(key for key in inner if key not in actions)
            yield f"the inverse of {forms.label} maps {format_key(other)}, which is not an action"
        actions = actions.difference(inner).union(outer)
    if actions != set(env.action_keys):
        yield "the action keys of the env differ from those of the chain"


def _feedback_reasons(base: EnvBase, stages: Sequence[StageForms]) -> Iterator[str]:
    """Entries read from a step's input have to be those of the output before it."""
    for forms in stages:
        for key in forms.root:
            for later in stages[forms.index + 1 :]:
                if key in (later.writes or ()):
                    yield (
                        f"{later.label} rewrites {format_key(key)}, which "
                        f"{forms.label} reads back in the next step"
                    )
    for key in base.step_reads or ():
        for forms in stages:
            if key in (forms.writes or ()) or key in forms.drops:
                yield (
                    f"{forms.label} changes {format_key(key)}, which "
                    f"{type(base).__name__} reads back in the next step"
                )


def _end_reasons(env: EnvBase, base: EnvBase, stages: Sequence[StageForms]) -> Iterator[str]:
    """Only flags of the env and step limits may end an episode."""
    for group in env.done_keys_groups:
        ends = [key for key in group if split_key(key)[-1] == "done"]
        if not ends:
            yield f"{', '.join(map(format_key, group))}: none of them is a done flag"
        for key in ends:
            if key not in base.done_keys:
                yield f"the env does not write the flag {format_key(key)}"
            for forms in stages:
                limits = forms.stage.step_limits() if forms.chunk_kernel is not None else ()
                counted = any(limit.done_key == key for limit in limits)
                if key in (forms.writes or ()) and not counted:
                    yield f"{forms.label} decides on {format_key(key)}"


# Why workers cannot run whole chunks


def _stepwise_reasons(stages: Sequence[StageForms]) -> Iterator[str]:
    """Yield why the workers of an env get each step from this process."""
    for forms in stages:
        where, stage = forms.label, forms.stage
        if forms.chunk_kernel is None:
            yield f"{where} has to see the steps of all rows one by one"
        elif stage.mixes_rows:
            yield f"{where} passes values from one row to the others"
        elif not declares(type(stage), "_is_verified"):
            yield f"{where} may pass values from one row to the others"
        elif stage.changes_batch:
            yield f"{where} changes the batch size or the device"
