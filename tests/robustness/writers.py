"""Everything of tdx that writes, and what it may leave behind when a call fails."""

from __future__ import annotations

import os
import re
import shutil
import sys
import tempfile
import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from tensordict import TensorDict, TensorDictBase

from tdx import GymEnv, LazyTensorStorage, Pipeline, ReplayBuffer, open_dump
from tdx.data.saved import MANIFEST
from tdx.foundation.errors import StorageError, TdxError
from tdx.foundation.untrusted import parse_json
from tdx.inspection.watch import WatchWarning, watch
from tdx.inspection.watch_records import read_watch
from tdx.pipeline.draft import Draft
from tdx.pipeline.editing.documents import Document, RecentFiles
from tdx.pipeline.editing.sessions import Session, SessionStore
from tdx.profiling.saved import profile_from_json
from tdx.rollouts import DumpRequest, Goal, Manifest, Progress, roll_out, verify
from tests.cli.processes import call_main
from tests.robustness.kills import same_steps
from tests.robustness.power_loss import Tree

Work = Callable[[], object]

_TEMPORARY = re.compile(r"\..+\.[0-9a-f]{16}\.tmp")
_CHAIN = ("CartPole-v1", "-t", "RewardSum", "-t", "VecNorm")
_STACK = ("CartPole-v1", "-t", "RewardSum", "--out", "contract")
_SIZE = ("--steps", "6", "--chunk", "3", "--keys", "observation,action,next.reward")


def tdx(*arguments: str) -> Work:
    """Return a function that runs a command."""
    return partial(call_main, *arguments)


def in_turn(*works: Work) -> Work:
    """Return a function that runs commands until one fails."""

    def run() -> None:
        for work in works:
            try:
                work()
            except SystemExit as ended:
                if ended.code:
                    raise

    return run


class Writer:
    """Something that replaces a file or a folder in the current folder.

    Args:
        name: Its name.
        write: Writes; runs in a fork.
        prepare: Writes the old state; runs in a fork.
        again: What a user runs after a failure; by default the same.
        stable: Changes bytes that differ in every run, such as times.
    """

    def __init__(
        self,
        name: str,
        write: Work,
        prepare: Work = lambda: None,
        again: Work | None = None,
        stable: Callable[[str, bytes], bytes] = lambda _, content: content,
    ) -> None:
        self.name, self.write, self.prepare = name, write, prepare
        self.again = again or write
        self._stable = stable
        self._old: Tree = {}
        self._new: Tree = {}

    def remember(self, folder: Path, old: Tree, new: Tree) -> None:
        """Keep both states.

        Args:
            folder: A folder with the new state.
            old: Content of a folder with the old state.
            new: Content of ``folder``.
        """
        self._old, self._new = self._compared(old), self._compared(new)

    def _compared(self, tree: Tree) -> Tree:
        """Return files alone: empty folders may remain."""
        outside = tree.keys() - set(self.leftovers(tree))
        return {
            name: self._stable(name, content)
            for name, content in tree.items()
            if content is not None and name in outside
        }

    def state(self, folder: Path, tree: Tree) -> str:
        """Return "old" or "new", or say what is wrong."""
        files = self._compared(tree)
        if files == self._new:
            return "new"
        if files == self._old:
            return "old"
        for name in sorted(files.keys() | self._old.keys() | self._new.keys()):
            values = [each.get(name) for each in (files, self._old, self._new)]
            if values[0] not in values[1:]:
                which = "missing" if values[0] is None else "neither old nor new"
                return f"torn: {name} is {which}"
        return "torn: parts of old and new together"

    def leftovers(self, tree: Tree) -> list[str]:
        """Return the paths of temporary files, and of what is in temporary folders."""
        return [name for name in tree if any(map(_TEMPORARY.fullmatch, name.split("/")))]

    def follow_ups(self, err: str) -> list[Work]:
        """Return what a user runs next; each if the one before it is refused."""
        return [self.again]


class DumpWriter(Writer):
    """Writes a dump chunk by chunk; after a failure it may have fewer steps.

    Args:
        name: Its name.
        write: Writes; runs in a fork.
        prepare: Writes the old state; runs in a fork.
        dump: Folder of the dump.
        steps: Number of steps that the old dump has and keeps.
        replaces: Whether the old dump may be replaced by one with fewer steps.
    """

    def __init__(
        self,
        name: str,
        write: Work,
        prepare: Work = lambda: None,
        *,
        dump: str = "dump",
        steps: int = 0,
    ) -> None:
        super().__init__(name, write, prepare)
        self._dump, self._steps = dump, steps
        self._resume = tdx("rollout", "--resume", "--out", dump)
        self._data: TensorDictBase = TensorDict()

    def remember(self, folder: Path, old: Tree, new: Tree) -> None:
        """Keep both states."""
        super().remember(folder, old, new)
        self._data = open_dump(folder / self._dump).data[:].clone()

    def state(self, folder: Path, tree: Tree) -> str:
        """Return "old", "part" or "new", or say what is wrong."""
        dump = folder / self._dump
        if self._old and self._compared(tree) == self._old:
            return "old"
        if not (dump / "manifest.json").exists():
            return "lost: the manifest" if self._old else "part"
        try:
            manifest = Manifest.load(dump)
            problems = verify(dump).problems if manifest.steps else ()
            if problems:
                return f"torn: {problems[0]}"
            if manifest.steps < self._steps:
                return f"lost: {manifest.steps} of {self._steps} steps"
            if manifest.steps and not same_steps(
                open_dump(dump).data, self._data[..., : manifest.steps]
            ):
                return "torn: other steps than in an uninterrupted rollout"
        except Exception as error:
            return f"torn: {type(error).__name__}: {error}"
        return "new" if manifest.complete else "part"

    def follow_ups(self, err: str) -> list[Work]:
        """Return the command itself, and the one that continues the dump."""
        if "--resume" in err:
            return [self._resume]
        return [self.again, self._resume]


class ShardWriter(DumpWriter):
    """Writes a dump shard by shard, continued by the same command."""

    def state(self, folder: Path, tree: Tree) -> str:
        """Return "part" or "new", or say what is wrong."""
        dump = folder / self._dump
        if not (dump / "manifest.json").exists():
            return "part"
        try:
            opened = open_dump(dump)
            if problems := verify(dump).problems:
                return f"torn: {problems[0]}"
            if not opened.manifest.complete:
                return "part"
            same = same_steps(opened.data[:], self._data)
        except Exception as error:
            if "has no steps yet" in str(error):
                return "part"
            return f"torn: {type(error).__name__}: {error}"
        return "new" if same else "torn: other steps than in an uninterrupted rollout"

    def follow_ups(self, err: str) -> list[Work]:
        """Return the command itself."""
        return [self.again]


class RepairWriter(Writer):
    """Repairs a dump, whose intact steps and replaced files stay in every state."""

    _dump = "dump"
    _data: TensorDictBase = TensorDict()

    def remember(self, folder: Path, old: Tree, new: Tree) -> None:
        """Keep both states."""
        super().remember(folder, old, new)
        self._data = open_dump(folder / self._dump).data[:].clone()

    def state(self, folder: Path, tree: Tree) -> str:
        """Return "old", "part" or "new", or say what is wrong."""
        files = self._compared(tree)
        if files == self._old:
            return "old"
        contents = set(files.values())
        for name, content in self._old.items():
            # Descriptions follow from the index.
            if not name.endswith("meta.json") and content not in contents:
                return f"lost: {name}"
        try:
            if verify(folder / self._dump).problems:
                return "part"
            same = same_steps(open_dump(folder / self._dump).data[:], self._data)
        except TdxError:
            return "part"
        except Exception as error:
            return f"torn: {type(error).__name__}: {error}"
        return "new" if same else "torn: other steps than in an undisturbed repair"


class TensorboardWriter(Writer):
    """Exports event files, whose times differ in each run."""

    def _compared(self, tree: Tree) -> Tree:
        # A second of imports, which pytest would pay when it collects this module.
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

        compared = super()._compared(tree)
        for name in [name for name in compared if ".tfevents." in name]:
            content = compared.pop(name)
            with tempfile.TemporaryDirectory() as folder:
                Path(folder, "events.tfevents").write_bytes(content or b"")
                events = EventAccumulator(folder)
                events.Reload()
                points = [
                    (tag, [(point.step, point.value) for point in events.Scalars(tag)])
                    for tag in events.Tags()["scalars"]
                ]
            compared["events"] = repr(points).encode()
        return compared


class RerunWriter(Writer):
    """Exports a recording of Rerun, which has times."""

    def _compared(self, tree: Tree) -> Tree:
        from tdx.rollouts.formats.rerun import check as check_complete

        compared = super()._compared(tree)
        name = "a.rerun"
        if name in compared:
            with tempfile.NamedTemporaryFile(suffix=".rrd") as file:
                file.write(compared[name] or b"")
                file.flush()
                with suppress(TdxError):
                    check_complete(Path(file.name))
                    compared[name] = _read_rerun(Path(file.name))
        return compared


def _read_rerun(path: Path) -> bytes:
    """Return the entities of a complete recording and its numbers."""
    from rerun.chunk import RrdReader

    return b"".join(
        sorted(
            repr([chunk.entity_path, name, values]).encode()
            for chunk in RrdReader(path).stream().to_chunks()
            for name, values in chunk.to_record_batch().to_pydict().items()
            if name in ("step", "Scalars:scalars")
        )
    )


class WatchWriter(Writer):
    """Records a training, whose times differ in each run."""

    _file = "records/watch.jsonl"

    def state(self, folder: Path, tree: Tree) -> str:
        """Return "old", "part" or "new", or say what is wrong."""
        if self._compared(tree) == self._old:
            return "old"
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                report = read_watch(folder / self._file)
        except Warning:
            return "part"
        except TdxError as error:
            return f"torn: {error}"
        whole = (3, 6, 9)
        if report.steps == whole:
            return "new"
        return "part" if set(report.steps) < set(whole) else f"torn: steps {report.steps}"


def _watch(name: str) -> Work:
    """Return a function that trains; its warnings are printed as errors of a command."""

    def run() -> None:
        env = GymEnv(name)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", WatchWarning)
            with watch(env, every=3, to=WatchWriter._file, max_share=1) as watched:
                tensordict = env.reset()
                for _ in range(9):
                    tensordict = env.step(env.rand_action(tensordict))["next"]
                    tensordict = env.reset() if tensordict["done"].any() else tensordict
        if watched.steps != 9:
            raise AssertionError("the training did not go on")
        messages = [str(each.message) for each in caught if each.category is WatchWarning]
        if messages:
            raise StorageError(messages[0], hint="")

    return lambda: _report(run)


class _Interrupt:
    """Callback that interrupts a rollout after its first chunk."""

    def __call__(self, progress: Progress) -> None:
        raise KeyboardInterrupt


def _start_dump(raw: bool) -> Work:
    def run() -> None:
        pipeline = Pipeline.of("CartPole-v1", "RewardSum", "VecNorm")
        request = DumpRequest(pipeline, Goal(steps=6), seed=0, chunk_steps=3, raw=raw)
        try:
            roll_out(request, Path("dump"), on_chunk=_Interrupt())
        except KeyboardInterrupt:
            return

    return run


def _record(folder: str, *options: str, seed: int = 0) -> Work:
    return tdx("rollout", *_CHAIN, *_SIZE, "--seed", str(seed), "--out", folder, *options)


def _record_frames(folder: str, seed: int) -> Work:
    return tdx(
        *("rollout", "CartPole-v1", "--from-pixels", "-t", "ToTensorImage", "-t", "Resize(32, 32)"),
        *("--steps", "3", "--seed", str(seed), "--out", folder),
    )


def _remove(folder: str) -> Work:
    def run() -> None:
        shutil.rmtree(folder)

    return run


def _damage(file: str) -> Work:
    def run() -> None:
        path = Path(file)
        content = bytearray(path.read_bytes())
        content[-1] ^= 255
        path.write_bytes(content)

    return run


_EXPORTS = (
    *("hdf5", "parquet", "zarr", "safetensors", "npz", "jsonl", "minari"),
    *("lerobot", "tensorboard", "rerun"),
)
_VIDEOS = ("mp4", "gif")
_EXPORT_WRITERS = {"tensorboard": TensorboardWriter, "rerun": RerunWriter}


def _export_writer(kind: str) -> Writer:
    is_video = kind in _VIDEOS
    # Minari needs all flags.
    keys = "observation,action,reward,done,terminated,truncated"
    options = ("--keys", keys) if kind == "minari" else ()
    more = ("--fps", "20") if kind == "lerobot" else ()
    old = _record_frames("first", 1) if is_video else _record("first", *options, seed=1)
    new = _record_frames("dump", 0) if is_video else _record("dump", *options)
    return _EXPORT_WRITERS.get(kind, Writer)(
        f"export {kind}",
        tdx("export", "dump", "--to", kind, "--out", f"a.{kind}", *more, "--force"),
        in_turn(
            old,
            new,
            tdx("export", "first", "--to", kind, "--out", f"a.{kind}", *more),
            _remove("first"),
        ),
        stable=_without_times,
    )


def _without_times(name: str, content: bytes) -> bytes:
    if name.endswith("metadata.json"):
        return re.sub(rb"\d\d\d\d-\d\d-\d\d[T ][^\"]*", b"", content)
    return content


def _profile(env: str, *options: str) -> Work:
    return tdx("profile", env, "--steps", "8", "--repeat", "1", "--save", "profile.json", *options)


def _name_profile(name: str, content: bytes) -> bytes:
    """Return the env of a whole profile, whose times differ in each run."""
    with suppress(TdxError):
        document = parse_json(content, name)
        if isinstance(document, dict):
            return profile_from_json(document).subject.encode()
    return content


# Buffers


def _save_buffer(number: int) -> Work:
    def run() -> None:
        buffer = ReplayBuffer(storage=LazyTensorStorage(2_000), batch_size=10)
        rows = 1_000 + number
        data = {"a": torch.full((rows, 3), float(number)), "b": torch.zeros(rows)}
        buffer.extend(TensorDict(data, [rows]))
        _report(lambda: buffer.dumps("saves/buffer"))

    return run


class BufferWriter(Writer):
    """Saves a buffer; the names of its files differ in each save."""

    def state(self, folder: Path, tree: Tree) -> str:
        """Return "old" or "new", or say what is wrong."""
        if f"saves/buffer/{MANIFEST}" not in tree and not self._old:
            return "old"
        buffer = ReplayBuffer(storage=LazyTensorStorage(2_000), batch_size=10)
        try:
            buffer.loads(folder / "saves/buffer")
        except Exception as error:
            return f"torn: {error}"
        values = buffer[:]["a"].unique()
        if len(values) != 1 or len(buffer) != 1_000 + int(values):
            return "torn: two saves are mixed"
        return "new" if int(values) == 1 else "old"


def _report(work: Work) -> None:
    """Print an error of a library call as a command does."""
    try:
        work()
    except TdxError as error:
        print(f"error: {error}\nhint: {error.hint}", file=sys.stderr)
        raise SystemExit(2) from None


# Small files


_PIPELINE = """\
# A comment that is kept.
version: 1
env:
  id: Pendulum-v1
transforms:
  - StepCounter  # steps
  - RewardSum
  - ObservationNorm: {loc: 0.0, scale: 2.0, in_keys: [observations]}  # a misspelled key
"""


def _write(file: str, text: str) -> Work:
    def run() -> None:
        Path(file).parent.mkdir(parents=True, exist_ok=True)
        Path(file).write_text(text)

    return run


def _save_document() -> None:
    def work() -> None:
        document, pipeline = Document.load("a.yaml")
        document.save(replace(pipeline, transforms=pipeline.transforms[:1]))

    _report(work)


def _configured(*arguments: str) -> Work:
    def run() -> None:
        os.environ["TDX_CONFIG"] = "settings/config.toml"
        call_main("config", *arguments)

    return run


def _add_recent(name: str) -> Work:
    return lambda: _report(lambda: RecentFiles(Path("state/recent.json")).add(name))


class SessionWriter(Writer):
    """Keeps the session of the app; the name of its file and the time differ in each run."""

    def _compared(self, tree: Tree) -> Tree:
        return {
            re.sub(rb'"when":[^,]*', b"", content).decode(): b""
            for name, content in super()._compared(tree).items()
            if content is not None and name.endswith(".json")
        }

    def state(self, folder: Path, tree: Tree) -> str:
        """Return "old" or "new", or say what is wrong."""
        sessions = self._compared(tree)
        if any(name.endswith(".broken") for name in tree) or sessions.keys() - (
            self._old.keys() | self._new.keys()
        ):
            return "torn: a damaged session"
        if self._new.keys() <= sessions.keys():
            return "new"
        return "old" if self._old.keys() <= sessions.keys() else "lost: the session"


def _keep_session(env: str) -> Work:
    def run() -> None:
        store = SessionStore(Path("state"))
        sessions, _ = store.left()
        if sessions:
            store.take(sessions[0])
        draft = Draft.of(Pipeline.of(env))
        _report(lambda: store.keep(Session(draft, draft)))
        store.leave()

    return run


def make_writers() -> dict[str, Writer]:
    """Return all writers by name."""
    config = in_turn(_configured("init"), _configured("set", "num_envs", "2"))
    writers = [
        DumpWriter("rollout", _record("a/b/dump"), dump="a/b/dump"),
        DumpWriter("raw rollout", _record("dump", "--raw")),
        DumpWriter(
            "resume", tdx("rollout", "--resume", "--out", "dump"), _start_dump(False), steps=3
        ),
        DumpWriter(
            "resume raw", tdx("rollout", "--resume", "--out", "dump"), _start_dump(True), steps=3
        ),
        DumpWriter("rollout --force", _record("dump", "--force"), _record("dump", seed=1)),
        ShardWriter(
            "shards",
            in_turn(*(_record("dump", "--shards", "2", "--shard", str(i)) for i in range(2))),
        ),
        *map(_export_writer, (*_EXPORTS, *_VIDEOS)),
        DumpWriter(
            "import",
            tdx("import", "a.npz", "--out", "dump", "--force"),
            in_turn(
                _record("first"),
                tdx("export", "first", "--to", "npz", "--out", "a.npz"),
                _remove("first"),
                _record("dump", seed=1),
            ),
        ),
        DumpWriter(
            "replay",
            tdx("replay", "source", "-t", "StepCounter", "--out", "dump", "--force"),
            in_turn(
                tdx("rollout", "CartPole-v1", *_SIZE[:4], "--seed", "0", "--out", "source"),
                _record("dump", seed=1),
            ),
        ),
        RepairWriter(
            "repair",
            tdx("verify", "dump", "--repair"),
            in_turn(_record("dump"), _damage("dump/data/observation.memmap")),
        ),
        RepairWriter(
            "repair shards",
            tdx("verify", "dump", "--repair"),
            in_turn(
                *(_record("dump", "--shards", "2", "--shard", str(i)) for i in range(2)),
                _damage("dump/shards/00001/data/observation.memmap"),
            ),
        ),
        WatchWriter("watch", _watch("CartPole-v1"), _watch("Pendulum-v1")),
        WatchWriter("first watch", _watch("CartPole-v1")),
        Writer(
            "profile --save",
            _profile("CartPole-v1", "--force"),
            _profile("Pendulum-v1"),
            stable=_name_profile,
        ),
        Writer(
            "report",
            tdx("report", "CartPole-v1", "--out", "chain.svg", "--force"),
            tdx("report", "Pendulum-v1", "--out", "chain.svg"),
        ),
        BufferWriter("first buffer save", _save_buffer(1)),
        BufferWriter("buffer save", _save_buffer(1), _save_buffer(0)),
        Writer(
            "freeze",
            tdx("contract", "record", *_STACK, "--force"),
            tdx("contract", "record", "CartPole-v1", "-t", "StepCounter", "--out", "contract"),
        ),
        Writer(
            "first freeze",
            tdx("contract", "record", *_STACK),
            again=tdx("contract", "record", *_STACK, "--force"),
        ),
        Writer("check --fix", tdx("check", "a.yaml", "--fix"), _write("a.yaml", _PIPELINE)),
        Writer(
            "init",
            tdx("init", "a.yaml", "--env", "CartPole-v1", "-y", "--force"),
            _write("a.yaml", _PIPELINE),
        ),
        Writer("save in the app", _save_document, _write("a.yaml", _PIPELINE)),
        Writer("recent files", _add_recent("/b.yaml"), _add_recent("/a.yaml")),
        SessionWriter("session", _keep_session("CartPole-v1"), _keep_session("Pendulum-v1")),
        Writer("config set", _configured("set", "num_envs", "4"), config),
        Writer("first config set", _configured("set", "num_envs", "4")),
        Writer("config init", _configured("init"), again=_configured("init", "--force")),
    ]
    return {writer.name: writer for writer in writers}
