"""Solves generated tasks from their words."""

import random
import re

from gigpo_jax.env_bridge.option_checks import check_fractions
from gigpo_jax.env_bridge.types import Observation
from gigpo_jax.envs.shell.tasks import ANSWER, FAULTS, SCRIPT

_FIND = re.compile("that has the word (.+) to ")
_COUNT = re.compile("the number of (lines|words)(?: with (.+))? in (.+) to ")
_EDIT = re.compile("set (.+) to (.+) in (.+)")


class ShellExpert:
    """Plays the shortest solution, or errs.

    Attributes:
      thought: Reason for the last action, for the examples in prompts (docs/agents.md).
    """

    def __init__(self, seed: int, *, random_fraction: float = 0.0) -> None:
        """Checks the fraction; entry.py explains it."""
        check_fractions(random_fraction=random_fraction)
        self._random = random.Random(f"shell expert {seed}")
        self._random_fraction = random_fraction
        self._command = ""
        self.thought = ""

    def act(self, observation: Observation) -> str:
        if self._random.random() < self._random_fraction:
            self.thought = "I try something."
            # It may have undone the last command.
            self._command = ""
            return self._random.choice(observation.admissible or ("submit",))
        command, self.thought = _choose_command(observation)
        # The command that solves the task is given once; after it the task is done.
        if command == self._command:
            self.thought = "The task is done."
            return "submit"
        self._command = command
        return command


def _choose_command(observation: Observation) -> tuple[str, str]:
    """Returns the next command and its reason."""
    if match := _FIND.search(observation.task):
        return f"grep -rl {match[1]} * > {ANSWER}", "I search all files for the word."
    if match := _COUNT.search(observation.task):
        kind, word, path = match.groups()
        count = f"grep -c {word} {path}" if word else f"wc -{kind[0]} < {path}"
        return f"{count} > {ANSWER}", f"I count the {kind}."
    if match := _EDIT.search(observation.task):
        key, value, path = match.groups()
        return f"sed -i s/{key}=.*/{key}={value}/ {path}", "I replace the value in its line."
    for wrong, right in FAULTS:
        if wrong in observation.text:
            return f"sed -i s/{wrong}/{right}/ {SCRIPT}", f"It says {wrong} and not {right}."
    return f"cat {SCRIPT}", "I read the script."
