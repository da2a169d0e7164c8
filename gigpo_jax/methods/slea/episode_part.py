"""The lessons that prompts show, and how a policy writes them (docs/experience.md)."""

from collections.abc import Callable
from dataclasses import replace

from gigpo_jax.env_bridge.lessons import LESSON_TOKENS, LessonRequest
from gigpo_jax.env_bridge.prompts import History
from gigpo_jax.env_bridge.types import Observation
from gigpo_jax.rollout.episode import EngineFailure, EpisodeRunner
from gigpo_jax.rollout.episode_parts import Episode, EpisodePart, EpisodePlan
from gigpo_jax.rollout.episode_settings import EpisodeSettings
from gigpo_jax.trajectory import Trajectory


class LessonsPart(EpisodePart):
    """Shows the lessons of the library for each state."""

    def __init__(self, settings: EpisodeSettings) -> None:
        """Takes the settings of the episode."""
        assert settings.find_lessons is not None
        self._find_lessons = settings.find_lessons

    async def before_prompt(self, episode: Episode) -> None:
        """Finds the lessons for the state that is answered next."""
        anchor = episode.observation.anchor
        lessons = self._find_lessons(episode.plan.task.kind, anchor)
        episode.history.tips, episode.history.warnings = lessons


async def write_lesson(
    runner: EpisodeRunner,
    trajectory: Trajectory,
    zone: str,
    key: Callable[[int, int], tuple[int, int]],
) -> str:
    """Lets the policy write a lesson about a finished episode; "" if the engine fails.

    Args:
      runner: Runner with the settings of the episode.
      trajectory: The episode.
      zone: Zone of the lesson.
      key: See `EpisodePlan`.
    """
    settings = runner.settings
    history = History(settings.max_steps, trajectory.task.type)
    steps = [turn for turn in trajectory.turns if not turn.is_summary]
    for turn in steps:
        history.add(turn.observation, turn.action, turn.thought)
    observation = Observation(steps[-1].feedback, "", None, trajectory.words)
    template = LessonRequest(settings.template, zone)
    plan = EpisodePlan(trajectory.task, trajectory.group, trajectory.member, key)
    # Without plans: the first prompt of an episode would ask for a strategy.
    limited = replace(runner, settings=replace(settings, plan="none"))
    try:
        return await limited.write_note(
            template, observation, history, plan, trajectory, LESSON_TOKENS
        )
    except EngineFailure:
        return ""
    finally:
        runner.engine.end_session(key(trajectory.member, 0))
