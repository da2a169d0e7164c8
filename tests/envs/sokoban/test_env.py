"""The environment around the rules: responses, prompts, pictures, expert, regret."""

import numpy as np
import pytest

from gigpo_jax.env_bridge.prompt_building import build_prompt
from gigpo_jax.env_bridge.prompts import History
from gigpo_jax.env_bridge.types import IMAGE, Task
from gigpo_jax.envs import registry
from gigpo_jax.envs.sokoban.env import choose_best, format_cells, parse_cells
from gigpo_jax.envs.sokoban.picture import draw_room
from gigpo_jax.envs.sokoban.prompt import parse_move

THOUGHT = "<think>so</think>"


@pytest.mark.parametrize(
    ("response", "action", "valid"),
    [
        (f"{THOUGHT}<action>up</action>", "up", True),
        (
            f"{THOUGHT}<action> Go DOWN, then up </action>",
            "up",
            True,
        ),  # the order of the names decides
        (f"{THOUGHT}<action>leftwards</action>", "left", True),
        (f"{THOUGHT}<action>still</action>", "still", True),
        (f"{THOUGHT}<ACTION>right</ACTION>", "right", True),
        (f"{THOUGHT}<action>right</action><action>up</action>", "right", True),
        ("<action>right</action>", "right", False),
        ("so</think><action>right</action>", "right", False),
        ("<think>so<action>right</action>", "right", False),
        (f"{THOUGHT}<action>jump</action>", "", False),
        (f"{THOUGHT}</action>up<action>", "", False),
        (f"{THOUGHT}<action>up", "", False),
        (f"{THOUGHT}up", "", False),
        ("<think>\u5411\u4e0a</think><action>up</action>", "up", True),
        ("", "", False),
    ],
)
def test_responses_are_read_as_published(response: str, action: str, valid: bool) -> None:
    parsed = parse_move(response)
    assert (parsed.action, parsed.valid) == (action, valid)


@pytest.mark.parametrize("options", [{}, {"size": 7, "boxes": 2, "max_steps": 40}])
def test_the_expert_solves_every_level_without_regret_and_as_fast_as_possible(
    options: dict[str, int],
) -> None:
    env = registry.make("sokoban", observation="text", regret=True, **options)
    for task in env.tasks("train")[:25]:
        observation = env.reset(task)
        total = 0.0
        steps = 0
        done = False
        while not done:
            result = env.step(choose_best(observation.anchor))
            observation = result.observation
            total = total + result.reward
            steps = steps + 1
            done = result.done
            assert result.info["regret"] == 0
        assert result.info == {"won": True, "score": 1.0, "regret": 0.0}
        assert total == pytest.approx(10 + options.get("boxes", 1) - 0.1 * steps)
        last_result = env.step("up")
        assert (last_result.reward, last_result.done) == (0.0, True)


def test_regret_counts_wasted_moves_and_a_lost_game_costs_what_is_left_once() -> None:
    env = registry.make("sokoban", observation="text", regret=True, max_steps=20)
    lost = 0
    for task in env.tasks("train")[:60]:
        observation = env.reset(task)
        wasted = env.step("jump")  # nothing moves: one action more
        assert wasted.info["regret"] == 1
        assert wasted.observation.anchor == observation.anchor
        regrets = [
            env.step(action).info["regret"] for action in ("up", "left", "left", "down", "right")
        ]
        assert all(0 <= regret <= 20 for regret in regrets)
        hopeless = [
            place for place, regret in enumerate(regrets) if regret > 2
        ]  # a step back costs 2 at most
        lost += bool(hopeless)
        assert all(sum(regrets[place + 1 :]) == 0 for place in hopeless)
    assert 5 < lost < 55


def test_a_mediocre_demonstrator_errs_and_sometimes_loses() -> None:
    env = registry.make("sokoban", observation="text")
    won = []
    for seed, task in enumerate(env.tasks("train")[:60]):
        observation = env.reset(task)
        expert = registry.make_expert("sokoban", seed, random_fraction=0.6)
        done = False
        while not done:
            result = env.step(expert.act(observation))
            observation = result.observation
            done = result.done
        won.append(result.info["won"])
    assert 0.3 < np.mean(won) < 0.9


def test_text_and_picture_show_the_same_state() -> None:
    text, picture = (registry.make("sokoban", observation=kind) for kind in ("text", "picture"))
    task = text.tasks("test")[3]
    text_observation = text.reset(task)
    picture_observation = picture.reset(task)
    for action in (None, "left", "up", "right", "down", "nonsense"):
        if action is not None:
            text_observation = text.step(action).observation
            picture_observation = picture.step(action).observation
        assert text_observation.anchor == picture_observation.anchor
        assert text_observation.images == ()
        assert text_observation.text == "\n".join(
            "".join(f" {c} \t" for c in row) for row in text_observation.anchor.split("\n")
        )
        assert picture_observation.text == IMAGE
        cells, width = parse_cells(picture_observation.anchor)
        assert format_cells(cells, width) == picture_observation.anchor
        np.testing.assert_array_equal(
            picture_observation.images[0], draw_room(np.frombuffer(cells, np.uint8).reshape(6, 6))
        )


def test_every_code_has_a_tile_of_its_own_and_a_picture_is_made_of_tiles() -> None:
    tiles = draw_room(np.arange(7).reshape(1, 7))
    assert tiles.shape == (28, 196, 3)
    assert len({tiles[:, 28 * code : 28 * code + 28].tobytes() for code in range(7)}) == 7
    room = np.array([[0, 1], [3, 6]])
    picture = draw_room(room)
    for (row, column), code in np.ndenumerate(room):
        cell = picture[28 * row : 28 * row + 28, 28 * column : 28 * column + 28]
        np.testing.assert_array_equal(cell, tiles[:, 28 * code : 28 * code + 28])


def test_prompts_show_steps_and_history_in_text_and_neither_beside_a_picture() -> None:
    prompts = {}
    room = ""
    for kind in ("text", "picture"):
        env = registry.make("sokoban", observation=kind)
        first = env.reset(env.tasks("train")[0])
        room = room or first.text
        history = History(2)
        history.add(first.text, "up")
        for style in ("full", "compact"):
            template = registry.find_style("sokoban", style)
            prompt = build_prompt(
                template, first, history, encode=lambda text, *images: list(text), limit=10**4
            )
            prompts[kind, style] = prompt.text
    assert prompts["text", "full"].count(room) == 2  # the history and now
    assert "Steps taken so far: 1." in prompts["text", "full"]
    assert "You did: up" in prompts["text", "full"]
    assert prompts["picture", "full"].count(IMAGE) == 1
    assert "You did" not in prompts["picture", "full"]
    assert prompts["picture", "compact"] == IMAGE
    assert len(prompts["text", "compact"].split()) == 36


def test_a_level_follows_from_the_id_and_the_options_and_splits_share_none() -> None:
    env = registry.make("sokoban")
    digests = {
        split: [env.digest(task) for task in env.tasks(split)[:300]] for split in ("train", "test")
    }
    assert not set(digests["train"]) & set(digests["test"])
    assert len(set(digests["train"])) > 200
    task = env.tasks("train")[0]
    assert env.digest(Task(task.id, "", "train")) == digests["train"][0]
    assert env.digest(task) != registry.make("sokoban", boxes=2).digest(task)
    assert registry.make("sokoban", size=7).reset(task).images[0].shape == (196, 196, 3)
