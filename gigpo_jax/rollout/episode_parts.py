"""What an episode does beside acting: plans, summaries, lessons, beliefs, reflections.

Each is an `EpisodePart` in the folder of its method; an episode has those that its settings need.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Protocol

from gigpo_jax.core.references import ReferenceTable
from gigpo_jax.engines.base import Completion
from gigpo_jax.env_bridge.plans import STRATEGY
from gigpo_jax.env_bridge.processes.pool import PooledEnv
from gigpo_jax.env_bridge.prompts import History, Prompt, PromptTemplate
from gigpo_jax.env_bridge.types import Observation, Task
from gigpo_jax.rollout.episode_settings import EpisodeSettings
from gigpo_jax.trajectory import BEGINNING, Past, Trajectory, Turn


@dataclass(frozen=True)
class EpisodePlan:
    """What is played as one episode.

    Attributes:
      task: Task of the episode.
      group, member: Numbers that the trajectory records.
      key: Function (member, step) -> random key of the request; negative steps are summaries.
      past: Actions that are replayed before the policy acts; the trajectory begins after them.
        Oracles continue from measured states in this way, forks from states of their group, and
        others from states of an expert.
      reflections: Reflections on earlier trials.
      reflection: Prompt for a reflection afterwards if the task is not done; None: no reflection.
      strategy: Strategy of the episode, with `env.plan=strategy`.
    """

    task: Task
    group: int
    member: int
    key: Callable[[int, int], tuple[int, int]]
    past: Past = BEGINNING
    reflections: tuple[str, ...] = ()
    reflection: PromptTemplate | None = None
    strategy: "Strategy | None" = None


@dataclass(eq=False)
class Strategy:
    """A strategy that several episodes of a group follow.

    Attributes:
      number: Its index in the group.
      member: Member whose random key samples it.
      turn: Turn in which it was written; None before that.
      lock: Lock of the first episode that writes it.
    """

    number: int
    member: int
    turn: Turn | None = None
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


class Writer(Protocol):
    """Samples what a policy writes beside actions; see `episode.EpisodeRunner`."""

    @property
    def settings(self) -> EpisodeSettings: ...

    def build_prompt(self, observation: Observation, history: History) -> Prompt: ...

    async def write_text(
        self, episode: "Episode", prompt: Prompt, key: tuple[int, int]
    ) -> Turn: ...

    async def write_note(
        self,
        template: PromptTemplate,
        observation: Observation,
        history: History,
        plan: EpisodePlan,
        trajectory: Trajectory,
        limit: int,
    ) -> str: ...


@dataclass(eq=False)
class Episode:
    """An episode while it is played.

    Attributes:
      plan: What is played.
      trajectory: Turns so far.
      history: Texts that prompts show.
      environment: Environment of this episode alone.
      writer: Sampler of texts beside actions.
      parts: What the episode does beside acting, in order.
      observation: Observation that is answered next.
      step: Index of the action that is chosen next, from the start of the episode.
      prompt: Prompt of this action, if a part has built it already.
    """

    plan: EpisodePlan
    trajectory: Trajectory
    history: History
    environment: PooledEnv
    writer: Writer
    parts: "tuple[EpisodePart, ...]"
    observation: Observation
    step: int = 0
    prompt: Prompt | None = None

    def key(self, number: int) -> tuple[int, int]:
        """The random key of a request of this episode."""
        return self.plan.key(self.plan.member, number)

    def build_prompt(self) -> Prompt:
        """Builds the prompt of the next action, or of the text that is due before it."""
        return self.writer.build_prompt(self.observation, self.history)

    def take_prompt(self) -> Prompt:
        """The prompt of the next action."""
        prompt = self.prompt or self.build_prompt()
        self.prompt = None
        return prompt


class EpisodePart:
    """A part of an episode beside acting; a new one is made for each episode.

    Every method may be left out.
    """

    def observe(self, observation: Observation) -> None:
        """Reads an observation before it is answered, those of replayed actions included."""

    async def before_prompt(self, episode: Episode) -> None:
        """Changes what the next prompt shows."""

    def samples_again(self, episode: Episode, completion: Completion, attempt: int) -> bool:
        """Whether the response is dropped and another one sampled; the first attempt is 0."""
        return False

    def after_turn(self, episode: Episode, turn: Turn) -> Turn:
        """Returns the turn as it is recorded; `episode.observation` is the one before it."""
        return turn

    async def at_end(self, episode: Episode) -> None:
        """Adds to a trajectory whose last action is made."""


# The parts in the order in which an episode calls them.
PARTS: ReferenceTable[Callable[[EpisodeSettings], EpisodePart]] = ReferenceTable(
    {
        "lessons": "gigpo_jax.methods.slea.episode_part:LessonsPart",
        "strategy": "gigpo_jax.methods.strata.episode_part:StrategyPart",
        "summaries": "gigpo_jax.methods.mem_agent.episode_part:SummariesPart",
        "resampling": "gigpo_jax.methods.t2po.episode_part:ResamplingPart",
        "beliefs": "gigpo_jax.methods.rebel.episode_part:BeliefsPart",
        "reflections": "gigpo_jax.methods.reflexion.episode_part:ReflectionsPart",
    }
)
# What a policy writes about finished episodes.
WRITERS: ReferenceTable[Callable[..., Awaitable[str]]] = ReferenceTable(
    {"lesson": "gigpo_jax.methods.slea.episode_part:write_lesson"}
)


def make_parts(settings: EpisodeSettings) -> tuple[EpisodePart, ...]:
    """Makes the parts that an episode with these settings has."""
    writes_strategy = settings.plan == STRATEGY
    needed = {
        "lessons": settings.find_lessons is not None,
        "strategy": writes_strategy,
        "summaries": settings.summary_tokens > 0 and not writes_strategy,
        "resampling": settings.resample_turns > 0,
        "beliefs": settings.make_grader is not None,
        "reflections": settings.reflection is not None,
    }
    return tuple(PARTS[name](settings) for name in PARTS if needed[name])
