"""Lessons: what the policy writes about an episode, for the prompts of later ones.

A strategy is about an episode that did better than the others of its task, a warning about one that
did worse (after SLEA-RL, arXiv 2603.18079). The wording is ours.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from gigpo_jax.engines.base import request_key
from gigpo_jax.env_bridge.instructions import Instruct
from gigpo_jax.env_bridge.prompts import History, PromptInput, PromptTemplate
from gigpo_jax.env_bridge.react import write_transcript
from gigpo_jax.env_bridge.types import Observation
from gigpo_jax.rollout.episode import EngineFailure, EpisodeRunner
from gigpo_jax.rollout.episode_parts import Episode, EpisodeJob
from gigpo_jax.rollout.episode_texts import write_note
from gigpo_jax.trajectory import Trajectory

LESSON = "lesson"  # name of the note
LESSON_TOKENS = 64  # largest length of a lesson


class Zone(NamedTuple):
    """A kind of lesson.

    Attributes:
      shown: Largest number of its lessons in a prompt, as in SLEA-RL.
      title: Words before a lesson in a prompt of a language model.
      word: Word before a lesson, and request for one, in a prompt of a tiny model.
      request: Request for a lesson.
    """

    shown: int
    title: str
    word: str
    request: str


STRATEGIES = "strategies"
WARNINGS = "warnings"
METRICS = {
    f"experience/{STRATEGIES}": "lessons in the library on what worked",
    f"experience/{WARNINGS}": "lessons in the library on what failed",
}
ZONES = {
    STRATEGIES: Zone(
        2,
        "What worked here before: ",
        "tip",
        "This episode did the task. Write down for others who come into the same places what "
        "worked, in at most two short sentences that name actions. Write nothing else.",
    ),
    WARNINGS: Zone(
        1,
        "What failed here before: ",
        "avoid",
        "This episode failed: the task was not done. Write down for others who come into the same "
        "places what to avoid, in at most two short sentences that name actions. Write nothing "
        "else.",
    ),
}


@dataclass(frozen=True)
class LessonRequest:
    """The prompt for a lesson, after an episode.

    Attributes:
      template: Template of the prompts of steps, a `Compact` or an `Instruct`.
      zone: One of `ZONES`.
    """

    template: PromptTemplate
    zone: str

    def __call__(self, inputs: PromptInput, /) -> str:
        if isinstance(self.template, Instruct):
            lines: Sequence[str] = write_transcript(inputs)
            return "\n".join((self.template.intro, *lines, ZONES[self.zone].request))
        return f"{self.template(inputs)} {ZONES[self.zone].word}"


async def write_lessons(
    writers: Mapping[str, EpisodeRunner],
    episodes: Sequence[tuple[Trajectory, str]],
    iteration: int,
) -> None:
    """Writes lessons into the notes of finished episodes, each with the zone of its lesson."""
    writings = [
        _write_lesson(writers[trajectory.task.environment], trajectory, zone, iteration)
        for trajectory, zone in episodes
    ]
    await asyncio.gather(*writings)


async def _write_lesson(
    writer: EpisodeRunner, trajectory: Trajectory, zone: str, iteration: int
) -> None:
    """Lets the policy write a lesson about an episode; none if the engine fails."""
    settings = writer.settings
    history = History(settings.max_steps, trajectory.task.type)
    steps = [turn for turn in trajectory.turns if not turn.is_text]
    for turn in steps:
        history.add(turn.observation, turn.action, turn.thought)
    observation = Observation(steps[-1].feedback, "", None, trajectory.words)
    key = partial(request_key, settings.seed, iteration, trajectory.group)
    job = EpisodeJob(trajectory.task, trajectory.group, trajectory.member, key)
    episode = Episode(job, trajectory, history, writer, observation, settings.max_steps)
    template = LessonRequest(settings.template, zone)
    try:
        await write_note(episode, LESSON, template, history, LESSON_TOKENS)
    except EngineFailure:
        pass
    finally:
        writer.engine.end_session(episode.key(0))
