"""The files that ``tdx profile`` writes beside what it shows."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tdx.cli.new_file import STDOUT, check_free, write_new
from tdx.errors import ArgumentError

if TYPE_CHECKING:
    from tdx.cli.views.profile_view import Extras
    from tdx.profiling.result import Profile


@dataclass(frozen=True, slots=True)
class ProfileFiles:
    """Files, by the option that asks for each.

    Args:
        paths: where to; none for what is not asked for.
        force: whether those that are there are overwritten.

    Raises:
        ArgumentError: one is there, or two are to go to stdout.
    """

    paths: dict[str, str | None]
    force: bool

    def __post_init__(self) -> None:
        on_stdout = [option for option, path in self.paths.items() if path == STDOUT]
        if len(on_stdout) > 1:
            raise ArgumentError(
                f"{' and '.join(on_stdout)} cannot both go to stdout",
                hint="name a file for one of them",
            )
        for path in self.paths.values():
            if path is not None:
                check_free(path, force=self.force)

    @property
    def take_stdout(self) -> bool:
        """Whether stdout belongs to one of them."""
        return STDOUT in self.paths.values()

    @property
    def asked_for(self) -> list[str]:
        """The options that were given."""
        return [option for option, path in self.paths.items() if path is not None]

    def write(self, found: Profile, extras: Extras) -> None:
        """Write those that are asked for.

        Args:
            found: the profile.
            extras: what else was measured; only the page shows it.
        """
        for option in self.asked_for:
            self.write_text(option, _TEXTS[option](found, extras))

    def write_text(self, option: str, text: str) -> None:
        """Write one of them."""
        path = self.paths[option]
        assert path is not None
        write_new(path, text, force=self.force)
        if path != STDOUT:
            print(f"wrote {path}", file=sys.stderr)


def _saved(found: Profile, extras: Extras) -> str:
    from tdx.profiling.saved import format_profile

    return format_profile(found)


def _trace(found: Profile, extras: Extras) -> str:
    from tdx.profiling.traces import to_chrome_trace

    _say_what_is_cut(found, "--trace")
    return json.dumps(to_chrome_trace(found), allow_nan=False) + "\n"


def _speedscope(found: Profile, extras: Extras) -> str:
    from tdx.profiling.traces import to_speedscope

    _say_what_is_cut(found, "--speedscope")
    return json.dumps(to_speedscope(found), allow_nan=False) + "\n"


def _page(found: Profile, extras: Extras) -> str:
    from tdx.cli.html.profile_page import profile_page

    return profile_page(found, extras)


def _say_what_is_cut(found: Profile, option: str) -> None:
    from tdx.profiling.traces import describe_omitted_calls

    note = describe_omitted_calls(found)
    if note is not None:
        print(f"note: {option} has {note}; make fewer --steps to see all", file=sys.stderr)


_TEXTS: dict[str, Callable[[Profile, Extras], str]] = {
    "--save": _saved,
    "--trace": _trace,
    "--speedscope": _speedscope,
    "--html": _page,
}
