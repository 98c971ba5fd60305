"""Random calls of ``tdx`` with damaged input, reproducible by number."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random

from tests.robustness.mutations import (
    HOSTILE_TEXTS,
    HOSTILE_VALUES,
    deep,
    mutate_bytes,
    mutate_document,
    mutate_json,
    mutate_text,
)

SAMPLES = sorted((Path(__file__).parents[2] / "sample_pipelines").glob("*.yaml"))
FORMATS = {
    "hdf5": "seed.h5",
    "npz": "seed.npz",
    "safetensors": "seed.safetensors",
    "parquet": "seed.parquet",
    "jsonl": "seed.jsonl",
    "zarr": "seed.zarr",
}
_ENVS = ("CartPole-v1", "Pendulum-v1", "FrozenLake-v1", "NoSuchEnv-v0", "Taxi-v3")
_STAGES = (
    "RewardSum",
    "StepCounter(max_steps=5)",
    "CatFrames(4, dim=-1)",
    "RewardClipping(-1, 1)",
    "ObservationNorm(0.1, 2.0)",
    "DoubleToFloat",
    "VecNorm",
    "ActionScaling",
    "UnsqueezeTransform(-1)",
    'RenameTransform(["observation"], ["obs"])',
    "TensorDictPrimer(h=3)",
    "ToTensorImage",
)
_COMMANDS = (
    ("inspect", "spec"),
    ("inspect", "chain"),
    ("inspect", "keys"),
    ("inspect", "plan"),
    ("inspect", "values", "--steps", "3"),
    ("check",),
    ("diff",),
    ("rollout", "--steps", "5", "--dry-run"),
    ("rollout", "--steps", "5", "--out", "made"),
    ("report", "--out", "made.html"),
    ("list", "envs"),
    ("show", "transform"),
    ("explain",),
    ("schema",),
)
_OPTIONS = (
    "--format",
    "--num-envs",
    "--seed",
    "--device",
    "--env-kwargs",
    "--batching",
    "--key",
    "--color",
    "--policy",
    "--keys",
    "--chunk",
    "--steps",
    "--episodes",
    "--pipeline",
    "--t",
)


@dataclass(frozen=True)
class Case:
    """Call of ``tdx`` in a folder.

    Args:
        arguments: Arguments after ``tdx``.
        folder: Working directory with the damaged files.
    """

    arguments: tuple[str, ...]
    folder: Path


def make_case(number: int, seeds: Path, folder: Path) -> Case:
    """Create the case with a number.

    Args:
        number: Seed of all random choices.
        seeds: Folder with valid files, from :func:`tests.robustness.seeds.make_seeds`.
        folder: Empty working directory.
    """
    random = Random(number)
    make: Callable[[Random, Path, Path], tuple[str, ...]] = random.choice(
        (_flags, _flags, _pipeline, _pipeline, _dump, _dump, _import, _import, _other_file)
    )
    return Case(make(random, seeds, folder), folder)


def _flags(random: Random, seeds: Path, folder: Path) -> tuple[str, ...]:
    command = list(random.choice(_COMMANDS))
    if command[0] not in ("list", "show", "explain", "schema"):
        command += ["--env", random.choice(_ENVS)]
        for _ in range(random.randrange(4)):
            command += ["--t", _stage(random)]
    if random.random() < 0.5:
        value = random.choice((*HOSTILE_TEXTS, "100000000", "0", "json", "auto", "[1,", "a=[["))
        command += [random.choice(_OPTIONS), value]
    if random.random() < 0.2:
        command[random.randrange(len(command))] = random.choice(HOSTILE_TEXTS)
    return tuple(_passable(word) for word in command)


def _stage(random: Random) -> str:
    stage = random.choice(_STAGES)
    chance = random.random()
    if chance < 0.4:
        return mutate_text(stage, random)[:100_000]
    if chance < 0.6:
        name = stage.partition("(")[0]
        return f"{name}({random.choice(HOSTILE_VALUES)!r}, x={random.choice(HOSTILE_VALUES)!r})"
    return stage


def _passable(word: str) -> str:
    # NUL and very long words cannot be passed to a process.
    return word.replace("\0", "?")[:120_000]


def _pipeline(random: Random, seeds: Path, folder: Path) -> tuple[str, ...]:
    text = random.choice(SAMPLES).read_text()
    if random.random() < 0.5:
        from ruamel.yaml import YAML

        document = YAML(typ="safe").load(text)
        text = json.dumps(mutate_document(document, random))
    else:
        for _ in range(random.choice((1, 1, 3))):
            text = mutate_text(text, random)
    (folder / "p.yaml").write_text(text, encoding="utf-8", errors="replace")
    command = random.choice((("inspect", "spec"), ("check",), ("inspect", "chain"), ("diff",)))
    if command == ("diff",):
        return ("diff", "p.yaml", "p.yaml")
    return (*command, "--pipeline", "p.yaml")


def _dump(random: Random, seeds: Path, folder: Path) -> tuple[str, ...]:
    name = random.choice(("dump", "raw", "unfinished"))
    shutil.copytree(seeds / name, folder / "dump")
    files = [path for path in (folder / "dump").rglob("*") if path.is_file()]
    texts = [path for path in files if path.suffix in (".json", ".jsonl")]
    target = random.choice(texts if random.random() < 0.7 else files)
    _damage(target, random)
    return random.choice(
        (
            ("show", "dump"),
            ("verify", "dump"),
            ("list", "dumps", "."),
            ("export", "dump", "--to", random.choice(tuple(FORMATS)), "--out", "made"),
            ("replay", "dump", "--t", "RewardSum"),
            ("rollout", "--resume", "--out", "dump"),
            ("diff", "dump", "dump", "--steps", "3"),
        )
    )


def _import(random: Random, seeds: Path, folder: Path) -> tuple[str, ...]:
    name = random.choice(tuple(FORMATS.values()))
    source, copy = seeds / name, folder / name
    if source.is_dir():
        shutil.copytree(source, copy)
        _damage(random.choice([path for path in copy.rglob("*") if path.is_file()]), random)
    else:
        shutil.copy(source, copy)
        _damage(copy, random)
    return ("import", name, "--out", "made")


def _other_file(random: Random, seeds: Path, folder: Path) -> tuple[str, ...]:
    name = random.choice(
        ("profile.json", "actions.npy", "actions.json", "policy.safetensors", "config.toml", "deep")
    )
    env = ("--env", "Pendulum-v1")
    if name == "deep":
        (folder / "deep").write_text(deep(20_000, *random.choice((("[", "]"), ("{a: ", "}")))))
        return random.choice(
            (
                ("check", "--pipeline", "deep"),
                ("rollout", *env, "--policy", "sequence:deep", "--out", "made"),
                ("profile", "compare", "deep", "deep"),
            )
        )
    shutil.copy(seeds / name, folder / name)
    _damage(folder / name, random)
    if name == "profile.json":
        return ("profile", "compare", name, name)
    if name == "config.toml":
        return ("config", "show")  # The runner sets TDX_CONFIG if config.toml exists.
    policy = f"mlp:{name}" if name.startswith("policy") else f"sequence:{name}"
    return ("rollout", *env, "--policy", policy, "--steps", "5", "--out", "made")


def _damage(path: Path, random: Random) -> None:
    data = path.read_bytes()
    if path.suffix == ".json":
        text = mutate_json(data.decode(), random)
        path.write_text(text, encoding="utf-8", errors="replace")
    elif path.suffix in (".jsonl", ".toml"):
        lines = data.decode().split("\n")
        at = random.randrange(len(lines))
        usable = path.suffix == ".jsonl" and lines[at].startswith("{")
        lines[at] = mutate_json(lines[at], random) if usable else mutate_text(lines[at], random)
        path.write_text("\n".join(lines), encoding="utf-8", errors="replace")
    else:
        path.write_bytes(mutate_bytes(data, random))
    os.utime(path)
