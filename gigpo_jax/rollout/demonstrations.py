"""Expert episodes as supervised samples: prompts of the policy and responses to learn."""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from gigpo_jax.core.errors import InputError
from gigpo_jax.env_bridge.actions import response_text
from gigpo_jax.env_bridge.base import TextEnv
from gigpo_jax.env_bridge.conversations import Conversation, take_summary
from gigpo_jax.env_bridge.exchanges import Exchange
from gigpo_jax.env_bridge.experts import Expert, begin_episode
from gigpo_jax.env_bridge.plans import PLANS
from gigpo_jax.env_bridge.prompts import Event, History
from gigpo_jax.env_bridge.types import Observation, Task
from gigpo_jax.rollout.episode_settings import EpisodeSettings


class DemonstratedTurn(NamedTuple):
    """One step as texts, and the images of the prompt, uint8 [H, W, 3] each.

    `exchanges` are as in `prompts.Prompt`. A summary has no action.
    """

    prompt: str
    response: str
    images: tuple[np.ndarray, ...]
    exchanges: tuple[Exchange, ...] = ()
    is_text: bool = False


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
      plans: The expert's plan at each step, "" where it names none.
    """

    steps: tuple[tuple[Observation, Event], ...]
    last: Observation
    won: bool
    summaries: tuple[str, ...] = ()
    plans: tuple[str, ...] = ()


def episode_seed(seed: int, episode: int) -> int:
    """Returns the seed of a demonstrated episode, the same on every machine."""
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
    expert without summaries drop their oldest steps. With a kind of plan in `settings.plan` the
    expert's plans are demonstrated.

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
    episode = play_expert(env, expert, task, settings.max_steps, settings.plan)
    kind = PLANS[settings.plan]
    plans = episode.plans
    if kind.opening is not None:
        # The first one, which has read the first observation.
        plans = (next(filter(None, plans), ""),) * len(plans)
    if settings.plan != "none" and not all(plans):
        raise InputError(
            f"the expert of this environment names no {settings.plan}",
            key="config.env.plan",
            value=repr(settings.plan),
            fix=f"leave it out, or give the expert an attribute {settings.plan} (docs/plans.md)",
        )
    history = History(settings.history)
    write_response = write or response_text
    if isinstance(settings.template, Conversation) and not episode.summaries:
        settings = replace(settings, template=replace(settings.template, summaries=None))
    turns = []
    for number, (observation, event) in enumerate(episode.steps):
        # The prompts of rollouts: supervised training on other ones would not prepare for these.
        prompt = settings.prompt(observation, history, encode)
        if prompt.asks_summary:
            summary = episode.summaries[number] if prompt.exchanges else plans[number]
            turns.append(
                DemonstratedTurn(prompt.text, summary, prompt.images, prompt.exchanges, True)
            )
            take_summary(history, prompt, summary)
            prompt = settings.prompt(observation, history, encode)
        response = kind.write(write_response(event.action), plans[number], history.plan)
        history.plan = plans[number]
        turns.append(DemonstratedTurn(prompt.text, response, prompt.images, prompt.exchanges))
        # Only measured here: the tokenizer of a new model is made from these texts.
        if prompt.exchanges:
            history.add_response(prompt, encode_response(response))
        history.add(event.observation, event.action, images=event.images)
    return Demonstration(tuple(turns), episode.won)


def play_expert(
    env: TextEnv, expert: Expert, task: Task, max_steps: int, plan: str = "none"
) -> ExpertEpisode:
    """Lets an expert play one episode of at most `max_steps` actions, with plans of a kind."""
    read_plan = PLANS[plan].read or (lambda expert, *step: getattr(expert, plan, ""))
    observation = env.reset(task)
    begin_episode(expert, task)
    steps = []
    summaries = []
    plans = []
    won = False
    summarise = getattr(expert, "summarise", None)
    for _ in range(max_steps):
        if summarise is not None:
            summaries.append(summarise())
        action = expert.act(observation)
        thought = getattr(expert, "thought", "")
        plans.append(read_plan(expert, observation, action))
        steps.append((observation, Event(observation.text, action, thought, observation.images)))
        result = env.step(action)
        observation = result.observation
        won = bool(result.info["won"])
        if result.done:
            break
    return ExpertEpisode(tuple(steps), observation, won, tuple(summaries), tuple(plans))
