"""Write a contract as a folder, and read one from a stranger.

``contract.yaml`` is for reviewers: stages, specs, state and tolerances. ``golden.safetensors`` has
the numbers: inputs, values and statistics; ``calls.json`` the recorded calls of each level. Reading
runs no code and follows no links.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tdx.compare.model import (
    VERSION,
    Contract,
    Place,
    Segment,
    SpecRecord,
    StageRecord,
    StateHistory,
    StateRecord,
    key_name,
    parse_key_name,
)
from tdx.compare.values import MAX_NUMBERS, Tolerance, Values, digest, thumbnail
from tdx.contracts.calls_file import decode_recording, encode_recording
from tdx.contracts.decoding import HINT, damaged, parse_tensors, tensors_to_bytes, unpack
from tdx.contracts.tolerances import with_tolerances
from tdx.foundation.container import Container, read_folder
from tdx.foundation.errors import ArgumentError, PipelineError, StorageError
from tdx.foundation.files import (
    CONTRACT_FILE,
    atomic_folder,
    check_replaceable_folder,
    report_read_errors,
    report_write_errors,
)
from tdx.foundation.untrusted import MAX_HEADER_BYTES, MAX_PIPELINE_BYTES, MAX_STAGES, Fields
from tdx.pipeline.file.yaml_codec import apply_style, dump_yaml, load_yaml

DOCUMENT, NUMBERS, CALLS = CONTRACT_FILE, "golden.safetensors", "calls.json"
_VERSIONS = (1, VERSION)
MAX_GOLDEN_BYTES = 256 * 2**20
_MAX_RECORDS = 4_096
_MAX_SEGMENTS = 16
_MAX_FEATURES = 64
_SECTIONS = (
    *("contract", "kind", "env", "seed", "libraries", "compare", "tolerances", "golden", "stages"),
    "notes",
)


def save_contract(contract: Contract, path: str | Path, *, force: bool = False) -> None:
    """Write a contract as a folder with one rename.

    Args:
        contract: The contract.
        path: Folder to create.
        force: True to replace a folder that holds a contract.

    Raises:
        ArgumentError: The path exists and is not a contract, or ``force`` is False.
        StorageError: The folder cannot be written.
    """
    target = Path(path)
    check_target(target, force=force)
    tensors, packed = _tensors_of(contract)
    calls = None
    if contract.recording is not None:
        calls, arrays = encode_recording(contract.recording)
        tensors |= arrays
    numbers = tensors_to_bytes(tensors)
    data = _to_document(contract, packed, numbers, calls)
    document = dump_yaml(apply_style(data, 4)).encode("utf-8")
    is_large = len(document) > MAX_PIPELINE_BYTES or len(numbers) > MAX_GOLDEN_BYTES
    if is_large or len(calls or b"") > MAX_HEADER_BYTES:
        raise StorageError(
            f"the contract is too large to be read again: {DOCUMENT} has {len(document):,} bytes, "
            f"{NUMBERS} {len(numbers):,}",
            hint="record fewer steps, or a stack with fewer keys",
        )
    with (
        report_write_errors(target, "choose another path", kind=StorageError),
        atomic_folder(target) as folder,
    ):
        (folder / DOCUMENT).write_bytes(document)
        (folder / NUMBERS).write_bytes(numbers)
        if calls is not None:
            (folder / CALLS).write_bytes(calls)


def check_target(target: Path, *, force: bool) -> None:
    """Check that a contract may be written to a path.

    Raises:
        ArgumentError: It exists and ``force`` is False, or it does not hold a contract.
    """
    parts = {DOCUMENT, NUMBERS, CALLS}
    check_replaceable_folder(
        target, "a contract", lambda folder: {*os.listdir(folder)} <= parts, force=force
    )


def load_contract(path: str | Path) -> Contract:
    """Read an untrusted contract: no code runs, and no link is followed.

    Args:
        path: Its folder.

    Raises:
        StorageError: It does not exist, is damaged, or is not a contract.
    """
    hint = "give the folder that `tdx contract record --out` wrote"

    def read(folder: Container) -> tuple[bytes, bytes, bytes]:
        return (
            folder.read(DOCUMENT, MAX_PIPELINE_BYTES),
            folder.read(NUMBERS, MAX_GOLDEN_BYTES),
            folder.read(CALLS, MAX_HEADER_BYTES) if CALLS in folder.names() else b"",
        )

    with report_read_errors(f"the contract {path}", hint):
        try:
            text, numbers, calls = read_folder(Path(path), read)
        except NotADirectoryError:
            raise StorageError(f"{path} is not a folder", hint=hint) from None
    name = f"{path}/{DOCUMENT}"
    try:
        document = load_yaml(text.decode("utf-8"))
    except UnicodeDecodeError:
        raise damaged(name, "it is not UTF-8") from None
    except PipelineError as error:
        place = f" (line {error.where.line})" if error.where.line is not None else ""
        raise damaged(name, f"{error.message}{place}") from error
    fields = Fields(document, name, HINT)
    contract = _from_document(fields, numbers, f"{path}/{NUMBERS}")
    known = fields.object("golden").text("calls", optional=True)
    if known is None:
        return contract
    name = f"{path}/{CALLS}"
    if not calls or content_hash(calls) != known:
        raise damaged(name, f"its content does not match the hash in {DOCUMENT}")
    tensors = parse_tensors(numbers, f"{path}/{NUMBERS}")
    return replace(contract, recording=decode_recording(calls, tensors, contract.last, name))


# Document


def _to_document(
    contract: Contract,
    packed: Mapping[str, Mapping[str, object]],
    numbers: bytes,
    calls: bytes | None,
) -> dict[str, object]:
    reduced = {
        _value_name(place): {
            "shape": list(values.shape),
            "dtype": values.dtype,
            "hashes": list(values.digests),
        }
        for place, values in contract.values.items()
        if values.digests
    }
    golden: dict[str, object] = {"file": NUMBERS, "sha256": content_hash(numbers)}
    if calls is not None:
        golden["calls"] = content_hash(calls)
    if contract.golden_random:
        golden["random"] = {str(index): kind for index, kind in contract.golden_random.items()}
    golden["episodes"] = [segment.steps for segment in contract.inputs]
    if contract.states is not None:
        golden["rows"] = contract.states.rows
    if packed:
        golden["pixels"] = dict(packed)
    if reduced:
        golden["thumbnails"] = reduced
    document: dict[str, object] = {
        "contract": VERSION,
        "kind": contract.kind,
        "env": contract.env,
        "seed": contract.seed,
        "libraries": dict(contract.libraries),
        "compare": list(contract.compare),
        "tolerances": {key: dict(fields) for key, fields in contract.tolerances.items()},
        "golden": golden,
        "stages": [
            _stage_to_data(stage, None if index == 0 else contract.stages[index - 1])
            for index, stage in enumerate(contract.stages)
        ],
    }
    if not contract.tolerances:
        del document["tolerances"]
    if contract.notes:
        document["notes"] = list(contract.notes)
    return document


def content_hash(data: bytes) -> str:
    """Return the hash of a file of a contract."""
    return digest(torch.frombuffer(bytearray(data), dtype=torch.uint8))


def _stage_to_data(stage: StageRecord, inside: StageRecord | None) -> dict[str, object]:
    """Convert a stage; specs that are those of the stage inside are left out."""
    data: dict[str, object] = {"stage": stage.index, "name": stage.name, "role": stage.role}
    if stage.arguments:
        data["arguments"] = dict(stage.arguments)
    if inside is None or stage.specs != inside.specs:
        specs = data["specs"] = {}
        for spec in stage.specs:
            specs[spec.key] = {
                "part": spec.part,
                "shape": list(spec.shape),
                "dtype": spec.dtype,
                "domain": spec.domain,
            }
            if spec.features and len(spec.features) <= _MAX_FEATURES:
                specs[spec.key]["features"] = list(spec.features)
    if stage.writes:
        data["writes"] = list(stage.writes)
    if stage.state:
        data["state"] = {
            tensor.name: {
                "shape": list(tensor.shape),
                "dtype": tensor.dtype,
                "sha256": tensor.digest,
                "changes": tensor.changes,
            }
            for tensor in stage.state
        }
    data["tolerance"] = {"rtol": stage.tolerance.rtol, "atol": stage.tolerance.atol}
    if stage.random is not None:
        data["random"] = stage.random
    return data


def _from_document(fields: Fields, numbers: bytes, file: str) -> Contract:
    fields.only(_SECTIONS)
    version = fields.count("contract")
    if version not in _VERSIONS:
        raise StorageError(
            f"{fields.source} is a contract of version {version}; this tdx reads the versions "
            f"1 and {VERSION}",
            hint="record the stack again with this version",
        )
    golden = fields.object("golden")
    if content_hash(numbers) != golden.text("sha256"):
        raise damaged(file, f"its content does not match the hash in {DOCUMENT}")
    tensors = parse_tensors(numbers, file)
    stages: list[StageRecord] = []
    for index, stage in enumerate(fields.objects("stages", MAX_STAGES + 1)):
        specs = stages[-1].specs if stages else ()
        stages.append(_read_stage(stage, index - 1, tensors, specs))
    if not stages:
        raise fields.damaged("it has no stages")
    inputs = _read_inputs(golden, tensors, file)
    random = {stage.index: stage.random for stage in stages if stage.random is not None}
    if version > 1:
        random = {
            int(index): str(kind)
            for index, kind in golden.plain("random").items()
            if index.isdecimal()
        }
    contract = Contract(
        fields.text("kind"),
        fields.text("env"),
        fields.seed("seed"),
        {name: str(value) for name, value in fields.plain("libraries").items()},
        fields.texts("compare"),
        tuple(stages),
        inputs,
        _read_values(golden, tensors, len(stages) - 1, file),
        fields.texts("notes", optional=True),
        golden_random=random,
        states=_read_states(golden, tensors, inputs, len(stages) - 1, file),
    )
    tolerances = {key: entry.data for key, entry in fields.named_objects("tolerances")}
    try:
        return with_tolerances(contract, tolerances)
    except ArgumentError as error:
        raise fields.damaged(error.message) from error


def _read_stage(
    fields: Fields, index: int, tensors: Mapping[str, Tensor], inside: tuple[SpecRecord, ...]
) -> StageRecord:
    if fields.count("stage", least=-1) != index:
        raise fields.damaged(f"the stages are not numbered in order: {index} is missing")
    specs = tuple(
        SpecRecord(
            name,
            spec.text("part"),
            spec.shape("shape"),
            spec.text("dtype"),
            spec.text("domain"),
            spec.texts("features", optional=True),
        )
        for name, spec in fields.named_objects("specs")
    )
    tolerance = fields.object("tolerance")
    return StageRecord(
        index,
        fields.text("name"),
        fields.text("role"),
        fields.plain("arguments"),
        specs or inside,
        tuple(
            _read_state(index, name, tensor, tensors)
            for name, tensor in fields.named_objects("state")
        ),
        Tolerance(tolerance.number("rtol"), tolerance.number("atol")),
        fields.texts("writes", optional=True),
        fields.text("random", optional=True),
    )


def _read_state(
    index: int, name: str, fields: Fields, tensors: Mapping[str, Tensor]
) -> StateRecord:
    value = tensors.get(f"state/{index}/{name}")
    shape = fields.shape("shape")
    known = fields.text("sha256")
    if value is not None and (tuple(value.shape) != shape or digest(value) != known):
        raise fields.damaged(f"the state {name} does not match its shape and hash")
    dtype, changes = fields.text("dtype"), fields.boolean("changes")
    return StateRecord(name, shape, dtype, known, changes, value)


# Numbers


def _value_name(place: Place) -> str:
    lane, index, key = place
    return f"values/{lane}/{index}/{key}"


def _tensors_of(contract: Contract) -> tuple[dict[str, Tensor], dict[str, dict[str, object]]]:
    """Return the tensors of a contract by name, and the shapes of the packed ones."""
    tensors: dict[str, Tensor] = {}
    packed: dict[str, dict[str, object]] = {}
    for place, values in contract.values.items():
        tensors[_value_name(place)] = values.numbers
    for stage in contract.stages:
        for record in stage.state:
            if record.value is not None:
                tensors[f"state/{stage.index}/{record.name}"] = record.value
    if contract.states is not None:
        for (at, name), value in contract.states.values.items():
            tensors[f"states/{at}/{name}"] = value
        for name, value in contract.states.streams.items():
            tensors[f"streams/{name}"] = value
    for index, segment in enumerate(contract.inputs):
        for group, entries in (("calls", segment.calls), ("actions", segment.actions)):
            for key, value in entries.items():
                name = f"inputs/{index}/{group}/{key_name(key)}"
                if value[0, 0].numel() > MAX_NUMBERS:
                    packed[name] = {
                        "shape": list(value.shape),
                        "dtype": str(value.dtype).removeprefix("torch."),
                        "frame": list(thumbnail(value[0, 0], 0).shape),
                    }
                    raw = value.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
                    value = torch.frombuffer(bytearray(zlib.compress(raw, 6)), dtype=torch.uint8)
                tensors[name] = value
    return tensors, packed


def _read_states(
    golden: Fields,
    tensors: Mapping[str, Tensor],
    inputs: Sequence[Segment],
    count: int,
    file: str,
) -> StateHistory | None:
    """Return the state of the stages in time; ``None`` for contracts that do not have it."""
    rows = golden.count("rows", least=0, optional=True)
    if rows is None:
        return None
    records = sum(segment.steps + 1 for segment in inputs)
    values: dict[tuple[int, str], Tensor] = {}
    streams: dict[str, Tensor] = {}
    for name, value in tensors.items():
        group, _, rest = name.partition("/")
        if group not in ("states", "streams"):
            continue
        index, _, state = rest.partition("/")
        is_known = group == "streams" or (index.isdecimal() and state and int(index[:10]) < count)
        if not is_known or value.ndim < 1 or len(value) != records or value.is_complex():
            raise damaged(file, f"{name!r} is not the state of a stage in {records} records")
        if group == "streams":
            streams[rest] = value
        else:
            values[int(index), state] = value
    return StateHistory(rows, values, streams)


def _read_inputs(golden: Fields, tensors: Mapping[str, Tensor], file: str) -> tuple[Segment, ...]:
    episodes = golden.shape("episodes")
    if not 1 <= len(episodes) <= _MAX_SEGMENTS:
        raise damaged(file, f"it has {len(episodes)} reference episodes")
    packed = dict(golden.named_objects("pixels"))
    segments: list[Segment] = []
    for index, steps in enumerate(episodes):
        groups: list[dict[Any, Tensor]] = []
        for group in ("calls", "actions"):
            prefix = f"inputs/{index}/{group}/"
            entries: dict[Any, Tensor] = {}
            for name, value in tensors.items():
                if name.startswith(prefix):
                    whole = _unpack(value, packed[name], name) if name in packed else value
                    entries[parse_key_name(name.removeprefix(prefix))] = whole
            groups.append(entries)
        segment = Segment(*groups)
        lengths = [entry.shape[:2] for entries in groups for entry in entries.values()]
        if not groups[0] or any(len(length) < 2 or 0 in length for length in lengths):
            raise damaged(file, f"the reference episode {index} has no inputs")
        if segment.steps != steps or max(length[0] for length in lengths) > _MAX_RECORDS:
            raise damaged(file, f"the reference episode {index} has not {steps} steps")
        segments.append(segment)
    return tuple(segments)


def _unpack(value: Tensor, fields: Fields, name: str) -> Tensor:
    shape = fields.shape("shape")
    dtype = getattr(torch, fields.text("dtype"), None)
    if not isinstance(dtype, torch.dtype):
        raise fields.damaged(f"{name} has an unknown dtype")
    size = torch.Size(shape).numel() * dtype.itemsize
    if size > MAX_GOLDEN_BYTES:
        raise fields.damaged(f"{name} declares {size:,} bytes")
    if value.dtype is not torch.uint8:
        raise fields.damaged(f"{name} cannot be unpacked: its dtype is {value.dtype}")
    raw = unpack(value.contiguous().numpy().tobytes(), size, fields.source, name)
    return torch.frombuffer(bytearray(raw), dtype=dtype).reshape(shape)


def _read_values(
    golden: Fields, tensors: Mapping[str, Tensor], count: int, file: str
) -> dict[Place, Values]:
    reduced = dict(golden.named_objects("thumbnails"))
    values: dict[Place, Values] = {}
    for name, numbers in tensors.items():
        if not name.startswith("values/"):
            continue
        parts = name.split("/", 3)
        is_known = len(parts) == 4 and parts[1] in ("forward", "inverse")
        if not is_known or not parts[2].removeprefix("-").isdecimal() or numbers.ndim < 2:
            raise damaged(file, f"{name!r} is not a value of a stage")
        index = int(parts[2][:10])
        if not -1 <= index <= count:
            raise damaged(file, f"{name!r} belongs to a stage that does not exist")
        place: Any = (parts[1], index, parts[3])
        if name in reduced:
            thumb = reduced[name]
            hashes = tuple(thumb.texts("hashes"))
            if len(hashes) != len(numbers):
                raise damaged(file, f"{name!r} has {len(hashes)} hashes")
            values[place] = Values(numbers, thumb.shape("shape"), thumb.text("dtype"), hashes)
        else:
            dtype = str(numbers.dtype).removeprefix("torch.")
            values[place] = Values(numbers, tuple(numbers.shape[2:]), dtype)
    return values
