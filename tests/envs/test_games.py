"""What all games share: options, ends, tasks."""

from pathlib import Path

import pytest

from gigpo_jax.core.errors import InputError
from gigpo_jax.core.png import encode_png
from gigpo_jax.env_bridge.prompts import History
from gigpo_jax.env_bridge.types import EnvError, Task
from gigpo_jax.envs import registry
from gigpo_jax.envs.command_line import main
from gigpo_jax.models.text.word_tokenizer import word_tokenizer
from gigpo_jax.rollout.episode_settings import EpisodeSettings
from gigpo_jax.rollout.prompt_encoding import prompt_encoder
from tests.envs.futures import count_equal_anchors

GAMES = ("blackjack", "ezpoints", "numberline", "points24", "sokoban")


@pytest.mark.parametrize("name", GAMES)
def test_bad_options_splits_and_calls_are_told(name: str) -> None:
    for options, message in (
        (
            {"observation": "sound"},
            r"config\.env\.options\.observation='sound': must be picture or text",
        ),
        ({"anchor": "board"}, r"config\.env\.anchor='board': must be state, the whole"),
        (
            {"max_steps": 0},
            r"config\.env\.options\.max_steps=0: must be a whole number of at least 1",
        ),
    ):
        with pytest.raises(InputError, match=message):
            registry.make(name, **options)
    env = registry.make(name)
    with pytest.raises(
        InputError, match=r"split='valid': this environment has the splits train, test"
    ):
        env.tasks("valid")
    with pytest.raises(InputError, match="no split 'valid'"):
        env.reset(Task("x", "", "valid"))
    with pytest.raises(EnvError, match="step before reset"):
        registry.make(name).step("up")
    with pytest.raises(InputError, match=r"random_fraction=1\.5: must be a probability"):
        registry.make_expert(name, 0, random_fraction=1.5)


@pytest.mark.parametrize("name", GAMES)
def test_an_episode_ends_after_max_steps_of_any_action(name: str) -> None:
    env = registry.make(name, max_steps=3, observation="text")
    env.reset(env.tasks("train")[0])
    assert [env.step("").done for _ in range(3)] == [False, False, True]


@pytest.mark.parametrize("name", GAMES)
def test_a_policy_that_reads_text_refuses_pictures(name: str) -> None:
    """Before a token is spent: a prompt without its picture would say nothing."""
    settings = EpisodeSettings(
        registry.find_style(name, "full"),
        registry.spec(name).parse,
        max_steps=3,
        prompt_tokens=2000,
    )
    for kind in ("text", "picture"):
        env = registry.make(name, observation=kind)
        observation = env.reset(env.tasks("test")[0])
        if kind == "text":
            assert settings.prompt(observation, History(0), list).cut == ""
        else:
            with pytest.raises(InputError, match="shows pictures, and this model reads text alone"):
                settings.prompt(observation, History(0), prompt_encoder(word_tokenizer([]), None))


def test_the_command_writes_what_an_agent_sees(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    env = registry.make("sokoban")
    env.reset(env.tasks("test")[5])
    observation = env.step("left").observation
    command = ["picture", "sokoban", "--split", "test", "--task", "5", "--actions", "left", "--out"]
    assert main([*command, str(tmp_path / "room.png")]) == 0
    assert (tmp_path / "room.png").read_bytes() == encode_png(observation.images[0])
    assert observation.anchor in capsys.readouterr().out
    for more, message in (
        (["--option", "observation=text"], "no picture"),
        (["--task", "512"], "has the tasks 0 to 511"),
    ):
        assert main([*command, str(tmp_path / "none.png"), *more]) == 2
        assert message in capsys.readouterr().err
    assert not (tmp_path / "none.png").exists()


@pytest.mark.parametrize(
    ("option", "value"), [("size", 4), ("size", 11), ("boxes", 0), ("boxes", 4)]
)
def test_sokoban_refuses_rooms_that_it_cannot_make(option: str, value: int) -> None:
    with pytest.raises(
        InputError, match=rf"config\.env\.options\.{option}={value}: must be a whole number from"
    ):
        registry.make("sokoban", **{option: value})


def test_the_smallest_and_largest_rooms_of_each_number_of_boxes_can_be_made() -> None:
    for boxes in (1, 2, 3):
        for size in (5, 10):
            env = registry.make("sokoban", size=size, boxes=boxes, observation="text")
            assert env.reset(env.tasks("test")[0]).anchor.count("X") == boxes


@pytest.mark.parametrize("name", GAMES)
def test_equal_states_have_equal_futures(name: str) -> None:
    env = registry.make(name, anchor="state", observation="text", max_steps=100)
    pairs = 0
    for number, task in enumerate(env.tasks("train")[:8]):
        pairs += count_equal_anchors(env, task, episodes=6, steps=8, seed=number)
    assert pairs > 10


def test_equal_states_of_the_example_have_equal_futures() -> None:
    env = registry.make("example", anchor="state")
    pairs = 0
    for number, task in enumerate(env.tasks("train")[:8]):
        pairs += count_equal_anchors(env, task, episodes=6, steps=8, seed=number)
    assert pairs > 50
    task = env.tasks("train")[0]
    start = env.reset(task).anchor
    assert env.step("wait").observation.anchor == start
    assert env.step("open drawer 1").observation.anchor != start
    with pytest.raises(InputError, match="anchor='board': must be one of text, state"):
        registry.make("example", anchor="board")


def test_every_environment_has_the_anchor_state() -> None:
    for name, entry in registry.ENVIRONMENTS.items():
        assert entry.anchor.accepts("state"), name
