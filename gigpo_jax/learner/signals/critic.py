"""A critic beside the policy: values of steps and tokens, and its updates.

It estimates the return before each response token; the estimate at the last prompt token is the
value of the step. `critic_model` has the model.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, Self

import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict

from gigpo_jax.devices.sharded_shapes import with_shardings
from gigpo_jax.learner.critic_model import (
    TokenValues,
    abstract_critic_params,
    critic_shape,
    make_token_values,
    start_params,
    train_programs,
    values_program,
)
from gigpo_jax.learner.finite import FiniteCheck
from gigpo_jax.learner.samples import Sample
from gigpo_jax.learner.scored_steps import CreditedSteps, ScoredSteps
from gigpo_jax.learner.signals.base import (
    Signal,
    SignalProgram,
    shape_scored_batch,
    shape_update_batch,
)
from gigpo_jax.models.decoder import DecoderConfig, param_count
from gigpo_jax.policy import Policy
from gigpo_jax.rl import gae
from gigpo_jax.rl.train_step import Metrics
from gigpo_jax.rl.types import StepBatch
from gigpo_jax.rl.value_targets import ValueTargets
from gigpo_jax.run.checkpoint import parts_of, state_of
from gigpo_jax.run.newest import newest_params
from gigpo_jax.trajectory import Step

# (samples, their values before each token) -> columns by name
ReadValues = Callable[[Sequence[Sample], Sequence[np.ndarray]], dict[str, np.ndarray]]

CHECKPOINT_PREFIX = "critic_"  # begins the names of the critic's parts of a checkpoint
CHECKPOINT_PARAMS = f"{CHECKPOINT_PREFIX}params"


class SavedCritic(Signal):
    """A critic with fixed parameters, which does not learn."""

    columns: ClassVar[Collection[str]] = ("value", "tokens", "token_value")

    def __init__(self, token_values: TokenValues, params: Any, read_values: ReadValues) -> None:
        """Takes a value function, its parameters, and a function from values to columns.

        The functions are as from `make_token_values` and `Critic.value_reader`.
        """
        self._token_values = token_values
        self._params = params
        self._read_values = read_values

    @property
    def params(self) -> Any:
        """The critic's parameters."""
        return self._params

    def values(self, policy: tuple[Any, Any], samples: Sequence[Sample]) -> list[np.ndarray]:
        """Returns the value before each response token, [R] f32 a sample, [R, V] f32 with V values.

        Args:
          policy: trained and frozen parameters of the policy, which a value head reads.
          samples: samples of this host; all hosts call this together.
        """
        return self._token_values(self.params, policy, samples)

    def compute_columns(self, scored: ScoredSteps) -> dict[str, np.ndarray]:
        """The columns that the algorithm reads."""
        return self._read_values(scored.samples, self.values(scored.policy, scored.samples))


class Critic(SavedCritic):
    """A critic that learns from every minibatch.

    Attributes:
      state: parameters, optimizer and counters; replaced by every update.
    """

    batch_fields = MappingProxyType({"values": ValueTargets(np.float32, np.float32, np.float32)})

    def __init__(self, config: ConfigDict, policy: Policy, mesh: jax.sharding.Mesh) -> None:
        """Starts from `start_params`; compiles nothing yet.

        Args:
          config: config as from `config.resolve`, with a critic.
          policy: policy beside the critic.
          mesh: mesh as from `make_mesh`.

        Raises:
          InputError: raised by `start_params`.
        """
        # Updates donate the state, so it takes the parameters over and no attribute keeps them.
        params = start_params(config, policy, mesh)
        init, self._update, places = train_programs(config, policy, mesh, params)
        self.state = jax.jit(init, out_shardings=places)(params)
        self.finite_checks = (FiniteCheck("critic", "critic.lr"),)
        token_values = make_token_values(config, policy, mesh)
        # No parameters: `params` reads the state, which each update replaces.
        super().__init__(token_values, None, self.value_reader(config, policy))

    @classmethod
    def value_reader(cls, config: ConfigDict, policy: Policy) -> ReadValues:
        """Returns the function from samples and their values to the columns of `value_columns`."""
        del policy
        length = config.sampling.max_response_tokens
        return lambda samples, values: value_columns(values, length)

    @property
    def params(self) -> Any:
        """The critic's parameters after the last update."""
        return self.state.params

    @property
    def compile_count(self) -> int:
        """Number of programs compiled for updates."""
        return self._update._cache_size()  # type: ignore[attr-defined]

    @classmethod
    def is_gradable(cls, config: ConfigDict, policy: Policy, steps: Sequence[Step]) -> bool:
        """Needs a run that trains it."""
        del config, policy, steps
        return False

    @classmethod
    def parameter_bytes(cls, config: ConfigDict, shape: DecoderConfig) -> dict[str, int]:
        """Returns the bytes of parameters, gradients and moments.

        First moments may have two bytes each; all others have four. A value head alone is too small
        to count.
        """
        if config.critic.kind == "head":
            return {}
        # 4 bytes of a parameter, 4 of its gradient, 4 of its second moment.
        bytes_each = 12 + jnp.dtype(config.optim.moment_dtype).itemsize
        return {"critic": param_count(critic_shape(config, shape)) * bytes_each}

    @classmethod
    def abstract_arrays(
        cls, config: ConfigDict, policy: Policy, mesh: jax.sharding.Mesh
    ) -> dict[str, Any]:
        """The train state."""
        params = abstract_critic_params(config, policy, mesh)
        init, _, shardings = train_programs(config, policy, mesh, params)
        return {"critic": with_shardings(jax.eval_shape(init, params), shardings)}

    @classmethod
    def lower_programs(
        cls, config: ConfigDict, policy: Policy, mesh: jax.sharding.Mesh, batch: StepBatch
    ) -> Iterator[SignalProgram]:
        """The update, and the values before the first one."""
        state = cls.abstract_arrays(config, policy, mesh)["critic"]
        params = abstract_critic_params(config, policy, mesh)
        policy_params = (policy.trained, policy.frozen)
        update: Any = train_programs(config, policy, mesh, params).update
        lowered = update.lower(state, shape_update_batch(config, batch), policy_params)
        yield SignalProgram("critic", lowered, every_epoch=True)
        values: Any = values_program(config, policy, mesh)
        lowered = values.lower(state.params, policy_params, shape_scored_batch(config, batch))
        yield SignalProgram("values", lowered, every_epoch=False)

    @classmethod
    def start(cls, config: ConfigDict, policy: Policy, mesh: jax.sharding.Mesh) -> Self:
        """The critic of `critic.path`, or one from the policy."""
        return cls(config, policy, mesh)

    @classmethod
    def load(
        cls, config: ConfigDict, policy: Policy, mesh: jax.sharding.Mesh, checkpoints: Path
    ) -> SavedCritic:
        """Loads the newest checkpoint's critic without its optimizer, or else the start critic."""
        # The parameters alone: the optimizer would need twice their memory.
        abstract = abstract_critic_params(config, policy, mesh)
        params, version = newest_params(checkpoints, abstract, CHECKPOINT_PARAMS)
        if not version:
            params = start_params(config, policy, mesh)
        token_values = make_token_values(config, policy, mesh)
        return SavedCritic(token_values, params, cls.value_reader(config, policy))

    def compute_fields(self, credited: CreditedSteps) -> dict[str, Sequence[Any]]:
        """Returns `ValueTargets` of each step, with the values from before the updates."""
        targets = credited.credit.target
        assert targets is not None  # algorithms that need a critic compute its targets
        # One target a step, or one a token: the algorithm's choice.
        values = credited.columns["value" if targets.ndim == 1 else "token_value"]
        rows = zip(credited.scored.samples, values, targets, strict=True)
        return {
            "values": [
                gae.value_targets(value, target, len(sample.response_tokens))
                for sample, value, target in rows
            ]
        }

    def update(self, batch: StepBatch, policy: tuple[Any, Any]) -> Metrics:
        """One update from a minibatch with `values`."""
        self.state, metrics = self._update(self.state, batch, policy)
        return metrics

    def checkpoint_parts(self) -> dict[str, Any]:
        """The train state in two parts."""
        return parts_of(self.state, CHECKPOINT_PREFIX)

    def restore(self, checkpoint: Mapping[str, Any]) -> None:
        """Takes the train state over."""
        self.state = state_of(checkpoint, CHECKPOINT_PREFIX)


def value_columns(values: Sequence[np.ndarray], length: int) -> dict[str, np.ndarray]:
    """Columns of a critic's values, by the names of `StepColumns`.

    Args:
      values: value before each response token, one [R] f32 a step; the value of a step without
        tokens is 0.
      length: R of `token_value`, at least the length of the longest response.
    """
    tokens = np.array([len(row) for row in values], np.int32)
    padded = np.zeros((len(values), length), np.float32)
    for row, row_values in zip(padded, values, strict=True):
        row[: len(row_values)] = row_values
    return {"value": padded[:, 0], "tokens": tokens, "token_value": padded}
