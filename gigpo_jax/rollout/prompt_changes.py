"""Prompts of plans (`env.plan`), of summaries (`env.context`) and of agents."""

from dataclasses import replace

from ml_collections import ConfigDict

from gigpo_jax.env_bridge.agents import Examples
from gigpo_jax.env_bridge.conversations import Conversation, SummaryLimits
from gigpo_jax.env_bridge.plans import PLANS
from gigpo_jax.rollout.agent_settings import apply_agent
from gigpo_jax.rollout.episode_settings import EpisodeSettings


def change_prompts(
    config: ConfigDict, settings: EpisodeSettings, examples: Examples
) -> EpisodeSettings:
    """Changes settings of episodes to prompts with a plan, with summaries, or of an agent.

    Args:
      config: Config of a run with one environment.
      settings: Settings with the templates of the environment.
      examples: Examples that prompts of the agent show.
    """
    env = config.env
    if env.plan != "none":
        plan = PLANS[env.plan]
        settings = replace(
            settings,
            template=plan.ask(settings.template, env.name),
            parse=plan.make_parser(settings.parse),
        )
    if env.context == "summary":
        assert isinstance(settings.template, Conversation)  # the check of `env.context`
        sampling = config.sampling
        limits = SummaryLimits(sampling.max_response_tokens, summary_limit(sampling))
        settings = replace(settings, template=replace(settings.template, summaries=limits))
    # No training run has an agent.
    return settings if config.agent == "plain" else apply_agent(config, settings, examples)


def summary_limit(sampling: ConfigDict) -> int:
    """Largest number of tokens of a summary."""
    return int(sampling.max_summary_tokens or sampling.max_response_tokens)
