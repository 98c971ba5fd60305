"""User settings, from environment variables and a configuration file.

Command-line options take precedence, then ``TDX_*`` environment variables, then the file. The file
is read on demand, not on import.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

from tdx.foundation.errors import (
    ArgumentError,
    UnknownNameError,
    Where,
    did_you_mean,
    explain_os_error,
)
from tdx.foundation.serialization import Entries, Entry, Result
from tdx.foundation.untrusted import MAX_PIPELINE_BYTES, read_limited

_MAX_DIGITS = 30
FILE_VARIABLE = "TDX_CONFIG"
STATE_VARIABLE = "TDX_STATE_DIR"
CACHE_VARIABLE = "TDX_CACHE_DIR"
Source = Literal["environment", "file", "default"]
Value = str | int | None


@dataclass(frozen=True, slots=True)
class Setting:
    """Declaration of a setting.

    Args:
        name: Name in the configuration file.
        help: What it does, on one line.
        choices: Valid values; empty if any text is valid.
        minimum: Smallest valid integer. ``None``: the setting is not a number.
        default: Value if it is not set.
        example: Value shown in the template and in hints.
    """

    name: str
    help: str
    choices: tuple[str, ...] = ()
    minimum: int | None = None
    default: Value = None
    example: Value = None

    @property
    def variable(self) -> str:
        """Name of the environment variable, such as ``TDX_NUM_ENVS``."""
        return f"TDX_{self.name.upper()}"

    def parse(self, value: object, source: str, where: Where | None = None) -> Value:
        """Validate a value and convert it to the type of the setting; numbers may be text.

        ``source`` is the name of the setting in error messages.
        """
        if self.minimum is not None:
            # Python rejects integers of thousands of digits.
            is_number = isinstance(value, str) and value.isdecimal() and len(value) <= _MAX_DIGITS
            number = int(value) if is_number else value  # type: ignore[call-overload]
            if isinstance(number, bool) or not isinstance(number, int) or number < self.minimum:
                message = f"{source} must be an integer of at least {self.minimum}, got {value!r}"
                raise ArgumentError(message, where=where, hint=self._hint())
            if number >= 2**63:
                message = f"{source} must be below 2**63, got {value!r}"
                raise ArgumentError(message, where=where, hint=self._hint())
            return number
        if not isinstance(value, str) or not value:
            raise ArgumentError(
                f"{source} must be a quoted string, got {value!r}", where=where, hint=self._hint()
            )
        if self.choices and value not in self.choices:
            hint = did_you_mean(value, self.choices, self._hint())
            raise UnknownNameError(f"invalid value {value!r} for {source}", hint=hint, where=where)
        return value

    def _hint(self) -> str:
        if self.choices:
            return f"use one of {', '.join(self.choices)}"
        return f"for example {self.example}"


SETTINGS = (
    Setting(
        "format",
        "output format of results",
        choices=("table", "json", "jsonl", "csv", "md"),
        default="table",
        example="table",
    ),
    Setting(
        "color",
        "when to use color",
        choices=("auto", "always", "never"),
        default="auto",
        example="auto",
    ),
    Setting("seed", "seed of the env, unless the pipeline sets one", minimum=0, example=0),
    Setting(
        "num_envs", "number of envs in a batch, unless the pipeline sets it", minimum=1, example=4
    ),
    Setting("device", "device of the env, unless the pipeline sets it", example="cpu"),
    Setting(
        "check_select",
        "rules that tdx check applies, unless the pipeline selects some",
        example="TDX42,TDX44",
    ),
    Setting("check_ignore", "rules that tdx check skips", example="TDX422"),
    Setting("theme", "color theme of the terminal app", example="tdx-light"),
    Setting("keys", "keys of the terminal app", choices=("default", "vim"), default="default"),
)
KEYMAP = "keymap"
"""Table of the file that assigns keys to the commands of the terminal app."""
THEMES = "themes"
"""Table of the file that defines custom themes of the terminal app."""
_TABLES = (KEYMAP, THEMES)
_RETIRED = ("graphics",)
"""Settings of earlier versions, which a file may still have; they have no effect."""
_BY_NAME = {setting.name: setting for setting in SETTINGS}


@dataclass(frozen=True, slots=True)
class SettingValue(Result):
    """Value of a setting, and its source."""

    json_entries: ClassVar[Entries] = (
        *(Entry("name", "setting.name"), "value", "source"),
        *(Entry("variable", "setting.variable"), Entry("meaning", "setting.help")),
    )

    setting: Setting
    value: Value
    source: Source


@dataclass(frozen=True, slots=True)
class Settings(Result):
    """Values of all settings.

    Args:
        path: Path of the configuration file, which may not exist.
        exists: True if the file exists.
        values: Values of the settings, in order.
    """

    json_entries: ClassVar[Entries] = ("path", "exists", Entry("settings", "values"))

    path: Path
    exists: bool
    values: tuple[SettingValue, ...]

    def __getitem__(self, name: str) -> Value:
        return next(value.value for value in self.values if value.setting.name == name)

    def find(self, name: str) -> SettingValue:
        """Return a setting by name; UnknownNameError if there is none."""
        setting = find_setting(name)
        return next(value for value in self.values if value.setting is setting)

    def is_set(self, name: str) -> bool:
        """Return True if a setting is set in the environment or the file."""
        return any(
            value.setting.name == name and value.source != "default" for value in self.values
        )


def config_path() -> Path:
    """Return the path of the configuration file; ``TDX_CONFIG`` overrides the default."""
    override = os.environ.get(FILE_VARIABLE)
    if override:
        return Path(override)
    from platformdirs import user_config_path

    return user_config_path("tdx") / "config.toml"


def state_path() -> Path:
    """Return the folder for the app's state; ``TDX_STATE_DIR`` overrides the default."""
    override = os.environ.get(STATE_VARIABLE)
    from platformdirs import user_state_path

    return Path(override) if override else user_state_path("tdx")


def cache_path() -> Path:
    """Return the folder for copies of remote files; ``TDX_CACHE_DIR`` overrides the default."""
    override = os.environ.get(CACHE_VARIABLE)
    from platformdirs import user_cache_path

    return Path(override) if override else user_cache_path("tdx")


def find_setting(name: str, where: Where | None = None) -> Setting:
    """Return the declaration of a setting; UnknownNameError at ``where`` if there is none."""
    if name not in _BY_NAME:
        known = list(_BY_NAME)
        hint = did_you_mean(name, known, f"the settings are {', '.join(known)}")
        raise UnknownNameError(f"unknown setting {name!r}", hint=hint, where=where)
    return _BY_NAME[name]


def edited_file(name: str, value: str) -> str:
    """Return the text of the configuration file with another value of a setting; comments stay.

    The value is text, as on the command line.
    """
    import tomlkit
    from tomlkit.exceptions import TOMLKitError

    path = config_path()
    try:
        text = _parse_toml(path, read_limited(path, MAX_PIPELINE_BYTES))[0]
    except FileNotFoundError:
        text = config_template()
    except OSError as error:
        raise _unreadable(path, error) from error
    parsed = find_setting(name).parse(value, name)
    # Uncomment the line of the template rather than append one: below a commented table, it would
    # become part of the table when the user uncomments that.
    commented = next((line for line in text.splitlines(True) if line.startswith(f"# {name} =")), "")
    uncommented = text.replace(commented, f"{name} = 0\n", 1) if commented else text
    try:
        document = tomlkit.parse(text)
        if name not in document:
            candidate = tomlkit.parse(uncommented)
            document = candidate if name in candidate else document
        document[name] = parsed
        return tomlkit.dumps(document)
    except (TOMLKitError, RecursionError) as error:
        raise ArgumentError(
            f"{name} cannot be set in this file", hint="`tdx config edit` opens the file"
        ) from error


def _unreadable(path: Path, error: OSError) -> ArgumentError:
    return _broken(path, f"cannot read the configuration file: {explain_os_error(error)}")


def _broken(path: Path, message: str, line: int | None = None) -> ArgumentError:
    hint = f"fix or remove it; `tdx config init --force` creates a new {path.name}"
    return ArgumentError(message, hint=hint, where=Where(file=str(path), line=line))


def load_settings() -> Settings:
    """Load all settings from the environment, the configuration file and the defaults."""
    path = config_path()
    in_file = _read_file(path)
    values = []
    for setting in SETTINGS:
        value = setting.default
        source: Source = "default"
        if in_file is not None and setting.name in in_file:
            value, source = in_file[setting.name], "file"
        if text := os.environ.get(setting.variable):
            value, source = setting.parse(text, setting.variable), "environment"
        values.append(SettingValue(setting, value, source))
    return Settings(path, in_file is not None, tuple(values))


def _read_file(path: Path) -> dict[str, Value] | None:
    """Read the settings in the file; ``None`` if it does not exist."""
    try:
        if not path.exists():
            return None
        data = read_limited(path, MAX_PIPELINE_BYTES)
    except OSError as error:
        raise _unreadable(path, error) from error
    text, parsed = _parse_toml(path, data)
    values: dict[str, Value] = {}
    for name, value in parsed.items():
        if name not in (*_TABLES, *_RETIRED):
            where = Where(file=str(path), line=_find_line(text, name))
            values[name] = find_setting(name, where).parse(value, name, where)
    return values


def load_keymap() -> dict[str, str]:
    """Load the keys assigned to commands of the terminal app, by command id."""
    path, text, table = _load_table(KEYMAP)
    for name, keys in table.items():
        if not isinstance(keys, str) or not keys:
            where = Where(file=str(path), line=_find_line(text, name))
            hint = f'write "{name}" = "ctrl+x", with quotes around the id'
            message = f"{name} must be a quoted string of keys, got {keys!r}"
            raise ArgumentError(message, hint=hint, where=where)
    return table


def load_themes() -> dict[str, Any]:
    """Load the custom themes in the file by name, without validating them."""
    return _load_table(THEMES)[2]


def _load_table(name: str) -> tuple[Path, str, dict[str, Any]]:
    """Return the path and the text of the file, and one of its tables, which may be empty."""
    path = config_path()
    try:
        text, parsed = _parse_toml(path, read_limited(path, MAX_PIPELINE_BYTES))
    except OSError:
        return path, "", {}
    table = parsed.get(name, {})
    if not isinstance(table, dict):
        where = Where(file=str(path), line=_find_line(text, name))
        raise ArgumentError(
            f"{name} must be a table, got {table!r}", hint=f"write [{name}]", where=where
        )
    return path, text, dict(table)


def _parse_toml(path: Path, data: bytes) -> tuple[str, dict[str, object]]:
    import tomllib

    try:
        text = data.decode("utf-8")
        return text, tomllib.loads(text)
    except UnicodeDecodeError as error:
        raise _broken(path, "the configuration file is not valid UTF-8") from error
    except RecursionError as error:
        raise _broken(path, "the configuration file is nested too deeply") from error
    except ValueError as error:
        # A TOMLDecodeError, or the ValueError for an integer of thousands of digits.
        problem, line = str(error), None
        position = re.search(r" \(at line (\d+), column \d+\)$", problem)
        if position:
            problem, line = problem[: position.start()], int(position.group(1))
        message = f"invalid TOML: {problem[:1].lower()}{problem[1:]}"
        raise _broken(path, message, line) from error


def _find_line(text: str, name: str) -> int | None:
    """Return the number of the line that defines a key, from 1."""
    pattern = re.compile(rf"""\s*(\[\s*)?["']?{re.escape(name)}["']?\s*[=.\]]""")
    for number, line in enumerate(text.splitlines(), start=1):
        if pattern.match(line):
            return number
    return None


def config_template() -> str:
    """Return a configuration file with all settings commented out."""
    lines = [
        "# Defaults of tdx. Options and environment variables override these.",
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
        "# keys of the terminal app, by command id",
        f"# [{KEYMAP}]",
        '# "chain.remove" = "backspace"',
        "",
        '# a custom theme of the terminal app; select it with theme = "mine"',
        f"# [{THEMES}.mine]",
        '# primary = "#6ea8fe"',
        "# dark = true",
        "",
    ]
    return "\n".join(lines)
