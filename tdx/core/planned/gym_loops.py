"""The loops over Gymnasium envs: one env or a few, with actions that are there or a policy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gymnasium.error import ResetNeeded
from torch import Tensor

from tdx.core.planned.gym_run import GymRun
from tdx.core.planned.gym_values import NOTHING, Fields, Kept, Taker, with_first_reset
from tdx.core.planned.inputs import ClosedLoop
from tdx.envs.gym.raw_rows import RawEnv
from tdx.keys import NestedKey


def play_one(run: GymRun, actions: Sequence[Any]) -> None:
    """The loop over one env with actions that are there already."""
    env, limit = run.rows.envs[0], run.limits[0]
    step, put, add_reward = env.step, run.put(), run.rewards.append
    index = -1
    try:
        for index, action in enumerate(actions):
            observation, reward, terminated, truncated, _ = step(action)
            put(index, observation)
            add_reward(reward)
            if terminated or truncated or index >= limit:
                if run.ended(index, [(0, terminated, truncated)]):
                    break
                limit = run.limits[0]
        run.made = run.tried = index + 1
    except ResetNeeded as error:
        if index or run.begun_first:
            run.tried = index + 1
            run.failed(env.failure("step", error), error)
        else:
            _begin_first(run, env, actions)
    except Exception as error:
        run.tried = index + 1
        run.failed(env.failure("step", error), error)


def _begin_first(run: GymRun, env: RawEnv, actions: Sequence[Any]) -> None:
    """Reset an env that never was, as a single step does."""
    run.begun_first = True
    try:
        env.reset()
    except Exception as error:
        run.tried = 1
        run.failed(env.failure("reset", error), error)
    else:
        play_one(run, actions)


def play(run: GymRun, actions: Sequence[Sequence[Any]]) -> None:
    """The loop over several envs with actions that are there already."""
    envs, limits = run.rows.envs, run.limits
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
            if over and run.ended(index, over):
                break
        run.made = run.tried = index + 1
    except Exception as error:
        run.tried = index + 1
        run.failed(env.failure("step", error, row), error)


def follow_one(run: GymRun, inputs: ClosedLoop, first: Mapping[NestedKey, Tensor]) -> None:
    """The loop over one env with a policy: that of :func:`follow`, with nothing to spare."""
    rows, env, kept = run.rows, run.rows.envs[0], Kept()
    step, keep, limit = with_first_reset(env), run.keep, run.limits[0]
    check, step_now, act = rows.check, rows.now.step, inputs.policy.act
    is_plain, next_step = check.plain(), env.step
    add, add_reward = run.observations.append, run.rewards.append
    take = Taker(rows.envs, inputs, True)
    value = env.decode_value if take.is_direct else None
    fields_of = Fields(env, True, rows.now.reads)
    one = None if fields_of.is_more else env.one
    root: dict[NestedKey, Any] = dict(first)
    reads_back = not {*inputs.policy.writes, *inputs.way_in.handed_out}.isdisjoint(
        inputs.policy.reads
    )
    shown, made = NOTHING, 0
    alone = value is not None and inputs.policy.writes == ("action",)
    add_action = kept.rows("action").append if alone else None
    try:
        for index in range(run.length):
            written = act(root)
            if value is not None:
                given = written["action"]
                if not is_plain(given):
                    check(written.get)
                action = value(given)
            else:
                check(written.get)
                (action,), shown = take(written)
            try:
                observation, reward, terminated, truncated, _ = step(action)
                observed = keep(observation)
            except Exception as error:
                raise check.rather(written.get, env.failure("step", error)) from error
            step = next_step
            add(observed)
            add_reward(reward)
            if add_action is not None:
                add_action(written["action"])
            else:
                kept.add(written, shown)
            if reads_back:
                root.update(written)
                root.update(shown)
            ended = terminated or truncated or index >= limit
            if one is not None:
                fields: Any = one(observed)
            else:
                over = [(0, terminated, truncated)] if ended else []
                fields = fields_of([observed], [reward], over)
            root.update(step_now(root, fields))
            made = index + 1
            if ended:
                if run.ended(index, [(0, terminated, truncated)]):
                    break
                limit = run.limits[0]
                if run.times and run.times[-1] == index + 1:
                    root.update(run.begun_root(root, [observed]))
        run.made = made
    except Exception as error:
        run.failed(error, made=made)
    run.inputs = kept.columns(run.made)


def follow(run: GymRun, inputs: ClosedLoop, first: Mapping[NestedKey, Tensor]) -> None:
    """The loop with a policy, which sees what the stages that run along make of each step."""
    rows, kept = run.rows, Kept()
    check, step_now, act = rows.check, rows.now.step, inputs.act
    steps = [with_first_reset(env) for env in rows.envs]
    add, add_reward, keep = run.observations.append, run.rewards.append, run.keep
    take = Taker(rows.envs, inputs, rows.single)
    fields_of = Fields(rows.envs[0], rows.single, rows.now.reads)
    root: dict[NestedKey, Any] = dict(first)
    made = 0
    try:
        for index in range(run.length):
            written = act(root)
            check(written.get)
            actions, shown = take(written)
            over = []
            start = len(run.observations)
            for row, step in enumerate(steps):
                try:
                    observation, reward, terminated, truncated, _ = step(actions[row])
                    add(keep(observation))
                except Exception as error:
                    blamed = rows.envs[row].failure("step", error, row)
                    raise check.rather(written.get, blamed) from error
                add_reward(reward)
                if terminated or truncated or index >= run.limits[row]:
                    over.append((row, terminated, truncated))
            kept.add(written, shown)
            root.update(written)
            root.update(shown)
            fields = fields_of(run.observations[start:], run.rewards[start:], over)
            root.update(step_now(root, fields))
            made = index + 1
            if over:
                if run.ended(index, over):
                    break
                if run.times and run.times[-1] == index + 1:
                    root.update(run.begun_root(root, run.observations[start:]))
        run.made = made
    except Exception as error:
        run.failed(error, made=made)
    run.inputs = kept.columns(run.made)
