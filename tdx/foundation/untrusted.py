"""Limits on the length, nesting and size of data from untrusted sources.

The sizes that a header declares are compared with the file before anything is allocated.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, overload

from tdx.foundation.errors import StorageError

MAX_NESTING = 100
"""Levels of nesting in YAML and JSON."""
MAX_PIPELINE_BYTES = 2**18
"""Size of a pipeline file."""
MAX_HEADER_BYTES = 64 * 2**20
"""Size of a JSON header, manifest or metadata file."""
MAX_POLICY_BYTES = 2**30
"""Size of a file with weights or actions."""
MAX_STAGES = 500
"""Stages in a chain."""
MAX_VALUES = 10_000
"""Values in a pipeline file."""
MAX_INTEGER_BITS = 1_000
"""Size of an integer in a pipeline; floats have about the same range."""
MAX_ENVS = 65_536
"""Copies of an env in one batch."""
MAX_WORKERS = 1_024
"""Processes of a batch of envs."""
MAX_REPEATS = 10_000
"""Steps of the env in one step or reset of a stage, such as a frame skip."""
MAX_ALL_REPEATS = 100_000
"""Steps of the env in one step or reset of a chain: the product of the repeats of its stages."""
MAX_SIZE = 65_536
"""Frames in a stack, intervals of an action, height or width of an image."""
MAX_SECONDS = 10_000_000
"""Length of a timeout."""
MAX_DIMS = 32
"""Dimensions of an array."""
MAX_COUNT = 2**48
"""Steps, bytes or episodes of a dump."""
_SHOWN = 60
_DAMAGED = "the file is damaged or declares false sizes; do not use it"

ALLOW_DOWNLOAD = "TDX_ALLOW_DOWNLOAD"
"""Environment variable that lets a pipeline file download; ``--allow-download`` sets it."""

_STRING_OR_BRACKET = re.compile(r'"(?:[^"\\]|\\.)*+(?:"|\\?\Z)|[\[{]|[\]}]', re.DOTALL)


def json_depth(text: str) -> int:
    """Return how deeply the brackets of a JSON text are nested, without parsing it."""
    depth = deepest = 0
    for match in _STRING_OR_BRACKET.finditer(text):
        if match[0] in "[{":
            depth += 1
            deepest = max(deepest, depth)
        elif match[0] in "]}":
            depth -= 1
    return deepest


def parse_json(text: str | bytes, source: str | Path) -> Any:
    """Parse JSON from an untrusted source, which errors name.

    Raises:
        StorageError: The text is not valid JSON, or nested deeper than :data:`MAX_NESTING` levels.
    """
    import json

    try:
        decoded = text if isinstance(text, str) else text.decode("utf-8")
        brackets = decoded.count("[") + decoded.count("{")
        if brackets > MAX_NESTING and json_depth(decoded) > MAX_NESTING:
            raise StorageError(
                f"{source} is nested more than {MAX_NESTING} levels deep",
                hint="the file is damaged or was not written by tdx",
            )
        return json.loads(decoded)
    except (ValueError, RecursionError) as error:
        raise StorageError(
            f"{source} is not valid JSON: {error}",
            hint="the file is damaged; restore it from a copy",
        ) from error


def read_limited(path: Path, limit: int = MAX_HEADER_BYTES) -> bytes:
    """Read a small file, which may be an endless stream.

    Raises:
        OSError: The file cannot be read.
        StorageError: The file has more than ``limit`` bytes.
    """
    with path.open("rb") as file:
        # Python allocates all that is asked for; a stream has no size.
        size = os.fstat(file.fileno()).st_size or limit
        data = file.read(min(size, limit) + 1)
    if len(data) > limit:
        raise StorageError(
            f"{path} has more than {limit:,} bytes", hint="use a file written by tdx"
        )
    return data


def validate_shape(sizes: Iterable[object], what: str) -> tuple[int, ...]:
    """Validate a shape that a header declares.

    Raises:
        StorageError: A size is not a non-negative integer, there are more than
            :data:`MAX_DIMS` of them, or their product exceeds 2**62.
    """
    if isinstance(sizes, (str, bytes)) or not isinstance(sizes, Iterable):
        raise StorageError(f"{what} is not a list of sizes: {sizes!r}", hint=_DAMAGED)
    shape = []
    for size in sizes:
        if isinstance(size, bool) or not isinstance(size, int) or size < 0:
            raise StorageError(f"{what} has the invalid size {size!r}", hint=_DAMAGED)
        shape.append(size)
    if len(shape) > MAX_DIMS:
        raise StorageError(f"{what} has {len(shape)} dimensions", hint=_DAMAGED)
    if math.prod(size or 1 for size in shape) > 2**62:
        raise StorageError(f"{what} is impossibly large: {shape}", hint=_DAMAGED)
    return tuple(shape)


def check_claimed_bytes(claimed: int, file: str | Path | int, what: str) -> None:
    """Raise StorageError if a file, open or a path, is smaller than its header declares."""
    found = (os.fstat(file) if isinstance(file, int) else os.stat(file)).st_size
    if claimed > found:
        raise StorageError(
            f"{what} declares {claimed:,} bytes, but the file has only {found:,}",
            hint=_DAMAGED,
        )


class Fields:
    """A mapping of a document; each method returns one entry, or raises :class:`StorageError`.

    Entries that are optional are ``None``, or an empty list, if they are missing or null. Errors
    name the ``source``, usually a file.
    """

    def __init__(self, data: object, source: str, hint: str = _DAMAGED) -> None:
        if not isinstance(data, Mapping) or not all(isinstance(name, str) for name in data):
            raise StorageError(
                f"{source} is damaged: it is not a mapping: {_abbreviate(data)}", hint=hint
            )
        self.data: Mapping[str, Any] = data
        self.source, self.hint = source, hint

    def only(self, names: Iterable[str]) -> None:
        """Refuse entries with other names."""
        for name in self.data:
            if name not in names:
                raise self.damaged(f"unknown entry {name[:50]!r}")

    def value(self, name: str, *, optional: bool = False) -> Any:
        """Return any value."""
        value = self.data.get(name)
        if value is None and not optional and name not in self.data:
            raise self.damaged(f"it has no {name!r}")
        return value

    @overload
    def text(self, name: str) -> str: ...
    @overload
    def text(self, name: str, *, optional: bool) -> str | None: ...
    def text(self, name: str, *, optional: bool = False) -> str | None:
        """Return text."""
        value = self.value(name, optional=optional)
        if value is None and optional:
            return None
        return str(self._checked(name, str, "text"))

    def texts(self, name: str, *, optional: bool = False) -> tuple[str, ...]:
        """Return a list of texts."""
        texts = self.list(name, optional=optional)
        if not all(isinstance(text, str) for text in texts):
            raise self.invalid(name, "a list of texts")
        return tuple(map(str, texts))

    def boolean(self, name: str) -> bool:
        """Return true or false."""
        return bool(self._checked(name, bool, "true or false"))

    @overload
    def count(self, name: str, *, least: int = 0, most: int = MAX_COUNT) -> int: ...
    @overload
    def count(
        self, name: str, *, least: int = 0, most: int = MAX_COUNT, optional: bool
    ) -> int | None: ...
    def count(
        self, name: str, *, least: int = 0, most: int = MAX_COUNT, optional: bool = False
    ) -> int | None:
        """Return a whole number from ``least`` to ``most``."""
        number = self.value(name, optional=optional)
        if number is None and optional:
            return None
        if isinstance(number, bool) or not isinstance(number, int) or not least <= number <= most:
            raise self.invalid(name, f"a whole number from {least} to {most}")
        return int(number)

    def seed(self, name: str) -> int:
        """Return the seed of a random number generator."""
        return self.count(name, least=-(2**63), most=2**64 - 1)

    def number(self, name: str) -> float:
        """Return a finite number of at least 0."""
        number = self.value(name)
        is_number = isinstance(number, int | float) and not isinstance(number, bool)
        if not is_number or not 0 <= number <= 1e300:
            raise self.invalid(name, "a number of at least 0")
        return float(number)

    def crc32(self, name: str) -> str:
        """Return a checksum in eight hexadecimal digits."""
        text = self.text(name)
        if not is_crc32(text):
            raise self.invalid(name, "a checksum")
        return text

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of an array."""
        return validate_shape(self.list(name), f"{self.source}: {name!r}")

    def list(self, name: str, *, optional: bool = False) -> list[Any]:
        """Return a list."""
        if self.value(name, optional=optional) is None and optional:
            return []
        values: list[Any] = self._checked(name, list, "a list")
        return values

    @overload
    def object(self, name: str) -> Fields: ...
    @overload
    def object(self, name: str, *, optional: bool) -> Fields | None: ...
    def object(self, name: str, *, optional: bool = False) -> Fields | None:
        """Return a mapping inside."""
        value = self.value(name, optional=optional)
        if value is None and optional:
            return None
        return Fields(value, f"{self.source}: {name!r}", self.hint)

    def objects(self, name: str, most: int = MAX_COUNT) -> Iterator[Fields]:
        """Yield the mappings of a list of at most ``most`` entries."""
        entries = self.list(name)
        if len(entries) > most:
            raise self.invalid(name, f"a list of at most {most} entries")
        for index, entry in enumerate(entries):
            yield Fields(entry, f"{self.source}: {name}[{index}]", self.hint)

    def named_objects(self, name: str) -> Iterator[tuple[str, Fields]]:
        """Yield the mappings inside an optional mapping, by name."""
        inner = self.object(name, optional=True)
        for key in () if inner is None else inner.data:
            yield key, inner.object(key)  # type: ignore[union-attr]

    def plain(self, name: str) -> dict[str, Any]:
        """Return an optional mapping as plain data."""
        inner = self.object(name, optional=True)
        return {} if inner is None else self._to_plain(name, inner.data, 0)

    def _to_plain(self, name: str, value: Any, depth: int) -> Any:
        if depth <= MAX_NESTING:
            if isinstance(value, Mapping):
                return {
                    str(key): self._to_plain(name, item, depth + 1) for key, item in value.items()
                }
            if isinstance(value, list):
                return [self._to_plain(name, item, depth + 1) for item in value]
            if value is None or isinstance(value, bool):
                return value
            for kind in (int, float, str):
                # YAML parsers return subclasses.
                if isinstance(value, kind):
                    return kind(value)
        raise self.invalid(name, "plain data")

    def damaged(self, reason: str) -> StorageError:
        """Return the error for a mapping that is not as tdx writes it."""
        return StorageError(f"{self.source} is damaged: {reason}", hint=self.hint)

    def invalid(self, name: str, wanted: str) -> StorageError:
        """Return the error for an invalid entry."""
        return self.damaged(f"{name!r} is not {wanted}: {_abbreviate(self.data.get(name))}")

    def _checked(self, name: str, kind: type, wanted: str) -> Any:
        value = self.value(name)
        if not isinstance(value, kind):
            raise self.invalid(name, wanted)
        return value


def is_crc32(text: str) -> bool:
    """Return True if the text is a checksum in eight hexadecimal digits."""
    return len(text) == 8 and all(digit in "0123456789abcdef" for digit in text)


def _abbreviate(value: object) -> str:
    if isinstance(value, (list, dict)) and len(value) > _SHOWN:
        return f"{len(value):,} values"
    try:
        text = repr(value)
    except ValueError:
        return "a number with too many digits"
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
