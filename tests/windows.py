"""Run ``tdx`` as on Windows: its modules see ``os`` and ``signal`` without their POSIX parts.

Only imports that modules of tdx make are changed: the standard library, torch and Gymnasium have
Windows code of their own, which cannot run here.

    python -m tests.windows '["inspect", "spec", "--env", "Pendulum-v1"]' '["list", "kinds"]'

``["tui"]`` drives the app without a terminal: it steps an env, and prints the screen and what its
worker printed.
"""

from __future__ import annotations

import asyncio
import builtins
import errno
import json
import os
import signal
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

MODULES = {"fcntl", "grp", "pty", "pwd", "resource", "syslog", "termios", "tty"}
OS = {
    *("O_ACCMODE", "O_CLOEXEC", "O_DIRECTORY", "O_NOFOLLOW", "O_NONBLOCK", "WNOHANG"),
    *("chown", "fchmod", "fchown", "fork", "getloadavg", "getpgid", "getpgrp", "getpriority"),
    *("geteuid", "getuid", "killpg", "memfd_create", "mkfifo", "nice", "openpty", "pread"),
    *("pwrite", "posix_fallocate", "register_at_fork", "sched_getaffinity", "set_blocking"),
    *("setpgid", "setpriority", "setsid", "statvfs", "sysconf", "ttyname", "uname", "wait4"),
}
SIGNAL = {
    *("SIGALRM", "SIGBUS", "SIGCHLD", "SIGCONT", "SIGHUP", "SIGKILL", "SIGQUIT", "SIGSTOP"),
    *("SIGTSTP", "SIGUSR1", "SIGUSR2", "SIGWINCH", "SIG_BLOCK", "SIG_SETMASK", "SIG_UNBLOCK"),
    *("alarm", "pthread_kill", "pthread_sigmask", "setitimer", "siginterrupt"),
}
_BY_PATH_ONLY = (
    *("listdir", "lstat", "mkdir", "readlink", "rename", "replace", "rmdir", "scandir"),
    *("stat", "unlink"),
)


class _Windows(ModuleType):
    """A module without some of its names."""

    def __init__(self, module: ModuleType, missing: set[str]) -> None:
        super().__init__(module.__name__)
        vars(self).update(_module=module, _missing=missing)

    def __getattr__(self, name: str) -> Any:
        if name in self._missing:
            raise AttributeError(f"module {self._module.__name__!r} has no attribute {name!r}")
        return getattr(self._module, name)


def _by_path(function: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        if any(name.endswith("dir_fd") and given is not None for name, given in kwargs.items()):
            raise NotImplementedError("dir_fd unavailable on this platform")
        if args and isinstance(args[0], int):
            raise TypeError("path should be string, not int")
        return function(*args, **kwargs)

    return call


def _open(path: Any, flags: int, mode: int = 0o777) -> int:
    if os.path.isdir(path):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
    return os.open(path, flags, mode)


def _make_msvcrt() -> ModuleType:
    module: Any = ModuleType("msvcrt")
    module.LK_NBLCK = 2
    module.locking = lambda descriptor, mode, count: None
    return module


def install() -> None:
    """Change what the modules of tdx import from now on."""
    windows: dict[str, Any] = {"os": _Windows(os, OS), "signal": _Windows(signal, SIGNAL)}
    windows["msvcrt"] = _make_msvcrt()
    changes = {"name": "nt", "open": _open, "supports_dir_fd": set()}
    changes |= {name: _by_path(getattr(os, name)) for name in _BY_PATH_ONLY}
    vars(windows["os"]).update(changes)
    original = builtins.__import__

    def import_module(
        name: str, globals: Any = None, locals: Any = None, fromlist: Any = (), level: int = 0
    ) -> Any:
        importer = str(globals.get("__name__", "")) if globals else ""
        if importer.partition(".")[0] == "tdx" and not level:
            if name in MODULES:
                raise ModuleNotFoundError(f"No module named {name!r}", name=name)
            if name in windows:
                return windows[name]
        return original(name, globals, locals, fromlist, level)

    builtins.__import__ = import_module


WORKER_START = """
from tests.windows import install
install()
print("a worker as on Windows", flush=True)
"""


async def drive_app() -> None:
    """Step an env in the app, whose workers see the changed modules too."""
    from tdx.pipeline import Pipeline
    from tdx.pipeline.editing import Draft
    from tdx.tui.app import TdxApp
    from tdx.tui.backend.client import Backend
    from tdx.tui.files.document import watch_signals
    from tests.tui.driving import screen_text
    from tests.tui.idle import until

    backend = Backend()
    app = TdxApp(Draft.of(Pipeline.of("Pendulum-v1", "StepCounter")), backend=backend)
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "sitecustomize.py").write_text(WORKER_START)
        os.environ["PYTHONPATH"] = os.pathsep.join([folder, os.getcwd()])
        async with app.run_test(size=(120, 40)) as pilot:
            # As in a terminal.
            watch_signals(app, app.files.autosave, backend.close)
            workspace = app.workspace
            await until(lambda: workspace.status.revision == workspace.editor.revision)
            await pilot.press("3")
            await until(lambda: "paused · step 0" in screen_text(app))
            await pilot.press("s")
            await until(lambda: "paused · step 1" in screen_text(app))
            sys.stdout.write(f"{screen_text(app)}\n")
            for handle in backend._workers.values():
                sys.stdout.write(f"{handle.process.output.tail()}\n")
            await pilot.press("ctrl+q")


if __name__ == "__main__":
    # Modules that tdx has not imported yet, and the standard library, are as they are.

    install()
    from tdx.cli import main

    for arguments in sys.argv[1:]:
        sys.argv = ["tdx", *json.loads(arguments)]
        try:
            if sys.argv[1:] == ["tui"]:
                asyncio.run(drive_app())
                raise SystemExit
            main()
        except SystemExit as end:
            sys.stdout.write(f"exit {end.code or 0}\n")
