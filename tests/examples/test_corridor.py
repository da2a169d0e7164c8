"""The corridor of docs/conversations.md: what its prompts still know of the sign at the doors."""

import json
import random
import runpy
from pathlib import Path

import pytest

from examples.corridor.env import COLOURS, CORRIDOR, THINGS, Corridor, Guide, SignGrader
from gigpo_jax.config import resolve
from gigpo_jax.env_bridge.checker import check_environment
from gigpo_jax.envs.panels import check_tasks
from gigpo_jax.models.text.word_tokenizer import word_tokenizer
from gigpo_jax.modes.sft import encode_demonstrations, response_end
from gigpo_jax.rollout.demonstrations import demonstrate_episode, play_expert, response_text
from gigpo_jax.rollout.environment import episode_settings
from gigpo_jax.rollout.prompt_encoding import prompt_encoder

CONFIGS = Path(__file__).parents[2] / "configs"
NAME = "examples.corridor.env:CORRIDOR"
WORDS = "open the door that sign names now a says can go on summary end of corridor"
TOKENIZER = word_tokenizer([" ".join((WORDS, *COLOURS, *THINGS))])


def get_config(variant: str, name: str = "corridor_tiny"):
    return resolve(runpy.run_path(str(CONFIGS / f"{name}.py"))["get_config"](variant))


def demonstrate(variant: str, number: int, **expert):
    config = get_config(variant)
    settings = episode_settings(config, temperature=1.0, stop_token_ids=TOKENIZER.stop_token_ids)
    env = Corridor()

    def encode_response(text: str) -> list[int]:
        return [*TOKENIZER.encode(text), *response_end(TOKENIZER, config)]

    task = env.tasks("train")[number]
    demonstration = demonstrate_episode(
        env,
        Guide(number, **expert),
        task,
        settings,
        encode=prompt_encoder(TOKENIZER, None),
        encode_response=encode_response,
    )
    return config, task.type, demonstration


def test_the_corridor_keeps_its_promises() -> None:
    check_environment(
        "examples.corridor.env:Corridor",
        {"length": 3, "games": 4},
        split="train",
        make_expert=Guide,
        tasks=2,
        steps=8,
    )
    assert len(check_tasks(NAME, "test", options={})) == 128


def test_the_guide_opens_the_right_door_and_no_other_one_wins() -> None:
    env = Corridor()
    for task in env.tasks("test")[:8]:
        episode = play_expert(env, Guide(0), task, CORRIDOR.max_steps)
        assert (episode.won, len(episode.steps)) == (True, 7)
        wins = 0
        for colour in COLOURS:
            env.reset(task)
            for _ in range(6):
                result = env.step("go on")
            assert (result.done, result.reward) == (False, 0.0)
            result = env.step(f"open {colour} door")
            assert result.done
            assert result.reward == 10.0 * result.info["won"]
            wins += result.info["won"]
        assert wins == 1


@pytest.mark.parametrize("variant", ["summary", "drop", "window"])
def test_only_a_summary_knows_the_sign_at_the_doors(variant: str) -> None:
    class Policy:
        tokenizer = TOKENIZER
        config = type("Shape", (), {"vision": None})

    for number, colour in enumerate(COLOURS):
        config, task_type, demonstration = demonstrate(variant, number)
        config = config.unlock()
        assert task_type == colour
        *_, last = demonstration.turns
        assert response_text(f"open {colour} door") == last.response
        (samples,) = encode_demonstrations([demonstration], Policy, config)
        assert len(samples) == len(demonstration.turns)
        shown = TOKENIZER.decode(samples[-1].prompt_tokens.tolist())
        seen, _, _ = shown.partition("can open")
        assert (f"sign {colour}" in seen) == (variant == "summary")
        assert "says" not in seen
        # The sign is read through a summary of a summary.
        summaries = [turn.response for turn in demonstration.turns if turn.is_text]
        assert summaries == ([f"sign {colour}"] * 2 if variant == "summary" else [])
        if variant == "summary":
            ends = [int(sample.response_tokens[-1]) for sample in samples]
            is_end = [end in TOKENIZER.stop_token_ids for end in ends]
            # Stop strings end responses, and not summaries.
            assert is_end == [turn.is_text for turn in demonstration.turns]
            config.sampling.max_summary_tokens = 2
            (shorter,) = encode_demonstrations([demonstration], Policy, config)
            assert len(shorter) == len(samples) - 2


def test_a_poor_guide_names_other_things_too() -> None:
    summaries = []
    for number in range(30):
        _, _, demonstration = demonstrate("summary", number, sign_fraction=0.3)
        assert demonstration.won
        summaries += [turn.response.split()[0] for turn in demonstration.turns if turn.is_text]
    assert 0.15 < summaries.count("sign") / len(summaries) < 0.5
    assert {*summaries} == {"sign", "lamp", "chair", "plant", "box"}


def test_subgoals_of_the_guide_do_not_change_its_summaries() -> None:
    env = Corridor()
    task = env.tasks("train")[0]
    subgoals = set()
    for seed in range(8):
        guide = Guide(seed, sign_fraction=0.3)
        episode = play_expert(env, guide, task, CORRIDOR.max_steps, "subgoal")
        subgoals |= {*episode.plans}
        # The draws of a guide without subgoals, by hand: one or two a summary.
        draws = random.Random(seed)
        seen: list[str] = []
        for (observation, _), summary in zip(episode.steps, episode.summaries, strict=True):
            names_sign = draws.random() < 0.3 or not seen
            assert names_sign == summary.startswith("sign")
            assert names_sign or summary == draws.choice(seen)
            name = observation.text.split()[-1]
            seen += [name] if name in THINGS else []
    assert subgoals == {"reach the end", f"open {task.type} door"}


def test_beliefs_about_the_sign_are_graded_until_the_doors() -> None:
    env = Corridor(length=2)
    task = env.tasks("train")[1]
    observation = env.reset(task)
    grader = SignGrader()
    keys = []
    for action, belief, grade in (
        ("go on", {"sign": "blue", "phase": "walk", "prediction": "a door"}, (1, 1, 0)),
        ("go on", {" sign ": " red ", "phase": 3}, (0, 0, 0)),
        (
            "open blue door",
            {"sign": "blue", "phase": "doors", "prediction": "the door is the right one"},
            (1, 1, 1),
        ),
    ):
        grader.observe(observation)
        observation = env.step(action).observation
        assert grader.grade(belief, observation.text) == grade
        keys.append(grader.make_key())
    assert keys == ["walk|blue", "walk|red", "doors|blue"]


def test_the_belief_of_a_poor_guide_knows_the_sign_in_some_episodes() -> None:
    env = Corridor()
    task = env.tasks("train")[2]
    signs = set()
    for seed in range(8):
        guide = Guide(seed, sign_fraction=0.3)
        beliefs = [json.loads(text) for text in play_expert(env, guide, task, 8, "belief").plans]
        assert [belief["phase"] for belief in beliefs] == ["walk"] * 6 + ["doors"]
        (sign,) = {belief.get("sign") for belief in beliefs}
        signs.add((sign, guide.subgoal))
    assert signs == {(None, "reach the end"), ("green", "open green door")}


@pytest.mark.parametrize("variant", ["summary", "drop", "window", "belief"])
def test_the_warm_start_has_the_prompts_of_its_run(variant: str) -> None:
    run, warm = get_config(variant), get_config(f"{variant}-1", "corridor_tiny_sft")
    assert run.env == warm.env
    assert run.sampling == warm.sampling
    with pytest.raises(ValueError, match="no such variant; choose summary, drop, window"):
        get_config("none")
