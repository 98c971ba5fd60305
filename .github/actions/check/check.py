"""Scripts of the action: findings as one SARIF file, and changes against a base as Markdown.

``check.py findings --out FILE [--options=OPTIONS] -- FILE…`` exits with the highest exit code of
the checks. ``check.py changes --base COMMIT --out FILE [--options=OPTIONS] -- FILE…`` writes an
empty file if the pipelines are those of the base.

The files are those of a pull request, whose names and contents anybody may choose.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path


def run_tdx(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command of tdx; its messages go to the log of the job."""
    command = [sys.executable, "-P", "-m", "tdx", *arguments]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)


def as_path(file: str) -> str:
    """Return a file name that no program takes for an option or an address."""
    return file if os.path.isabs(file) else f"./{os.path.normpath(file)}"


def write_findings(files: list[str], options: list[str], out: Path) -> int:
    """Check the files and write all findings to one SARIF file.

    Args:
        files: Pipeline files.
        options: Options of ``tdx check``.
        out: File to write.

    Returns:
        Exit code of the check.
    """
    done = run_tdx("check", "--format", "sarif", *options, "--", *map(as_path, files))
    print(f"{len(files)} files: exit code {done.returncode}", file=sys.stderr)
    out.write_text(done.stdout or json.dumps({"version": "2.1.0", "runs": []}), encoding="utf-8")
    return done.returncode


def describe_changes(files: list[str], options: list[str], base: str) -> str:
    """Return the changes of stages, specs and cost since a commit, as Markdown.

    Args:
        files: Pipeline files of the work tree.
        options: Options of ``tdx profile``; without any, the costs are not compared.
        base: Commit to compare with.

    Returns:
        Empty text if no pipeline changed.
    """
    parts = []
    with tempfile.TemporaryDirectory() as folder:
        for number, file in enumerate(files):
            before = Path(folder, str(number)) / Path(file).name
            before.parent.mkdir()
            shown = subprocess.run(
                ["git", "show", f"{base}:{as_path(file)}"], capture_output=True, check=False
            )
            if shown.returncode:
                parts.append(f"{_title(file)}\n\nThis pipeline is new.\n")
            elif shown.stdout != Path(file).read_bytes():
                before.write_bytes(shown.stdout)
                parts.append(_describe_file(file, before, options))
    return "\n".join(["## tdx\n", *filter(None, parts)]) if any(parts) else ""


def _describe_file(file: str, before: Path, options: list[str]) -> str:
    difference = run_tdx("diff", "--format", "md", "--", str(before), as_path(file))
    if difference.returncode == 0:
        return ""
    # The first line is the title, which names a temporary file.
    body = difference.stdout.partition("\n")[2].replace("\n## ", "\n#### ").strip()
    failed = "One of the two versions cannot be built; the check has the reason."
    return f"{_title(file)}\n\n{body or failed}\n" + _describe_cost(file, before, options)


def _title(file: str) -> str:
    """Return the heading of a file; its name is code, which mentions nobody and links nowhere."""
    shown = "".join(mark if mark.isprintable() and mark != "`" else "?" for mark in file)
    return f"### `{shown}`"


def _describe_cost(file: str, before: Path, options: list[str]) -> str:
    if not options:
        return ""
    times = []
    for number, path in enumerate((str(before), as_path(file))):
        saved = before.with_name(f"{number}.json")
        saving = ("--passes", "none", "--save", str(saved))
        done = run_tdx("profile", *saving, *options, "--", path)
        if done.returncode:
            return "\nThe cost could not be measured; the log has the reason.\n"
        times.append(saved)
    compared = run_tdx("profile", "compare", *map(str, times), "--force", "--format", "md")
    body = compared.stdout.partition("\n")[2].replace("\n## ", "\n##### ").strip()
    return (
        f"\n#### cost\n\n<details><summary>{_summarize(body)}</summary>\n\n{body}\n\n</details>\n"
    )


def _summarize(table: str) -> str:
    """Return the times of the whole step, from the table of a comparison."""
    for line in table.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if cells[0] == "whole step":
            _, _, _, before, after, change, noise, verdict = cells
            return f"whole step: {before} → {after} µs ({change}, noise {noise}): {verdict}"
    return "times"


def main(arguments: list[str]) -> int:
    """Run one of the two scripts and return its exit code."""
    parser = argparse.ArgumentParser(description="Scripts of the tdx action.")
    parser.add_argument("task", choices=("findings", "changes"))
    parser.add_argument("files", nargs="+")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--options", type=shlex.split, default=[])
    parser.add_argument("--base", default="HEAD")
    given = parser.parse_args(arguments)
    if given.task == "findings":
        return write_findings(given.files, given.options, given.out)
    text = describe_changes(given.files, given.options, given.base)
    given.out.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
