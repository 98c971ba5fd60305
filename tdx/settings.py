"""What the user has set once for all runs: in environment variables and in a configuration file.

A value given on the command line goes first, then ``TDX_*`` of the environment, then the file.
Nothing is read before it is asked for.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from tdx.errors import ArgumentError, UnknownNameError, Where, did_you_mean
from tdx.untrusted import MAX_PIPELINE_BYTES, read_limited

_MOST_DIGITS = 30
FILE_VARIABLE = "TDX_CONFIG"
STATE_VARIABLE = "TDX_STATE_DIR"
Source = Literal["environment", "file", "default"]
Value = str | int | None


@dataclass(frozen=True, slots=True)
class Setting:
    """One thing that can be set.

    Args:
        name: its name in the file.
        help: what it does, on one line.
        choices: the values there are; none where any will do.
        least: the smallest whole number that it can be; none where it is no number.
        default: what holds where it is set nowhere.
        example: a value to show.
    """

    name: str
    help: str
    choices: tuple[str, ...] = ()
    least: int | None = None
    default: Value = None
    example: Value = None

    @property
    def variable(self) -> str:
        """The environment variable, ``TDX_NUM_ENVS``."""
        return f"TDX_{self.name.upper()}"

    def read(self, value: object, called: str, where: Where | None = None) -> Value:
        """The value, checked.

        Args:
            value: what was found; numbers may be text.
            called: what a message calls the setting.
            where: the place in the file.

        Raises:
            ArgumentError: it is of a wrong type, or too small.
            UnknownNameError: it is none of the choices.
        """
        if self.least is not None:
            return self._number(value, called, where)
        if not isinstance(value, str) or not value:
            raise ArgumentError(
                f"{called} must be a text in quotes, got {value!r}", where=where, hint=self._hint()
            )
        if self.choices and value not in self.choices:
            hint = did_you_mean(value, self.choices, self._hint())
            raise UnknownNameError(f"{called} cannot be {value!r}", hint=hint, where=where)
        return value

    def _number(self, value: object, called: str, where: Where | None) -> int:
        # Python refuses to convert thousands of digits.
        is_number = isinstance(value, str) and value.isdecimal() and len(value) <= _MOST_DIGITS
        number = int(value) if is_number else value  # type: ignore[call-overload]
        if isinstance(number, bool) or not isinstance(number, int) or number < (self.least or 0):
            message = f"{called} must be a whole number of at least {self.least}, got {value!r}"
            raise ArgumentError(message, where=where, hint=self._hint())
        if number >= 2**63:
            raise ArgumentError(f"{called} must be below 2**63", where=where, hint=self._hint())
        return number

    def _hint(self) -> str:
        if self.choices:
            return f"one of {', '.join(self.choices)}"
        return f"for example {self.example}"


SETTINGS = (
    Setting(
        "format",
        "how results are written",
        choices=("table", "json", "jsonl", "csv", "md"),
        default="table",
        example="table",
    ),
    Setting(
        "color",
        "when to colour",
        choices=("auto", "always", "never"),
        default="auto",
        example="auto",
    ),
    Setting("seed", "seed of the env, where the pipeline has none", least=0, example=0),
    Setting("num_envs", "copies of the env, where the pipeline says nothing", least=1, example=4),
    Setting("device", "where tensors live, where the pipeline says nothing", example="cpu"),
    Setting("theme", "colours of the terminal app", example="tdx-light"),
)
KEYMAP = "keymap"
"""The table of the file that gives other keys to the commands of the terminal app."""
THEMES = "themes"
"""The table of the file with themes of the user's own for the terminal app."""
_TABLES = (KEYMAP, THEMES)
_BY_NAME = {setting.name: setting for setting in SETTINGS}


@dataclass(frozen=True, slots=True)
class Found:
    """A setting's value and where it comes from."""

    setting: Setting
    value: Value
    source: Source

    def to_dict(self) -> dict[str, Any]:
        """As plain data."""
        return {
            "name": self.setting.name,
            "value": self.value,
            "source": self.source,
            "variable": self.setting.variable,
            "meaning": self.setting.help,
        }


@dataclass(frozen=True, slots=True)
class Settings:
    """Everything that is set.

    Args:
        path: the configuration file, there or not.
        exists: whether it is there.
        found: every setting in order.
    """

    path: Path
    exists: bool
    found: tuple[Found, ...]

    def __getitem__(self, name: str) -> Value:
        """The value of a setting."""
        return next(found.value for found in self.found if found.setting.name == name)

    def is_set(self, name: str) -> bool:
        """Whether a setting has another source than its default."""
        return any(each.setting.name == name and each.source != "default" for each in self.found)

    def to_dict(self) -> dict[str, Any]:
        """As plain data."""
        return {
            "path": str(self.path),
            "exists": self.exists,
            "settings": [found.to_dict() for found in self.found],
        }


def config_path() -> Path:
    """Where the configuration file is, or would be; ``TDX_CONFIG`` names another one."""
    named = os.environ.get(FILE_VARIABLE)
    if named:
        return Path(named)
    from platformdirs import user_config_path

    return user_config_path("tdx") / "config.toml"


def state_path() -> Path:
    """The folder of what tdx keeps between runs, there or not; ``TDX_STATE_DIR`` names another."""
    named = os.environ.get(STATE_VARIABLE)
    if named:
        return Path(named)
    from platformdirs import user_state_path

    return user_state_path("tdx")


def load_settings() -> Settings:
    """Every setting, from the environment, the configuration file, or its default.

    Raises:
        ArgumentError: the file cannot be read, or a value is of a wrong type.
        UnknownNameError: the file has a key that is no setting, or a value is none of the choices.
    """
    path = config_path()
    in_file = _read_file(path)
    found = tuple(_found(setting, in_file or {}) for setting in SETTINGS)
    return Settings(path, in_file is not None, found)


def _found(setting: Setting, in_file: Mapping[str, Value]) -> Found:
    in_environ = os.environ.get(setting.variable)
    if in_environ:
        return Found(setting, setting.read(in_environ, setting.variable), "environment")
    if setting.name in in_file:
        return Found(setting, in_file[setting.name], "file")
    return Found(setting, setting.default, "default")


def _read_file(path: Path) -> dict[str, Value] | None:
    """What the file sets; none where there is no file."""
    try:
        data = read_limited(path, MAX_PIPELINE_BYTES)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ArgumentError(
            f"cannot read the configuration file: {(error.strerror or str(error)).lower()}",
            hint=_mend(path),
            where=Where(file=str(path)),
        ) from error
    known = list(_BY_NAME)
    text, parsed = _parsed(path, data)
    for name in parsed:
        if name not in _BY_NAME and name not in _TABLES:
            hint = did_you_mean(name, known, f"the settings are {', '.join(known)}")
            where = Where(file=str(path), line=_line(text, name))
            raise UnknownNameError(f"no setting {name!r}", hint=hint, where=where)
    return {
        name: _BY_NAME[name].read(value, name, Where(file=str(path), line=_line(text, name)))
        for name, value in parsed.items()
        if name not in _TABLES
    }


def load_keymap() -> dict[str, str]:
    """The keys that the user has given to commands of the terminal app, by the commands' ids.

    Raises:
        ArgumentError: the file cannot be read, or its table is no map from ids to keys.
    """
    path, text, table = _table(KEYMAP)
    for name, keys in table.items():
        if not isinstance(keys, str) or not keys:
            where = Where(file=str(path), line=_line(text, name))
            hint = f'write "{name}" = "ctrl+x", with quotes around the id'
            raise ArgumentError(f"{name} must be keys in quotes", hint=hint, where=where)
    return table


def load_themes() -> dict[str, Any]:
    """The themes of the user's own, by their names, as they stand in the file.

    Raises:
        ArgumentError: the file cannot be read, or its table is no table.
    """
    return _table(THEMES)[2]


def _table(name: str) -> tuple[Path, str, dict[str, Any]]:
    """A table of the file, empty where there is none, with the file and its text."""
    path = config_path()
    try:
        text, parsed = _parsed(path, read_limited(path, MAX_PIPELINE_BYTES))
    except OSError:
        return path, "", {}
    table = parsed.get(name, {})
    if not isinstance(table, dict):
        where = Where(file=str(path), line=_line(text, name))
        raise ArgumentError(f"{name} must be a table", hint=f"write [{name}]", where=where)
    return path, text, dict(table)


def _parsed(path: Path, data: bytes) -> tuple[str, dict[str, Any]]:
    import tomllib

    try:
        text = data.decode("utf-8")
        return text, tomllib.loads(text)
    except UnicodeDecodeError as error:
        raise ArgumentError(
            "the configuration file is not text in UTF-8",
            hint=_mend(path),
            where=Where(file=str(path)),
        ) from error
    except RecursionError as error:
        raise ArgumentError(
            "the configuration file is nested too deep",
            hint=_mend(path),
            where=Where(file=str(path)),
        ) from error
    except ValueError as error:
        # A TOMLDecodeError, or an integer with thousands of digits.
        problem, line = str(error), None
        place = re.search(r" \(at line (\d+), column \d+\)$", problem)
        if place:
            problem, line = problem[: place.start()], int(place.group(1))
        raise ArgumentError(
            f"not TOML: {problem[:1].lower()}{problem[1:]}",
            hint=_mend(path),
            where=Where(file=str(path), line=line),
        ) from error


def _mend(path: Path) -> str:
    return f"mend or remove it; `tdx config init --force` writes {path.name} anew"


def _line(text: str, name: str) -> int | None:
    """The line on which a key stands, from 1."""
    wanted = re.compile(rf"""\s*(\[\s*)?["']?{re.escape(name)}["']?\s*[=.\]]""")
    for number, line in enumerate(text.splitlines(), start=1):
        if wanted.match(line):
            return number
    return None


def template() -> str:
    """A configuration file that sets nothing and shows all that can be set."""
    lines = [
        "# Defaults of tdx. An option goes before these, and so does the environment variable.",
        "",
    ]
    for setting in SETTINGS:
        kinds = f" ({', '.join(setting.choices)})" if setting.choices else ""
        example = f'"{setting.example}"' if isinstance(setting.example, str) else setting.example
        lines += [
            f"# {setting.help}{kinds}; {setting.variable}",
            f"# {setting.name} = {example}",
            "",
        ]
    lines += [
        "# other keys in the terminal app, by the ids of its commands",
        f"# [{KEYMAP}]",
        '# "chain.remove" = "backspace"',
        "",
        "# a theme of your own for the terminal app, to be named under theme",
        f"# [{THEMES}.mine]",
        '# primary = "#6ea8fe"',
        "# dark = true",
        "",
    ]
    return "\n".join(lines)
