"""The grades of the beliefs that responses state (`env.plan=belief`)."""

from dataclasses import replace

from gigpo_jax.env_bridge.beliefs import grade_response
from gigpo_jax.env_bridge.types import Observation
from gigpo_jax.rollout.episode_parts import Episode, EpisodePart
from gigpo_jax.rollout.episode_settings import EpisodeSettings
from gigpo_jax.trajectory import Turn


class BeliefsPart(EpisodePart):
    """Grades the belief of each turn by the observations of the episode."""

    def __init__(self, settings: EpisodeSettings) -> None:
        """Makes the grader of the episode."""
        assert settings.make_grader is not None
        self._grader = settings.make_grader()

    def observe(self, observation: Observation) -> None:
        """Shows the grader an observation."""
        self._grader.observe(observation)

    def after_turn(self, episode: Episode, turn: Turn) -> Turn:
        """Adds the grade of its belief to the turn."""
        belief = grade_response(
            self._grader,
            turn.response,
            valid=turn.valid,
            admissible=turn.admissible,
            feedback=turn.feedback,
        )
        return replace(turn, belief=belief)
