"""Rollouts whose chunks run in worker processes, each with the rows of its envs.

:class:`WorkerRun` has the interface of a planned run. It passes each process the root, the actions
or a copy of the policy, and the episode memory of the stages, and joins what they return. The
result has the bits of a run in one process: rows do not depend on each other, random actions are
drawn here, and each process calls the policy with a whole batch, in which only its own rows are
used. Therefore a policy draws the same random numbers in each process.

Eight Pendulum envs in two processes take 19 % of the time that they take step by step, where each
step is a round trip to every process: P12 and P13 of
``python -m pytest tests/benchmarks/test_workers.py``.
"""

from __future__ import annotations

import io
import pickle
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, Protocol

import cloudpickle
import torch
from tensordict import TensorDictBase
from torch import Tensor, nn

from tdx.core.chain import stage_modes
from tdx.core.envs.eager_run import RolloutChunk, reset_done_rows
from tdx.core.envs.env_base import EnvBase
from tdx.core.envs.failures import with_step
from tdx.core.envs.policies import ActionCheck
from tdx.core.plan.build import Program
from tdx.core.planned.actions import ActionSource, OpenLoopActions, PolicyActions, action_source
from tdx.core.planned.columns import as_tensordict, flatten
from tdx.core.planned.keyed_policy import KeyedPolicy
from tdx.core.transforms import Transform
from tdx.core.transforms.kernels import Columns
from tdx.foundation.errors import ArgumentError, EnvError, TdxError, Where, summarize_error
from tdx.foundation.keys import NestedKey
from tdx.foundation.tensordicts import group_dims

Memory = list[dict[str, dict[NestedKey, Any]]]
"""Episode memory of each stage: entries ``[*B, ...]``, or lists of them, by attribute and key."""
Groups = Mapping[tuple[str, ...], tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class Copies:
    """What the workers need a copy of: pickles, and tensors in the order of the pickles."""

    chain: bytes
    policy: bytes | None  # of the KeyedPolicy; None: the actions are given
    tensors: Sequence[Tensor]
    chain_tensors: int  # number of tensors of the stages


@dataclass(frozen=True, slots=True)
class ChunkTask:
    """A chunk for one worker, with ``k`` of the ``n`` rows."""

    length: int
    root: Columns  # before the first step, [k, ...]
    groups: Groups  # dims of nested groups of the root
    actions: TensorDictBase | None  # [k, *B, T]; None: the policy acts
    memory: Memory  # episode memory of the stages for these rows
    batch: Columns  # root entries that the policy reads, [n, ...]
    generator: Tensor | None  # state of torch's generator, from which the policy draws
    first_step: int  # number in the rollout, for messages


@dataclass(frozen=True, slots=True)
class ChunkPart:
    """The rows of a chunk that one worker made."""

    length: int
    # Steps [k, *B, T, ...] by key, in memory that the next chunk overwrites.
    entries: Mapping[NestedKey, Tensor]
    groups: Groups  # dims of nested groups
    memory: Memory  # episode memory of the stages after the last step
    error: Exception | None  # raised after the last step
    generator: Tensor | None  # state of torch's generator after the last step


class ChunkWorkers(Protocol):
    """Worker processes of an env, whose first batch dim is divided between them."""

    seconds_per_step: float
    """Duration of a step of the latest chunk; infinite before the first one."""

    @property
    def reason(self) -> str:
        """Why they cannot run chunks; empty if they can."""

    @property
    def groups(self) -> Sequence[range]:
        """Rows of each process."""

    @property
    def threads(self) -> int:
        """Number of torch threads of each process."""

    def run(self, copies: Copies, tasks: Sequence[ChunkTask]) -> Sequence[ChunkPart] | None:
        """Run a task in each process; ``None`` if the chain cannot run there."""


class ChunkSource(Protocol):
    """Makes the chunks of a rollout."""

    def chunk(self, start: TensorDictBase, length: int) -> RolloutChunk:
        """Make up to ``length`` steps from a root ``[*B]``."""


def run_in_workers(
    env: EnvBase,
    program: Program,
    source: ActionSource,
    stepwise: ChunkSource,
    start: TensorDictBase,
) -> ChunkSource:
    """Return the run in the workers of an env if they can run its chunks, else ``stepwise``."""
    if program.plan.why_stepwise or env.meter is not None:
        return stepwise
    run = WorkerRun(env, program, source, stepwise)
    return stepwise if run.why_stepwise(start) else run


def why_stepwise_with(env: EnvBase, program: Program, policy: KeyedPolicy) -> str:
    """Return why the workers of an env cannot run chunks with a policy; empty if they can."""
    with torch.random.fork_rng(devices=[]):
        root = env.fake_tensordict().exclude("next", *env.action_keys)
        root.update(env.full_observation_spec.rand())
    return WorkerRun(env, program, action_source(env, program, policy)).why_stepwise(root)


_SECONDS = 1.0
"""Duration of the pieces of a chunk. A process that hangs is noticed during its piece."""


class WorkerRun:
    """Runs the chunks of a rollout in worker processes."""

    def __init__(
        self,
        env: EnvBase,
        program: Program,
        source: ActionSource,
        stepwise: ChunkSource | None = None,
    ) -> None:
        self._env, self._source, self._stepwise = env, source, stepwise
        self._stages = tuple(forms.stage for forms in program.stages)
        workers = program.base.chunk_workers
        assert workers is not None
        self._workers = workers
        self._policy = source.policy if isinstance(source, PolicyActions) else None
        self._dim = len(env.batch_size)
        self._step_count = 0
        self._is_refused = False
        self._first_copies: Copies | None = None

    def why_stepwise(self, start: TensorDictBase) -> str:
        """Return why the workers cannot run this rollout; empty if they can."""
        if self._workers.reason:
            # Found in an earlier rollout, after the plan was made.
            return self._workers.reason
        try:
            copies = self._first_copies = self._pack_copies()
            if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in copies.tensors):
                return "gradients are recorded, which torch.no_grad() switches off"
            if self._policy is not None:
                self._check_policy(copies, flatten(start))
        except TdxError as error:
            return error.message
        rows = self._env.batch_size[0]
        if not all(_has_rows(value, rows) for value in _values(read_memory(self._stages))):
            return "a stage remembers something else than entries of the rows"
        return ""

    def _pack_copies(self) -> Copies:
        """Pickle the stages, unless none has changed since the last time, and the policy."""
        modes = stage_modes(self._stages)
        # The specs forget what they cache when an argument of a stage changes.
        cache = self._env.env_specs.cache
        known: tuple[Any, tuple[bytes, list[Tensor]]] | None = cache.get("copy of the chain")
        if known is None or known[0] != modes:
            packed = pack([stage.clone() for stage in self._stages], "the chain")
            known = cache["copy of the chain"] = modes, packed
        chain, tensors = known[1]
        if self._policy is None:
            return Copies(chain, None, tensors, len(tensors))
        policy, more = pack(self._policy, "the policy")
        return Copies(chain, policy, [*tensors, *more], len(tensors))

    def _check_policy(self, copies: Copies, root: Mapping[NestedKey, Tensor]) -> None:
        """Check a policy unless the last check was of the same one; it costs a few steps."""
        assert copies.policy is not None
        here, there = torch.get_num_threads(), self._workers.threads
        if here != there:
            # Matrix products round in another way for another number of threads.
            raise ArgumentError(
                f"the policy has {here} torch threads in this process and {there} in a worker",
                hint=f"call torch.set_num_threads({there})",
            )
        cache = self._env.env_specs.cache
        if cache.get("checked policy") != copies.policy:
            tensors = copies.tensors[copies.chain_tensors :]
            check_policy_copy(copies.policy, tensors, self._env, root, self._workers.groups)
            cache["checked policy"] = copies.policy

    def chunk(self, start: TensorDictBase, length: int) -> RolloutChunk:
        """Make up to ``length`` steps from a root ``[*B]``."""
        pieces: list[TensorDictBase] = []
        count, error = 0, None
        copies = self._first_copies or self._pack_copies()
        self._first_copies = None
        while error is None and count < length and not self._is_refused:
            if pieces:
                start = reset_done_rows(self._env, self._last_root(pieces[-1]), self._step_count)
            per_piece = max(1, int(_SECONDS / self._workers.seconds_per_step))
            piece, error = self._piece(copies, start, min(length - count, per_piece))
            if piece is not None:
                pieces.append(piece)
                count += piece.shape[self._dim]
        if not pieces:
            if self._is_refused and self._stepwise is not None:
                return self._stepwise.chunk(start, length)
            return RolloutChunk([], 0, error=error)
        data = pieces[0] if len(pieces) == 1 else torch.cat(pieces, self._dim)
        return RolloutChunk(data, count, False, error, lambda: self._last_root(pieces[-1]))

    def _piece(
        self, copies: Copies, start: TensorDictBase, length: int
    ) -> tuple[TensorDictBase | None, Exception | None]:
        """Make a piece of a chunk, ``[*B, T]``; ``None`` if its first step raises the error."""
        actions, error = None, None
        keep: Callable[[int], None] | None = None
        if isinstance(self._source, OpenLoopActions):
            outer, keep, error = self._source.draw_outer(length)
            actions, length = outer.permute(*range(1, self._dim + 1), 0), outer.shape[0]
        parts: Sequence[ChunkPart] = ()
        if length:
            before = time.perf_counter()
            made = self._workers.run(copies, self._tasks(start, actions, length))
            if made is None:
                if keep is not None:
                    keep(0)
                self._is_refused = True
                return None, None
            parts, seconds = made, time.perf_counter() - before
            self._workers.seconds_per_step = max(seconds / length, 1e-9)
            first = min(parts, key=lambda part: part.length)
            length, error = first.length, first.error or error
            if keep is not None:
                keep(length + (first.error is not None))
            rest = [iter(list(_values(part.memory))) for part in parts]
            memory = map_memory(
                parts[0].memory, lambda _: torch.cat([next(values) for values in rest])
            )
            write_memory(self._stages, memory)
            if self._policy is not None:
                generators = [part.generator for part in parts]
                reached = generators[0]
                assert reached is not None
                if any(state is None or not torch.equal(state, reached) for state in generators):
                    raise ArgumentError(
                        "the policy draws more random numbers for some rows than for others",
                        hint="pass planned=False to the env, so that the policy runs in one "
                        "process",
                    )
                torch.set_rng_state(reached)
        if error is not None:
            error = with_step(error, self._step_count + length)
        self._step_count += length
        return (self._join(parts, length) if length else None), error

    def _tasks(
        self, start: TensorDictBase, actions: TensorDictBase | None, length: int
    ) -> list[ChunkTask]:
        root, groups = flatten(start), group_dims(start, start.ndim)
        batch: dict[NestedKey, Tensor] = {}
        if self._policy is not None:
            batch = {key: root[key].detach() for key in self._policy.reads}
        generator = None if self._policy is None else torch.get_rng_state()
        memory = read_memory(self._stages)
        return [
            ChunkTask(
                length,
                {key: value[rows.start : rows.stop].detach() for key, value in root.items()},
                groups,
                None if actions is None else actions[rows.start : rows.stop],
                map_memory(memory, itemgetter(slice(rows.start, rows.stop))),
                batch,
                generator,
                self._step_count,
            )
            for rows in self._workers.groups
        ]

    def _join(self, parts: Sequence[ChunkPart], length: int) -> TensorDictBase:
        """Return the rows of all processes as one TensorDict ``[*B, T]``, in memory of its own."""
        columns = {
            key: _concatenate(key, [part.entries.get(key) for part in parts], self._dim, length)
            for key in parts[0].entries
        }
        size = torch.Size((*self._env.batch_size, length))
        return as_tensordict(columns, size, self._env.device, parts[0].groups)

    def _last_root(self, data: TensorDictBase) -> TensorDictBase:
        return self._env.step_mdp(data[(*[slice(None)] * self._dim, -1)].clone())


def _concatenate(key: NestedKey, rows: Sequence[Tensor | None], dim: int, length: int) -> Tensor:
    parts = [part.narrow(dim, 0, length) for part in rows if part is not None]
    try:
        if len(parts) == len(rows) and len({part.dtype for part in parts}) == 1:
            return torch.cat(parts)
    except RuntimeError:
        pass  # Unlike shapes.
    raise EnvError(
        "the worker processes returned different keys, shapes or dtypes",
        hint="all envs of a batch must return the same keys, shapes and dtypes in every step",
        where=Where(key=key),
    )


# Episode memory of the stages


def read_memory(stages: Sequence[Transform]) -> Memory:
    """Return the episode memory of each stage."""
    return [{name: dict(getattr(stage, name)) for name in stage.episode_memory} for stage in stages]


def write_memory(stages: Sequence[Transform], memory: Memory) -> None:
    """Replace the episode memory of each stage, in the dicts that others may refer to."""
    for stage, named in zip(stages, memory, strict=True):
        for name, entries in named.items():
            held: dict[NestedKey, Any] = getattr(stage, name)
            held.clear()
            held.update(entries)


def map_memory(memory: Memory, function: Callable[[Tensor], Tensor]) -> Memory:
    """Return the memory with a function applied to each tensor."""

    def apply(value: Any) -> Any:
        return [function(item) for item in value] if isinstance(value, list) else function(value)

    return [
        {name: {key: apply(value) for key, value in held.items()} for name, held in named.items()}
        for named in memory
    ]


def _values(memory: Memory) -> Iterator[Any]:
    """Yield each tensor, in the order of :func:`map_memory`."""
    for named in memory:
        for entries in named.values():
            for value in entries.values():
                yield from value if isinstance(value, list) else (value,)


def _has_rows(value: Any, rows: int) -> bool:
    return isinstance(value, Tensor) and value.ndim > 0 and value.shape[0] == rows


# Copies of the stages and the policy. Their tensors live in memory that the processes share, where
# new weights are written; a copy is only sent again if anything else about it has changed.

_COPY_HINT = "remove it, or pass planned=False to the env"
_tensors: ContextVar[Sequence[Tensor]] = ContextVar("tensors of a copy that is unpickled")


def pack(content: Any, name: str) -> tuple[bytes, list[Tensor]]:
    """Pickle an object without its tensors; returns both, the tensors in the order of the pickle.

    Functions are pickled by value if they cannot be imported.
    """
    file, tensors = io.BytesIO(), list[Tensor]()
    try:
        _Pickler(file, tensors, name).dump(content)
    except ArgumentError:
        raise
    except Exception as error:
        raise ArgumentError(f"{name} cannot be copied: {error}", hint=_COPY_HINT) from error
    return file.getvalue(), tensors


def unpack(data: bytes, tensors: Sequence[Tensor]) -> Any:
    """Return the object that :func:`pack` pickled, with these tensors in it."""
    token = _tensors.set(tensors)
    try:
        return pickle.loads(data)
    finally:
        _tensors.reset(token)


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    """Pickles a reference instead of a tensor."""

    def __init__(self, file: io.BytesIO, tensors: list[Tensor], name: str) -> None:
        super().__init__(file)
        self._found, self._name = tensors, name

    def reducer_override(self, obj: Any) -> Any:
        if not isinstance(obj, Tensor):
            return super().reducer_override(obj)
        is_plain = type(obj) in (Tensor, nn.Parameter)
        if not is_plain or obj.device.type != "cpu" or obj.layout is not torch.strided:
            raise ArgumentError(
                f"{self._name} holds a {type(obj).__name__} on {obj.device}, which cannot be "
                "shared",
                hint=_COPY_HINT,
            )
        self._found.append(obj)
        is_parameter = isinstance(obj, nn.Parameter)
        return _take, (len(self._found) - 1, is_parameter, obj.requires_grad)


def _take(place: int, is_parameter: bool, requires_grad: bool) -> Tensor:
    tensor = _tensors.get()[place]
    return nn.Parameter(tensor, requires_grad) if is_parameter else tensor


_STEPWISE_HINT = "the rollout requests each step from the workers"


def check_policy_copy(
    data: bytes,
    tensors: Sequence[Tensor],
    env: EnvBase,
    root: Mapping[NestedKey, Tensor],
    groups: Sequence[range],
) -> None:
    """Check that a copy of a policy acts for each row alone, and remembers nothing."""
    state = torch.get_rng_state()
    copies = [tensor.detach().clone() for tensor in tensors]
    policy: KeyedPolicy = unpack(data, copies)
    packed = pack(policy, "the policy")[0]
    given = {key: root[key].detach().clone() for key in policy.reads if key in root}
    if len(given) < len(policy.reads):
        raise ArgumentError(
            "the policy reads entries that a reset does not return", hint=_STEPWISE_HINT
        )
    # Other values in the other rows.
    others = {
        key: torch.zeros_like(value) if value.any() else torch.ones_like(value)
        for key, value in given.items()
    }
    try:
        with torch.no_grad():
            whole = policy.act({key: value.clone() for key, value in given.items()})
            after = torch.get_rng_state()
            ActionCheck(env)(whole.get)
            for rows in groups:
                torch.set_rng_state(state)
                act = act_for_rows(policy, rows, others)
                part = act({k: v[rows.start : rows.stop].clone() for k, v in given.items()})
                same = all(torch.equal(part[k], whole[k][rows.start : rows.stop]) for k in whole)
                if not same or not torch.equal(torch.get_rng_state(), after):
                    raise ArgumentError(
                        "the action that the policy takes for a row depends on the other rows, or "
                        "on random numbers of its own",
                        hint=_STEPWISE_HINT,
                    )
    except TdxError:
        raise
    except Exception as error:
        # The rollout raises it again, and names the step.
        raise ArgumentError(
            f"the policy raised {summarize_error(error)}", hint=_STEPWISE_HINT
        ) from error
    finally:
        torch.set_rng_state(state)
    is_unchanged = all(map(torch.equal, copies, tensors))
    if not is_unchanged or pack(policy, "the policy")[0] != packed:
        raise ArgumentError("the policy changes when it acts", hint=_STEPWISE_HINT)


def act_for_rows(
    policy: KeyedPolicy, rows: range, batch: Mapping[NestedKey, Tensor]
) -> Callable[[Mapping[NestedKey, Tensor]], dict[NestedKey, Tensor]]:
    """Return a policy as a function of some rows, which it is called with as part of the batch.

    Kernels may round in another way for another number of rows, and a policy draws random numbers
    for the whole batch. ``batch`` has entries ``[n, ...]`` that complete the rows.
    """
    start, stop, act_for_all = rows.start, rows.stop, policy.act
    given = {key: value.clone() for key, value in batch.items()}
    places = [(key, value[start:stop]) for key, value in given.items()]
    memory = [(value.data_ptr(), value.data_ptr() + value.nbytes) for value in given.values()]

    def act(root: Mapping[NestedKey, Tensor]) -> dict[NestedKey, Tensor]:
        for key, place in places:
            place.copy_(root[key])
        written = {}
        for key, value in act_for_all(given).items():
            address = value.data_ptr()
            # A policy may return a part of its input, which the next step overwrites.
            is_input = any(first <= address < end for first, end in memory)
            written[key] = (value.clone() if is_input else value)[start:stop]
        return written

    return act
