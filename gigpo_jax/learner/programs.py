"""The compiled programs of the policy's updates, and the train state that they start from."""

from typing import Any, NamedTuple

import jax
from ml_collections import ConfigDict

from gigpo_jax.devices.mesh import replicated
from gigpo_jax.learner.objective import make_objective
from gigpo_jax.models.decoder_config import DecoderConfig
from gigpo_jax.policy import Policy, forward_function, trained_shardings
from gigpo_jax.rl import update
from gigpo_jax.rl.optimizer import Optimizer
from gigpo_jax.rl.train_step import TrainState, init_state, shard_state


class PolicyPrograms(NamedTuple):
    """Jitted programs of a policy.

    Attributes:
      update: Result of `rl.update.make_update`.
      logprobs: Result of `rl.batch_logprobs.make_logprobs`; None: no loss and no ratio needs it.
      in_pieces: Whether `update` is a `PiecewiseUpdate`, with a device call for each microbatch.
    """

    update: Any
    logprobs: Any
    in_pieces: bool


def policy_programs(
    config: ConfigDict,
    shape: DecoderConfig,
    mesh: jax.sharding.Mesh,
    optimizer: Optimizer,
    state_shardings: Any,
) -> PolicyPrograms:
    """Builds the programs of a config; nothing is compiled yet."""
    forward = forward_function(config, shape, mesh)
    # One temperature for both programs: the first ratio to recomputed log-probabilities is then 1.
    settings = {"chunk": config.batch.logprob_chunk, "temperature": config.sampling.temperature}
    in_pieces = False
    if config.batch.fit_rows:
        from gigpo_jax.learner.fitted_rows import updates_in_pieces

        in_pieces = updates_in_pieces(config, shape, mesh)
    step = update.make_update(
        forward,
        optimizer,
        make_objective(config).loss,
        **settings,
        state_shardings=state_shardings,
        in_pieces=in_pieces,
    )
    logprobs = None
    if config.rl.kl_coef or config.rl.old_logprobs == "recompute":
        from gigpo_jax.rl.batch_logprobs import make_logprobs

        logprobs = make_logprobs(forward, **settings)
    return PolicyPrograms(step, logprobs, in_pieces)


def start_state(
    config: ConfigDict, policy: Policy, mesh: jax.sharding.Mesh, optimizer: Optimizer
) -> tuple[TrainState, TrainState]:
    """Builds the train state of a policy, and the shardings of its leaves.

    The state takes over the trained parameters of the policy: updates donate them.
    """
    param_shardings = trained_shardings(config, policy.config, mesh)
    state_shardings = shard_state(optimizer, policy.trained, param_shardings, replicated(mesh))
    # One program with the shardings of its results: no device holds the moments of the whole model.
    init = jax.jit(lambda params: init_state(params, optimizer), out_shardings=state_shardings)
    return init(policy.trained), state_shardings
