"""The reflection that a policy writes after a failed trial (docs/agents.md)."""

from ml_collections import ConfigDict

from gigpo_jax.env_bridge.agents import find_agent
from gigpo_jax.env_bridge.prompts import History
from gigpo_jax.envs.introductions import find_introduction
from gigpo_jax.methods.reflexion.agent import (
    REFLECTION_TOKENS,
    REFLECTIONS,
    describe_reflections,
)
from gigpo_jax.rollout.episode_parts import Episode, EpisodePart
from gigpo_jax.rollout.episode_texts import write_note
from gigpo_jax.trajectory import Turn

REFLECTION = "reflection"  # name of the note


class ReflectionsPart(EpisodePart):
    """Lets the policy write a reflection on a trial that was not won, if another one follows."""

    def __init__(self, config: ConfigDict) -> None:
        """Finds the agent's prompt for a reflection; some agents have none."""
        make_template = find_agent(config.agent).reflection
        introduction = find_introduction(config.env.name)
        self._template = None if make_template is None else make_template(introduction)
        self._history: History | None = None

    def reserve(self, history: History) -> int:
        """Adds empty reflections, of which each may be filled."""
        if self._template is None:
            return 0
        history.advice = describe_reflections([""] * REFLECTIONS)
        return REFLECTIONS * REFLECTION_TOKENS

    def _find_history(self, episode: Episode) -> History:
        """Every step of the episode so far, where prompts of actions show the last ones."""
        if self._history is None:
            job = episode.job
            self._history = History(episode.max_steps, job.task.type)
            notes = [trial.notes.get(REFLECTION, "") for trial in job.earlier_trials]
            self._history.advice = describe_reflections([note for note in notes if note])
        return self._history

    async def before_prompt(self, episode: Episode) -> None:
        """Shows the newest reflections on earlier trials."""
        episode.history.advice = self._find_history(episode).advice[-REFLECTIONS:]

    def after_turn(self, episode: Episode, turn: Turn) -> Turn:
        """Adds the turn to what the reflection sees."""
        observation = episode.observation
        history = self._find_history(episode)
        history.add(observation.text, turn.action, turn.thought, observation.images)
        return turn

    async def at_end(self, episode: Episode) -> None:
        """Writes the reflection."""
        if self._template is None or episode.job.is_last_trial or episode.trajectory.won:
            return
        history = self._find_history(episode)
        await write_note(episode, REFLECTION, self._template, history, REFLECTION_TOKENS)
