"""Demonstrations show the policy what it will see, and what it should respond."""

from gigpo_jax.env_bridge.prompt_building import build_prompt
from gigpo_jax.env_bridge.prompts import History
from gigpo_jax.envs import registry
from gigpo_jax.rollout.demonstrations import demonstrate_episode, episode_seed, response_text
from gigpo_jax.rollout.episode_settings import EpisodeSettings


def play(seed: int):
    env = registry.make("example", drawers=3)
    task = env.tasks("train")[5]
    expert = registry.make_expert("example", episode_seed(seed, 0))
    parse = registry.spec("example").parse
    settings = EpisodeSettings(
        registry.find_style("example", "compact"), parse, max_steps=12, prompt_tokens=200
    )
    return (
        env,
        task,
        demonstrate_episode(
            env, expert, task, settings, encode=str.split, encode_response=str.split
        ),
    )


def test_an_expert_wins_and_its_responses_are_in_the_format_that_is_parsed():
    _, _, demonstration = play(0)
    assert demonstration.won
    parse = registry.spec("example").parse
    for turn in demonstration.turns:
        assert parse(turn.response).valid
        assert turn.response == response_text(parse(turn.response).action)


def test_the_prompts_are_those_of_a_rollout():
    env, task, demonstration = play(0)
    observation = env.reset(task)
    history = History(2)
    template = registry.find_style("example", "compact")
    for turn in demonstration.turns:
        assert (
            turn.prompt
            == build_prompt(template, observation, history, encode=str.split, limit=200).text
        )
        action = registry.spec("example").parse(turn.response).action
        history.add(observation.text, action)
        observation = env.step(action).observation


def test_demonstrations_follow_from_the_seed():
    assert play(1)[2] == play(1)[2]
    assert episode_seed(0, 1) != episode_seed(1, 0)
