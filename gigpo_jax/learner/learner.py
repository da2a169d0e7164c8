"""Episodes -> a better policy: advantages, minibatches and updates of one iteration."""

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict

from gigpo_jax.devices.exchange import all_hosts, global_batch, wait_for
from gigpo_jax.learner.credit import step_credit
from gigpo_jax.learner.finite import FiniteCheck
from gigpo_jax.learner.objective import config_algorithm, make_config_optimizer, make_objective
from gigpo_jax.learner.packing import make_minibatches, microbatch_tokens, packing_stats
from gigpo_jax.learner.programs import policy_programs, start_state
from gigpo_jax.learner.rows import row_settings
from gigpo_jax.learner.samples import Sample, training_samples
from gigpo_jax.learner.scored_steps import CreditedSteps, ScoredSteps
from gigpo_jax.learner.signals.table import batch_fields, compute_columns, start_signals
from gigpo_jax.learner.token_logprobs import make_token_logprobs
from gigpo_jax.policy import Policy, longest_text, longest_tree, shares_prefixes
from gigpo_jax.rl.optimizer import scheduled_rates
from gigpo_jax.rl.train_step import Between, Metrics
from gigpo_jax.rl.types import StepBatch
from gigpo_jax.run.checkpoint import OLDER, parts_of, state_of
from gigpo_jax.run.loggers.metrics import Timers
from gigpo_jax.trajectory import Step, StepCredit

Progress = Callable[[int, int], None]  # (tokens done, all tokens); it may end the update

LARGEST = ("/ratio_max", "/skipped")  # metrics whose largest value counts, not their mean
MISMATCH = "policy/behaviour_mismatch"


class Learner:
    """Holds the train state and what changes it.

    Attributes:
      state: trained parameters, optimizer and counters; replaced by every update.
      signals: optional signals that the algorithm needs.
      older: version and trained parameters that sample the next `train.max_staleness` iterations;
        none with `train.inflight`.
    """

    def __init__(self, config: ConfigDict, policy: Policy, mesh: jax.sharding.Mesh) -> None:
        """Takes over the trained parameters of the policy; compiles no update yet."""
        self._config = config
        self._mesh = mesh
        self._algorithm = config_algorithm(config)
        self._objective = make_objective(config)
        self._score = make_token_logprobs(config, policy, mesh, config.sampling.temperature)
        self._finite = FiniteCheck()
        self._is_first = True  # until this process has made an iteration
        self.signals = start_signals(config, policy, mesh)
        # With an adapter the reference is only the adapter of the start: the model below it does
        # not change.
        self._reference: Any = None
        if config.rl.kl_coef:
            self._reference = jax.tree.map(lambda x: x.copy(), policy.trained)
        # No attribute may keep the parameters of the start: updates donate them, and a second
        # reference would keep a second copy.
        self._policy = policy if policy.adapter is not None else replace(policy, params=None)
        optimizer = make_config_optimizer(config, config.train.iterations)
        # Inputs of the update: its program is the same for a run of another length.
        self._rates = scheduled_rates(optimizer, config.train.iterations)
        self.state, state_shardings = start_state(config, policy, mesh, optimizer)
        # All rollouts that run ahead at the start have version 0. The entries share one set of
        # arrays; the first iteration copies before it updates.
        self.older: list[tuple[int, Any]] = []
        if config.train.max_staleness:
            from gigpo_jax.devices.memory import count_older_policies

            self.older = [(0, self.state.params)] * count_older_policies(config)
        self._programs = policy_programs(config, policy.config, mesh, optimizer, state_shardings)

    @property
    def params(self) -> Any:
        """The whole policy, for an engine; without `older`, the next update donates parts of it."""
        return self.whole_policy(self.state.params)

    def whole_policy(self, trained: Any) -> Any:
        """The whole policy with these trained parameters, for an engine."""
        return self._policy.whole(trained)

    @property
    def compile_count(self) -> int:
        """Number of programs compiled for updates and log-probabilities."""
        programs = filter(None, (self._programs.update, self._programs.logprobs))
        compiled = sum(program._cache_size() for program in programs)
        return compiled + sum(signal.compile_count for signal in self.signals)

    @property
    def stops_in_updates(self) -> bool:
        """Whether updates end between device calls if `progress` raises, not behind them all."""
        return self._programs.in_pieces

    def checkpoint_parts(self) -> dict[str, Any]:
        """The trees of arrays of a checkpoint by name."""
        trees = parts_of(self.state)
        for signal in self.signals:
            trees |= signal.checkpoint_parts()
        if self.older:
            trees[OLDER] = [trained for _, trained in self.older]
        return trees

    def checkpoint_record(self) -> dict[str, Any]:
        """The learner's JSON values of a checkpoint's record."""
        record: dict[str, Any] = {}
        if self.older:
            record[OLDER] = [version for version, _ in self.older]
        for signal in self.signals:
            record |= signal.checkpoint_record()
        return record

    def restore(self, checkpoint: Mapping[str, Any]) -> None:
        """Continues from the trees of a checkpoint and its record, `checkpoint["record"]`."""
        self.state = state_of(checkpoint)
        versions = checkpoint["record"].get(OLDER, ())
        self.older = list(zip(versions, checkpoint.get(OLDER, ()), strict=True))
        for signal in self.signals:
            signal.restore(checkpoint)

    def score_steps(self, steps: Sequence[Step]) -> ScoredSteps:
        """Returns steps with their samples, scored under this policy when scores are first read."""
        return ScoredSteps(steps, self._policy_params, self._score)

    def learn(
        self, scored: ScoredSteps, iteration: int, timers: Timers, progress: Progress
    ) -> tuple[dict[str, float], StepCredit]:
        """Makes one iteration's updates.

        Args:
          scored: result of `score_steps` for this host's steps.
          iteration: index from 0, the version of the policy; it seeds the order of steps and sets
            the learning rate.
          timers: timers that get `advantage` and `update`.
          progress: function to call when the device has computed more tokens. What it raises ends
            the updates between two device calls.

        Returns:
          Metrics of all hosts by name, and the advantages of this host's steps.

        Raises:
          NotFinite: three updates in a row were skipped.
        """
        self._keep_older_policy(iteration)
        with timers.time("advantage"):
            kl_metrics: dict[str, float] = {}
            # Before the columns: returns and advantages have to see the lower rewards.
            if self._config.rl.kl_coef and self._config.rl.kl_in == "reward":
                from gigpo_jax.learner.kl_penalty import subtract_kl

                scored, kl_metrics = subtract_kl(self._config, scored, self._reference)
            columns = compute_columns(self.signals, scored)
            metrics, credit = step_credit(
                self._config,
                self._objective.advantages,
                scored.steps,
                columns,
                compiles_ahead=self._is_first,
            )
            self._is_first = False
            metrics |= kl_metrics
            # After the columns: the values of an iteration must not have seen its returns.
            for signal in self.signals:
                metrics |= signal.learn_steps(scored)
            samples = self._training_samples(CreditedSteps(scored, columns, credit, iteration))
        with timers.time("update"):
            groups = [scored.steps[row].episode.group for row in credit.learned_rows]
            batches = self._minibatches(samples, groups, iteration)
            metrics |= mean_over_hosts(packing_stats(batches))
            metrics |= self._update(batches, iteration, progress)
        return metrics, credit

    @property
    def _policy_params(self) -> tuple[Any, Any]:
        """The trained and the frozen parameters of the policy."""
        return self.state.params, self._policy.frozen

    def _keep_older_policy(self, iteration: int) -> None:
        """Before updates, keeps the policy that the next rollouts use."""
        if not self.older:
            return
        # The oldest entry sampled the steps of this iteration and is not needed any more. The
        # engine may hold the arrays of the newest one, so updates, which donate, get copies.
        self.older = [*self.older[1:], (iteration, self.state.params)]
        self.state = replace(self.state, params=jax.tree.map(jnp.copy, self.state.params))

    def _training_samples(self, credited: CreditedSteps) -> list[Sample]:
        config = self._config
        scored = credited.scored
        fields: dict[str, Sequence[Any]] = {}
        for name in self._scored_fields(credited.iteration):
            if name == "proximal":
                scores = scored.token_logprobs
            else:
                scores = scored.score(self._reference, self._policy.frozen, scored.samples)
            fields[name] = scores.logprob
        for signal in self.signals:
            fields |= signal.compute_fields(credited)
        weights: Sequence[Any] = [1.0] * len(scored.steps)
        if config.rl.loss_mean == "episodes" or self._algorithm.token_weights is not None:
            from gigpo_jax.learner.loss_weights import sample_weights

            weights = sample_weights(config, self._algorithm, credited, fields)
        return training_samples(scored.samples, credited.credit, weights, fields)

    def _scored_fields(self, iteration: int) -> list[str]:
        """Fields that are scored for the whole iteration, where steps share more prefixes."""
        if not shares_prefixes(self._config) or not self._policy_learns(iteration):
            return []
        names = ["proximal"] if self._config.rl.old_logprobs == "recompute" else []
        return [*names, "reference"] if self._objective.loss.kl_coef else names

    def _policy_learns(self, iteration: int) -> bool:
        # A new critic would give the policy advantages without meaning.
        return iteration >= self._config.critic.warmup_iterations

    def _minibatches(
        self, samples: Sequence[Sample], groups: Sequence[int], iteration: int
    ) -> list[StepBatch]:
        """The minibatches of all epochs, as host arrays."""
        config = self._config
        by_group = config.train.minibatch_by == "group"
        # Steps in random order have little in common.
        shares = by_group and shares_prefixes(config)
        fields = dict(batch_fields(self.signals))
        fields |= dict.fromkeys(self._scored_fields(iteration), np.float32)
        batches = []
        for epoch in range(config.train.epochs):
            batches += make_minibatches(
                samples,
                steps=config.train.minibatch,
                **row_settings(config, self._mesh),
                # A generator for each epoch, not one for the run: a resumed run has no state of a
                # generator and still shuffles in the same way.
                rng=np.random.default_rng((config.seed, iteration, epoch)),
                gather=all_hosts,
                fields=fields,
                longest=longest_text(config) - 1,
                longest_tree=longest_tree(config) if shares else 0,
                groups=groups if by_group else None,
            )
        return batches

    def _update(
        self, local_batches: Sequence[StepBatch], iteration: int, progress: Progress
    ) -> dict[str, float]:
        """Updates the policy, and signals that learn, from each minibatch; returns metrics."""
        batches = [global_batch(self._mesh, batch) for batch in local_batches]
        policy_learns = self._policy_learns(iteration)
        # Old log-probabilities are of the parameters before any of this iteration's updates.
        if policy_learns and self._config.rl.old_logprobs == "recompute":
            batches = [self._score_batch(batch, "proximal", self.state.params) for batch in batches]
        checks = [check for signal in self.signals for check in signal.finite_checks]
        checks.append(self._finite)
        records: list[Metrics] = []
        tokens = [microbatch_tokens(batch) for batch in local_batches]
        ends = np.cumsum([0, *(counts.sum() for counts in tokens)]).tolist()
        for number, batch in enumerate(batches):

            def between(result: Any, microbatches: int, number: int = number) -> None:
                wait_for(result)
                progress(ends[number] + int(tokens[number][:microbatches].sum()), ends[-1])

            record: Metrics = {}
            for signal in self.signals:
                record |= signal.update(batch, self._policy_params)
            if policy_learns:
                record |= self._update_policy(batch, iteration, between)
            for check in checks:
                # It waits for the previous update: `progress` below counts that one, not this one.
                check.add(record)
            records.append(record)
            progress(ends[number], ends[-1])
        wait_for(records[-1])
        for check in checks:
            check.finish()
        progress(ends[-1], ends[-1])
        # Read once at the end: a read after each update would wait for the device every time.
        return _summarise_updates(jax.device_get(records))

    def _update_policy(self, batch: StepBatch, iteration: int, between: Between) -> Metrics:
        # The targets of a critic are no input of the policy's program.
        batch = replace(batch, values=None)
        if self._objective.loss.kl_coef:
            batch = self._score_batch(batch, "reference", self._reference)
        update = self._programs.update
        if self._programs.in_pieces:
            update = functools.partial(update, between=between)
        self.state, record = update(
            self.state, batch, self._policy.frozen, np.int32(iteration), self._rates[iteration]
        )
        return record

    def _score_batch(self, batch: StepBatch, field: str, trained: Any) -> StepBatch:
        """Fills a field of a minibatch with log-probabilities, unless it is scored already."""
        if getattr(batch, field) is not None:
            return batch
        # Without optional fields: one program for the reference and the policy itself.
        plain = replace(batch, proximal=None, values=None)
        logprobs = self._programs.logprobs(trained, plain, self._policy.frozen)
        return replace(batch, **{field: logprobs})


def _summarise_updates(records: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Summarises the metrics of an iteration's updates by their means, or their largest values."""
    metrics = {}
    for name in records[0]:
        values = [float(record[name]) for record in records]
        metrics[name] = max(values) if name.endswith(LARGEST) else float(np.mean(values))
    # Later minibatches differ from the behaviour policy by what was learnt; the first by the
    # engine's error alone.
    if MISMATCH in metrics:
        metrics[MISMATCH] = float(records[0][MISMATCH])
    return metrics


def mean_over_hosts(metrics: dict[str, float]) -> dict[str, float]:
    """Means over hosts; sums for counts of steps and tokens."""
    # Sorted: the hosts send bare numbers, which must stand in the same order.
    names = sorted(metrics)
    values = all_hosts(np.array([metrics[name] for name in names], np.float32))
    means = dict(zip(names, values.mean(0).tolist(), strict=True))
    for name in ("batch/steps", "batch/tokens"):
        means[name] *= len(values)
    return means
