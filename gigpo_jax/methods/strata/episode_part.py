"""The strategy that a policy writes before its first action (docs/plans.md)."""

from gigpo_jax.rollout.episode_parts import Episode, EpisodePart, Strategy
from gigpo_jax.rollout.episode_settings import EpisodeSettings


class StrategyPart(EpisodePart):
    """Lets the first episode of a group that needs a strategy write it for all that share it."""

    def __init__(self, settings: EpisodeSettings) -> None:
        """Takes the settings of the episode."""
        self._settings = settings

    async def before_prompt(self, episode: Episode) -> None:
        """Adds the strategy, unless the prompts show it already."""
        if episode.history.plan is not None:
            return
        plan = episode.plan
        strategy = plan.strategy or Strategy(plan.member, plan.member)
        prompt = episode.build_prompt()
        # Whichever episode is first: prompt and key are the same.
        async with strategy.lock:
            if strategy.turn is None:
                # No summary has this number: none is written after the last step.
                key = plan.key(strategy.member, -self._settings.max_steps)
                strategy.turn = await episode.writer.write_text(episode, prompt, key)
        episode.trajectory.turns.append(strategy.turn)
        episode.history.add_summary(prompt, strategy.turn.action)
