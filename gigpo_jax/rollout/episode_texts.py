"""Texts that the policy writes in an episode beside its actions."""

from dataclasses import replace

import numpy as np

from gigpo_jax.env_bridge.conversations import take_summary
from gigpo_jax.env_bridge.prompts import History, Prompt, PromptTemplate
from gigpo_jax.rollout.episode import EpisodeRunner
from gigpo_jax.rollout.episode_parts import Episode
from gigpo_jax.trajectory import Turn


def summary_anchor(anchor: str) -> str:
    """Returns the anchor state of a summary, given the anchor of the observation after it.

    It differs from all anchors of observations, so summaries are compared with summaries alone.
    """
    return "summary\n" + anchor


async def write_episode_text(
    episode: Episode, prompt: Prompt, key: tuple[int, int], limit: int
) -> Turn:
    """Lets the policy write a text beside actions, as a turn whose action is the text.

    The environment waits. A part of the episode decides what becomes of the turn.

    Args:
      episode: Episode that the text is for.
      prompt: Prompt for it.
      key: Random key of the request.
      limit: Largest number of tokens; a response has at most as many as an action's.
    """
    writer: EpisodeRunner = episode.writer
    sampling = replace(
        writer.settings.sampling,
        max_tokens=min(writer.settings.sampling.max_tokens, limit),
        # They end actions.
        stop_strings=(),
        key=key,
        session=episode.key(0),
    )
    completion, images = await writer.sample(prompt, sampling, episode.trajectory)
    observation = episode.observation
    response = writer.tokenizer.decode(completion.tokens.tolist())
    return Turn(
        prompt_tokens=np.asarray(prompt.tokens, np.int32),
        response_tokens=np.asarray(completion.tokens, np.int32),
        logprobs=np.asarray(completion.logprobs, np.float32),
        prompt=prompt.text,
        response=response,
        # No special token is in it, and a prompt shows it as it shows all texts: as data.
        action=response.strip(),
        valid=True,
        admissible=None,
        observation=observation.text,
        # A text before the first action is the summary of no step.
        anchor=summary_anchor(observation.anchor),
        reward=0.0,
        penalty=0.0,
        finish_reason=completion.finish_reason,
        version=completion.version,
        task=observation.task,
        images=images,
        versions=completion.versions,
        routes=completion.routes,
        is_text=True,
    )


def add_episode_text(episode: Episode, prompt: Prompt, text: Turn) -> None:
    """Adds a text that prompts show from now on, as a turn that is learned from."""
    for part in episode.parts:
        text = part.after_text(episode, text)
    episode.trajectory.turns.append(text)
    take_summary(episode.history, prompt, text.action)


async def write_note(
    episode: Episode, name: str, template: PromptTemplate, history: History, limit: int
) -> None:
    """Lets the policy write about an episode, on one line that nothing is learned from.

    Args:
      episode: Episode that the text is about.
      name: Name of the text in `Trajectory.notes`.
      template: Template of the prompt for it.
      history: Events that the prompt shows.
      limit: Largest number of tokens.
    """
    writer: EpisodeRunner = episode.writer
    settings = replace(
        writer.settings, template=template, template_images=(), show_admissible=False, plan="none"
    )
    runner = replace(writer, settings=settings)
    prompt = runner.build_prompt(episode.observation, history)
    # Steps have smaller numbers.
    text = await write_episode_text(episode, prompt, episode.key(episode.max_steps), limit)
    episode.trajectory.notes[name] = " ".join(text.action.split())
