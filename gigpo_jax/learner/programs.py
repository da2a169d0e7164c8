"""The compiled programs of the policy's updates, and the train state that they start from."""

from typing import Any, NamedTuple

import jax
from ml_collections import ConfigDict

from gigpo_jax.devices.mesh import replicated
from gigpo_jax.learner.objective import make_objective
from gigpo_jax.models.decoder import DecoderConfig, active_param_count
from gigpo_jax.policy import Policy, forward_function, trained_shardings
from gigpo_jax.rl import update
from gigpo_jax.rl.optimizer import Optimizer
from gigpo_jax.rl.train_step import TrainState, init_state, shard_state

SLOW_FLOP = 2e11  # of a microbatch; CPUs take some seconds


class PolicyPrograms(NamedTuple):
    """Jitted programs of `rl.update`; `in_pieces`: whether `update` is a `PiecewiseUpdate`."""

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
    in_pieces = updates_in_pieces(config, shape, mesh)
    step = update.make_update(
        forward,
        optimizer,
        make_objective(config).loss,
        **settings,
        state_shardings=state_shardings,
        in_pieces=in_pieces,
    )
    return PolicyPrograms(step, update.make_logprobs(forward, **settings), in_pieces)


def updates_in_pieces(config: ConfigDict, shape: DecoderConfig, mesh: jax.sharding.Mesh) -> bool:
    """Tests whether each microbatch of an update is a device call, as on CPUs if it takes seconds.

    A signal then acts after the microbatch.
    """
    if not config.batch.fit_rows or mesh.devices.flat[0].platform != "cpu":
        return False
    from gigpo_jax.learner.fitted_rows import CPU_PLACES

    return 6 * active_param_count(shape) * CPU_PLACES >= SLOW_FLOP


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
