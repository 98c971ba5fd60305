"""Why a rollout must run step by step, if it must."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tdx.core.envs import EnvBase
from tdx.core.plan.forms import StageForm
from tdx.core.transformed_env import TransformedEnv
from tdx.core.transforms import TimeBehaviour, Transform
from tdx.keys import NestedKey, format_key, key_parts, normal_key
from tdx.specs import Composite, TensorSpec
from tdx.specs.non_tensor import NonTensor


def why_eager(env: EnvBase, base: EnvBase, forms: Sequence[StageForm]) -> str:
    """The first thing that forbids to run anything but step by step; empty if there is none.

    Args:
        env: the env, with its chain.
        base: the env before all chains.
        forms: the stages.
    """
    return next(_reasons(env, base, forms), "")


def _reasons(env: EnvBase, base: EnvBase, forms: Sequence[StageForm]) -> Iterator[str]:
    yield from _of_envs(env, base)
    for form in forms:
        yield from _of_stage(form)
    yield from _of_reads(base, forms)
    yield from _of_inputs(env, base, forms)
    yield from _of_feedback(base, forms)
    yield from _of_ends(env, base, forms)
    yield from _of_values(env)


def _of_envs(env: EnvBase, base: EnvBase) -> Iterator[str]:
    outer = env
    while isinstance(env, TransformedEnv):
        if not env.planned:
            yield "planned=False"
        if type(env) is not TransformedEnv:
            yield f"{type(env).__name__} may step in a way of its own"
        if env is not outer and env._chain._exposed_keys:
            yield "an env inside hands out what it makes of an action"
        env = env.base_env
    if not base.planned:
        yield "planned=False"
    if base._step_reads is None:
        yield f"{type(base).__name__} may read any entry in its steps"


def _of_stage(form: StageForm) -> Iterator[str]:
    where = f"stage {form.index} ({form.name})"
    if form.stage._changes_batch and form.form is None:
        yield f"{where} changes the batch size or the device"
    if form.form is None and form.sees_input:
        yield f"{where} has a _step or a _reset of its own, which may read any entry"
    if _inverse_is_timed(form.stage):
        yield f"{where} depends on time on the way in"


def _inverse_is_timed(stage: Transform) -> bool:
    return stage.invertible and stage.time_behaviour is not TimeBehaviour.POINTWISE


def _of_reads(base: EnvBase, forms: Sequence[StageForm]) -> Iterator[str]:
    """What a stage reads must be tensors that are there, not groups of them."""
    present = {
        normal_key(key) for part in base.output_spec.values() for key in part.keys(True, True)
    }
    for form in forms:
        for key in form.reads or ():
            if key not in present:
                where = f"stage {form.index} ({form.name})"
                yield f"{where} reads {format_key(key)}, which is no tensor"
        present.difference_update(form.drops)
        present.update(form.writes or ())


def _of_inputs(env: EnvBase, base: EnvBase, forms: Sequence[StageForm]) -> Iterator[str]:
    """What the chain maps on the way in must be actions, which are all that a step needs."""
    actions = set(base.action_keys)
    for form in forms:
        if not form.stage.invertible:
            continue
        inner, outer = form.stage.in_keys_inv, form.stage.out_keys_inv
        where = f"stage {form.index} ({form.name})"
        if not actions.issuperset(inner):
            odd = next(key for key in inner if key not in actions)
            yield f"{where} maps {format_key(odd)}, which is no action, on the way in"
        actions = actions.difference(inner).union(outer)
    if actions != set(env.action_keys):
        yield "the actions that go in are not those that the chain declares"


def _of_feedback(base: EnvBase, forms: Sequence[StageForm]) -> Iterator[str]:
    """What is read from a step's input must be what was written as the step's output."""
    for form in forms:
        for key in form.root:
            for later in forms[form.index + 1 :]:
                if key in (later.writes or ()):
                    yield (
                        f"stage {later.index} ({later.name}) rewrites {format_key(key)}, which "
                        f"stage {form.index} ({form.name}) reads back in the next step"
                    )
    for key in base._step_reads or ():
        for form in forms:
            if key in (form.writes or ()) or key in form.drops:
                yield (
                    f"stage {form.index} ({form.name}) changes {format_key(key)}, which "
                    f"{type(base).__name__} reads back in the next step"
                )


def _of_ends(env: EnvBase, base: EnvBase, forms: Sequence[StageForm]) -> Iterator[str]:
    """What ends an episode must be known from the env's own flags and counted steps."""
    for group in env.done_keys_groups:
        ends = [key for key in group if key_parts(key)[-1] == "done"]
        if not ends:
            yield f"{', '.join(map(format_key, group))}: there is no done flag among them"
        yield from _of_flags(ends, base, forms)


def _of_flags(
    ends: Sequence[NestedKey], base: EnvBase, forms: Sequence[StageForm]
) -> Iterator[str]:
    for key in ends:
        if key not in base.done_keys:
            yield f"the flag {format_key(key)} is not the env's own"
        for form in forms:
            counted = {limit.done_key for limit in form.stage._step_limits()}
            if key in (form.writes or ()) and (form.form is None or key not in counted):
                yield f"stage {form.index} ({form.name}) decides on {format_key(key)}"


def _of_values(env: EnvBase) -> Iterator[str]:
    for spec in (env.input_spec, env.output_spec):
        for key, leaf in spec.items(True, True):
            if not _is_plain(leaf):
                yield f"{format_key(key)} holds objects, or tensors of several shapes"
        for part in spec.values(True):
            if isinstance(part, Composite) and type(part) is not Composite:
                yield "the envs of the batch are unlike"


def _is_plain(leaf: TensorSpec) -> bool:
    if isinstance(leaf, NonTensor) or leaf.dtype is None:
        return False
    return all(size >= 0 for size in leaf.shape)
