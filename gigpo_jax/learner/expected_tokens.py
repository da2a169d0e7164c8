"""Tokens of an iteration as estimates assume them, before anything was played."""

import math

from ml_collections import ConfigDict

from gigpo_jax.config.mix import member_configs
from gigpo_jax.env_bridge.prompt_building import is_conversation
from gigpo_jax.envs.registry import find_style
from gigpo_jax.learner.packing import most_microbatches, stored_microbatches
from gigpo_jax.policy import longest_text

# Assumed share of the limits of prompts and responses that a step of an episode uses.
FILL = 0.5


def segment_steps(config: ConfigDict) -> int:
    """Returns the number of steps that share a segment of a row.

    A conversation counts as one segment, although it may start again; a conversation longer than a
    minibatch is cut.
    """
    # Steps of agent programs may share segments too, but nothing tells how many do.
    for member in member_configs(config).values():
        if not is_conversation(find_style(member.env.name, member.env.prompt)):
            return 1
    return min(int(config.env.max_steps), int(config.train.minibatch))


def step_tokens(config: ConfigDict) -> float:
    """Tokens of rows that a step takes."""
    limit = config.sampling.max_prompt_tokens + config.sampling.max_response_tokens
    return float(FILL * limit / segment_steps(config))


def stored_rows(config: ConfigDict) -> int:
    """Returns the stored rows of an iteration whose episodes have `env.max_steps` steps."""
    train = config.train
    batch = config.batch
    steps = train.groups * train.group_size * config.env.max_steps
    minibatches = train.epochs * math.ceil(steps / train.minibatch)
    # Minibatches have room for steps of the full length.
    needed = most_microbatches(
        train.minibatch, 1, longest_text(config) - 1, batch.row_length, batch.rows
    )
    return int(minibatches * stored_microbatches(needed) * batch.rows)
