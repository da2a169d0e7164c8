"""Turns that are sampled again (`env.resample_turns`)."""

from gigpo_jax.engines.base import Completion
from gigpo_jax.rollout.episode_parts import Episode, EpisodePart
from gigpo_jax.rollout.episode_settings import EpisodeSettings
from gigpo_jax.trajectory import mean_uncertainty


class ResamplingPart(EpisodePart):
    """Samples a turn again while its uncertainty is nearly equal to the previous turn's.

    Equal uncertainty does not count: the condition of T2PO's code. The uncertainty is ours.
    """

    def __init__(self, settings: EpisodeSettings) -> None:
        """Takes the settings of the episode."""
        self._settings = settings

    def samples_again(self, episode: Episode, completion: Completion, attempt: int) -> bool:
        """Compares the uncertainty with the previous turn's."""
        steps = [turn for turn in episode.trajectory.turns if not turn.is_summary]
        if attempt == self._settings.resample_turns or not steps:
            return False
        uncertainty = mean_uncertainty(completion.logprobs, completion.entropies)
        change = abs(uncertainty - steps[-1].uncertainty)
        return 0.0 < change < self._settings.resample_change
