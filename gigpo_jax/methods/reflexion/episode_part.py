"""The reflection that a policy writes after a failed trial (docs/agents.md)."""

from gigpo_jax.env_bridge.agents import REFLECTION_TOKENS
from gigpo_jax.env_bridge.prompts import History
from gigpo_jax.rollout.episode_parts import Episode, EpisodePart
from gigpo_jax.rollout.episode_settings import EpisodeSettings
from gigpo_jax.trajectory import Turn


class ReflectionsPart(EpisodePart):
    """Lets the policy write a reflection on a trial that was not won, if another one follows."""

    def __init__(self, settings: EpisodeSettings) -> None:
        """Takes the settings of the episode."""
        self._max_steps = settings.max_steps
        self._history: History | None = None

    def after_turn(self, episode: Episode, turn: Turn) -> Turn:
        """Adds the turn to what the reflection sees: every step, where prompts show the last."""
        if self._history is None:
            plan = episode.plan
            self._history = History(self._max_steps, plan.task.type, plan.reflections)
        observation = episode.observation
        self._history.add(observation.text, turn.action, turn.thought, observation.images)
        return turn

    async def at_end(self, episode: Episode) -> None:
        """Writes the reflection."""
        plan = episode.plan
        if plan.reflection is None or episode.trajectory.won:
            return
        history = self._history or History(self._max_steps, plan.task.type, plan.reflections)
        episode.trajectory.reflection = await episode.writer.write_note(
            plan.reflection,
            episode.observation,
            history,
            plan,
            episode.trajectory,
            REFLECTION_TOKENS,
        )
