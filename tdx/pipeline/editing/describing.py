"""What is different between two drafts, in a few words."""

from __future__ import annotations

from tdx.pipeline.editing.draft import Draft, DraftStage
from tdx.pipeline.editing.fields import env_fields

MOST_NAMED = 3


def changes_between(before: Draft, after: Draft) -> list[str]:
    """Every difference: ``remove CatFrames``, ``N of CatFrames``, ``move Resize``.

    Args:
        before: the earlier one.
        after: the later one; stages are the same where their numbers are.

    Example:
        >>> from tdx.pipeline import Pipeline
        >>> draft = Draft.of(Pipeline.of("Pendulum-v1", "RewardSum", "StepCounter"))
        >>> changes_between(draft, draft.moved(0, 1).toggled(0))
        ['StepCounter off', 'move RewardSum']
    """
    old = {stage.number: stage for stage in before.stages}
    new = {stage.number: stage for stage in after.stages}
    found = _env_changes(before, after)
    found += [f"remove {stage.config.name}" for n, stage in old.items() if n not in new]
    found += [f"add {stage.config.name}" for n, stage in new.items() if n not in old]
    for number in [each for each in new if each in old]:
        found += _stage_changes(old[number], new[number])
    return found + _moves(before, after)


def change_between(before: Draft, after: Draft) -> str:
    """The differences on one line; ``"nothing"`` where there are none."""
    found = changes_between(before, after)
    shown = found[:MOST_NAMED]
    more = len(found) - len(shown)
    return ", ".join([*shown, *([f"{more} more"] if more else [])]) or "nothing"


def _env_changes(before: Draft, after: Draft) -> list[str]:
    if before.env == after.env:
        return []
    if before.env is None or after.env is None or before.env.id != after.env.id:
        return [f"env {after.env.id}" if after.env is not None else "no env"]
    old = {field.name: field.text for field in env_fields(before.env)}
    return [
        f"{field.name} {field.text or 'unset'}"
        for field in env_fields(after.env)
        if field.text != old[field.name]
    ]


def _stage_changes(old: DraftStage, new: DraftStage) -> list[str]:
    found = []
    if old.enabled != new.enabled:
        found.append(f"{new.config.name} {'on' if new.enabled else 'off'}")
    if old.config.name != new.config.name:
        found.append(f"{old.config.name} → {new.config.name}")
    elif old.config != new.config:
        names = [
            name
            for name in {**old.config.kwargs, **new.config.kwargs}
            if old.config.kwargs.get(name) != new.config.kwargs.get(name)
        ]
        what = ", ".join(names) if names and old.config.args == new.config.args else "arguments"
        found.append(f"{what} of {new.config.name}")
    return found


def _moves(before: Draft, after: Draft) -> list[str]:
    """The stage that stands elsewhere, where it is one; else that the order is another."""
    numbers = [stage.number for stage in before.stages]
    old = [n for n in numbers if after.place_of(n) is not None]
    new = [stage.number for stage in after.stages if stage.number in numbers]
    if old == new:
        return []
    for number in old:
        if [n for n in old if n != number] == [n for n in new if n != number]:
            place = after.place_of(number)
            return [f"move {after.stages[place or 0].config.name}"]
    return ["another order"]
