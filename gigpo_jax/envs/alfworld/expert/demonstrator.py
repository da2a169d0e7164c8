"""A demonstrator that errs at given rates, for a warm start that leaves something to learn.

The expert continues from the state after each error, so every episode succeeds if it has enough
steps.
"""

import random
from collections.abc import Sequence

from gigpo_jax.core.errors import InputError
from gigpo_jax.env_bridge.option_checks import check_fractions
from gigpo_jax.env_bridge.types import Observation
from gigpo_jax.envs.alfworld.expert.beliefs import get_type
from gigpo_jax.envs.alfworld.expert.expert import AlfworldExpert
from gigpo_jax.envs.alfworld.expert.thoughts import describe_plan, explain_command, name_subgoal

_IDLE_COMMANDS = ("look", "inventory", "examine")


class Demonstrator:
    """Player of one episode, who lapses at times, or the expert itself without any fraction.

    The options in entry.py explain the fractions.

    Attributes:
      expert: Expert, whose knowledge the demonstrator has.
      lapse: Whether the last command differs from the expert's.
      subgoal: Subgoal of the expert at the last command, whatever the command was.
    """

    def __init__(
        self,
        seed: int,
        *,
        random_fraction: float = 0.0,
        detour_fraction: float = 0.0,
        idle_fraction: float = 0.0,
        forget_fraction: float = 0.0,
    ):
        check_fractions(
            random_fraction=random_fraction,
            detour_fraction=detour_fraction,
            idle_fraction=idle_fraction,
            forget_fraction=forget_fraction,
        )
        if random_fraction + detour_fraction + idle_fraction > 1.0:
            raise InputError(
                "must be at most 1 together",
                key="random_fraction + detour_fraction + idle_fraction",
            )
        self.expert = AlfworldExpert(seed)
        self._rng = random.Random(f"alfworld demonstrator {seed}")
        # Upper ends of the three ranges of one uniform number, which decides the kind of error.
        self._random_end = random_fraction
        self._detour_end = random_fraction + detour_fraction
        self._idle_end = random_fraction + detour_fraction + idle_fraction
        self._forget_fraction = forget_fraction
        self._forgets: dict[str, bool] = {}  # object -> whether its change is left out
        self._command = ""
        self.lapse = False
        self.subgoal = ""

    @property
    def thought(self) -> str:
        """Reason for the last command; "" after a lapse."""
        goal = self.expert.goal
        beliefs = self.expert.beliefs
        if goal is None or beliefs is None or self.lapse:
            return ""
        return explain_command(goal, beliefs, self._command)

    @property
    def strategy(self) -> str:
        """Strategy for the task; "" before the first command."""
        goal = self.expert.goal
        return "" if goal is None else describe_plan(goal)

    def act(self, observation: Observation) -> str:
        """The next command."""
        # Before the draw: the expert must see every observation, lapse or not.
        best = self.expert.act(observation)
        goal = self.expert.goal
        beliefs = self.expert.beliefs
        if goal is not None and beliefs is not None:
            self.subgoal = name_subgoal(goal, beliefs)
        commands = observation.admissible or ()
        draw = self._rng.random()
        if draw < self._random_end:
            command = self._choose(commands, best)
        elif draw < self._detour_end:
            go_commands = [name for name in commands if name.startswith("go to ")]
            command = self._choose(go_commands, best)
        elif draw < self._idle_end:
            idle_commands = [name for name in commands if name.startswith(_IDLE_COMMANDS)]
            command = self._choose(idle_commands, best)
        else:
            command = self._forget_change(best, commands)
        self.lapse = command != best
        self._command = command
        return command

    def _choose(self, commands: Sequence[str], default: str) -> str:
        return self._rng.choice(commands) if commands else default

    def _forget_change(self, best: str, commands: tuple[str, ...]) -> str:
        """Leaves out a change of state at times, until the object was put down in vain."""
        goal = self.expert.goal
        beliefs = self.expert.beliefs
        if goal is None or beliefs is None or goal.change is None:
            return best
        held = beliefs.held
        if get_type(held) != goal.object or held in beliefs.changed[goal.change.verb]:
            return best
        # Drawn once for each object: a lapse at random steps would be corrected at the next one.
        if held not in self._forgets:
            self._forgets[held] = self._rng.random() < self._forget_fraction
        if not self._forgets[held]:
            return best
        targets = beliefs.find_receptacles(goal.receptacle)
        for name in targets:
            if f"move {held} to {name}" in commands:
                # It was put down in vain: now the expert takes it again and prepares it.
                self._forgets[held] = False
                return f"move {held} to {name}"
        for action in ("open", "go to"):
            for name in targets:
                if f"{action} {name}" in commands:
                    return f"{action} {name}"
        return best
