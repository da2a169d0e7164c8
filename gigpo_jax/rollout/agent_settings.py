"""Settings of episodes whose actions an agent asks for (docs/agents.md)."""

from dataclasses import replace

import numpy as np
from ml_collections import ConfigDict

from gigpo_jax.env_bridge.actions import response_text
from gigpo_jax.env_bridge.agents import Examples, find_agent
from gigpo_jax.env_bridge.conversations import Conversation, make_conversation
from gigpo_jax.env_bridge.image_marks import number_images
from gigpo_jax.env_bridge.prompts import PromptInput
from gigpo_jax.envs import registry
from gigpo_jax.envs.introductions import find_introduction
from gigpo_jax.rollout.episode_settings import EpisodeSettings


def apply_agent(
    config: ConfigDict, settings: EpisodeSettings, examples: Examples
) -> EpisodeSettings:
    """Changes settings of episodes to the prompts, the parser and the stop strings of `agent`."""
    agent = find_agent(config.agent)
    name = config.env.name
    if agent.template:
        # Examples do not change between prompts: their images get their numbers once.
        examples, images = _number_examples(examples)
        template = agent.template(find_introduction(name), examples)
        if isinstance(settings.template, Conversation):
            conversation = make_conversation(template)
            template = replace(conversation, summaries=settings.template.summaries)
        settings = replace(settings, template=template, template_images=images)
    stop_strings = agent.stop or settings.sampling.stop_strings
    return replace(
        settings,
        parse=agent.make_parser(settings.parse, registry.spec(name).write or response_text),
        sampling=replace(settings.sampling, stop_strings=stop_strings),
    )


def _number_examples(examples: Examples) -> tuple[Examples, tuple[np.ndarray, ...]]:
    """Numbers the images of examples at their marks, and returns both."""
    numbered: dict[str, list[PromptInput]] = {task_type: [] for task_type in examples}
    images: tuple[np.ndarray, ...] = ()
    for task_type, type_examples in examples.items():
        for example in type_examples:
            events = []
            for event in example.history:
                # `images` grows: the numbers go on from one example to the next.
                text, images = number_images(event.observation, event.images, images)
                events.append(replace(event, observation=text))
            numbered[task_type].append(replace(example, history=tuple(events)))
    return numbered, images
