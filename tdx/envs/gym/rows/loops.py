"""The step loops over Gymnasium envs: one env or several, with given actions or a policy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gymnasium.error import ResetNeeded
from torch import Tensor

from tdx.core.planned.actions import PolicyActions
from tdx.envs.gym.raw_rows import RawEnv
from tdx.envs.gym.rows.run import (
    NOTHING,
    ActionDecoder,
    EntryLists,
    GymRun,
    StepFields,
    with_first_reset,
)
from tdx.keys import NestedKey


def play_one(run: GymRun, actions: Sequence[Any]) -> None:
    """Step one env with given actions."""
    env, limit = run.settings.envs[0], run.limits[0]
    step, put, add_reward = env.step, run.put(), run.rewards.append
    index = -1
    try:
        for index, action in enumerate(actions):
            observation, reward, terminated, truncated, _ = step(action)
            put(index, observation)
            add_reward(reward)
            if terminated or truncated or index >= limit:
                if run.end_rows(index, [(0, terminated, truncated)]):
                    break
                limit = run.limits[0]
        run.count = run.tried = index + 1
    except ResetNeeded as error:
        if index or run.has_reset_first:
            run.tried = index + 1
            run.fail(env.failure("step", error), error)
        else:
            _reset_first(run, env, actions)
    except Exception as error:
        run.tried = index + 1
        run.fail(env.failure("step", error), error)


def _reset_first(run: GymRun, env: RawEnv, actions: Sequence[Any]) -> None:
    """Reset an env that was never reset, as a single step does."""
    run.has_reset_first = True
    try:
        env.reset()
    except Exception as error:
        run.tried = 1
        run.fail(env.failure("reset", error), error)
    else:
        play_one(run, actions)


def play(run: GymRun, actions: Sequence[Sequence[Any]]) -> None:
    """Step several envs in turns with given actions."""
    envs, limits = run.settings.envs, run.limits
    steps = [with_first_reset(env) for env in envs]
    put, add_reward, place = run.put(), run.rewards.append, -1
    index, row, env = -1, 0, envs[0]
    try:
        for index, each in enumerate(actions):
            over = []
            for row, step in enumerate(steps):
                env = envs[row]
                observation, reward, terminated, truncated, _ = step(each[row])
                put(place := place + 1, observation)
                add_reward(reward)
                if terminated or truncated or index >= limits[row]:
                    over.append((row, terminated, truncated))
            if over and run.end_rows(index, over):
                break
        run.count = run.tried = index + 1
    except Exception as error:
        run.tried = index + 1
        run.fail(env.failure("step", error, row), error)


def follow_one(run: GymRun, inputs: PolicyActions, first: Mapping[NestedKey, Tensor]) -> None:
    """Step one env with a policy; :func:`follow` without the work for several envs."""
    settings, env, kept = run.settings, run.settings.envs[0], EntryLists()
    step, keep, limit = with_first_reset(env), run.keep, run.limits[0]
    check, run_stages, act = settings.check, settings.immediate.step, inputs.policy.act
    is_exact, next_step = check.fast_check(), env.step
    add, add_reward = run.observations.append, run.rewards.append
    decode = ActionDecoder(settings.envs, inputs, True)
    value = env.decode_value if decode.is_direct else None
    fields_of = StepFields(env, True, settings.immediate.reads)
    one = None if fields_of.is_more_than_observation else env.one
    root: dict[NestedKey, Any] = dict(first)
    policy_reads_back = not {*inputs.policy.writes, *inputs.inverse.handed_out}.isdisjoint(
        inputs.policy.reads
    )
    handed_out, count = NOTHING, 0
    alone = value is not None and inputs.policy.writes == ("action",)
    add_action = kept.of("action").append if alone else None
    try:
        for index in range(run.length):
            written = act(root)
            if value is not None:
                given = written["action"]
                if not is_exact(given):
                    check(written.get)
                action = value(given)
            else:
                check(written.get)
                (action,), handed_out = decode(written)
            try:
                observation, reward, terminated, truncated, _ = step(action)
                observed = keep(observation)
            except Exception as error:
                raise check.explain(written.get, env.failure("step", error)) from error
            step = next_step
            add(observed)
            add_reward(reward)
            if add_action is not None:
                add_action(written["action"])
            else:
                kept.add(written, handed_out)
            if policy_reads_back:
                root.update(written)
                root.update(handed_out)
            ended = terminated or truncated or index >= limit
            if one is not None:
                fields: Any = one(observed)
            else:
                over = [(0, terminated, truncated)] if ended else []
                fields = fields_of([observed], [reward], over)
            root.update(run_stages(root, fields))
            count = index + 1
            if ended:
                if run.end_rows(index, [(0, terminated, truncated)]):
                    break
                limit = run.limits[0]
                if run.times and run.times[-1] == index + 1:
                    root.update(run.root_after_reset(root, [observed]))
        run.count = count
    except Exception as error:
        run.fail(error, count=count)
    run.inputs = kept.columns(run.count)


def follow(run: GymRun, inputs: PolicyActions, first: Mapping[NestedKey, Tensor]) -> None:
    """Step several envs with a policy, which reads the output of the immediate stages."""
    settings, kept = run.settings, EntryLists()
    check, run_stages, act = settings.check, settings.immediate.step, inputs.act
    steps = [with_first_reset(env) for env in settings.envs]
    add, add_reward, keep = run.observations.append, run.rewards.append, run.keep
    decode = ActionDecoder(settings.envs, inputs, settings.single)
    fields_of = StepFields(settings.envs[0], settings.single, settings.immediate.reads)
    root: dict[NestedKey, Any] = dict(first)
    count = 0
    try:
        for index in range(run.length):
            written = act(root)
            check(written.get)
            actions, handed_out = decode(written)
            over = []
            start = len(run.observations)
            for row, step in enumerate(steps):
                try:
                    observation, reward, terminated, truncated, _ = step(actions[row])
                    add(keep(observation))
                except Exception as error:
                    to_located_error = settings.envs[row].failure("step", error, row)
                    raise check.explain(written.get, to_located_error) from error
                add_reward(reward)
                if terminated or truncated or index >= run.limits[row]:
                    over.append((row, terminated, truncated))
            kept.add(written, handed_out)
            root.update(written)
            root.update(handed_out)
            fields = fields_of(run.observations[start:], run.rewards[start:], over)
            root.update(run_stages(root, fields))
            count = index + 1
            if over:
                if run.end_rows(index, over):
                    break
                if run.times and run.times[-1] == index + 1:
                    root.update(run.root_after_reset(root, run.observations[start:]))
        run.count = count
    except Exception as error:
        run.fail(error, count=count)
    run.inputs = kept.columns(run.count)
