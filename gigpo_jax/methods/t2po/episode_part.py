"""Turns that are sampled again (`env.resample_turns`)."""

from ml_collections import ConfigDict

from gigpo_jax.engines.base import Completion
from gigpo_jax.rollout.episode_parts import Episode, EpisodePart
from gigpo_jax.rollout.uncertainty import mean_uncertainty

# Change of the uncertainty since the turn before, nats a token, below which it hardly changes.
_CHANGE = 0.3


class ResamplingPart(EpisodePart):
    """Samples a turn again while its uncertainty is nearly equal to the previous turn's.

    Equal uncertainty does not count: the condition of T2PO's code. The uncertainty is ours.
    """

    is_for_training = True

    def __init__(self, config: ConfigDict) -> None:
        """Reads the largest number of repeats."""
        self._repeats = config.env.resample_turns

    def samples_again(self, episode: Episode, completion: Completion, attempt: int) -> bool:
        """Compares the uncertainty with the previous turn's."""
        steps = [turn for turn in episode.trajectory.turns if not turn.is_text]
        if attempt == self._repeats or not steps:
            return False
        uncertainty = mean_uncertainty(completion.logprobs, completion.entropies)
        change = abs(uncertainty - mean_uncertainty(steps[-1].logprobs, steps[-1].entropies))
        return 0.0 < change < _CHANGE
