"""The lessons that prompts show (docs/experience.md)."""

from collections.abc import Callable

from gigpo_jax.env_bridge.prompts import Advice
from gigpo_jax.rollout.episode_parts import Episode, EpisodePart

# (task kind, anchor state) -> lessons that its prompt shows: strategies, warnings
FindLessons = Callable[[str, str], tuple[tuple[str, ...], tuple[str, ...]]]


class LessonsPart(EpisodePart):
    """Shows the lessons of the library for each state."""

    def __init__(self, find_lessons: FindLessons) -> None:
        """Takes the search of the library."""
        self._find_lessons = find_lessons

    async def before_prompt(self, episode: Episode) -> None:
        """Finds the lessons for the state that is answered next."""
        anchor = episode.observation.anchor
        strategies, warnings = self._find_lessons(episode.plan.task.kind, anchor)
        episode.history.advice = (
            *(Advice(text, "What worked here before: ", "tip") for text in strategies),
            *(Advice(text, "What failed here before: ", "avoid") for text in warnings),
        )
