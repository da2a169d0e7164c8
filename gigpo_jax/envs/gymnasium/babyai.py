"""BabyAI: the package's bot as demonstrator, and the prompt for tiny models (docs/babyai.md)."""

import contextlib
import random
from collections.abc import Mapping
from typing import Any

from gigpo_jax.env_bridge.option_checks import check_fractions
from gigpo_jax.env_bridge.prompts import PromptInput
from gigpo_jax.env_bridge.types import Observation, Task
from gigpo_jax.envs.gymnasium.env import GymnasiumEnv
from gigpo_jax.envs.gymnasium.renderers import BABYAI

# Words that are equal in all sentences of their kind.
_FILLERS = frozenset(("you", "see", "a", "an", "the", "and", "step", "steps"))


def show_view(inputs: PromptInput, /) -> str:
    """Makes the prompt for tiny models: the mission and the view in fewer words.

    Words that all sentences of a kind share are left out.
    """
    words = f"{inputs.task} now {inputs.observation}".lower().split()
    return " ".join(word for word in words if word not in _FILLERS)


class BotExpert:
    """MiniGrid's `BabyAIBot`, or a random action.

    The bot needs the world, not the agent's view of it. So the expert plays in a copy of the world,
    which it makes from the task's seed and the actions.
    """

    def __init__(
        self,
        source: str,
        seed: int,
        *,
        kwargs: Mapping[str, Any] | None = None,
        random_fraction: float = 0.0,
    ) -> None:
        """Checks the fraction; entry.py explains the options.

        Args:
          source: ID, or MODULE:ID.
          seed: Seed of the random actions.
          kwargs: Keyword arguments of `gymnasium.make`.
          random_fraction: Probability of a random action at a step.

        Raises:
          InputError: An unknown ID, a missing package or a fraction that is no probability.
        """
        check_fractions(random_fraction=random_fraction)
        self._copy = GymnasiumEnv(source, kwargs=kwargs)
        self._random_fraction = random_fraction
        self._random = random.Random(f"babyai expert {seed}")
        self._bot: Any = None
        self._last_action: int | None = None

    def begin(self, task: Task) -> None:
        """Starts the copy."""
        self._copy.reset(task)
        self._bot = None

    def act(self, observation: Observation) -> str:
        # The bot follows every action, its own or not, so it is asked at every step.
        action = self._ask_bot()
        if not action or self._random.random() < self._random_fraction:
            action = self._random.choice(observation.admissible or BABYAI.actions[:-1])
        self._last_action = BABYAI.actions.index(action)
        self._copy.step(action)
        return action

    def _ask_bot(self) -> str:
        """Returns the bot's action; "" if it has none."""
        from minigrid.utils.baby_ai_bot import BabyAIBot, DisappearedBoxError

        if self._bot is None:
            self._bot = BabyAIBot(self._copy.world)
            self._last_action = None
        action = ""
        # Random actions bring the bot into states that it did not plan for.
        with contextlib.suppress(AssertionError, DisappearedBoxError):
            action = BABYAI.actions[self._bot.replan(self._last_action)]
        if not action:
            self._bot = None  # the next step has a new one
        return action
