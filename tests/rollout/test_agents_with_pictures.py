"""Agents that read pictures: a real evaluation of a committed policy."""

from pathlib import Path

import pytest

from gigpo_jax.config import resolve
from gigpo_jax.config.command_line import load_config
from gigpo_jax.core.png import encode_png
from gigpo_jax.env_bridge.types import IMAGE
from gigpo_jax.envs import registry
from gigpo_jax.modes import evaluate
from gigpo_jax.rollout.read_record import read_rollouts

FLAGS = (
    "env.name=numberline agent=reflexion eval.tasks=1 eval.trials=2 env.max_steps=2 env.history=1 "
    "env.workers=1 sampling.max_prompt_tokens=1700 batch.row_length=1708 batch.rows=1 engine.prefill_rows=(1,) "
    "engine.prefill_buckets=(1700,) engine.slots=1"
)


@pytest.mark.slow
def test_prompts_of_reflexion_have_the_pictures_of_the_example_of_past_steps_and_of_the_present(
    tmp_path: Path,
) -> None:
    config = load_config("configs/sokoban_tiny.py", [f"--config.{flag}" for flag in FLAGS.split()])
    assert evaluate.run(resolve(config, trains=False), tmp_path, "") == 0
    episodes = read_rollouts(tmp_path / "eval_test_reflexion_sampled.jsonl.gz").episodes
    env = registry.make("numberline")
    expert = registry.make_expert("numberline", 0)
    observation = env.reset(env.tasks("train")[0])
    example = []
    done = False
    while not done:
        example.append(encode_png(observation.images[0]))
        result = env.step(expert.act(observation))
        observation = result.observation
        done = result.done
    assert {episode.member for episode in episodes} == {0, 1}
    for episode in episodes:
        observation = env.reset(next(task for task in env.tasks("test") if task.id == episode.task))
        played = []
        for step in episode.steps:
            played.append(encode_png(observation.images[0]))
            assert step.pictures == (*example, *played)
            assert step.prompt.count(IMAGE) == len(step.pictures)
            assert ("Your note after trial 1" in step.prompt) == bool(episode.member)
            observation = env.step(step.action).observation
