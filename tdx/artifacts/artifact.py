"""Write and verify the folder of an artifact."""

from __future__ import annotations

import hashlib
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from tdx.artifacts import verifier
from tdx.artifacts.backends import load_backend
from tdx.artifacts.functions import SPLIT_HINT, ArtifactEntry, ChainFunctions, chain_functions
from tdx.artifacts.vectors import EPISODES, pack
from tdx.artifacts.verifier import MANIFEST, VECTORS, MissingRuntimeError
from tdx.core import TransformedEnv
from tdx.core.envs import EnvBase
from tdx.core.transforms import Compose
from tdx.foundation.container import Container, seal
from tdx.foundation.errors import ChainError, CheckError, StorageError, Where
from tdx.foundation.files import atomic_folder, check_replaceable_folder, report_write_errors
from tdx.foundation.serialization import Result
from tdx.foundation.text import dtype_name
from tdx.pipeline import Pipeline
from tdx.specs import Unbounded
from tdx.stacks.building import build_env
from tdx.stacks.checkpoints.counterparts import find_counterparts
from tdx.stacks.checkpoints.stack import CheckpointStack
from tdx.stacks.conversion import require_convertible
from tdx.stacks.native import format_stages
from tdx.stacks.refusals import Missing

if TYPE_CHECKING:
    from tdx.stacks import Stack
    from tdx.stacks.conversion import ConvertedStage
    from tdx.stacks.stack import StageInfo

VERIFIER = "verify.py"
VERSION = 1
_MAX_BYTES = 1 << 30


@dataclass(frozen=True, slots=True)
class ArtifactFile(Result):
    """A file of an artifact, and its size in bytes."""

    name: str
    size: int


@dataclass(frozen=True, slots=True)
class OperatorBound(Result):
    """How exact an operator of an artifact is, such as ``aten.add.Tensor``."""

    operator: str
    bound: float
    """Largest difference relative to the largest magnitude in a tensor; 0: the bits of torch."""


@dataclass(frozen=True, slots=True)
class Artifact(Result):
    """An exported chain.

    Args:
        path: Its folder.
        form: Name of the backend.
        digest: SHA-256 of stages, entries and constants.
        stages: One line per stage.
        left_out: One line per stage that ``split`` left out; the first has the reason.
        unchanged: Rewards and done flags that the chain passes on as they are.
        functions: Names of the functions.
        state: Names of the tensors that are carried from one call to the next.
        files: Its files.
        bounds: Bounds of its operators.
        calls: Number of reference calls.
        verified: True if the files were run on the reference vectors.
        note: Why they were not.
    """

    path: str
    form: str
    digest: str
    stages: tuple[str, ...]
    left_out: tuple[str, ...]
    unchanged: tuple[str, ...]
    functions: tuple[str, ...]
    state: tuple[str, ...]
    files: tuple[ArtifactFile, ...]
    bounds: tuple[OperatorBound, ...]
    calls: int
    verified: bool
    note: str | None = None


def export_chain(
    env: EnvBase,
    to: str,
    out: str | Path,
    *,
    split: bool = False,
    force: bool = False,
    name: str = "chain",
    left_out: Sequence[str] = (),
) -> Artifact:
    """Export the chain of an env as files that run without tdx, with a proof.

    The functions ``reset``, ``step`` and, if a stage maps actions, ``act`` are pure: what the chain
    keeps between calls is passed in and returned. Running statistics are fixed. Nothing is written
    unless the files return what the chain returns, on reference vectors with resets, NaN and
    infinities; a form whose runtime is not installed is written unverified.

    Args:
        env: Env with its chain, not batched. It is not stepped.
        to: ``pt2``, ``onnx``, ``numpy`` or ``cpp``.
        out: Folder to write.
        split: Export the stages before the first one that cannot be exported.
        force: Replace an existing artifact.
        name: Name of the chain in the files.
        left_out: Stages after the chain that are not exported, for the record.

    Raises:
        ChainError: A stage or an operator cannot be exported; the error names it.
        MissingPackageError: A package of the form is not installed.
        ArgumentError: ``out`` exists.

    Example:
        >>> import tempfile, tdx
        >>> env = tdx.GymEnv("Pendulum-v1").append_transform(tdx.StepCounter())
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     export_chain(env, "pt2", folder + "/chain").state
        ('last_step_count',)
    """
    target = Path(out)
    check_replaceable_folder(
        target, "an artifact", lambda folder: (folder / MANIFEST).is_file(), force=force
    )
    load_backend(to)  # before the chain is traced, which takes seconds
    stages, rest = format_stages(env, expanded=True), tuple(left_out)
    if not stages:
        raise ChainError("the env has no stages to export", hint="add stages with -t")
    count = len(stages)
    while True:
        try:
            chain = chain_functions(env, name, stages[:count])
            return write_artifact(chain, to, target, rest)
        except ChainError as error:
            if not split or error.where.stage is None:
                raise
            count = error.where.stage
            if not count:
                raise ChainError(
                    f"no stage is left to export: {error.message}", where=error.where
                ) from error
            rest = (f"{stages[count]}: {error.message}", *stages[count + 1 :], *left_out)


def write_artifact(
    chain: ChainFunctions, to: str, target: Path, left_out: Sequence[str] = ()
) -> Artifact:
    """Write the files of a chain in a form, and verify them before they replace a folder."""
    backend = load_backend(to)
    operators = backend.check(chain)
    files = backend.files(chain)
    files[VECTORS] = pack(chain.calls, chain.initial)
    files[VERIFIER] = Path(verifier.__file__).read_bytes()
    manifest = {
        "artifact": VERSION,
        "form": to,
        "name": chain.name,
        "digest": chain.digest,
        "stages": list(chain.stages),
        "left_out": list(left_out),
        "unchanged": list(chain.unchanged),
        "torch": torch.__version__,
        "functions": {
            part.name: {"inputs": _entries(part.inputs), "outputs": _entries(part.outputs)}
            for part in chain.functions
        },
        "operators": dict(operators),
        "bounds": output_bounds(chain, operators),
        "files": {
            name: {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
            for name, content in files.items()
        },
    }
    with (
        report_write_errors(target, "choose another path", kind=StorageError),
        atomic_folder(target) as folder,
    ):
        for file, content in files.items():
            (folder / file).write_bytes(content)
        (folder / MANIFEST).write_bytes(seal(manifest, indent=2)[0])
        note = None
        try:
            _, problems = verifier.verify(folder)
        except MissingRuntimeError as error:
            problems, note = [], str(error)
        except subprocess.CalledProcessError as error:
            # Its messages are on stderr already.
            raise ChainError(
                f"the {to} files cannot be compiled",
                hint="set CXX to a compiler with C++17, such as g++",
            ) from error
        if problems:
            raise ChainError(f"the {to} files differ from the chain: {problems[0]}")
    return Artifact(
        str(target),
        to,
        chain.digest,
        chain.stages,
        tuple(left_out),
        chain.unchanged,
        tuple(function.name for function in chain.functions),
        tuple(chain.initial),
        tuple(ArtifactFile(file, len(content)) for file, content in files.items()),
        tuple(OperatorBound(*item) for item in operators.items()),
        len(chain.calls),
        note is None,
        note,
    )


@contextmanager
def exportable_env(stack: Stack, *, split: bool = False) -> Iterator[tuple[EnvBase, list[str]]]:
    """Yield one env with the chain of a stack, and the stages that it lacks.

    A stack of another library becomes the counterparts of its stages, and several envs with the
    same stages become one. ``split`` leaves out the first stage without a counterpart, and those
    after it. Of a checkpoint the steps that map text only are left out, not what follows them.
    """
    left_out: list[str] = []
    if stack.chain_env is not None:
        yield stack.chain_env, left_out
        return
    stages: list[tuple[StageInfo | ConvertedStage, Sequence[Any] | Missing, bool]]
    """With counterparts, and True for a stage that maps text only."""
    if isinstance(stack, CheckpointStack):
        steps = zip(stack.stages, find_counterparts(stack.checkpoint), strict=True)
        stages = [(info, step.transforms, step.is_text) for info, step in steps]
    else:
        hint = "name an env with a chain of tdx, Gymnasium or Stable-Baselines3, or a checkpoint"
        converted = require_convertible(stack, hint).convert()
        stages = [(stage, stage.missing or stage.stages, False) for stage in converted.stages]
    last, counterparts = -1, list[Any]()
    for info, result, is_text in stages:
        if not isinstance(result, Missing):
            last, counterparts = info.index, [*counterparts, *result]
            continue
        if not split:
            raise ChainError(
                f"has no counterpart: {result.reason}",
                where=Where(stage=info.index, transform=info.name),
                hint=f"{result.advice}, or {SPLIT_HINT}",
            )
        left_out.append(f"{info.call}: it has no counterpart: {result.reason}")
        if not is_text:
            left_out += [later.call for later, _, _ in stages[info.index + 1 :]]
            break
    if isinstance(stack, CheckpointStack):
        specs, robot = stack.specs()[0], EnvBase()
        robot.observation_spec = specs.output_spec["full_observation_spec"]
        robot.action_spec = specs.input_spec["full_action_spec"]
        robot.reward_spec = Unbounded((1,))
        yield TransformedEnv(robot, Compose(*counterparts)), left_out
        return
    single = replace(converted.env_up_to(last), num_envs=None)
    built = build_env(Pipeline(single, tuple(counterparts)))
    try:
        yield built, left_out
    finally:
        built.close()


def _entries(entries: Sequence[ArtifactEntry]) -> list[dict[str, Any]]:
    return [
        {
            "name": entry.name,
            "key": entry.key,
            "path": list(entry.path),
            "shape": list(entry.shape),
            "dtype": dtype_name(entry.dtype),
            "state": entry.is_state,
            "description": entry.description,
        }
        for entry in entries
    ]


def output_bounds(
    chain: ChainFunctions, operators: Mapping[str, float]
) -> dict[str, dict[str, float]]:
    """Return the bound of each output: the sum of those of the operators that it depends on.

    An output that depends on state that such an operator writes accumulates its error, so its sum
    counts once for each step of the longest reference episode.
    """
    bounds: dict[str, dict[str, float]] = {function.name: {} for function in chain.functions}
    reads: dict[tuple[str, str], set[str]] = {}
    written = dict.fromkeys(chain.initial, 0.0)
    """Bound of what one call of each function adds to a state, by the state."""
    for function in chain.functions:
        for entry in function.outputs:
            names, inputs = function.behind(entry.name)
            own = bounds[function.name][entry.name] = sum(operators[name] for name in names)
            reads[function.name, entry.name] = inputs & {*chain.initial}
            if entry.is_state:
                written[entry.name] += own
    for (name, output), direct in reads.items():
        states, known = direct, None
        while states != known:
            known = states
            states = direct.union(*(read for (_, other), read in reads.items() if other in known))
        bounds[name][output] += sum(written[state] for state in states) * max(EPISODES)
    return bounds


def read_artifact(path: str | Path) -> dict[str, Any]:
    """Return the manifest of an artifact from an untrusted source; no code of it runs."""
    with Container.open(path) as container:
        sizes = container.check_links()
        if sum(sizes.values()) > _MAX_BYTES:
            raise StorageError(f"{path} is too large for an artifact")
        parts = {"form": str, "stages": list, "functions": dict, "bounds": dict, "files": dict}
        try:
            manifest, problems = verifier.check_files(Path(path))
            is_valid = problems or all(isinstance(manifest[p], kind) for p, kind in parts.items())
        except (ValueError, KeyError, TypeError, OSError):
            is_valid = False
    if not is_valid:
        raise StorageError(f"{path}/{MANIFEST} is not the manifest of an artifact")
    if problems:
        raise CheckError(f"{path}: {problems[0]}")
    return manifest
