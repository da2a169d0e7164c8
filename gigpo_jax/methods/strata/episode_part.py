"""The strategy that a policy writes before its first action (docs/plans.md)."""

import asyncio
from dataclasses import dataclass, field, replace

from ml_collections import ConfigDict

from gigpo_jax.rollout.episode_parts import Episode, EpisodePart
from gigpo_jax.rollout.episode_texts import add_episode_text, write_episode_text
from gigpo_jax.rollout.prompt_changes import summary_limit
from gigpo_jax.trajectory import Turn

STRATEGY_NUMBER = "strategy"  # name in `Turn.extra`


@dataclass(eq=False)
class SharedStrategy:
    """A strategy that several episodes of a group follow.

    Attributes:
      turn: Turn in which it was written; None before that.
      lock: Lock of the first episode that writes it.
    """

    turn: Turn | None = None
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


class StrategyPart(EpisodePart):
    """Lets the first episode of a group that needs a strategy write it for all that share it."""

    def __init__(self, config: ConfigDict) -> None:
        """Reads how many episodes share a strategy, and its length."""
        self._episodes = config.train.strategy_episodes
        self._limit = summary_limit(config.sampling)
        self._own = SharedStrategy()

    def _find_shared(self, episode: Episode) -> tuple[int, int, SharedStrategy]:
        """The strategy's number in the group, the member that writes it, and what is shared."""
        job = episode.job
        if job.shared is None or self._episodes == 1:
            return job.member, job.member, self._own
        number = job.member // self._episodes
        strategy = job.shared.setdefault(("strategy", number), self._own)
        return number, number * self._episodes, strategy

    async def before_prompt(self, episode: Episode) -> None:
        """Adds the strategy, unless the prompts show it already."""
        if episode.history.plan is not None:
            return
        _, member, strategy = self._find_shared(episode)
        prompt = episode.build_prompt()
        # Whichever episode is first: prompt and key are the same.
        async with strategy.lock:
            if strategy.turn is None:
                # No summary has this number: none is written after the last step.
                key = episode.job.key(member, -episode.max_steps)
                text = await write_episode_text(episode, prompt, key, self._limit)
                strategy.turn = self.after_turn(episode, text)
        add_episode_text(episode, prompt, strategy.turn)

    def after_turn(self, episode: Episode, turn: Turn) -> Turn:
        """Adds the number of its strategy to the turn."""
        number, _, _ = self._find_shared(episode)
        return replace(turn, extra={**turn.extra, STRATEGY_NUMBER: number})

    def after_text(self, episode: Episode, text: Turn) -> Turn:
        """The turn that the episodes share, also where saved ones are replayed."""
        _, _, strategy = self._find_shared(episode)
        strategy.turn = strategy.turn or self.after_turn(episode, text)
        return strategy.turn
