"""A corridor: a sign at its start names the door at its end.

    gigpo envs check examples.corridor.env:CORRIDOR

What the sign said must be remembered: a prompt with the last steps alone does not show it, and a
conversation that drops its oldest steps has lost it at the end.
"""

import hashlib
import json
import random
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from gigpo_jax.core.errors import InputError
from gigpo_jax.env_bridge.actions import parse_tagged
from gigpo_jax.env_bridge.base import check_whole
from gigpo_jax.env_bridge.instructions import Instruct
from gigpo_jax.env_bridge.option_checks import check_fractions
from gigpo_jax.env_bridge.prompts import Compact
from gigpo_jax.env_bridge.types import Observation, StepResult, Task
from gigpo_jax.envs.entry_types import Environment, Option

SPLITS = ("train", "test")
COLOURS = ("red", "blue", "green", "white")
THINGS = ("lamp", "chair", "plant", "box")
TASK = "open the door that the sign names"
WALK = "go on"


class Corridor:
    """A sign, things along the way, and a door of each colour.

    Actions: `go on` in the corridor, `open red door` and so on at its end, which ends the episode.
    Reward 10 for the door of the sign's colour.
    """

    def __init__(self, *, length: int = 6, games: int = 512) -> None:
        """Every split has `games` corridors of `length` places before the doors."""
        check_whole("length", length, 2, 99)
        check_whole("games", games, 1)
        self._length = length
        self._games = games
        self._places: list[str] = []
        self._colour = ""
        self._position = 0
        self._is_over = False
        self._won = False

    def tasks(self, split: str) -> Sequence[Task]:
        """The tasks of a split, typed by the colour of the sign."""
        if split not in SPLITS:
            raise InputError(
                f"the corridor has the splits {', '.join(SPLITS)}",
                key="config.env.split",
                value=repr(split),
            )
        return [
            Task(f"{split}/{number:04d}", COLOURS[number % len(COLOURS)], split)
            for number in range(self._games)
        ]

    def digest(self, task: Task) -> str:
        """A hash of the task's content: a panel notices when corridors become others."""
        self.reset(task)
        return hashlib.sha256("; ".join(self._places).encode()).hexdigest()

    def reset(self, task: Task) -> Observation:
        # The things follow from the id alone: they are the same in every process.
        rng = random.Random(f"{task.id}:{self._length}")
        self._colour = task.type
        self._places = [f"a sign says {self._colour}"]
        for _ in range(self._length - 1):
            self._places.append(f"a {rng.choice(THINGS)}")
        self._position = 0
        self._is_over = False
        self._won = False
        return self._observe()

    def step(self, action: str) -> StepResult:
        if action in self._list_actions():
            if action == WALK:
                self._position += 1
            else:
                self._is_over = True
                self._won = action == _opening(self._colour)
        info = {"won": self._won, "score": float(self._won)}
        return StepResult(self._observe(), 10.0 * self._won, self._is_over, info)

    def close(self) -> None:
        pass

    def _list_actions(self) -> tuple[str, ...]:
        if self._is_over:
            return ()
        if self._position < self._length:
            return (WALK,)
        return tuple(map(_opening, COLOURS))

    def _observe(self) -> Observation:
        if self._is_over:
            text = "the door is the right one" if self._won else "the door is a wrong one"
        elif self._position < self._length:
            text = self._places[self._position]
        else:
            text = "the end of the corridor"
        # The sign is the same in all episodes of a task, so the place says all of the state.
        anchor = f"place {self._position}, {self._is_over}, {self._won}"
        return Observation(text, anchor, self._list_actions(), TASK)


def _opening(colour: str) -> str:
    return f"open {colour} door"


class Guide:
    """Walks to the end and opens the door of the sign.

    A summary of it has one thing that it has seen: the sign in a fraction of all summaries, else
    something of the corridor. Its subgoal is the door of the sign in a fraction of all episodes,
    else the end of the corridor; its belief knows the sign in the same episodes.

    Attributes:
      subgoal: Subgoal of the last action.
      belief: What it knew before the last action, as JSON.
    """

    def __init__(self, seed: int, *, sign_fraction: float = 1.0) -> None:
        check_fractions(sign_fraction=sign_fraction)
        self._random = random.Random(seed)
        # Apart, so that summaries do not depend on subgoals. Without the first draw, which was that
        # of a summary when benchmarks/protocols/plans.md was written.
        self._subgoal_random = random.Random(seed)
        self._subgoal_random.random()
        self._sign_fraction = sign_fraction
        self._colour = ""
        self._seen: list[str] = []
        self._known: dict[str, str] = {}
        self.subgoal = ""
        self.belief = ""

    @property
    def strategy(self) -> str:
        """The strategy of the episode: its subgoal."""
        return self.subgoal

    def act(self, observation: Observation) -> str:
        name = observation.text.split()[-1]
        if name in COLOURS:
            self._colour = name
            names_door = self._subgoal_random.random() < self._sign_fraction
            self.subgoal = _opening(name) if names_door else "reach the end"
            self._known = {"sign": name} if names_door else {}
        elif name in THINGS:
            self._seen.append(name)
        self.belief = json.dumps(self._known | {"phase": _find_phase(observation)})
        return WALK if observation.admissible == (WALK,) else _opening(self._colour)

    def summarise(self) -> str:
        if self._random.random() < self._sign_fraction or not self._seen:
            return f"sign {self._colour}"
        return self._random.choice(self._seen)


def _find_phase(observation: Observation) -> str:
    return "walk" if observation.admissible == (WALK,) else "doors"


class SignGrader:
    """Grades what a belief says of the sign, of the place and of the next observation."""

    def __init__(self) -> None:
        self._colour = ""
        self._phase = ""
        self._belief: dict[str, str] = {}

    def observe(self, observation: Observation) -> None:
        name = observation.text.split()[-1]
        if name in COLOURS:
            self._colour = name
        self._phase = _find_phase(observation)

    def grade(self, belief: Mapping[str, Any], feedback: str) -> tuple[float, float, float]:
        # Tokenizers of words put spaces around names.
        self._belief = {key.strip(): str(value).strip() for key, value in belief.items()}
        truth = {"sign": self._colour, "phase": self._phase, "prediction": feedback}
        state, phase, prediction = (self._belief.get(key) == truth[key] for key in truth)
        return float(state), float(phase), float(prediction)

    def make_key(self) -> str:
        return f"{self._phase}|{self._belief.get('sign', '')}"


INTRODUCTION = (
    "You walk along a corridor. A sign at its start names a colour. At its end are doors, and you "
    "may open one of them: it must be the one of that colour."
)
CORRIDOR = Environment(
    build="examples.corridor.env:Corridor",
    styles={"full": Instruct(INTRODUCTION), "compact": Compact()},
    parse=partial(parse_tagged, fallback_chars=30),
    expert="examples.corridor.env:Guide",
    max_steps=8,
    history=2,
    invalid_penalty=0.1,
    options={
        "length": Option(int, 6, "places before the doors: 2 to 99"),
        "games": Option(int, 512, "tasks of a split"),
    },
    expert_options={
        "sign_fraction": Option(float, 1.0, "fraction of summaries that name the sign"),
    },
    plans={"belief": "examples.corridor.beliefs:BELIEFS"},
)
