"""The learner's programs of an iteration: update, scores, critic."""

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from ml_collections import ConfigDict

from gigpo_jax.devices.mesh import replicated
from gigpo_jax.learner.expected_tokens import step_tokens
from gigpo_jax.learner.objective import make_config_optimizer
from gigpo_jax.learner.programs import policy_programs
from gigpo_jax.learner.signals.base import shape_scored_batch, shape_update_batch
from gigpo_jax.learner.signals.table import needed_signals
from gigpo_jax.models import decoder
from gigpo_jax.tools.preflight.compiled import Compiled, compile_program
from gigpo_jax.tools.preflight.shapes import (
    Arrays,
    ImageSizes,
    add_image_shapes,
    step_batch,
)


def compile_learner(
    config: ConfigDict,
    shape: decoder.DecoderConfig,
    mesh: Mesh,
    arrays: Arrays,
    images: ImageSizes | None,
) -> Iterator[Compiled]:
    """Compiles the update and the log-probabilities, as `Learner` does."""
    train = config.train
    row_tokens = config.batch.rows * config.batch.row_length
    tokens = step_tokens(config)
    # Packing is taken as perfect: the rows of a minibatch hold its tokens and no gaps. What texts
    # share depends on the tasks: they count as if they shared nothing.
    microbatches = math.ceil(train.minibatch * tokens / row_tokens)
    steps = train.groups * train.group_size * config.env.max_steps
    # A fraction: a lower bound needs no rounding to whole minibatches.
    epoch_minibatches = steps / train.minibatch
    minibatches = train.epochs * epoch_minibatches
    batch = step_batch(config, shape, mesh, microbatches)
    if images is not None:
        row_steps = row_tokens / tokens
        batch = add_image_shapes(batch, shape, round(row_steps * images.number), images.patches)
    shardings = jax.tree.map(lambda leaf: leaf.sharding, arrays.state)
    optimizer = make_config_optimizer(config, train.iterations)
    update, score, _ = policy_programs(config, shape, mesh, optimizer, shardings)
    trips = (microbatches,)

    iteration = jax.ShapeDtypeStruct((), jnp.int32, sharding=replicated(mesh))
    rate = jax.ShapeDtypeStruct((), jnp.float32, sharding=replicated(mesh))
    # Values of a critic are read by the update of the critic alone.
    policy_batch = replace(shape_update_batch(config, batch), values=None)
    lowered = _lower(update, arrays.state, policy_batch, arrays.policy.frozen, iteration, rate)
    yield Compiled("update", *compile_program("update", lowered), trips, minibatches)
    signals = needed_signals(config)
    # Signals score the steps of an iteration once, and not again for each epoch.
    signal_scores = sum(signal.scores_steps for signal in signals)
    scores = _count_scores(config) * minibatches + signal_scores * epoch_minibatches
    if scores:
        # The scores are what these columns are made of, so they are not there yet.
        scored_batch = shape_scored_batch(config, batch)
        lowered = _lower(score, arrays.state.params, scored_batch, arrays.policy.frozen)
        yield Compiled("score", *compile_program("score", lowered), trips, scores)
    for signal in signals:
        for program in signal.lower_programs(config, arrays.policy, mesh, batch):
            runs = minibatches if program.every_epoch else epoch_minibatches
            compiled = compile_program(program.name, program.lowered)
            yield Compiled(program.name, *compiled, trips, runs)


def _lower(jitted: Any, *args: Any) -> jax.stages.Lowered:
    """Lowers a jitted function, whose type does not show that it is one."""
    return jitted.lower(*args)


def _count_scores(config: ConfigDict) -> int:
    """Number of log-probabilities that each minibatch needs beside the update."""
    return (config.rl.old_logprobs == "recompute") + (config.rl.kl_coef > 0)
