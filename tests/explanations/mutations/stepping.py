"""Step stacks by hand, without the code that compares and explains."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.explanations.mutations.model import Array

STEPS = 20


def step_by_hand(library: str, env: Any) -> list[dict[str, Array]]:
    """Return the observations of seeded steps, by key."""
    rng = np.random.default_rng(0)
    steppers = {
        "tdx": _step_tensordicts,
        "torchrl": _step_tensordicts,
        "gymnasium": _step_gymnasium,
        "sb3": _step_sb3,
        "lerobot": _step_checkpoint,
    }
    return steppers[library](env, rng)


def _step_checkpoint(folder: Any, rng: np.random.Generator) -> list[dict[str, Array]]:
    from tdx.stacks.checkpoints import read_checkpoint
    from tdx.stacks.checkpoints.steps import run
    from tests.explanations.mutations.lerobot_steps import samples

    processor = read_checkpoint(folder).processors[0]
    results = [run(processor, sample).samples[-1] for sample in samples()[:STEPS]]
    return [{key: np.asarray(value) for key, value in result.items()} for result in results]


def _step_gymnasium(env: Any, rng: np.random.Generator) -> list[dict[str, Array]]:
    env.action_space.seed(0)
    value, rows = env.reset(seed=0)[0], []
    for _ in range(STEPS):
        rows.append({"observation": np.array(value)})
        value, _, terminated, truncated, _ = env.step(env.action_space.sample())
        if terminated or truncated:
            value = env.reset()[0]
    env.close()
    return rows


def _step_sb3(envs: Any, rng: np.random.Generator) -> list[dict[str, Array]]:
    envs.seed(0)
    envs.action_space.seed(0)
    values, rows = envs.reset(), []
    for _ in range(STEPS):
        rows.append({"observation": np.array(values)})
        actions = [envs.action_space.sample() for _ in range(envs.num_envs)]
        envs.step_async(np.array(actions))
        values = envs.step_wait()[0]
    envs.close()
    return rows


def _step_tensordicts(env: Any, rng: np.random.Generator) -> list[dict[str, Array]]:
    env.set_seed(0)
    entries, rows = env.reset(), []
    done = {"done", "terminated", "truncated", "action", "reward", "next"}
    for _ in range(STEPS):
        rows.append({str(k): v.numpy().copy() for k, v in entries.items() if k not in done})
        entries["action"] = _random_action(env.action_spec, rng)
        following = env.step(entries)["next"]
        entries = env.reset() if bool(following["done"]) else following.exclude("reward")
    return rows


def _random_action(spec: Any, rng: np.random.Generator) -> Any:
    import torch

    if spec.dtype.is_floating_point:
        low, high = spec.space.low.numpy(), spec.space.high.numpy()
        return torch.as_tensor(rng.uniform(low, high), dtype=spec.dtype)
    if spec.shape:  # one-hot
        return torch.eye(spec.shape[-1], dtype=spec.dtype)[int(rng.integers(spec.shape[-1]))]
    return torch.tensor(int(rng.integers(spec.space.n)), dtype=spec.dtype)
