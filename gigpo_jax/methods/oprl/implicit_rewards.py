"""Rewards of steps from a copy of the policy that learns which episodes were won, for OPRL.

OPRL is arXiv 2509.19199. The copy starts as the policy. The reward of a response is

    r = beta (log pi_copy - log pi_old)         summed over its tokens

with pi_old the policy before the updates of the iteration. Afterwards the copy makes one step on
the loss of `rl.preferences`, over all pairs of a won and a lost episode of a task. Our choices,
where the paper leaves them open: the rewards are those before that step, so they have not seen the
outcomes that they are to explain; there is one step an iteration, on all pairs.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict

from gigpo_jax.config.requirements import require
from gigpo_jax.devices.exchange import all_hosts, global_batch
from gigpo_jax.devices.memory import trained_bytes
from gigpo_jax.devices.mesh import replicated
from gigpo_jax.devices.sharded_shapes import with_shardings
from gigpo_jax.learner.finite import FiniteCheck
from gigpo_jax.learner.packing import make_minibatches
from gigpo_jax.learner.rows import row_settings
from gigpo_jax.learner.scored_steps import ScoredSteps
from gigpo_jax.learner.signals.base import Signal, SignalProgram, shape_scored_batch, unscored_batch
from gigpo_jax.methods.oprl.preferences import make_slope_update, pair_slopes
from gigpo_jax.models.decoder import DecoderConfig
from gigpo_jax.policy import Policy, forward_function, trained_shardings
from gigpo_jax.rl.batch_logprobs import make_logprobs
from gigpo_jax.rl.column import Column
from gigpo_jax.rl.optimizer import make_optimizer
from gigpo_jax.rl.train_step import init_state, shard_state
from gigpo_jax.rl.types import StepBatch
from gigpo_jax.run.checkpoint import parts_of, state_of
from gigpo_jax.run.newest import newest_params
from gigpo_jax.trajectory import Step

CHECKPOINT_PREFIX = "preference_"
NAME = "preference"  # begins the metrics
BETA = 0.05  # factor of log-ratios in rewards and in the loss, the paper's


class SavedRewards(Signal):
    """The rewards of a copy that does not learn."""

    columns = MappingProxyType(
        {
            "implicit_reward": Column(
                "float32",
                None,
                "reward of a copy of the policy that learns which episodes were won",
            ),
        }
    )
    scores_steps = True

    def __init__(self, params: Any) -> None:
        """Takes the copy's trained parameters."""
        self._params = params
        self._log_ratios = np.zeros(0, np.float32)  # of the newest steps, nats

    @property
    def params(self) -> Any:
        """The copy's trained parameters; the frozen ones are the policy's."""
        return self._params

    def compute_columns(self, scored: ScoredSteps) -> dict[str, np.ndarray]:
        """The rewards of the steps, [N] f32."""
        own = scored.score(self.params, scored.policy[1], scored.samples).logprob
        old = scored.token_logprobs.logprob
        log_ratios = [(x - y).sum() for x, y in zip(own, old, strict=True)]
        # Kept for the step that follows: it starts from the same copy.
        self._log_ratios = np.array(log_ratios, np.float32)
        return {"implicit_reward": np.float32(BETA) * self._log_ratios}


class _Training(NamedTuple):
    """Programs of the copy's training, and the state's shardings."""

    init: Any
    update: Any
    state_shardings: Any


class ImplicitRewards(SavedRewards):
    """The rewards of a copy that learns from pairs.

    Attributes:
      state: train state of the copy; replaced by every update.
    """

    def __init__(self, config: ConfigDict, policy: Policy, mesh: jax.sharding.Mesh) -> None:
        """Copies the trained parameters of the policy."""
        super().__init__(None)
        self._config = config
        self._mesh = mesh
        training = _train_programs(config, policy, mesh)
        self._update = training.update
        # A copy: updates donate it, as they do the arrays of the policy.
        params = jax.tree.map(lambda x: x.copy(), policy.trained)
        self.state = jax.jit(training.init, out_shardings=training.state_shardings)(params)
        self._finite = FiniteCheck(NAME, "rl.settings.copy_lr")

    @property
    def params(self) -> Any:
        """The copy's parameters after its last update."""
        return self.state.params

    @property
    def compile_count(self) -> int:
        """Number of programs compiled for updates."""
        return int(self._update._cache_size())

    @classmethod
    def is_gradable(cls, config: ConfigDict, policy: Policy, steps: Sequence[Step]) -> bool:
        """Needs a run that trains it."""
        del config, policy, steps
        return False

    @classmethod
    def check(cls, config: ConfigDict, run: ConfigDict) -> None:
        """Checks that episodes of a task can be compared."""
        del config
        require(
            run.train.group_size > 1,
            run,
            "train.group_size",
            f"{run.rl.algorithm} compares won with lost episodes of a task",
            "use at least 2 (published: 8)",
        )

    @classmethod
    def parameter_bytes(cls, config: ConfigDict, shape: DecoderConfig) -> dict[str, int]:
        """Bytes of parameters, gradients and moments; first moments may have two bytes each."""
        count = trained_bytes(config, shape) // 4
        return {"copy": count * (12 + jnp.dtype(config.optim.moment_dtype).itemsize)}

    @classmethod
    def abstract_arrays(
        cls, config: ConfigDict, policy: Policy, mesh: jax.sharding.Mesh
    ) -> dict[str, Any]:
        """The train state."""
        init, _, shardings = _train_programs(config, policy, mesh)
        return {"copy": with_shardings(jax.eval_shape(init, policy.trained), shardings)}

    @classmethod
    def lower_programs(
        cls, config: ConfigDict, policy: Policy, mesh: jax.sharding.Mesh, batch: StepBatch
    ) -> Iterator[SignalProgram]:
        """The update, and the log-probabilities before it."""
        state = cls.abstract_arrays(config, policy, mesh)["copy"]
        learn = _train_programs(config, policy, mesh).update
        lowered = learn.lower(state, unscored_batch(batch), policy.frozen)
        yield SignalProgram("copy", lowered, every_epoch=False)
        score: Any = make_logprobs(
            forward_function(config, policy.config, mesh), **_score_settings(config)
        )
        lowered = score.lower(state.params, shape_scored_batch(config, batch), policy.frozen)
        yield SignalProgram("copy's scores", lowered, every_epoch=False)

    @classmethod
    def start(cls, config: ConfigDict, policy: Policy, mesh: jax.sharding.Mesh) -> Self:
        """A copy of the policy at the start."""
        return cls(config, policy, mesh)

    @classmethod
    def load(
        cls, config: ConfigDict, policy: Policy, mesh: jax.sharding.Mesh, checkpoints: Path
    ) -> SavedRewards:
        """The newest checkpoint's copy without its optimizer, or the policy if there is none."""
        del mesh
        params, _ = newest_params(checkpoints, policy.trained, f"{CHECKPOINT_PREFIX}params")
        return SavedRewards(params)

    def learn_steps(self, scored: ScoredSteps) -> dict[str, float]:
        """Makes one step on the pairs of all hosts.

        Returns its metrics.

        Raises:
          NotFinite: three steps in a row were skipped.
        """
        steps = scored.steps
        numbers = np.array([step.trajectory for step in steps], np.int64)
        _, first_rows, episode = np.unique(numbers, return_index=True, return_inverse=True)
        episodes = [steps[row] for row in first_rows.tolist()]
        pairs = pair_slopes(
            np.bincount(episode, self._log_ratios, len(episodes)),
            np.array([step.episode.won for step in episodes], bool),
            np.array([step.episode.group for step in episodes], np.int64),
            beta=BETA,
        )
        local_sums = np.array([pairs.loss, pairs.right, pairs.pairs, len(steps)], np.float32)
        loss, right, count, all_steps = all_hosts(local_sums).sum(0).tolist()
        metrics = {f"{NAME}/pairs": count}
        # All hosts leave together: the update is one of all.
        if not count:
            return metrics
        slope = (pairs.slope / count)[episode].tolist()
        samples = [
            replace(sample, advantage=value, weight=1.0)
            for sample, value in zip(scored.samples, slope, strict=True)
        ]
        config = self._config
        # One minibatch: the slopes are those before any step.
        (batch,) = make_minibatches(
            samples,
            steps=int(all_steps),
            **row_settings(config, self._mesh),
            rng=np.random.default_rng(0),
            gather=all_hosts,
        )
        batch = global_batch(self._mesh, batch)
        self.state, record = self._update(self.state, batch, scored.policy[1])
        self._finite.add(record)
        self._finite.finish()
        return metrics | {
            f"{NAME}/loss": loss / count,
            f"{NAME}/accuracy": right / count,
            f"{NAME}/grad_norm": float(record[f"{NAME}/grad_norm"]),
        }

    def checkpoint_parts(self) -> dict[str, Any]:
        """The train state in two parts."""
        return parts_of(self.state, CHECKPOINT_PREFIX)

    def restore(self, checkpoint: Mapping[str, Any]) -> None:
        """Continues with the train state of a checkpoint."""
        self.state = state_of(checkpoint, CHECKPOINT_PREFIX)


def _score_settings(config: ConfigDict) -> dict[str, Any]:
    """Settings of log-probabilities, of the copy and of the policy."""
    return {"chunk": config.batch.logprob_chunk, "temperature": config.sampling.temperature}


def _train_programs(config: ConfigDict, policy: Policy, mesh: jax.sharding.Mesh) -> _Training:
    """Builds the programs of the copy's updates."""
    changes = {"lr": config.rl.settings.copy_lr, "schedule": "constant"}
    optimizer = make_optimizer(**config.optim.to_dict() | changes)
    shardings = trained_shardings(config, policy.config, mesh)
    state_shardings = shard_state(optimizer, policy.trained, shardings, replicated(mesh))
    learn = make_slope_update(
        forward_function(config, policy.config, mesh),
        optimizer,
        name=NAME,
        **_score_settings(config),
        state_shardings=state_shardings,
    )
    return _Training(partial(init_state, optimizer=optimizer), learn, state_shardings)
