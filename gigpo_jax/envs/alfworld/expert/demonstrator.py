"""A demonstrator that errs at given rates, for a warm start that leaves something to learn.

The expert continues from the state after each error, so every episode succeeds if it has enough steps.
"""

import random
from collections.abc import Sequence

from gigpo_jax.env_bridge.base import check_fractions
from gigpo_jax.env_bridge.types import Observation
from gigpo_jax.envs.alfworld.expert.beliefs import kind_of
from gigpo_jax.envs.alfworld.expert.expert import AlfworldExpert
from gigpo_jax.envs.alfworld.expert.thoughts import thought
from gigpo_jax.errors import InputError

_IDLE = ("look", "inventory", "examine", "help")


class Demonstrator:
    """Plays one episode. `registry.ENVIRONMENTS` explains the fractions; without any it is the expert itself."""

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
            raise InputError("random_fraction + detour_fraction + idle_fraction: must be at most 1 together")
        self._expert = AlfworldExpert(seed)
        self._rng = random.Random(f"alfworld demonstrator {seed}")
        self._random, self._detour = random_fraction, detour_fraction
        self._idle, self._forget = idle_fraction, forget_fraction
        self._forgotten: dict[str, bool] = {}
        self.lapse = False
        self._command = ""

    @property
    def thought(self) -> str:
        """The reason for the last command, if it was the expert's."""
        goal, known = self._expert.goal, self._expert.beliefs
        return "" if goal is None or known is None or self.lapse else thought(goal, known, self._command)

    def act(self, observation: Observation) -> str:
        """The next command; afterwards `lapse` is whether it differs from the expert's."""
        best = self._expert.act(observation)
        commands = observation.admissible or ()
        draw = self._rng.random()
        command = best
        if draw < self._random:
            command = self._one_of(commands, best)
        elif draw < self._random + self._detour:
            command = self._one_of([name for name in commands if name.startswith("go to ")], best)
        elif draw < self._random + self._detour + self._idle:
            command = self._one_of([name for name in commands if name.startswith(_IDLE) and name != "help"], best)
        else:
            command = self._forgetful(best, commands)
        self.lapse, self._command = command != best, command
        return command

    def _one_of(self, commands: Sequence[str], otherwise: str) -> str:
        return self._rng.choice(commands) if commands else otherwise

    def _forgetful(self, best: str, commands: tuple[str, ...]) -> str:
        """Leaves out a change of state at times, until the object was put down without an effect."""
        goal, known = self._expert.goal, self._expert.beliefs
        if goal is None or known is None or goal.change is None or kind_of(known.held) != goal.object:
            return best
        held = known.held
        if held in known.changed[goal.change.verb]:
            return best
        if held not in self._forgotten:
            self._forgotten[held] = self._rng.random() < self._forget
        if not self._forgotten[held]:
            return best
        for name in known.of_kind(goal.receptacle):
            if f"move {held} to {name}" in commands:
                self._forgotten[held] = False
                return f"move {held} to {name}"
        return self._towards(known.of_kind(goal.receptacle), commands, best)

    def _towards(self, targets: list[str], commands: tuple[str, ...], best: str) -> str:
        opening = [f"open {name}" for name in targets if f"open {name}" in commands]
        going = [f"go to {name}" for name in targets if f"go to {name}" in commands]
        return (opening + going + [best])[0]
