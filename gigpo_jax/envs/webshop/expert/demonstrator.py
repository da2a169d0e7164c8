"""A demonstrator that errs at given rates, for a warm start that leaves something to learn."""

import random

from gigpo_jax.env_bridge.base import check_fractions
from gigpo_jax.env_bridge.types import Observation
from gigpo_jax.envs.webshop.env import SEARCH
from gigpo_jax.envs.webshop.expert.expert import ShopExpert

_VAGUE = 3  # words of a vague search


class Demonstrator:
    """Plays one episode. `registry.ENVIRONMENTS` explains the fractions; without any it is the expert itself."""

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
        check_fractions(random_fraction=random_fraction, vague_fraction=vague_fraction, forget_fraction=forget_fraction)
        self._expert = ShopExpert(max_steps=max_steps)
        self._rng = random.Random(f"webshop demonstrator {seed}")
        self._random, self._vague, self._forget = random_fraction, vague_fraction, forget_fraction
        self._brief = brief
        self._forgotten: dict[str, bool] = {}

    @property
    def thought(self) -> str:
        """The reason for the expert's last action."""
        return self._expert.thought

    def act(self, observation: Observation) -> str:
        actions = [action for action in observation.admissible or () if action not in (SEARCH, "click[search]")]
        best = self._expert.act(observation)
        if actions and self._rng.random() < self._random:
            self._expert.retract()
            return self._rng.choice(actions)
        if best.startswith("search["):
            return self._search(best)
        while self._forgets(best):
            best = self._expert.act(observation)
        return best

    def _search(self, best: str) -> str:
        words = best[len("search[") : -1].split(" ")
        if self._brief:
            words = list(dict.fromkeys(words))
        if self._rng.random() >= self._vague:
            return f"search[{' '.join(words)}]"
        first = self._rng.randrange(max(1, len(words) - _VAGUE + 1))
        return f"search[{' '.join(words[first : first + _VAGUE])}]"

    def _forgets(self, action: str) -> bool:
        """Whether this is an option that is never chosen in this episode."""
        if action not in self._expert.choices:
            return False
        if action not in self._forgotten:
            self._forgotten[action] = self._rng.random() < self._forget
        return self._forgotten[action]
