"""A run's environments as its config describes them: options of builders, settings of episodes."""

import pytest
from ml_collections import ConfigDict

from gigpo_jax.config import default_config
from gigpo_jax.rollout.environment import env_options, episode_settings
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
