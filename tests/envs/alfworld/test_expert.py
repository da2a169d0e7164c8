"""The expert solves every generated game, from any state; the demonstrator errs."""

import json
import random

import pytest

from gigpo_jax.core.errors import InputError
from gigpo_jax.env_bridge.types import Observation, Task
from gigpo_jax.envs.alfworld.engine.load_game import load_game
from gigpo_jax.envs.alfworld.env import AlfworldEnv, make
from gigpo_jax.envs.alfworld.expert.beliefs import Beliefs
from gigpo_jax.envs.alfworld.expert.demonstrator import Demonstrator
from gigpo_jax.envs.alfworld.expert.expert import AlfworldExpert
from tests.envs.alfworld.generated import full, small

__all__ = ["full", "small"]

SPLITS = ("train", "valid_seen", "valid_unseen")


def play(env: AlfworldEnv, task: Task, expert) -> tuple[list[str], bool]:
    """The commands of an episode and whether it was won."""
    observation = env.reset(task)
    commands = []
    while True:
        commands.append(expert.act(observation))
        result = env.step(commands[-1])
        observation = result.observation
        if result.done:
            return commands, bool(result.info["won"])


def shortest(env: AlfworldEnv, task: Task) -> int:
    return len(json.loads((env.data / task.data).read_text(encoding="utf-8"))["walkthrough"])


@pytest.mark.parametrize(("size", "extra"), [("small", 2.0), ("full", 6.0)])
def test_every_game_is_won_with_few_steps_more_than_the_shortest_way(size, extra, request):
    env = make(request.getfixturevalue(size), max_steps=200)
    steps = 0
    shortest_steps = 0
    late_wins = 0
    games = [task for split in SPLITS for task in env.tasks(split)]
    for number, task in enumerate(games):
        commands, won = play(env, task, AlfworldExpert(number))
        assert won, task.id
        steps = steps + len(commands)
        shortest_steps = shortest_steps + shortest(env, task)
        late_wins = late_wins + (len(commands) > 50)
    assert steps >= shortest_steps
    assert (
        steps / len(games) <= shortest_steps / len(games) + extra
    )  # what it must search for, it does not know
    assert late_wins <= 0.02 * len(games)  # of the published 50 steps


def test_the_expert_uses_only_admissible_commands_and_searches_no_place_twice(small):
    env = make(small)
    for number, task in enumerate(env.tasks("train")):
        expert = AlfworldExpert(number)
        observation = env.reset(task)
        opened: list[str] = []
        while True:
            command = expert.act(observation)
            assert command in (observation.admissible or ())
            assert command not in ("look", "inventory", "help"), (
                "an expert that is at a loss looks around"
            )
            opened += [command] if command.startswith("open") else []
            result = env.step(command)
            observation = result.observation
            if result.done:
                break
        assert len(opened) == len(set(opened))


@pytest.mark.parametrize("size", ["small", "full"])
def test_with_nothing_left_to_find_the_expert_walks_the_shortest_way(size, request):
    """Told what lies where, it needs as many commands as the walkthrough from full knowledge."""
    env = make(request.getfixturevalue(size))
    wasted = []
    for number, task in enumerate(env.tasks("train")):
        expert = AlfworldExpert(number)
        file = load_game(env.data / task.data)
        observation = env.reset(task)
        expert.act(observation)
        assert expert.beliefs is not None
        for place in file.location:
            lying = {file.names[thing] for thing in file.contents.get(place, ())}
            expert.beliefs.contents[file.names[place]] = lying
            expert.beliefs.lamps |= {
                name: file.names[place] for name in lying if name.startswith("desklamp")
            }
        expert.beliefs.closed = {file.names[place] for place in file.openable}
        wasted.append(len(play(env, task, expert)[0]) - shortest(env, task))
    assert wasted == [0] * len(wasted)


def test_the_same_seed_is_the_same_episode_and_another_searches_in_another_order(full):
    env = make(full)
    tasks = env.tasks("train")[::4]
    episodes = [[play(env, task, AlfworldExpert(seed))[0] for task in tasks] for seed in (1, 1, 2)]
    assert episodes[0] == episodes[1]
    assert episodes[0] != episodes[2]


@pytest.mark.parametrize("size", ["small", "full"])
def test_the_expert_carries_on_from_wherever_random_commands_have_led(size, request):
    """Every second command is a random one: objects get displaced, doors closed, states undone."""
    env = make(request.getfixturevalue(size), max_steps=1000)
    for number, task in enumerate(env.tasks("valid_unseen")):
        rng = random.Random(number)
        expert = AlfworldExpert(number)
        observation = env.reset(task)
        while True:
            command = expert.act(observation)
            if rng.random() < 0.5:
                command = rng.choice(observation.admissible or ("look",))
            result = env.step(command)
            observation = result.observation
            if result.done:
                break
        assert result.info["won"], task.id


def test_beliefs_follow_the_texts():
    first = (
        "-= Welcome to TextWorld, ALFRED! =-\n\nYou are in the middle of a room. Looking quickly "
        "around you, you see a drawer 2, a drawer 1, and a shelf 1.\n\nYour task is to: put a pen in shelf."
    )
    beliefs = Beliefs(first)
    assert beliefs.receptacles == ("drawer 2", "drawer 1", "shelf 1")

    def see(text: str, *admissible: str) -> None:
        beliefs.update(Observation(text, text, admissible, "put a pen in shelf"))

    see("You arrive at drawer 1. The drawer 1 is closed.", "examine drawer 1", "open drawer 1")
    assert (beliefs.here, beliefs.closed, beliefs.contents) == (("drawer 1",), {"drawer 1"}, {})
    see(
        "You open the drawer 1. The drawer 1 is open. In it, you see a pen 1, and a cd 2.",
        *(
            "close drawer 1",
            "examine drawer 1",
            "take cd 2 from drawer 1",
            "take pen 1 from drawer 1",
        ),
    )
    assert (beliefs.closed, beliefs.contents) == (set(), {"drawer 1": {"pen 1", "cd 2"}})
    see(
        "You pick up the pen 1 from the drawer 1.",
        "close drawer 1",
        "examine drawer 1",
        "examine pen 1",
    )
    assert (beliefs.held, beliefs.contents) == ("pen 1", {"drawer 1": {"cd 2"}})
    see("Nothing happens.", "close drawer 1", "examine drawer 1", "examine pen 1")
    assert beliefs.held == "pen 1"
    see("You heat the pen 1 using the microwave 1.", "examine drawer 1")
    see("You cool the pen 1 using the fridge 1.", "examine drawer 1")
    assert beliefs.changed == {"clean": set(), "heat": set(), "cool": {"pen 1"}}
    see(
        "You move the pen 1 to the drawer 1.",
        "close drawer 1",
        "examine drawer 1",
        "take pen 1 from drawer 1",
    )
    assert (beliefs.held, beliefs.find_objects("pen")) == ("", [("pen 1", "drawer 1")])


def test_a_task_in_free_words_is_refused():
    with pytest.raises(InputError, match="the expert does not know this wording"):
        AlfworldExpert(0).act(
            Observation("You are here.", "", ("look",), "Place a rinsed mug by the door.")
        )


def test_the_demonstrator_without_lapses_is_the_expert(small):
    env = make(small)
    for number, task in enumerate(env.tasks("train")):
        assert play(env, task, Demonstrator(number)) == play(env, task, AlfworldExpert(number))


def test_the_demonstrator_wins_late_forgets_at_first_and_repeats_with_its_seed(small):
    env = make(small, max_steps=200)
    fractions = {
        "random_fraction": 0.1,
        "detour_fraction": 0.1,
        "idle_fraction": 0.05,
        "forget_fraction": 1.0,
    }
    with_lapses = without = forgotten = changes = 0
    for number, task in enumerate(env.tasks("train")):
        commands, won = play(env, task, Demonstrator(number, **fractions))
        assert won
        assert commands == play(env, task, Demonstrator(number, **fractions))[0]
        with_lapses += len(commands)
        without += len(play(env, task, AlfworldExpert(number))[0])
        verb = {"clean": "clean", "heat": "heat", "cool": "cool"}.get(task.type.split("_")[1])
        if verb:
            changed = next(
                index for index, command in enumerate(commands) if command.startswith(f"{verb} ")
            )
            changes += 1
            forgotten += any(command.startswith("move") for command in commands[:changed])
    assert 1.3 * without < with_lapses < 4 * without
    assert forgotten >= 0.9 * changes  # it put the object down first, in vain, then changed it


def test_a_command_has_a_thought_unless_it_is_a_lapse(small):
    env = make(small, max_steps=40)
    lapses = []
    for number, task in enumerate(env.tasks("train")[:6]):
        expert = AlfworldExpert(number)
        demonstrator = Demonstrator(number, random_fraction=0.5)
        observation = env.reset(task)
        done = False
        while not done:
            command = demonstrator.act(observation)
            lapses.append(command != expert.act(observation))
            assert demonstrator.lapse == lapses[-1]
            assert (demonstrator.thought == "") == lapses[-1]
            result = env.step(command)
            observation, done = result.observation, result.done
    assert 0.2 < sum(lapses) / len(lapses) < 0.6


def test_shares_of_lapses_are_probabilities():
    with pytest.raises(InputError, match=r"idle_fraction=1\.5"):
        Demonstrator(0, idle_fraction=1.5)
    with pytest.raises(InputError, match="at most 1 together"):
        Demonstrator(0, random_fraction=0.6, detour_fraction=0.6)
