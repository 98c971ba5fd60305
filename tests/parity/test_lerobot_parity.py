"""Steps of LeRobot's processors: the same bits, step by step, as LeRobot itself."""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import tdx
from tdx.inspection.checkpoint_check import check_checkpoint
from tdx.stacks.checkpoints import Processor, SampleEntries, read_checkpoint
from tdx.stacks.checkpoints.device_calls import count_checkpoint_calls
from tdx.stacks.checkpoints.scaling import STATISTICS
from tdx.stacks.checkpoints.steps import run
from tdx.stacks.samples import Sample, SampleStack, to_array
from tests.programs import require_package
from tests.stacks.checkpoints.folders import ACTION, IMAGE, JOINTS, STATE, stock_statistics

pytestmark = pytest.mark.programs

MODES = ("IDENTITY", *STATISTICS)


@pytest.fixture(scope="module")
def lerobot() -> Any:
    """The package of LeRobot's processors."""
    require_package("lerobot")
    import lerobot.processor

    return lerobot.processor


def features() -> tuple[dict[str, Any], dict[str, Any]]:
    from lerobot.configs.types import FeatureType, PolicyFeature

    inputs = {
        STATE: PolicyFeature(FeatureType.STATE, (JOINTS,)),
        IMAGE: PolicyFeature(FeatureType.VISUAL, (3, 8, 8)),
    }
    return inputs, {ACTION: PolicyFeature(FeatureType.ACTION, (JOINTS,))}


def modes(state: str, action: str, image: str) -> dict[Any, Any]:
    from lerobot.configs.types import FeatureType, NormalizationMode

    return {
        FeatureType.STATE: NormalizationMode(state),
        FeatureType.ACTION: NormalizationMode(action),
        FeatureType.VISUAL: NormalizationMode(image),
    }


def save(lerobot: Any, path: Path, before: list[Any], after: list[Any]) -> tuple[Any, Any]:
    """Save two processors as a policy does, and return them as LeRobot loads them."""
    from lerobot.processor.converters import (
        policy_action_to_transition,
        transition_to_policy_action,
    )

    pairs = {
        "policy_preprocessor": (before, {}),
        "policy_postprocessor": (
            after,
            {
                "to_transition": policy_action_to_transition,
                "to_output": transition_to_policy_action,
            },
        ),
    }
    loaded = []
    for name, (steps, options) in pairs.items():
        kind = lerobot.PolicyProcessorPipeline
        kind(steps=steps, name=name, **options).save_pretrained(path)
        loaded.append(kind.from_pretrained(str(path), config_filename=f"{name}.json", **options))
    return loaded[0], loaded[1]


def assert_same_bits(mine: SampleEntries, theirs: Any) -> None:
    for key, value in theirs.items():
        if isinstance(value, torch.Tensor):
            array = mine[key]
            assert isinstance(array, np.ndarray)
            assert array.dtype == value.numpy().dtype
            assert array.shape == tuple(value.shape)
            assert array.tobytes() == value.numpy().tobytes(), key
        elif isinstance(value, str | list):
            assert mine[key] == value


def as_theirs(sample: SampleEntries) -> dict[str, Any]:
    return {
        key: torch.from_numpy(value.copy()) if isinstance(value, np.ndarray) else value
        for key, value in sample.items()
    }


def compare_steps(mine: Processor, theirs: Any, sample: SampleEntries) -> SampleEntries:
    """Compare the sample after each step, and return the last one."""
    trace = run(mine, sample)
    assert trace.skipped == {}
    transitions = list(theirs.step_through(as_theirs(sample)))
    assert len(transitions) == len(trace.samples)
    for entries, transition in zip(trace.samples, transitions, strict=True):
        flat = {**(transition.get("observation") or {})}
        if transition.get("action") is not None:
            flat["action"] = transition["action"]
        assert_same_bits(entries, flat)
    return trace.samples[-1]


def draw(seed: int, dtype: type[np.floating[Any]] = np.float32) -> dict[str, object]:
    rng = np.random.default_rng(seed)
    return {
        STATE: rng.normal(0, 5, JOINTS).astype(dtype),
        IMAGE: rng.random((3, 8, 8)).astype(np.float32),
        ACTION: rng.normal(0, 5, JOINTS).astype(np.float32),
        "task": "pick the cube",
    }


@pytest.mark.parametrize("mode", MODES)
def test_stock_pipeline_has_the_same_bits_and_no_findings(
    lerobot: Any, mode: str, tmp_path: Path
) -> None:
    inputs, outputs = features()
    norm_map = modes(mode, mode, "MEAN_STD")
    statistics = stock_statistics()
    before, after = save(
        lerobot,
        tmp_path,
        [
            lerobot.RenameObservationsProcessorStep(rename_map={}),
            lerobot.AddBatchDimensionProcessorStep(),
            lerobot.DeviceProcessorStep(device="cpu"),
            lerobot.NormalizerProcessorStep(
                features={**inputs, **outputs}, norm_map=norm_map, stats=statistics
            ),
        ],
        [
            lerobot.UnnormalizerProcessorStep(
                features=outputs, norm_map=norm_map, stats=statistics
            ),
            lerobot.DeviceProcessorStep(device="cpu"),
        ],
    )
    declared = {
        name: {key: {"type": f.type.value, "shape": f.shape} for key, f in group.items()}
        for name, group in (("input_features", inputs), ("output_features", outputs))
    }
    mapping = {kind.value: value.value for kind, value in norm_map.items()}
    config = {"type": "act", **declared, "normalization_mapping": mapping}
    (tmp_path / "config.json").write_text(json.dumps(config))
    checkpoint = read_checkpoint(tmp_path)
    assert check_checkpoint(checkpoint).findings == ()
    preprocessor, postprocessor = checkpoint.processors
    for seed in range(20):
        result = compare_steps(preprocessor, before, draw(seed))
        action = {ACTION: result[ACTION]}
        mine = run(postprocessor, action).samples[-1]
        assert_same_bits(mine, {ACTION: after(as_theirs(action)[ACTION])})


def test_pipeline_object_has_the_same_values_as_its_checkpoint(
    lerobot: Any, tmp_path: Path
) -> None:
    inputs, outputs = features()
    before, _ = save(
        lerobot,
        tmp_path,
        [
            lerobot.AddBatchDimensionProcessorStep(),
            lerobot.NormalizerProcessorStep(
                features={**inputs, **outputs},
                norm_map=modes("MEAN_STD", "MEAN_STD", "MEAN_STD"),
                stats=stock_statistics(),
            ),
        ],
        [],
    )
    sample = {key: value for key, value in draw(0).items() if key in (STATE, IMAGE)}
    stack = tdx.open_stack(before, [sample])
    assert [stage.name for stage in stack.stages] == [
        "AddBatchDimensionProcessorStep",
        "NormalizerProcessorStep",
    ]
    result = stack.target.reset()[0]
    assert_same_bits(run(read_checkpoint(tmp_path).processors[0], sample).samples[-1], result)
    assert tdx.check_contract(stack, tdx.freeze(stack)).same


def test_pipeline_object_has_the_values_that_its_hooks_see(lerobot: Any) -> None:
    inputs, outputs = features()

    class DomainStep(lerobot.ComplementaryDataProcessorStep):  # type: ignore[misc]
        """Writes what no converter of LeRobot takes over from a batch."""

        def complementary_data(self, complementary_data: Any) -> Any:
            count = complementary_data.get("domain_id", torch.tensor([2]))
            return {**complementary_data, "domain_id": count + 1}

        def transform_features(self, features: Any) -> Any:
            return features

    pipeline = lerobot.PolicyProcessorPipeline(
        steps=[
            lerobot.RenameObservationsProcessorStep(rename_map={"observation.robot": "robot"}),
            DomainStep(),
            DomainStep(),
            lerobot.RenameObservationsProcessorStep(rename_map={"robot": STATE}),
            lerobot.AddBatchDimensionProcessorStep(),
            lerobot.NormalizerProcessorStep(
                features={**inputs, **outputs},
                norm_map=modes("MEAN_STD", "MIN_MAX", "IDENTITY"),
                stats=stock_statistics(),
            ),
        ]
    )
    sample = {key: value for key, value in draw(0).items() if key != "task"}
    sample["observation.robot"] = sample.pop(STATE)
    seen: list[dict[str, Any]] = []

    def see(index: int, transition: Any) -> None:
        named = {key.value: value for key, value in transition.items()}
        flat = {**named["observation"], **(named["complementary_data"] or {})}
        seen.append({**flat, "action": named["action"]})

    pipeline.register_after_step_hook(see)
    pipeline(as_theirs(sample))
    pipeline.unregister_after_step_hook(see)
    stack = tdx.open_stack(pipeline, [sample])
    assert isinstance(stack, SampleStack)
    current: Sample = sample
    for part, expected in zip(stack.parts, seen, strict=True):
        current = part.forward(current)
        numbers = {key: value for key, value in expected.items() if value is not None}
        assert set(current) == set(numbers)
        assert_same_bits({key: to_array(value) for key, value in current.items()}, numbers)
    assert tdx.check_contract(stack, tdx.freeze(stack)).same


def test_constant_features_have_the_same_bits(lerobot: Any, tmp_path: Path) -> None:
    inputs, outputs = features()
    statistics = stock_statistics()
    for name in ("std", "q99", "max", "q90"):
        statistics[STATE][name] = np.zeros_like(statistics[STATE][name])
    for name in ("q01", "min", "q10"):
        statistics[STATE][name] = np.zeros_like(statistics[STATE][name])
    for mode in STATISTICS:
        step = lerobot.NormalizerProcessorStep(
            features={**inputs, **outputs}, norm_map=modes(mode, mode, "IDENTITY"), stats=statistics
        )
        before, _ = save(lerobot, tmp_path / mode, [step], [])
        compare_steps(read_checkpoint(tmp_path / mode).processors[0], before, draw(0))


def test_dtypes_and_renamed_keys_have_the_same_bits(lerobot: Any, tmp_path: Path) -> None:
    inputs, outputs = features()
    before, _ = save(
        lerobot,
        tmp_path,
        [
            lerobot.RenameObservationsProcessorStep(rename_map={"observation.robot": STATE}),
            lerobot.AddBatchDimensionProcessorStep(),
            lerobot.NormalizerProcessorStep(
                features={**inputs, **outputs},
                norm_map=modes("MEAN_STD", "MIN_MAX", "IDENTITY"),
                stats=stock_statistics(),
                normalize_observation_keys={STATE},
            ),
            lerobot.DeviceProcessorStep(device="cpu", float_dtype="float16"),
        ],
        [],
    )
    sample = draw(3, np.float64)
    sample["observation.robot"] = sample.pop(STATE)
    compare_steps(read_checkpoint(tmp_path).processors[0], before, sample)


def test_observations_of_an_env_have_the_same_bits(lerobot: Any, tmp_path: Path) -> None:
    step = lerobot.VanillaObservationProcessorStep()
    save(lerobot, tmp_path, [step], [])
    rng = np.random.default_rng(0)
    raw = {
        "agent_pos": rng.normal(size=JOINTS),
        "environment_state": rng.normal(size=(2, 4)),
        "pixels": {"top": rng.integers(0, 256, (16, 12, 3), np.uint8)},
    }
    mine = run(read_checkpoint(tmp_path).processors[0], raw).samples[-1]
    assert_same_bits(mine, step.observation(dict(raw)))


@pytest.mark.parametrize(
    "arguments",
    [
        {"crop_params_dict": {IMAGE: (1, 2, 5, 4)}},
        {"resize_size": (12, 20)},
        {"crop_params_dict": {IMAGE: (0, 0, 6, 6)}, "resize_size": (3, 3)},
    ],
    ids=["crop", "resize", "both"],
)
def test_cropped_images_have_the_same_bits(
    lerobot: Any, arguments: dict[str, Any], tmp_path: Path
) -> None:
    step = lerobot.ImageCropResizeProcessorStep(**arguments)
    before, _ = save(lerobot, tmp_path, [step], [])
    compare_steps(read_checkpoint(tmp_path).processors[0], before, draw(0))


def test_steps_on_the_simulated_device_have_the_lines_and_values_of_lerobot(
    lerobot: Any, tmp_path: Path
) -> None:
    class ReadsItsValues(lerobot.ProcessorStep):  # type: ignore[misc]
        def __call__(self, transition: Any) -> Any:
            state = transition["observation"][STATE]
            assert float(state.abs().max()) >= 0
            return transition

        def transform_features(self, features: Any) -> Any:
            return features

    lerobot.ProcessorStepRegistry.register("reads_its_values")(ReadsItsValues)
    inputs, outputs = features()
    norm_map, statistics = modes("MEAN_STD", "MEAN_STD", "MEAN_STD"), stock_statistics()
    described = {"features": {**inputs, **outputs}, "norm_map": norm_map, "stats": statistics}
    try:
        save(
            lerobot,
            tmp_path,
            [
                lerobot.AddBatchDimensionProcessorStep(),
                lerobot.DeviceProcessorStep(device="cpu"),
                lerobot.NormalizerProcessorStep(**described),
                ReadsItsValues(),
            ],
            [lerobot.UnnormalizerProcessorStep(**described), lerobot.DeviceProcessorStep("cpu")],
        )
        calls = count_checkpoint_calls(read_checkpoint(tmp_path), allow_code=True, steps=3)
    finally:
        lerobot.ProcessorStepRegistry.unregister("reads_its_values")
    assert (calls.error, calls.steps) == (None, 3)
    waits = {line.part: line for line in calls.lines if line.kind == "wait"}
    # The action is copied to the robot; the state is read.
    assert sorted(waits) == ["3 reads_its_values", "4 device"]
    read = waits["3 reads_its_values"]
    line = inspect.getsourcelines(ReadsItsValues)[1] + 3
    assert read.location == f"tests/parity/{Path(__file__).name}:{line}"
    assert read.per_step == 1
    copied = {part.stage: part.to_device_bytes for part in calls.parts}
    assert copied[1] == 4 * (JOINTS + 3 * 8 * 8)
