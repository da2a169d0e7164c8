"""The grades of the beliefs that responses state (`env.plan=belief`)."""

from dataclasses import replace

from ml_collections import ConfigDict

from gigpo_jax.env_bridge.processes.build import build_object
from gigpo_jax.env_bridge.types import Observation
from gigpo_jax.methods.rebel.beliefs import find_beliefs, grade_response
from gigpo_jax.methods.rebel.graders import BeliefGrader
from gigpo_jax.rollout.episode_parts import Episode, EpisodePart
from gigpo_jax.trajectory import Turn

GRADE = "belief"  # name in `Turn.extra`
# In the order of `BeliefGrade.parts`, behind the first one.
METRICS = {
    "belief/stated": "fraction of the responses that state a belief",
    "belief/state": "mean grade of what beliefs say of the world, 0 to 1",
    "belief/phase": "fraction of the responses whose belief names the right phase",
    "belief/prediction": "mean share of the predicted words that were observed",
    "belief/format": "mean grade of the format of responses with beliefs",
}


class BeliefsPart(EpisodePart):
    """Grades the belief of each turn by the observations of the episode."""

    metrics = (*METRICS,)

    def __init__(self, config: ConfigDict) -> None:
        """Makes the grader of the episode."""
        beliefs = find_beliefs(config.env.name)
        assert beliefs is not None  # `check_beliefs`
        self._grader: BeliefGrader = build_object(beliefs.grader, {})

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
        numbers = dict(zip(self.metrics, (belief.is_stated, *belief.parts), strict=True))
        return replace(
            turn, extra={**turn.extra, GRADE: belief}, metrics={**turn.metrics, **numbers}
        )
