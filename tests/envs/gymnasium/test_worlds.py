"""The environments as Gymnasium environments, by Gymnasium's own checker and by playing them."""

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from gymnasium.vector.utils import shared_memory as vectors

import gigpo_jax.envs.gymnasium.worlds
from gigpo_jax.core.errors import InputError
from gigpo_jax.env_bridge.types import IMAGE, EnvError, Observation
from gigpo_jax.envs import registry
from gigpo_jax.envs.world import Player
from tests.envs.pages import code

assert gigpo_jax.envs.gymnasium.worlds  # registers the environments

pytestmark = pytest.mark.usefixtures("world_cache")


def test_every_environment_of_the_registry_has_an_id() -> None:
    ids = {f"gigpo/{name}-v0" for name in registry.ENVIRONMENTS}
    assert {name for name in gymnasium.registry if name.startswith("gigpo/")} == ids


@pytest.mark.filterwarnings("error::UserWarning")
@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("alfworld", {"panel": "tiny_unseen"}),
        ("example", {"responses": True}),
        ("numberline", {"panel": "test", "responses": True}),
        ("search", {"panel": "test", "responses": True}),
        ("sokoban", {"split": "test"}),
        ("webshop", {"panel": "long_test"}),
    ],
)
def test_the_checker_of_gymnasium_finds_nothing(name: str, arguments: dict[str, Any]) -> None:
    env = gymnasium.make(f"gigpo/{name}-v0", **arguments)
    check_env(env.unwrapped)
    env.close()


def test_the_expert_wins_from_what_the_environment_says() -> None:
    env = gymnasium.make("gigpo/alfworld-v0", panel="tiny_unseen")
    expert = registry.make_expert("alfworld", 0)
    text, info = env.reset(options={"task": 7})
    assert info["task_id"] == env.unwrapped.world.tasks[7].id
    rewards = []
    done = False
    while not done:
        action = expert.act(Observation(text, info["anchor"], info["admissible"], info["task"]))
        text, reward, terminated, truncated, info = env.step(action)
        rewards.append(reward)
        done = terminated or truncated
    assert (rewards[-1], sum(rewards), terminated, truncated, info["won"], info["score"]) == (
        10,
        10,
        True,
        False,
        True,
        1,
    )
    with pytest.raises(EnvError, match="after the end"):
        env.step("look")


def test_responses_are_parsed_and_observations_are_prompts() -> None:
    env = gymnasium.make("gigpo/example-v0", responses=True, split="test")
    prompt, _ = env.reset(options={"task": "test/0001"})
    assert "Your task: find the pearl" in prompt
    prompt, *_, info = env.step("<think>left to right</think><action>open drawer 1</action>")
    assert info["valid"]
    assert "You did: open drawer 1" in prompt
    assert not env.step("I open the drawer")[-1]["valid"]


def test_tasks_are_drawn_from_the_seed() -> None:
    env = gymnasium.make("gigpo/example-v0", split="test")
    drawn = [
        [env.reset(seed=seed)[1]["task_id"], *(env.reset()[1]["task_id"] for _ in range(3))]
        for seed in (3, 4, 3)
    ]
    assert drawn[0] == drawn[2] != drawn[1]


def test_pictures_are_observations_and_renderings() -> None:
    env = gymnasium.make("gigpo/sokoban-v0", render_mode="rgb_array", panel="test")
    observation, _ = env.reset(options={"task": 0})
    assert (observation["text"], observation["image"].shape) == (IMAGE, (168, 168, 3))
    next_image = env.step("up")[0]["image"]
    np.testing.assert_array_equal(env.render(), next_image)
    text = gymnasium.make("gigpo/sokoban-v0", render_mode="ansi", panel="test", observation="text")
    observation, info = text.reset(options={"task": 0})
    assert text.render() == observation
    assert "P" in info["anchor"]


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_environments_run_side_by_side(mode: str) -> None:
    envs = gymnasium.make_vec("gigpo/example-v0", num_envs=3, vectorization_mode=mode, split="test")
    texts, infos = envs.reset(seed=0)
    assert list(texts) == ["You stand before 4 drawers."] * 3
    assert len(set(infos["task_id"])) == 3
    texts, rewards, *_ = envs.step(("open drawer 1", "open drawer 2", "dance"))
    assert texts[2] == "Nothing happens."
    assert rewards.tolist() == [0.0] * 3
    earlier_texts = list(texts)
    envs.step(("close drawer 1", "dance", "open drawer 3"))
    assert list(texts) == earlier_texts
    envs.close()


def test_pictures_and_texts_of_any_alphabet_come_from_other_processes() -> None:
    envs = gymnasium.make_vec(
        "gigpo/sokoban-v0", num_envs=2, vectorization_mode="async", panel="test"
    )
    first, _ = envs.reset(seed=0)
    assert list(first["text"]) == [IMAGE] * 2
    assert first["image"].shape == (2, 168, 168, 3)
    envs.close()
    space = gigpo_jax.envs.gymnasium.worlds.Text()
    memory = vectors.create_shared_memory(space, 2)
    texts = vectors.read_from_shared_memory(space, memory, 2)
    longest = "\U0001f511" * space.max_length
    vectors.write_to_shared_memory(space, 0, longest, memory)
    vectors.write_to_shared_memory(space, 1, "Schl\u00fcssel", memory)
    assert tuple(texts) == (longest, "Schl\u00fcssel")
    vectors.write_to_shared_memory(space, 0, "", memory)
    assert texts[0] == ""


def test_bad_input_is_one_line_with_the_fix(monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[Player] = []
    monkeypatch.setattr(Player, "close", lambda player: closed.append(player))
    with pytest.raises(InputError, match=r"render_mode='rgb_array': example has ansi$"):
        gymnasium.make("gigpo/example-v0", render_mode="rgb_array")
    assert len(closed) == 1
    env = gymnasium.make("gigpo/example-v0", render_mode="ansi").unwrapped
    with pytest.raises(InputError, match="render: no episode has begun; call reset first"):
        env.render()
    with pytest.raises(EnvError, match="step before reset: call reset first"):
        env.step("open drawer 1")
    with pytest.raises(InputError, match=r"options=\['tsk'\]: not known; give task"):
        env.reset(options={"tsk": 1})
    with pytest.raises(InputError, match="task=99: must be a whole number from 0 to 63"):
        env.reset(options={"task": 99})
    env.reset()
    with pytest.raises(InputError, match="action=3: must be a text"):
        env.step(3)


def test_the_code_of_the_page_plays_an_episode(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[3] / "worlds"))
    exec(code("Gymnasium"), {})
    assert capsys.readouterr().out.endswith(" 10.0 True\n")
