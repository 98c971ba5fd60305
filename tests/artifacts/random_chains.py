"""Random chains as a backend gets them: of transforms, and of operators with explicit state."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor, nn

import tdx
from tdx.artifacts.functions import (
    ArtifactEntry,
    ChainFunctions,
    ExportedFunction,
    chain_functions,
)

Stage = Callable[[Tensor], Tensor]


def _affine(rng: random.Random, size: int) -> Stage:
    loc, scale = (torch.tensor([rng.uniform(-2, 2) for _ in range(size)]) for _ in range(2))
    return rng.choice(
        [
            lambda x: (x - loc) / scale,
            lambda x: x * scale + loc,
            lambda x: x.sub(0.1).mul(2.5),
            lambda x: 1.5 - x,
            lambda x: x.double().sub(0.1).to(torch.float32),
        ]
    )


def _clip(rng: random.Random, size: int) -> Stage:
    low = torch.tensor([rng.uniform(-3, 0.5) for _ in range(size)])
    return rng.choice(
        [
            lambda x: x.clamp(-1.0, 1.0),
            lambda x: x.clamp(min=0.0),
            lambda x: x.clamp(max=-0.5),
            lambda x: x.clamp(low, low + 1),
            lambda x: torch.maximum(x, torch.tensor(0.25)),
        ]
    )


def _move(rng: random.Random, size: int) -> Stage:
    order = torch.tensor(rng.sample(range(size), size))
    kept = rng.randrange(1, size + 1)
    return rng.choice(
        [
            lambda x: x[order],
            lambda x: x.flip(0),
            lambda x: x.roll(2),
            lambda x: torch.cat([x[kept:], x[:kept]]),
            lambda x: x.repeat(2).unflatten(0, (2, size)).transpose(0, 1).flatten()[::2],
            lambda x: torch.stack([x, x.neg()], -1)[..., 1],
            lambda x: nn.functional.pad(x, (1, 1), value=0.5)[1 : size + 1],
            lambda x: x[0].expand(size),
            lambda x: x.unsqueeze(0).permute(1, 0).reshape(size),
        ]
    )


def _choose(rng: random.Random, size: int) -> Stage:
    return rng.choice(
        [
            lambda x: torch.where(x > 0.25, x, x.abs()),
            lambda x: x.masked_fill((x <= 0) | x.isnan(), 3.0),
            lambda x: torch.where(x.isfinite() & ~(x >= 1.0), x, torch.full_like(x, -0.0)),
            lambda x: x.sign() + (x == x.floor()).float(),
            lambda x: x.round() - x.trunc() + x.ceil(),
            lambda x: x.reciprocal() * (x != 0).logical_xor(x < 1),
            lambda x: x + x[:4].sum(-1, keepdim=True),
            lambda x: x - x[: min(size, 3)].mean(),
            lambda x: x**3 - x**2,
            lambda x: x * (x > 0).any() + torch.ones(2).add(x.isinf().all()).sum(),
            lambda x: x + nn.functional.one_hot((x > 0).int().argmax(), size),
        ]
    )


class RandomChain(nn.Module):
    """Maps observations, and keeps a window of them, the last one, a count and a sum."""

    def __init__(self, rng: random.Random, size: int) -> None:
        super().__init__()
        kinds = (_affine, _clip, _move, _choose)
        self.before, self.after = (
            [rng.choice(kinds)(rng, size) for _ in range(rng.randrange(1, 4))] for _ in range(2)
        )
        self.frames = rng.randrange(2, 5)
        table = torch.tensor([[rng.uniform(-1, 1) for _ in range(5)] for _ in range(2)])
        self.table = table

    def mapped(self, x: Tensor, stages: list[Stage]) -> Tensor:
        for stage in stages:
            x = stage(x)
        return x


class Reset(nn.Module):
    def __init__(self, chain: RandomChain) -> None:
        super().__init__()
        self.chain = chain

    def forward(self, observation: Tensor) -> tuple[Tensor, ...]:
        chain = self.chain
        x = chain.mapped(observation, chain.before)
        window = torch.cat([x] * chain.frames)
        count = torch.zeros(1, dtype=torch.int64)
        return chain.mapped(x, chain.after), window, x.clone(), count, torch.zeros(1)


class Step(nn.Module):
    def __init__(self, chain: RandomChain) -> None:
        super().__init__()
        self.chain = chain

    def forward(
        self,
        observation: Tensor,
        reward: Tensor,
        window: Tensor,
        last: Tensor,
        count: Tensor,
        total: Tensor,
    ) -> tuple[Tensor, ...]:
        chain = self.chain
        x = chain.mapped(observation, chain.before)
        window = torch.cat([window[x.numel() :], x])
        count = count + 1
        total = total + reward
        delta = x - last
        ended = count >= 20
        return chain.mapped(delta, chain.after), ended, window, x, count, total


class Act(nn.Module):
    def __init__(self, chain: RandomChain) -> None:
        super().__init__()
        self.chain = chain

    def forward(self, bins: Tensor, mask: Tensor) -> tuple[Tensor, ...]:
        table = self.chain.table
        place = table.gather(-1, bins.unsqueeze(-1)).squeeze(-1)
        return torch.where(mask, place * 2 - 1, 0.5), bins * 3 - 7, mask.logical_not()


def entry(name: str, value: Tensor, *, state: bool = False) -> ArtifactEntry:
    return ArtifactEntry(name, name, tuple(value.shape), value.dtype, state, f"{name} of a test")


def export(
    name: str,
    module: nn.Module,
    inputs: dict[str, Tensor],
    outputs: tuple[str, ...],
    states: frozenset[str] = frozenset(),
) -> ExportedFunction:
    """Export a module as a function of a chain."""
    values = tuple(inputs.values())
    program = torch.export.export(module, values, strict=False).run_decompositions({})
    results = module(*values)
    return ExportedFunction(
        name,
        program,
        tuple(entry(key, value, state=key in states) for key, value in inputs.items()),
        tuple(
            entry(key, value, state=key in states)
            for key, value in zip(outputs, results, strict=True)
        ),
    )


class Vectors(tdx.EnvBase):
    """Env that is never stepped: an export needs its specs only."""

    def __init__(self, size: int, joints: int) -> None:
        super().__init__()
        self.observation_spec = tdx.Composite(
            observation=tdx.Unbounded((size,)),
            joints=tdx.Bounded(-2.0, 2.0, (joints,)),
            precise=tdx.Unbounded((2,), dtype=torch.float64),
            mask=tdx.Categorical(2, (size,), dtype=torch.bool),
        )
        self.action_spec = tdx.Bounded(torch.tensor([-2.0, 0.5]), torch.tensor([1.0, 4.0]), (2,))
        self.reward_spec = tdx.Unbounded((1,))

    def _reset(self, *_: Any, **__: Any) -> Any:
        raise NotImplementedError

    _step = _set_seed = _reset


def _transforms(rng: random.Random, size: int, joints: int) -> list[list[Any]]:
    """Return groups of stages: normalize, scale, clip, select, permute, stack, count, mask, ..."""
    o, j = ["observation"], ["joints"]

    def vector(count: int, low: float, high: float) -> Tensor:
        return torch.tensor([rng.uniform(low, high) for _ in range(count)])

    bins = torch.tensor([-1.0, -0.25, 0.0, 0.5])
    order = torch.tensor(rng.sample(range(size), size))

    def mask(td: TensorDictBase) -> TensorDictBase:
        return td.set("masked", torch.where(td["mask"], td["observation"][..., :1], -0.0))

    return [
        [tdx.ObservationNorm(vector(size, -2, 2), vector(size, 0.1, 3), in_keys=o)],
        [tdx.ObservationNorm(0.3, rng.uniform(0.1, 9), in_keys=j, standard_normal=True)],
        [tdx.ClipTransform(in_keys=o, low=rng.uniform(-2, 0), high=rng.uniform(0, 2))],
        [tdx.ClipTransform(in_keys=j, low=0.0)],
        [tdx.CatFrames(rng.randrange(2, 5), -1, in_keys=o)],
        [tdx.CatFrames(3, -1, j, ["history"], "constant", rng.uniform(-1, 1))],
        [tdx.CatTensors(["observation", "joints"], "state", del_keys=False)],
        [tdx.NextObservationDelta(in_keys=j, delta_dtype=torch.float32)],
        [tdx.StepCounter(rng.choice([None, 5])), tdx.InitTracker()],
        [tdx.RewardScaling(rng.uniform(-1, 1), rng.uniform(-2, 2))],
        [tdx.RewardSum()],
        [tdx.RewardClipping(-1.0, rng.choice([0.0, 0.5]))],
        [tdx.TargetReturn(rng.uniform(1, 20))],
        [tdx.UnaryTransform(j, ["signs"], fn=torch.sign)],
        [tdx.UnaryTransform(o, ["sorted"], fn=lambda x: x[..., order])],
        [tdx.UnaryTransform(j, ["bin"], fn=lambda x: (x.unsqueeze(-1) >= bins).int().argmax(-1))],
        [mask],
        [tdx.VecNormV2(in_keys=j, out_keys=["normal"])],
        [tdx.DoubleToFloat(in_keys=["precise"])],
        [
            tdx.UnsqueezeTransform(-1, in_keys=o),
            tdx.PermuteTransform([-1, -2], in_keys=o),
            tdx.FlattenObservation(-2, -1, in_keys=o),
        ],
        [tdx.ActionScaling()],
        [tdx.RenameTransform(["precise"], ["exact"])],
    ]


def random_chain(seed: int) -> ChainFunctions:
    """Export a random chain: of transforms for odd seeds, of operators for even ones."""
    rng = random.Random(seed)
    size = rng.choice([1, 3, 4, 7, 8, 11, 17, 33, 100])
    return _chain_of_transforms(seed, rng, size) if seed % 2 else _operators(seed, rng, size)


def _chain_of_transforms(seed: int, rng: random.Random, size: int) -> ChainFunctions:
    joints = rng.randrange(1, 9)
    while True:
        groups = rng.sample(_transforms(rng, size, joints), rng.randrange(3, 8))
        stages = [stage for group in groups for stage in group]
        env = tdx.TransformedEnv(Vectors(size, joints), tdx.Compose(*stages))
        try:
            _ = env.specs
        except tdx.TdxError:  # a stage needs the shape that another one has changed
            continue
        return chain_functions(env, f"random_{seed}", [type(stage).__name__ for stage in stages])


def _operators(seed: int, rng: random.Random, size: int) -> ChainFunctions:
    size = max(size, 4)
    chain = RandomChain(rng, size)
    observation, states = torch.zeros(size), frozenset({"window", "last", "count", "total"})
    initial = {
        "window": torch.zeros(size * chain.frames),
        "last": torch.zeros(size),
        "count": torch.zeros(1, dtype=torch.int64),
        "total": torch.zeros(1),
    }
    kept = tuple(initial)
    functions = (
        export("reset", Reset(chain), {"observation": observation}, ("mapped", *kept), states),
        export(
            "step",
            Step(chain),
            {"observation": observation, "reward": torch.zeros(1), **initial},
            ("mapped", "ended", *kept),
            states,
        ),
        export(
            "act",
            Act(chain),
            {"bins": torch.zeros(2, dtype=torch.int64), "mask": torch.ones(2, dtype=torch.bool)},
            ("action", "scaled", "unmasked"),
        ),
    )
    return ChainFunctions(f"random_{seed}", f"{seed:064x}", ("Random",), functions, initial)


def draw(rng: torch.Generator, like: ArtifactEntry, count: int) -> Tensor:
    """Draw inputs: one element in four is NaN, infinite, a zero, a denormal or huge."""
    shape = (count, *like.shape)
    if like.dtype is torch.bool:
        return torch.rand(shape, generator=rng) < 0.5
    if not like.dtype.is_floating_point:
        return torch.randint(0, 5, shape, generator=rng, dtype=like.dtype)
    value = torch.randn(shape, generator=rng, dtype=like.dtype) * 3
    special = torch.tensor(
        [float("nan"), float("inf"), -float("inf"), -0.0, 0.0, 1e-40, -3e-42, 3e38, 0.5, -1.0],
        dtype=like.dtype,
    )
    chosen = special[torch.randint(0, len(special), shape, generator=rng)]
    return torch.where(torch.rand(shape, generator=rng) < 0.25, chosen, value)
