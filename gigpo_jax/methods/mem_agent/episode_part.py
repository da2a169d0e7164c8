"""The summaries that a policy writes when its conversation is full (docs/conversations.md)."""

from gigpo_jax.rollout.episode_parts import Episode, EpisodePart
from gigpo_jax.rollout.episode_settings import EpisodeSettings


class SummariesPart(EpisodePart):
    """Lets the policy summarise a conversation that has no room for the next message."""

    def __init__(self, settings: EpisodeSettings) -> None:
        """Takes the settings of the episode; prompts know the limits."""

    async def before_prompt(self, episode: Episode) -> None:
        """Builds the next prompt, after a summary where one is due."""
        prompt = episode.build_prompt()
        if prompt.asks_summary:
            # The number of the step, which is not 0, with the other sign: no action has it.
            key = episode.key(-episode.step)
            summary = await episode.writer.write_text(episode, prompt, key)
            episode.trajectory.turns.append(summary)
            episode.history.add_summary(prompt, summary.action)
            prompt = episode.build_prompt()
        episode.prompt = prompt
