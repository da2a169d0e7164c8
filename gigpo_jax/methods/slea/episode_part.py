"""The lessons that prompts show (docs/experience.md)."""

from collections.abc import Callable

from gigpo_jax.env_bridge.exchanges import Advice
from gigpo_jax.methods.slea.lessons import ZONES
from gigpo_jax.rollout.episode_parts import Episode, EpisodePart

# (task kind, anchor state) -> lessons that its prompt shows, of each of `ZONES`
FindLessons = Callable[[str, str], tuple[tuple[str, ...], ...]]


class LessonsPart(EpisodePart):
    """Shows the lessons of the library for each state."""

    def __init__(self, find_lessons: FindLessons) -> None:
        """Takes the search of the library."""
        self._find_lessons = find_lessons

    async def before_prompt(self, episode: Episode) -> None:
        """Finds the lessons for the state that is answered next."""
        anchor = episode.observation.anchor
        lessons = self._find_lessons(episode.job.task.kind, anchor)
        episode.history.advice = tuple(
            Advice(text, zone.title, zone.word)
            for zone, texts in zip(ZONES.values(), lessons, strict=True)
            for text in texts
        )
