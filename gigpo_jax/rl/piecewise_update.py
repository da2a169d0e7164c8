"""An update in several device calls, one for each microbatch, where one call takes seconds."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from gigpo_jax.rl.train_step import Between, Metrics, Params, Totals, TrainState, TrainStep
from gigpo_jax.rl.types import StepBatch


class PiecewiseUpdate:
    """An update of several device calls, one for each microbatch.

    The host can show progress between the calls. It can also stop between them, because only the
    last call changes the state.
    """

    def __init__(
        self,
        start: Callable[[Params], Any],
        add: Callable[..., Any],
        apply: Callable[..., tuple[TrainState, Metrics]],
    ) -> None:
        """Takes the jitted programs.

        Args:
          start: Function from parameters to sums and gradients of no tokens.
          add: Function (parameters, minibatch, frozen parameters, iteration, m, sums and gradients)
            -> those with microbatch m; it donates the last argument.
          apply: Function (state, minibatch, sums and gradients, iteration, rate) -> (state,
            metrics); it donates the state.
        """
        self._start = start
        self._add = add
        self._apply = apply

    def __call__(
        self,
        state: TrainState,
        batch: StepBatch,
        frozen: Params = None,
        iteration: jax.Array | None = None,
        rate: jax.Array | None = None,
        *,
        between: Between = lambda result, done: None,
    ) -> tuple[TrainState, Metrics]:
        """Makes an update as described in `make_update`, and calls `between` after each microbatch.

        If `between` raises, the state stays as it was.
        """
        count = state.step + 0 if iteration is None else iteration
        totals = self._start(state.params)
        for m in range(int(batch.microbatches)):
            totals = self._add(state.params, batch, frozen, count, np.int32(m), totals)
            between(totals[0], m + 1)
        return self._apply(state, batch, totals, count, rate)

    def _cache_size(self) -> int:
        """Number of compiled programs, as jitted functions have it."""
        programs: tuple[Any, ...] = (self._start, self._add, self._apply)
        return sum(program._cache_size() for program in programs)


def compile_in_pieces(step: TrainStep) -> PiecewiseUpdate:
    """Jits the programs of a step; see `update.make_update`."""
    state_shardings, total_shardings = step.result_shardings()

    def add_one(
        params: Params,
        batch: StepBatch,
        frozen: Params,
        count: jax.Array,
        m: jax.Array,
        totals: Totals,
    ) -> Totals:
        return step.add(params, batch, frozen, count, (m, m + 1), totals)

    return PiecewiseUpdate(
        jax.jit(step.start, out_shardings=total_shardings),
        jax.jit(add_one, donate_argnums=5, out_shardings=total_shardings),
        jax.jit(step.apply, donate_argnums=0, out_shardings=state_shardings),
    )
