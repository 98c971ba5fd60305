"""Take the steps of a report mechanically, from its JSON alone.

Labels of mutations are not read. A cause that only one side has is a stage to remove, or one to
copy from the other side; a changed argument is set; an explanation is turned into a stage.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar, cast

import numpy as np

from tests.explanations.mutations.envs import IMAGE
from tests.explanations.mutations.model import Chain, Stage
from tests.stacks.checkpoints.folders import Folder

T = TypeVar("T")
Side = tuple[str, str]
TARGET: Side = ("stage", "reference_stage")
REFERENCE: Side = ("reference_stage", "stage")
Cause = Mapping[str, Any]


def corrected(target: Chain, reference: Chain, causes: Sequence[Cause], offset: int) -> Chain:
    """Return the target with the causes of a report corrected."""
    return _edit_chain(target, reference, causes, offset, TARGET, _inverse)


def predicted(reference: Chain, target: Chain, causes: Sequence[Cause], offset: int) -> Chain:
    """Return the reference with the edits that a report says lead to the target."""
    return _edit_chain(reference, target, causes, offset, REFERENCE, _forward)


def edit_folder(folder: Folder, other: Folder, causes: Sequence[Cause], side: Side) -> None:
    """Take the steps of a report in the preprocessor of a checkpoint of LeRobot.

    Args:
        folder: The checkpoint, which is edited.
        other: That of the other side.
        causes: Causes of the report.
        side: Side that is edited.
    """
    named, others = (each.statistics["before"] for each in (folder, other))
    steps = list(folder.before)

    def replaced(at: int, cause: Cause) -> dict[str, Any] | None:
        explanation, key = cause["explanation"], cause["key"]
        numbers = explanation["parameters"]
        if cause["kind"] == "argument":
            return None
        # A cause in the state has the name of a statistic, such as "observation.state.mean".
        key = key if key in named else key.rpartition(".")[0]
        if key not in named:
            return None
        if explanation["kind"] == "swapped statistics":
            named[key], named[numbers["key"]] = named[numbers["key"]], named[key]
        elif "factor" in numbers:
            factor, offset = (np.asarray(numbers[k], np.float32) for k in ("factor", "offset"))
            mean, std = (named[key][name] for name in ("mean", "std"))
            moved: dict[str, Any]
            if side is TARGET:
                moved = {"mean": mean + offset * std, "std": std * factor}
            else:
                moved = {"mean": mean - offset * std / factor, "std": std / factor}
            named[key] = {**named[key], **moved}
        elif "widths" in numbers:
            widths = np.asarray(numbers["widths"], np.float32)
            std = named[key]["std"]
            std = std / widths if side is TARGET else std * widths
            named[key] = {**named[key], "std": std}
        elif explanation["kind"] in ("inactive", "fresh statistics") and side is TARGET:
            named[key] = others[key]
        elif explanation["kind"] in ("inactive", "fresh statistics"):
            mean, std = (np.full_like(named[key][name], x) for name, x in (("mean", 0), ("std", 1)))
            named[key] = {**named[key], "mean": mean, "std": std}
        else:
            return None
        return steps[at]

    for cause in causes:
        # The hint is to load the state of the stage, or the statistics of the training.
        if side is TARGET and re.search("load (its state|the statistics)", cause["hint"] or ""):
            named |= others
    folder.before = _edited(folder.before, other.before, causes, 0, side, replaced)


def _edit_chain(
    chain: Chain,
    other: Chain,
    causes: Sequence[Cause],
    offset: int,
    side: Side,
    from_numbers: Callable[[Stage, Cause, bool], list[Stage] | None],
) -> Chain:
    first = chain.stages[0].arguments
    channels_first = chain.base == IMAGE and bool(first.get("channels_first"))

    def replaced(at: int, cause: Cause) -> Stage | None:
        new = from_numbers(chain.stages[at], cause["explanation"], channels_first)
        if new is None or len(new) == 1:
            return None if new is None else new[0]
        # An added stage would be one that the other side does not have.
        return Stage("sequence", {"stages": tuple(new)})

    stages = _edited(chain.stages, other.stages, causes, offset, side, replaced)
    return Chain(chain.base, tuple(stages))


def _edited(
    stages: Sequence[T],
    others: Sequence[T],
    causes: Sequence[Cause],
    offset: int,
    side: Side,
    replaced: Callable[[int, Cause], T | None],
) -> list[T]:
    """Return the stages of one side with the causes of a report edited, outermost first."""
    result: list[T | None] = list(stages)
    own, their = side
    removed: set[int] = set()
    # Stages that the other side has, or has at another place, by their place in it.
    placed: dict[int, T | None] = {}
    for cause in causes:
        explanation = cause["explanation"]
        if cause[own] is None:
            placed[cause[their] - offset] = others[cause[their] - offset]
            continue
        at = int(cause[own]) - offset
        if cause[their] is None:
            removed.add(at)
        elif cause["kind"] == "order":
            removed.add(at)
            placed[cause[their] - offset] = result[at]
        else:
            place = cause[their] - offset
            new = None
            # The hint is to set an argument, or to load the state.
            hint = cause["hint"] or ""
            is_set = cause["kind"] == "argument" or hint.startswith("pass ")
            is_set |= re.search("its state|the state of|load the statistics", hint) is not None
            if explanation and not (side is TARGET and is_set):
                new = replaced(at, cause)
            if new is not None:
                result[at] = new
            elif is_set:
                result[at] = others[place]
            elif explanation and explanation["kind"] in ("inactive", "fresh statistics"):
                # A stage that is switched off takes the place of one that is not.
                result[at] = others[place] if side is TARGET else None
    kept = [stage for at, stage in enumerate(result) if at not in removed]
    for place in sorted(placed):
        kept.insert(place, placed[place])
    return [stage for stage in kept if stage is not None]


def _numbers(value: Any, channels_first: bool) -> Any:
    array = np.asarray(value, np.float64)
    return array.reshape(-1, 1, 1) if array.ndim and channels_first else array


def _arguments(stage: Stage, edit: Mapping[str, Any], numbers: Mapping[str, Any]) -> Stage | None:
    """Return a stage with the arguments that an edit names, if they replace those of the stage."""
    kind = edit["kind"]
    if kind in ("crop", "resampling"):
        operation = "crop" if kind == "crop" else "resize"
        known = {key: value for key, value in numbers.items() if key != "reference"}
        rest = {"channels_first": stage.arguments.get("channels_first", False)}
        if operation == "resize" and known["kernel"] == "overlap":
            known["kernel"] = "area"
        return Stage(operation, {**rest, **known})
    if kind == "gray weights":
        return Stage("gray", {**stage.arguments, "weights": tuple(numbers["weights"])})
    if kind == "clip":
        limits = {name: float(numbers[name]) for name in ("low", "high")}
        # A bound of the target that is not named stays.
        own = stage.arguments if numbers is edit["parameters"] else {}
        limits = {k: v if np.isfinite(v) else float(own.get(k, v)) for k, v in limits.items()}  # type: ignore[arg-type]
        return Stage("clip", limits)
    if kind == "history":
        fills = {"first": "same", "zeros": "zeros"}
        rest = {k: v for k, v in stage.arguments.items() if k not in ("order", "start", "spacing")}
        # Only what a library's own stage does not do needs one of a user.
        special: dict[str, object] = {}
        if numbers["newest_first"]:
            special["order"] = "newest first"
        if numbers["spacing"] > 1:
            special["spacing"] = numbers["spacing"]
        if numbers["padding"] == "previous episode":
            special["start"] = "kept"
        # What fills the first episode may not be seen: then it stays.
        fill = fills.get(numbers["first_padding"], stage.arguments["padding"])
        named = {"length": numbers["length"], "padding": fill}
        return Stage("history", {**rest, **named, **special})
    return None


def _forward(stage: Stage, explanation: Cause, channels_first: bool) -> list[Stage] | None:
    stages = [stage]
    for edit in explanation["edits"]:
        numbers = edit["parameters"]
        if edit["kind"] == "moving statistics" and stage.operation == "running":
            stages[0] = stage.replaced(update=True, count=numbers["count"])
        elif edit["kind"] == "inactive" and "in" in numbers:
            stages[0] = Stage("sometimes", {"stages": (stage,), "off": numbers["in"]})
        elif edit["kind"] == "clip" and stage.operation != "clip":
            stages.append(Stage("clip", {k: float(numbers[k]) for k in ("low", "high")}))
        elif (changed := _arguments(stage, edit, numbers)) is not None:
            stages[0] = changed
        else:
            added = _added(edit, channels_first)
            if added is None:
                return None
            stages += added
    return stages


def _added(edit: Mapping[str, Any], channels_first: bool) -> list[Stage] | None:
    numbers = edit["parameters"]
    match edit["kind"]:
        case "width":
            widths = _numbers(numbers["widths"], channels_first)
            return [Stage("scale", {"factor": 1 / widths, "offset": 0.0})]
        case "scale" | "feature scale" | "range":
            factor, offset = (_numbers(numbers[k], channels_first) for k in ("factor", "offset"))
            added = [Stage("scale", {"factor": factor, "offset": offset})]
            if "low" in numbers:
                limits = {k: float(numbers[k]) for k in ("low", "high")}
                added.append(Stage("clip", limits))
            return added
        case "permutation" | "selection":
            return [Stage("select", {"indices": numbers["order"]})]
        case "padding" | "constant":
            order, values = numbers["order"], numbers["values"]
            constants = [float(values.get(str(index), 0.0)) for index in range(len(order))]
            kept = [float(origin >= 0) for origin in order]
            indices = [max(origin, 0) for origin in order]
            return [
                Stage("select", {"indices": indices}),
                Stage("scale", {"factor": kept, "offset": constants}),
            ]
        case "channel order":
            axis = numbers["dim"] - 3
            return [Stage("select", {"indices": numbers["order"], "axis": axis})]
        case "axis order":
            return [Stage("transpose", {"axes": numbers["axes"]})]
        case "flip":
            return [Stage("flip", {"axis": numbers["dim"] - 3})]
        case "rounding":
            return [Stage("cast", {"dtype": numbers["to"]})]
        case "time shift" if numbers["steps"] > 0:
            return [Stage("delay", {"steps": numbers["steps"]})]
        case "delta" if numbers["sign"] < 0:
            return [Stage("delta")]
    return None


def _folded(stage: Stage, factor: Any, offset: Any) -> Stage | None:
    """Return a stage with another range that undoes a scale, if it has a range."""
    if stage.operation != "to_float" or np.size(factor) > 1:
        return None
    limits = {
        name: round(float((stage.arguments[name] - offset) / factor), 6) for name in ("low", "high")
    }
    return stage.replaced(**limits)


def _inverse(stage: Stage, explanation: Cause, channels_first: bool) -> list[Stage] | None:
    stages = [stage]
    for edit in reversed(explanation["edits"]):
        numbers = edit["parameters"]
        match edit["kind"]:
            case "scale" | "feature scale" | "range" if "low" not in numbers:
                factor, offset = (
                    _numbers(numbers[k], channels_first) for k in ("factor", "offset")
                )
                if (factor == 0).any():
                    return None
                folded = _folded(stages[-1], factor, offset)
                if folded is None:
                    added = {"factor": 1 / factor, "offset": -offset / factor}
                    stages.append(Stage("scale", added))
                else:
                    stages[-1] = folded
            case "inactive" if "in" in numbers:
                # The stage works in all of them.
                stages[:1] = cast("tuple[Stage, ...]", stage.arguments.get("stages", ()))
            case "moving statistics":
                stages[0] = stage.replaced(update=False)
            case "width":
                widths = _numbers(numbers["widths"], channels_first)
                stages.append(Stage("scale", {"factor": widths, "offset": 0.0}))
            case "permutation" | "channel order":
                order = [int(origin) for origin in np.argsort(numbers["order"])]
                axis = numbers["dim"] - 3 if "dim" in numbers else -1
                stages.append(Stage("select", {"indices": order, "axis": axis}))
            case "padding":
                order = numbers["order"]
                kept = [order.index(origin) for origin in range(max(order) + 1)]
                stages.append(Stage("select", {"indices": kept}))
            case "flip":
                stages.append(Stage("flip", {"axis": numbers["dim"] - 3}))
            case "axis order":
                axes = [int(axis) for axis in np.argsort(numbers["axes"])]
                stages.append(Stage("transpose", {"axes": axes}))
            case _:
                changed = None
                if numbers.get("reference"):
                    changed = _arguments(stage, edit, numbers["reference"])
                if changed is None:
                    return None
                stages[0] = changed
    return stages
