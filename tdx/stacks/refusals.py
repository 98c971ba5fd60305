"""What cannot be opened or converted, and what to do instead."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import ClassVar

from tdx.foundation.errors import ArgumentError, describe_object
from tdx.foundation.serialization import Entries, Entry, Result
from tdx.pipeline import StageConfig, format_stage


@dataclass(frozen=True, slots=True)
class Missing(Result):
    """Why a stage has no counterpart.

    Args:
        reason: The reason, as half a sentence.
        advice: What to do instead.
        suggestion: Stage that is similar, but whose values differ.
    """

    json_entries: ClassVar[Entries] = (
        *("reason", "advice", Entry("suggestion", convert=format_stage)),
    )

    reason: str
    advice: str
    suggestion: StageConfig | None = None


NEEDS_SAMPLES = "a data pipeline needs samples: --samples FILE, or open_stack(target, samples)"
_NEXT_STEPS: tuple[tuple[str, str], ...] = (
    ("envpool.python.envpool:EnvPoolMixin", "create it by envpool.make_gymnasium"),
    (
        "brax.envs.wrappers.gym:GymWrapper",
        "it has the interface of Gym 0.21; open the env inside: torchrl.envs.BraxWrapper(env)",
    ),
    (
        "brax.envs.wrappers.gym:VectorGymWrapper",
        "it has the interface of Gym 0.21; open the env inside: torchrl.envs.BraxWrapper(env)",
    ),
    ("gym.core:Env", "convert it: shimmy.GymV21CompatibilityV0(env=env)"),
    (
        "pettingzoo.utils.env:AECEnv",
        "convert it: pettingzoo.utils.conversions.aec_to_parallel(env)",
    ),
    (
        "torch.nn.modules.module:Module",
        "pass the env that it acts in, or samples for it: --samples FILE, or open_stack(target, "
        "samples)",
    ),
    (
        "supersuit.vector.markov_vector_wrapper:MarkovVectorEnv",
        "pass the PettingZoo parallel env that it makes a vector env of: .par_env",
    ),
    (
        "supersuit.vector.concat_vec_env:ConcatVecEnv",
        "pass the PettingZoo parallel env, before pettingzoo_env_to_vec_env_v1 makes a vector env "
        "of its agents",
    ),
    ("pufferlib.emulation:PettingZooPufferEnv", "pass the PettingZoo parallel env inside: .env"),
    ("pufferlib.vector:Ray", "use the same envs in a pufferlib.vector.Serial"),
    (
        "brax.envs.base:Env",
        "its wrappers run inside a function compiled by jax.jit, where no step can be observed; "
        "open the env from outside: torchrl.envs.BraxWrapper(env)",
    ),
    (
        "mujoco_playground._src.mjx_env:MjxEnv",
        "its wrappers run inside a function compiled by jax.jit, where no step can be observed; "
        "open the env from outside: a gymnasium.Env whose step calls the compiled one",
    ),
    (
        "ray.rllib.env.multi_agent_env:MultiAgentEnv",
        "pass the PettingZoo parallel env that a ParallelPettingZooEnv holds in .par_env, or write "
        "the env as one",
    ),
    ("jumanji.env:Environment", "wrap it: torchrl.envs.JumanjiWrapper(env)"),
    ("lerobot.processor.pipeline:DataProcessorPipeline", NEEDS_SAMPLES),
    (
        "ray.rllib.connectors.connector_v2:ConnectorV2",
        "pass the pipeline that calls it, or the env runner: algo.env_runner",
    ),
)
"""Classes of other libraries and what to do with their objects."""


def imported_classes(names: Iterable[str]) -> Iterator[type]:
    """Yield the classes ``module:name`` whose modules are imported: others have no objects."""
    for path in names:
        module, _, name = path.partition(":")
        kind = getattr(sys.modules.get(module), name, None)
        if isinstance(kind, type):
            yield kind


def unsupported_error(target: object, hint: str | None = None) -> ArgumentError:
    """Return the error for an unsupported object.

    ``hint`` is for objects whose class is not known.
    """
    steps = (
        step for base, step in _NEXT_STEPS if isinstance(target, tuple(imported_classes((base,))))
    )
    return ArgumentError(f"{describe_object(target)} is not supported", hint=next(steps, hint))
