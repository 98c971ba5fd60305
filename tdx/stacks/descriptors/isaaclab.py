"""Read the IO descriptors that Isaac Lab exports as YAML."""

from __future__ import annotations

from math import inf
from pathlib import Path

from tdx.foundation.errors import PipelineError, StorageError
from tdx.foundation.untrusted import MAX_PIPELINE_BYTES, Fields, read_limited
from tdx.stacks.descriptors.model import Action, Descriptor, Numbers, Robot, Term, number_repeats

_HINT = "export the IO descriptors again"
_POLICY_GROUPS = ("policy", "actor")
Joints = tuple[str, ...]
_MAX_VALUES = 20_000
"""Values of a document; 10,000 without aliases."""
_VOCABULARY = frozenset(
    {
        *("actions", "term shape", "term history", "term flat_history", "term scale", "term clip"),
        *("term joints", "term offsets", "observation size"),
        *("action shape", "action scale", "action offset", "action clip", "action joints"),
        *("joints", "positions", "stiffness", "damping", "step"),
    }
)


def read_isaaclab(path: Path) -> Descriptor:
    """Read IO descriptors.

    Raises:
        OSError: The file cannot be read.
        StorageError: It is malformed.
    """
    from tdx.pipeline.file.yaml_codec import load_yaml

    try:
        text = read_limited(path, MAX_PIPELINE_BYTES).decode("utf-8")
        content = load_yaml(text)
    except UnicodeDecodeError:
        raise StorageError(f"{path} is not UTF-8") from None
    except PipelineError as error:
        line = "" if error.where.line is None else f":{error.where.line}"
        raise StorageError(f"{path}{line}: {error.message}") from error
    _check_size(content, path)
    document = Fields(content, str(path), _HINT)
    groups = document.object("observations")
    chosen = next((name for name in _POLICY_GROUPS if name in groups.data), None)
    chosen = chosen or next(iter(groups.data), None)
    others = [repr(name) for name in groups.data if name != chosen]
    terms = [] if chosen is None else list(groups.objects(chosen))
    actions = list(document.objects("actions"))
    robots = list(document.named_objects("articulations"))
    # The robot, or whatever moves if it has another name.
    robots.sort(key=lambda item: item[0] != "robot")
    scene = document.object("scene", optional=True)
    notes: list[str] = []
    robot = _read_robot(robots[0][1], notes) if robots else Robot()
    if others:
        notes.append(f"only the group {chosen!r} is read, not {', '.join(others)}")
    if len(robots) > 1:
        notes.append(f"only the joints of {robots[0][0]!r} are read")
    term_names = number_repeats(tuple(term.text("name") for term in terms))
    action_names = number_repeats(tuple(action.text("name") for action in actions))
    return Descriptor(
        path,
        "Isaac Lab",
        tuple(
            _read_term(name, term, robot.joints, notes)
            for name, term in zip(term_names, terms, strict=True)
        ),
        tuple(
            _read_action(name, term, robot.joints, notes)
            for name, term in zip(action_names, actions, strict=True)
        ),
        robot,
        None if scene is None or scene.data.get("dt") is None else scene.number("dt"),
        notes=tuple(notes),
        vocabulary=_VOCABULARY,
    )


def _check_size(content: object, path: Path) -> None:
    """Refuse a document whose aliases repeat its parts without end; even its text is too large."""
    pending = [content]
    for _ in range(_MAX_VALUES):
        if not pending:
            return
        item = pending.pop()
        if isinstance(item, dict):
            pending.extend(item.values())
        elif isinstance(item, list):
            pending.extend(item)
    raise StorageError(f"{path} has more than {_MAX_VALUES:,} values, with its aliases")


def _read_term(name: str, term: Fields, all_joints: Joints, notes: list[str]) -> Term:
    overloads = term.object("overloads", optional=True) or Fields({}, term.source, _HINT)
    history = overloads.count("history_length", optional=True)
    flat = overloads.data.get("flatten_history_dim")
    joints = term.texts("joint_names", optional=True)
    order = joints or all_joints
    offsets = _numbers(term, "joint_pos_offsets", order, notes)
    if offsets is None:
        offsets = _numbers(term, "joint_vel_offsets", order, notes)
    scale, clip = (_numbers(overloads, part, order, notes) for part in ("scale", "clip"))
    # An entry without a value is a scale of 1, and no clip.
    if scale is None and "scale" in overloads.data and overloads.data["scale"] is None:
        scale = (1.0,)
    if clip is None and "clip" in overloads.data and overloads.data["clip"] is None:
        clip = (-inf, inf)
    return Term(
        name,
        _shape(term),
        None if history is None else max(history, 1),
        flat if isinstance(flat, bool) else None,
        scale,
        clip,
        joints,
        offsets,
    )


def _read_action(name: str, term: Fields, all_joints: Joints, notes: list[str]) -> Action:
    joints = term.texts("joint_names", optional=True)
    order = joints or all_joints
    return Action(
        name,
        _shape(term),
        _numbers(term, "scale", order, notes),
        _numbers(term, "offset", order, notes),
        _numbers(term, "clip", order, notes),
        joints,
    )


def _read_robot(robot: Fields, notes: list[str]) -> Robot:
    joints = robot.texts("joint_names", optional=True)
    positions, stiffness, damping = (
        _numbers(robot, f"default_joint_{name}", joints, notes)
        for name in ("pos", "stiffness", "damping")
    )
    # Gains of zero are those of explicit actuators, which are not in the file.
    return Robot(
        joints,
        positions,
        stiffness if any(stiffness or ()) else None,
        damping if any(damping or ()) else None,
    )


def _shape(term: Fields) -> tuple[int, ...] | None:
    return None if term.data.get("shape") is None else term.shape("shape")


def _numbers(fields: Fields, name: str, joints: Joints, notes: list[str]) -> Numbers | None:
    """Return a number, or the numbers of nested lists or of a mapping by joint.

    Those of a mapping are in the order of the joints, whatever their order in the file is.

    ``notes`` gets a note for a mapping that cannot be read.
    """
    value = fields.value(name, optional=True)
    if value is None:
        return None
    if isinstance(value, dict):
        # Names may be patterns, which are not matched: they are a stranger's.
        unknown = [str(key) for key in value if key not in joints]
        if unknown:
            notes.append(
                f"{fields.source}: {name!r} is not read: {unknown[0]!r:.40} is none of the joints"
            )
            return None
        value = [value[joint] for joint in joints if joint in value]
    flat: list[float] = []
    pending: list[object] = [value]
    while pending:
        item = pending.pop()
        if isinstance(item, list):
            pending.extend(reversed(item))
            continue
        try:
            if isinstance(item, bool) or not isinstance(item, int | float):
                raise fields.invalid(name, "numbers")
            flat.append(float(item))
        except OverflowError:
            raise fields.invalid(name, "numbers") from None
    return tuple(flat)
