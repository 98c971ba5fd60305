"""Random pipelines."""

from __future__ import annotations

import math
from keyword import iskeyword

from hypothesis import strategies as st

from tdx.pipeline import Call, Dtype, EnvConfig, Pipeline, RolloutConfig, StageConfig
from tdx.pipeline.values import DictKey, Value

NAMES = st.from_regex(r"[a-z][a-z0-9_]{0,8}", fullmatch=True).filter(str.isidentifier)
ARGUMENTS = NAMES.filter(lambda name: not iskeyword(name))
CLASSES = st.from_regex(r"[A-Z][A-Za-z0-9]{0,8}", fullmatch=True).filter(
    lambda name: name not in ("True", "False", "None")
)
TEXTS = st.one_of(
    st.text(st.characters(codec="utf-8", exclude_categories=("Cs", "Cc", "Cn", "Co")), max_size=12),
    st.sampled_from(
        ["=1", "torch.float32", "A(b)", "A(1)", "null", "true", "1.0", "- x", "#", "~"]
    ),
    st.sampled_from(
        ["a: b", ":0", "'", '"', "'\"", "\\", "\n", "a\nb\n", " ", "\t", "{", "*a", "inf"]
    ),
)
NUMBERS = st.one_of(st.integers(-(10**12), 10**12), st.floats(allow_nan=False))
DTYPES = st.sampled_from(["float32", "float64", "uint8", "int64", "bool"]).map(Dtype)
DICT_KEYS: st.SearchStrategy[DictKey] = st.one_of(
    TEXTS, st.integers(0, 99), st.tuples(TEXTS, TEXTS)
)


def _inside(values: st.SearchStrategy[Value]) -> st.SearchStrategy[Value]:
    return st.one_of(
        st.lists(values, max_size=3).map(tuple),
        st.dictionaries(DICT_KEYS, values, max_size=3),
        st.builds(
            Call,
            CLASSES,
            st.lists(values, max_size=2).map(tuple),
            st.dictionaries(ARGUMENTS, values, max_size=2),
        ),
    )


LEAVES: st.SearchStrategy[Value] = st.one_of(st.none(), st.booleans(), NUMBERS, TEXTS, DTYPES)
VALUES = st.recursive(LEAVES, _inside, max_leaves=8)
CODE_NAMES = st.builds(lambda module, name: f"{module}:{name}", ARGUMENTS, CLASSES)
STAGES = st.builds(
    StageConfig,
    st.one_of(CLASSES, CODE_NAMES),
    st.lists(VALUES, max_size=2).map(tuple),
    st.dictionaries(ARGUMENTS, VALUES, max_size=3),
)
ENVS = st.builds(
    EnvConfig,
    st.sampled_from(["Pendulum-v1", "ALE/Pong-v5", "tdx/CartPole", "my_envs:make"]),
    kwargs=st.dictionaries(ARGUMENTS, VALUES, max_size=2),
    from_pixels=st.booleans(),
    pixels_only=st.booleans(),
    num_envs=st.one_of(st.none(), st.integers(1, 64)),
    batching=st.sampled_from(["vector", "serial", "parallel"]),
    device=st.sampled_from([None, "cpu", "cuda:1"]),
    seed=st.one_of(st.none(), st.integers(0, 2**31)),
    worker_timeout=st.sampled_from([None, 0.5, 600.0]),
)
POLICIES = [
    *(None, "random", "my_agent:policy", "mlp:a b.safetensors", "module:a.pt2"),
    'mlp("a.safetensors", activation="tanh", in_keys=["observation", ("agents", "state")])',
]
PIPELINES = st.builds(
    Pipeline,
    ENVS,
    st.lists(STAGES, max_size=4).map(tuple),
    policy=st.sampled_from(POLICIES),
    rollout=st.builds(
        RolloutConfig,
        max_steps=st.one_of(st.none(), st.integers(1, 999)),
        break_when_any_done=st.sampled_from([None, True, False]),
        auto_reset=st.sampled_from([None, True, False]),
    ),
)

# Stages that can be written as a program: transforms of tdx with values of the declared types.
KEYS = st.lists(st.one_of(ARGUMENTS, st.tuples(ARGUMENTS, ARGUMENTS)), min_size=1, max_size=3)
FLOATS = st.one_of(st.floats(allow_nan=False), st.sampled_from([math.inf, -math.inf]))
KNOWN_STAGES = st.one_of(
    st.builds(
        lambda steps: StageConfig("StepCounter", (), {"max_steps": steps}), st.integers(1, 9)
    ),
    st.builds(lambda keys: StageConfig("RewardSum", (), {"in_keys": tuple(keys)}), KEYS),
    st.builds(lambda low, high: StageConfig("RewardClipping", (low, high)), FLOATS, FLOATS),
    st.builds(
        lambda stages: StageConfig("Compose", tuple(stages)),
        st.lists(st.sampled_from([Call("InitTracker"), Call("StepCounter", (5,))]), max_size=2),
    ),
    st.builds(lambda name, a: StageConfig(name, (), {"a": a}), CODE_NAMES, FLOATS),
)


def exactly(value: object) -> str:
    """Text that distinguishes 1 from 1.0 and True, which are equal."""
    return repr(value)
