"""The list of envs."""

from __future__ import annotations

from tdx.inspection.envs import list_envs


def test_every_word_must_occur() -> None:
    assert [env.id for env in list_envs("CART pole v1")] == ["CartPole-v1"]
    assert list_envs("cart nonsense") == ()


def test_envs_that_need_a_package_are_listed_on_demand() -> None:
    everything = list_envs(missing=True)
    assert all(env.installed for env in list_envs())
    assert {env.id for env in list_envs()} <= {env.id for env in everything}
    assert all(env.hint for env in everything if not env.installed)
