"""The summaries that a policy writes when its conversation is full (docs/conversations.md)."""

from ml_collections import ConfigDict

from gigpo_jax.rollout.episode_parts import Episode, EpisodePart
from gigpo_jax.rollout.episode_texts import add_episode_text, write_episode_text
from gigpo_jax.rollout.prompt_changes import summary_limit


class SummariesPart(EpisodePart):
    """Lets the policy summarise a conversation that has no room for the next message."""

    def __init__(self, config: ConfigDict) -> None:
        """Reads the length of summaries; prompts know it too."""
        self._limit = summary_limit(config.sampling)

    async def before_prompt(self, episode: Episode) -> None:
        """Builds the next prompt, after a summary where one is due."""
        prompt = episode.build_prompt()
        if prompt.asks_summary:
            # The number of the step, which is not 0, with the other sign: no action has it.
            key = episode.key(-episode.step)
            summary = await write_episode_text(episode, prompt, key, self._limit)
            add_episode_text(episode, prompt, summary)
            prompt = episode.build_prompt()
        episode.prompt = prompt
