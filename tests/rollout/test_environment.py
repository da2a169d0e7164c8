"""A run's environments as its config describes them: options of builders, settings of episodes."""

from pathlib import Path

import pytest
from ml_collections import ConfigDict

from gigpo_jax.config import default_config
from gigpo_jax.env_bridge.freeze import freeze_panel, write_panel
from gigpo_jax.envs import registry
from gigpo_jax.rollout.environment import env_options, episode_settings, list_environments
from gigpo_jax.rollout.evaluator import panel_tasks
from gigpo_jax.rollout.prompt_changes import summary_limit


def make_config(**values: object) -> ConfigDict:
    config = default_config().unlock()
    config.env.name = "frozenlake"
    config.eval.trials = 1
    config.update_from_flattened_dict(values)
    return config


@pytest.mark.parametrize(("steps", "length"), [(5, 15), (15, 15), (40, 40)])
def test_an_environment_plays_as_long_as_the_run_and_never_shorter_than_published(
    steps: int, length: int
) -> None:
    config = make_config(**{"env.max_steps": steps, "env.regret": True})
    assert env_options(config) == {"max_steps": length, "regret": True}
    # What the user gives for the environment wins, also 0 and False.
    config.env.options = ConfigDict({"max_steps": 7, "regret": False, "size": 0})
    assert env_options(config) == {"max_steps": 7, "regret": False, "size": 0}


def test_options_that_a_builder_does_not_take_are_left_out() -> None:
    config = make_config(**{"env.name": "example", "env.max_steps": 40})
    assert env_options(config) == {}
    config.env.anchor = "state"
    assert env_options(config) == {"anchor": "state"}


def test_a_panel_has_its_first_tasks_or_all_with_the_labels_of_their_environments(
    tmp_path: Path,
) -> None:
    env = registry.make("example", games=5)
    ids = [f"test/{number:04d}" for number in (4, 0, 3)]
    write_panel(tmp_path / "three.json", freeze_panel("three", "example", env, "test", ids=ids))
    panel = str(tmp_path / "three.json")
    config = make_config(**{"env.name": "example", "eval.panel": panel})
    for tasks, expected in ((0, ids), (2, ids[:2]), (9, ids)):
        config.eval.tasks = tasks
        found = panel_tasks(list_environments(config))
        assert found is not None
        assert [task.id for task in found[1]] == expected
    config.eval.tasks = 1
    own = {"name": "example", "options": {"games": 5}, "panel": panel}
    config.env.mix = ConfigDict({"a": own, "b": own, "c": {"name": "example", "panel": ""}})
    found = panel_tasks(list_environments(config))
    assert found is not None
    assert [(task.environment, task.id) for task in found[1]] == [("a", ids[0]), ("b", ids[0])]
    assert found[0].ids == tuple(f"{label}/{task}" for label in "ab" for task in ids)
    config.env.mix = ConfigDict()
    config.eval.panel = ""
    assert panel_tasks(list_environments(config)) is None


def test_greedy_sampling_has_no_other_limits() -> None:
    config = make_config(**{"sampling.top_p": 0.9, "sampling.top_k": 20})
    config.sampling.max_response_tokens, config.sampling.stop = 33, ("</a>",)
    for temperature, top_p, top_k in ((0.7, 0.9, 20), (0.0, 1.0, -1)):
        settings = episode_settings(config, temperature=temperature, stop_token_ids=(5,))
        sampling = settings.sampling
        assert (sampling.temperature, sampling.top_p, sampling.top_k) == (temperature, top_p, top_k)
        assert (sampling.max_tokens, sampling.stop_token_ids) == (33, (5,))
        assert sampling.stop_strings == ("</a>",)


def test_a_summary_is_as_long_as_a_response_unless_it_has_a_limit() -> None:
    sampling = make_config(**{"sampling.max_response_tokens": 33}).sampling
    assert summary_limit(sampling) == 33
    sampling.max_summary_tokens = 9
    assert summary_limit(sampling) == 9
