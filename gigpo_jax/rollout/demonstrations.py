"""Expert episodes as supervised samples: prompts of the policy and responses to learn."""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from gigpo_jax.core.errors import InputError
from gigpo_jax.env_bridge.actions import response_text
from gigpo_jax.env_bridge.base import Expert, TextEnv, begin_episode
from gigpo_jax.env_bridge.plans import BELIEF, STRATEGY, SUBGOAL, write_belief, write_subgoal
from gigpo_jax.env_bridge.prompts import Event, Exchange, History
from gigpo_jax.env_bridge.types import Observation, Task
from gigpo_jax.rollout.episode_settings import EpisodeSettings


class DemonstratedTurn(NamedTuple):
    """One step as texts, and the images of the prompt.

    Images are uint8 [H, W, 3] each. `exchanges` are those of `prompts.Prompt`. A summary has no
    action.
    """

    prompt: str
    response: str
    images: tuple[np.ndarray, ...]
    exchanges: tuple[Exchange, ...] = ()
    is_summary: bool = False


@dataclass(frozen=True)
class Demonstration:
    """One demonstrated episode.

    Attributes:
      turns: Steps of the episode in order.
      won: Whether the demonstrator reached the goal.
    """

    turns: tuple[DemonstratedTurn, ...]
    won: bool


@dataclass(frozen=True)
class ExpertEpisode:
    """What an expert saw and did.

    Attributes:
      steps: Observation of each step, and the event with the expert's thought if it has one.
      last: Observation after the last step.
      won: Whether the expert reached the goal.
      summaries: The expert's summary before each step, if it writes some.
      subgoals: The expert's subgoal at each step, if it names some.
      strategy: The expert's strategy, if it names one.
      beliefs: What the expert knew before each step, if it states that.
    """

    steps: tuple[tuple[Observation, Event], ...]
    last: Observation
    won: bool
    summaries: tuple[str, ...] = ()
    subgoals: tuple[str, ...] = ()
    strategy: str = ""
    beliefs: tuple[str, ...] = ()


def episode_seed(seed: int, episode: int) -> int:
    """The seed of a demonstrated episode.

    It is the same on every machine.
    """
    text = f"demonstration {seed} {episode}"
    # The hash() of a text differs between processes.
    digest = hashlib.blake2b(text.encode(), digest_size=6).digest()
    return int.from_bytes(digest, "little")


def demonstrate_episode(
    env: TextEnv,
    expert: Expert,
    task: Task,
    settings: EpisodeSettings,
    *,
    encode: Callable[..., Sequence[int]],
    encode_response: Callable[[str], Sequence[int]],
    write: Callable[[str], str] | None = None,
) -> Demonstration:
    """Lets an expert play one episode.

    Where a conversation is full, the expert's summary is demonstrated. The conversations of an
    expert without summaries drop their oldest steps. With `settings.plan` of `plans.SUBGOAL` its
    subgoals are demonstrated, and a switch where one differs from the one before; with
    `plans.STRATEGY` its strategy; with `plans.BELIEF` its beliefs.

    Args:
      env: Environment of the episode.
      expert: Expert made for this episode.
      task: Task of the episode.
      settings: Prompts and length, as in rollouts.
      encode: Function that measures prompts; see `build_prompt`.
      encode_response: Function that measures responses, for the prompts of conversations.
      write: Function action -> response, where the environment has its own format
        (`entry_types.Environment.write`).

    Raises:
      InputError: The expert names no plans of the kind that the settings need.
    """
    episode = play_expert(env, expert, task, settings.max_steps)
    plans = {SUBGOAL: episode.subgoals, STRATEGY: (episode.strategy,), BELIEF: episode.beliefs}
    if not all(plans.get(settings.plan, ())):
        raise InputError(
            f"the expert of this environment names no {settings.plan}",
            key="config.env.plan",
            value=repr(settings.plan),
            fix=f"leave it out, or give the expert an attribute {settings.plan} (docs/plans.md)",
        )
    history = History(settings.history)
    write_response = write or response_text
    if not episode.summaries:
        settings = replace(settings, summary_tokens=0)
    turns = []
    for number, (observation, event) in enumerate(episode.steps):
        # The prompts of rollouts: supervised training on other ones would not prepare for these.
        prompt = settings.prompt(observation, history, encode)
        if prompt.asks_summary:
            summary = episode.summaries[number] if prompt.exchanges else episode.strategy
            turns.append(
                DemonstratedTurn(prompt.text, summary, prompt.images, prompt.exchanges, True)
            )
            history.add_summary(prompt, summary)
            prompt = settings.prompt(observation, history, encode)
        response = write_response(event.action)
        if settings.plan == SUBGOAL:
            subgoal = episode.subgoals[number]
            response = write_subgoal(response, subgoal, switches=subgoal != history.plan)
            history.plan = subgoal
        elif settings.plan == BELIEF:
            history.plan = episode.beliefs[number]
            response = write_belief(response, history.plan)
        turns.append(DemonstratedTurn(prompt.text, response, prompt.images, prompt.exchanges))
        # Only measured here: the tokenizer of a new model is made from these texts.
        if prompt.exchanges:
            history.add_response(prompt, encode_response(response))
        history.add(event.observation, event.action, images=event.images)
    return Demonstration(tuple(turns), episode.won)


def play_expert(env: TextEnv, expert: Expert, task: Task, max_steps: int) -> ExpertEpisode:
    """Lets an expert play one episode.

    It has at most `max_steps` actions.
    """
    observation = env.reset(task)
    begin_episode(expert, task)
    steps = []
    summaries = []
    subgoals = []
    beliefs = []
    strategy = ""
    won = False
    summarise = getattr(expert, "summarise", None)
    for _ in range(max_steps):
        if summarise is not None:
            summaries.append(summarise())
        action = expert.act(observation)
        thought = getattr(expert, "thought", "")
        subgoals.append(getattr(expert, "subgoal", ""))
        beliefs.append(getattr(expert, "belief", ""))
        # The first one, which has read the first observation.
        strategy = strategy or getattr(expert, "strategy", "")
        steps.append((observation, Event(observation.text, action, thought, observation.images)))
        result = env.step(action)
        observation = result.observation
        won = bool(result.info["won"])
        if result.done:
            break
    plans = (tuple(subgoals), strategy, tuple(beliefs))
    return ExpertEpisode(tuple(steps), observation, won, tuple(summaries), *plans)
