"""The interface of an optional signal."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, Self

import jax
import numpy as np
from ml_collections import ConfigDict

from gigpo_jax.learner.finite import FiniteCheck
from gigpo_jax.learner.scored_steps import CreditedSteps, ScoredSteps
from gigpo_jax.models.decoder import DecoderConfig
from gigpo_jax.policy import Policy, shares_prefixes
from gigpo_jax.rl.train_step import Metrics
from gigpo_jax.rl.types import StepBatch
from gigpo_jax.trajectory import Step


@dataclass(frozen=True)
class SignalProgram:
    """A program that a signal runs on the devices.

    Attributes:
      name: name in the report of `gigpo preflight`.
      lowered: program for arrays that need not be here.
      every_epoch: whether it runs for the minibatches of each epoch, or of one epoch alone.
    """

    name: str
    lowered: jax.stages.Lowered
    every_epoch: bool


def unscored_batch(batch: StepBatch) -> StepBatch:
    """The minibatch before anything was scored."""
    return replace(batch, reference=None, proximal=None, values=None)


def shape_scored_batch(config: ConfigDict, batch: StepBatch) -> StepBatch:
    """Returns the shapes of a minibatch that is scored, given its shapes with separate texts."""
    return _shape_trees(unscored_batch(batch), shares_prefixes(config))


def shape_update_batch(config: ConfigDict, batch: StepBatch) -> StepBatch:
    """Returns the shapes of a minibatch of an update, given its shapes with separate texts."""
    by_group = config.train.minibatch_by == "group"
    return _shape_trees(batch, by_group and shares_prefixes(config))


def _shape_trees(batch: StepBatch, shares: bool) -> StepBatch:
    # As in `learner.packing`: texts with images share nothing.
    if not shares or batch.images is not None:
        return batch
    ids = batch.segment_ids
    microbatches, rows, tokens = ids.shape
    dims = (microbatches, rows, 2, tokens)
    trees = jax.ShapeDtypeStruct(dims, ids.dtype, sharding=ids.sharding)
    return replace(batch, segment_ids=trees)


class Signal:
    """Base class of signals.

    A signal overrides what it has; the rest does nothing. `parameter_bytes`, `abstract_arrays` and
    `lower_programs` are for estimates: they read no weights and allocate nothing.

    Attributes:
      columns: names of the `StepColumns` that it computes; the columns of one method with their
        `Column`.
      batch_fields: dtype of each field of `StepBatch` that it fills, [M, B, C] arrays; or a pytree
        of dtypes for a pytree of arrays.
      scores_steps: whether the policy scores all steps of an iteration once for it.
      reads_steps_alone: why an episode must have no turns without a step, such as summaries; "": it
        may.
      reads_anchors: whether its columns depend on the anchors of the run's environment.
      finite_checks: checks of the updates that it makes.
    """

    # Of the class: the signals that a run needs are chosen before any of them is built.
    columns: ClassVar[Collection[str]] = ()
    batch_fields: ClassVar[Mapping[str, Any]] = MappingProxyType({})
    scores_steps: ClassVar[bool] = False
    reads_steps_alone: ClassVar[str] = ""
    reads_anchors: ClassVar[bool] = False
    finite_checks: tuple[FiniteCheck, ...] = ()

    @property
    def compile_count(self) -> int:
        """Number of programs compiled for its updates."""
        return 0

    @classmethod
    def is_needed(cls, config: ConfigDict) -> bool:
        """Whether a run needs it whose algorithm names it."""
        del config
        return True

    @classmethod
    def check(cls, config: ConfigDict, run: ConfigDict) -> None:
        """Checks that a run gives what it reads.

        Args:
          config: config with one environment.
          run: config of the run, which may have several.

        Raises:
          InputError: it does not.
        """
        del config, run

    @classmethod
    def is_gradable(cls, config: ConfigDict, policy: Policy, steps: Sequence[Step]) -> bool:
        """Returns whether any run can compute the signal's columns for these steps.

        `gigpo credit` then grades the algorithms that read them, whatever the run's algorithm is.
        """
        del config, policy, steps
        return True

    @classmethod
    def parameter_bytes(cls, config: ConfigDict, shape: DecoderConfig) -> dict[str, int]:
        """Returns the bytes that the signal adds to the memory estimate, by purpose.

        They count parameters and what belongs to them, such as moments, over all devices that split
        the parameters; see `policy.SignalBytes`. `shape` is the policy's.
        """
        del config, shape
        return {}

    @classmethod
    def abstract_arrays(
        cls, config: ConfigDict, policy: Policy, mesh: jax.sharding.Mesh
    ) -> dict[str, Any]:
        """Returns the shapes of its arrays on the devices, with their shardings, by purpose.

        The policy has shapes in place of parameters, and no tokenizer.
        """
        del config, policy, mesh
        return {}

    @classmethod
    def lower_programs(
        cls, config: ConfigDict, policy: Policy, mesh: jax.sharding.Mesh, batch: StepBatch
    ) -> Iterator[SignalProgram]:
        """Lowers its programs of an iteration for shapes, without the scores of `scores_steps`.

        The policy is as for `abstract_arrays`, and the batch has shapes in place of arrays too.
        """
        del config, policy, mesh, batch
        return iter(())

    @classmethod
    def start(cls, config: ConfigDict, policy: Policy, mesh: jax.sharding.Mesh) -> Self:
        """The signal at the start of a training run; here of a signal without state."""
        del config, policy, mesh
        return cls()

    @classmethod
    def load(
        cls, config: ConfigDict, policy: Policy, mesh: jax.sharding.Mesh, checkpoints: Path
    ) -> "Signal":
        """The signal of a run's newest checkpoint, for `compute_columns` alone."""
        # A signal without state is the same after any number of iterations.
        del checkpoints
        return cls.start(config, policy, mesh)

    def checked_columns(self, scored: ScoredSteps) -> dict[str, np.ndarray]:
        """Computes columns, of the declared types: another one would compile another program.

        Raises:
          TypeError: A column has another type.
        """
        computed = self.compute_columns(scored)
        declared = self.columns if isinstance(self.columns, Mapping) else {}
        for name in computed.keys() & declared.keys():
            values = computed[name]
            width = declared[name].width
            shape = () if width is None else (width or values.shape[-1],)
            if values.dtype != declared[name].dtype or values.shape[1:] != shape:
                raise TypeError(
                    f"{name} must be {declared[name]}, got {values.dtype} {values.shape}"
                )
        return computed

    def compute_columns(self, scored: ScoredSteps) -> dict[str, np.ndarray]:
        """Computes columns of the steps, [N, ...] each, by name; all hosts call this together."""
        del scored
        return {}

    def compute_fields(self, credited: CreditedSteps) -> dict[str, Sequence[Any]]:
        """Computes fields of `StepBatch` by name, one number or [R] array a step, in their order.

        All hosts call this together.
        """
        del credited
        return {}

    def learn_steps(self, scored: ScoredSteps) -> dict[str, float]:
        """Learns from an iteration's steps, after their columns; returns all hosts' metrics.

        All hosts call this together.
        """
        del scored
        return {}

    def update(self, batch: StepBatch, policy: tuple[Any, Any]) -> Metrics:
        """Makes one update from a minibatch; `policy` has trained and frozen parameters."""
        del batch, policy
        return {}

    def checkpoint_parts(self) -> dict[str, Any]:
        """Returns the trees of arrays that a resumed run needs, by their names in a checkpoint."""
        return {}

    def checkpoint_record(self) -> dict[str, Any]:
        """Returns JSON values that a resumed run needs, by their names in a checkpoint's record."""
        return {}

    def restore(self, checkpoint: Mapping[str, Any]) -> None:
        """Continues from the trees of a checkpoint and its record, `checkpoint["record"]`."""
