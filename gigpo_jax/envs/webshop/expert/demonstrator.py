"""A demonstrator that errs at given rates, for a warm start that leaves something to learn."""

import random

from gigpo_jax.env_bridge.option_checks import check_fractions
from gigpo_jax.env_bridge.types import Observation
from gigpo_jax.envs.webshop.env import SEARCH
from gigpo_jax.envs.webshop.expert.expert import ShopExpert

_VAGUE_WORDS = 3  # words of a vague search


class Demonstrator:
    """A player of one episode, who lapses at times, or without fractions the expert itself.

    `registry.ENVIRONMENTS` explains the fractions.
    """

    def __init__(
        self,
        seed: int = 0,
        *,
        max_steps: int = 15,
        random_fraction: float = 0.0,
        vague_fraction: float = 0.0,
        forget_fraction: float = 0.0,
        brief: bool = False,
    ):
        check_fractions(
            random_fraction=random_fraction,
            vague_fraction=vague_fraction,
            forget_fraction=forget_fraction,
        )
        self._expert = ShopExpert(max_steps=max_steps)
        self._rng = random.Random(f"webshop demonstrator {seed}")
        self._random_fraction = random_fraction
        self._vague_fraction = vague_fraction
        self._forget_fraction = forget_fraction
        self._brief = brief
        self._forgotten: dict[str, bool] = {}  # option click -> whether it is never made

    @property
    def thought(self) -> str:
        """The reason for the expert's last action."""
        return self._expert.thought

    def act(self, observation: Observation) -> str:
        actions = [
            action
            for action in observation.admissible or ()
            if action not in (SEARCH, "click[search]")
        ]
        best = self._expert.act(observation)
        if actions and self._rng.random() < self._random_fraction:
            # The expert believes that its action was carried out.
            self._expert.retract()
            return self._rng.choice(actions)
        if best.startswith("search["):
            return self._shorten_search(best)
        # The expert takes the option for chosen and names its next action, in the same step.
        while self._draw_forgotten(best):
            best = self._expert.act(observation)
        return best

    def _shorten_search(self, action: str) -> str:
        """Shortens a search: a brief one has each word once, a vague one a few words."""
        words = action[len("search[") : -1].split(" ")
        if self._brief:
            words = list(dict.fromkeys(words))
        if self._rng.random() >= self._vague_fraction:
            return f"search[{' '.join(words)}]"
        first = self._rng.randrange(max(1, len(words) - _VAGUE_WORDS + 1))
        return f"search[{' '.join(words[first : first + _VAGUE_WORDS])}]"

    def _draw_forgotten(self, action: str) -> bool:
        """Whether an action chooses an option to forget in this episode, drawn once an option."""
        if action not in self._expert.choices:
            return False
        if action not in self._forgotten:
            self._forgotten[action] = self._rng.random() < self._forget_fraction
        return self._forgotten[action]
