"""Trajectories -> a better policy: advantages, minibatches and updates of one iteration."""

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from ml_collections import ConfigDict

from gigpo_jax.batching import (
    Sample,
    make_minibatches,
    packing_stats,
    step_columns,
    step_samples,
    value_columns,
    weighted_by_episode,
)
from gigpo_jax.columns import hindsight
from gigpo_jax.columns.action_span import action_masks
from gigpo_jax.columns.computed import computed_columns
from gigpo_jax.columns.critic import CHECKPOINT as CRITIC
from gigpo_jax.columns.critic import Critic
from gigpo_jax.columns.text_critic import TextCritic
from gigpo_jax.columns.token_logprobs import TokenLogprobs, make_token_logprobs
from gigpo_jax.config.mix import members
from gigpo_jax.envs import registry
from gigpo_jax.models.qwen2 import Qwen2Config
from gigpo_jax.policy import Policy, forward_function, trained_shardings
from gigpo_jax.rl import advantages as rl_advantages
from gigpo_jax.rl import algorithms, gae, update
from gigpo_jax.rl.losses import LossSettings
from gigpo_jax.rl.types import StepBatch, StepColumns
from gigpo_jax.run import partition
from gigpo_jax.run.checkpoint import OLDER, parts_of, state_of
from gigpo_jax.run.finite import FiniteCheck
from gigpo_jax.run.metrics import Timers
from gigpo_jax.trajectory import Step, StepCredit, with_less_reward

Progress = Callable[[int, int], None]  # (minibatches done, of all)
CREDIT = ("anchor_group_size_mean", "singleton_share", "zero_advantage_share", "episode_norm", "step_norm")


class Learner:
    """Holds the train state and what changes it.

    Attributes:
      state: what is trained of the parameters, optimizer and counter; replaced by every update.
      state_shardings: where each leaf of it lives.
      text_critic: part of the algorithm, or None; a restored run replaces it.
      older: version and trained parameters that sample the next `train.max_staleness` iterations.
      whole: makes a policy for an engine of such parameters.
    """

    def __init__(self, config: ConfigDict, policy: Policy, mesh: jax.sharding.Mesh) -> None:
        """Compiles no update yet; takes over what is trained of the policy (updates donate it).

        Args:
          config: as from `config.resolve`.
          policy: the start; also the reference policy if `rl.kl_coef` is not 0.
          mesh: as from `partition.make_mesh`.
        """
        self._config, self._mesh = config, mesh
        # Nothing here may keep the parameters of the start once they are trained: that would be a second copy.
        self._policy = policy if policy.adapter is not None else dataclasses.replace(policy, params=None)
        self.whole = self._policy.whole
        self._advantages, loss = objective(config)
        algorithm = chosen(config)
        self._needs, self._token_weights = algorithm.needs, algorithm.token_weights
        self.text_critic = text_critic(config)
        self._action_mask = action_masks(policy.tokenizer, action_tags(config))
        self._rows = partition.local_rows(mesh, config.batch.rows)
        self._finite = FiniteCheck()
        self._critic = Critic(config, policy, mesh) if config.critic.kind != "none" else None
        self._finite_critic = FiniteCheck("critic", "critic.lr")
        # Of a run with an adapter only the adapter of the start is kept: the model below it does not change.
        self._reference = jax.tree.map(lambda x: x.copy(), policy.trained) if config.rl.kl_coef else None
        self._kl_in_loss = bool(loss.kl_coef)
        optimizer = make_optimizer(config, config.train.iterations)
        self.state, self.state_shardings = start_state(config, policy, mesh, optimizer)
        self.older = [(0, self.state.params)] * config.train.max_staleness
        self._update, self._logprobs = train_programs(config, policy.config, mesh, optimizer, self.state_shardings)
        self._token_logprobs = make_token_logprobs(config, policy, mesh, config.sampling.temperature)
        self._teacher = hindsight.Teacher(config, policy, self._token_logprobs) if "teacher" in self._needs else None

    @property
    def params(self) -> Any:
        """The whole policy, for an engine; without `train.max_staleness` the next update takes over what is trained."""
        return self.whole(self.state.params)

    @property
    def compile_count(self) -> int:
        """How many programs were compiled for updates and log-probabilities."""
        programs: tuple[Any, ...] = (self._update, self._logprobs)
        critic = 0 if self._critic is None else self._critic.compile_count
        return sum(program._cache_size() for program in programs) + critic

    @property
    def parts(self) -> dict[str, Any]:
        """The train states of policy and critic, the teacher and older policies, as the parts of a checkpoint."""
        parts = parts_of(self.state) | ({} if self._critic is None else parts_of(self._critic.state, CRITIC))
        parts |= {} if self._teacher is None else {hindsight.CHECKPOINT: self._teacher.params}
        return parts | ({OLDER: [trained for _, trained in self.older]} if self.older else {})

    def restore(self, parts: Mapping[str, Any]) -> None:
        """Takes the parts of a checkpoint over; its record has the versions of `older`."""
        self.state = state_of(parts)
        self.older = list(zip(parts["record"].get(OLDER, ()), parts.get(OLDER, ()), strict=True))
        if self._teacher is not None:
            self._teacher.params = parts[hindsight.CHECKPOINT]
        if self._critic is not None:
            self._critic.state = state_of(parts, CRITIC)

    def learn(
        self, steps: Sequence[Step], iteration: int, timers: Timers, progress: Progress
    ) -> tuple[dict[str, float], StepCredit]:
        """One iteration's updates.

        Args:
          steps: of this host, as from `trajectory.finished_steps`.
          iteration: from 0; the version of the policy; seeds the order of steps and sets the learning rate.
          timers: gets `advantage` and `update`.
          progress: called after every minibatch.

        Returns:
          Metrics of all hosts by name, and the advantages of this host's steps.

        Raises:
          NotFinite: three updates in a row were skipped.
        """
        if self.older:  # the first entry sampled these steps; the engine may have the arrays of the last one
            self.older = [*self.older[1:], (iteration, self.state.params)]
            self.state = dataclasses.replace(self.state, params=jax.tree.map(jnp.copy, self.state.params))
        with timers.time("advantage"):
            steps, kl_penalty = self._with_kl_penalty(steps)
            logprobs = functools.partial(self._token_logprobs, self.state.params, self._policy.frozen)
            others = self._config, self._policy.tokenizer, self.text_critic
            columns = computed_columns(self._needs, steps, logprobs, *others)
            if self._critic is not None:
                values = self._critic.values(self._both, step_samples(steps))
                columns |= value_columns(values, self._config.sampling.max_response_tokens)
            metrics, credit = step_credit(self._config, self._advantages, steps, columns)
            if self.text_critic is not None:
                self.text_critic.learn(steps)
            metrics |= kl_penalty
            samples = self._samples(steps, credit, columns)
            if self._teacher is not None:
                samples = self._teacher.scored(samples, steps, iteration, self.state.params)
        with timers.time("update"):
            batches = self._minibatches(samples, iteration)
            metrics |= over_hosts(packing_stats(batches))
            metrics |= self._apply(batches, iteration, progress)
        return metrics, credit

    def token_logprobs(self, steps: Sequence[Step]) -> TokenLogprobs:
        """Log-probability and entropy of the present policy at each response token of the steps."""
        return self._token_logprobs(self.state.params, self._policy.frozen, step_samples(steps))

    def _with_kl_penalty(self, steps: Sequence[Step]) -> tuple[Sequence[Step], dict[str, float]]:
        """With `rl.kl_in="reward"`, takes `rl.kl_coef` times the KL estimate of a step from its reward; and metrics.

        The estimate is the sum over the response of old log-probability - reference log-probability ("k1").
        """
        if self._reference is None or self._kl_in_loss:
            return steps, {}
        reference = self._token_logprobs(self._reference, self._policy.frozen, step_samples(steps)).logprob
        recomputed = self._config.rl.old_logprobs == "recompute"
        old = self.token_logprobs(steps).logprob if recomputed else [step.turn.logprobs for step in steps]
        penalties = [self._config.rl.kl_coef * float(np.sum(a - b)) for a, b in zip(old, reference, strict=True)]
        total, count = partition.all_hosts(np.array([sum(penalties), len(steps)], np.float32)).sum(0)
        return with_less_reward(steps, penalties), {"credit/kl_penalty": float(total) / max(float(count), 1.0)}

    @property
    def _both(self) -> tuple[Any, Any]:
        """The trained and the frozen parameters of the policy."""
        return self.state.params, self._policy.frozen

    def _samples(
        self, steps: Sequence[Step], credit: StepCredit, columns: Mapping[str, np.ndarray] = MappingProxyType({})
    ) -> list[Sample]:
        samples = step_samples(steps, credit.total)
        if self._config.rl.loss_mean == "episodes":
            longest = self._config.env.max_steps * self._config.sampling.max_response_tokens
            samples = weighted_by_episode(samples, steps, longest)
        if "action_mask" in self._needs:
            samples = [dataclasses.replace(x, action_mask=self._action_mask(x.response_tokens)) for x in samples]
        if self._token_weights is not None:
            weights = [x.weight * self._token_weights(x.action_mask, **self._config.rl.settings) for x in samples]
            samples = [dataclasses.replace(x, weight=w) for x, w in zip(samples, weights, strict=True)]
        if credit.clip_scale is not None:
            scales = credit.clip_scale.tolist()
            samples = [dataclasses.replace(x, clip_scale=scale) for x, scale in zip(samples, scales, strict=True)]
        if credit.tokens is not None:
            rows = zip(samples, credit.tokens, strict=True)
            samples = [dataclasses.replace(x, advantage=row[: len(x.response_tokens)]) for x, row in rows]
        if credit.target is not None:
            old = columns["value" if credit.target.ndim == 1 else "token_value"]
            each = zip(samples, old, credit.target, strict=True)
            learnt = [gae.value_targets(value, target, len(x.response_tokens)) for x, value, target in each]
            samples = [dataclasses.replace(x, values=values) for x, values in zip(samples, learnt, strict=True)]
        return samples

    def _minibatches(self, samples: Sequence[Sample], iteration: int) -> list[StepBatch]:
        """The minibatches of all epochs, as host arrays."""
        config, batches = self._config, []
        for epoch in range(config.train.epochs):
            batches += make_minibatches(
                samples,
                steps=config.train.minibatch,
                row_length=config.batch.row_length,
                rows=self._rows,
                rng=np.random.default_rng((config.seed, iteration, epoch)),
                agree=partition.all_hosts,
                optional=[name for name in ("action_mask", "clip_scale", "teacher") if name in self._needs]
                + ["values"] * (self._critic is not None),
            )
        return batches

    def _apply(self, batches: Sequence[StepBatch], iteration: int, progress: Progress) -> dict[str, float]:
        batches = [partition.global_batch(self._mesh, batch) for batch in batches]
        policy_learns = iteration >= self._config.critic.warmup_iterations
        # Old log-probabilities are those of the parameters before any of this iteration's updates.
        if policy_learns and self._config.rl.old_logprobs == "recompute":
            batches = [dataclasses.replace(b, proximal=self._logprobs_of(self.state.params, b)) for b in batches]
        records: list[update.Metrics] = []
        for number, batch in enumerate(batches):
            records.append({})
            if self._critic is not None:
                records[-1] |= self._critic.update(batch, self._both)
                self._finite_critic.look(records[-1])
                batch = dataclasses.replace(batch, values=None)
            if policy_learns:
                records[-1] |= self._update_policy(batch, iteration)
                self._finite.look(records[-1])
            progress(number + 1, len(batches))
        self._finite.look(None)
        self._finite_critic.look(None)
        host = jax.device_get(records)
        largest = ("policy/ratio_max", "policy/skipped", "critic/skipped")
        columns = {name: [float(record[name]) for record in host] for name in host[0]}
        metrics = {name: float(max(v) if name in largest else np.mean(v)) for name, v in columns.items()}
        # Later minibatches differ from the behaviour policy by what was learnt; the first by the engine's error alone.
        mismatch = "policy/behaviour_mismatch"
        return metrics | ({mismatch: columns[mismatch][0]} if policy_learns else {})

    def _update_policy(self, batch: StepBatch, iteration: int) -> update.Metrics:
        if self._kl_in_loss:
            batch = dataclasses.replace(batch, reference=self._logprobs_of(self._reference, batch))
        self.state, record = self._update(self.state, batch, self._policy.frozen, np.int32(iteration))
        return record

    def _logprobs_of(self, trained: Any, batch: StepBatch) -> jax.Array:
        plain = dataclasses.replace(batch, proximal=None, values=None)  # one program for all
        return self._logprobs(trained, plain, self._policy.frozen)


def step_credit(
    config: ConfigDict,
    advantages: Callable[[StepColumns], rl_advantages.Advantages],
    steps: Sequence[Step],
    computed: Mapping[str, np.ndarray] = MappingProxyType({}),
) -> tuple[dict[str, float], StepCredit]:
    """Computes advantages over the steps of all hosts, so that statistics of the whole batch are exact.

    Args:
      config: as from `config.resolve`.
      advantages: as from `objective`.
      steps: of this host, as from `trajectory.finished_steps`.
      computed: as from `computed_columns`, and `value_columns` of a critic.

    Returns:
      Metrics of all hosts, with `env.mix` also of each environment; the credit of this host's steps.
    """
    similarity = config.rl.similarity if config.rl.anchor_match == "similar" else None
    needs = chosen(config).needs
    computed = {name: column for name, column in computed.items() if name in needs}
    columns = step_columns(steps, similarity=similarity, join=partition.all_rows, needs=needs, computed=computed)
    result, counts = advantages(columns), partition.all_hosts(np.array([len(steps)], np.int32))[:, 0]
    first = int(counts[: jax.process_index()].sum())
    mine = slice(first, first + len(steps))
    keys = np.column_stack([columns.group, columns.anchor])[mine]
    _, anchor_group = np.unique(keys, axis=0, return_inverse=True)
    episode, step, total = (np.asarray(rows)[mine] for rows in (result.episode, result.step, result.total))
    scale, tokens, target = (
        None if rows is None else np.asarray(rows)[mine] for rows in (result.clip_scale, result.tokens, result.target)
    )
    credit = StepCredit(episode, step, total, anchor_group.reshape(len(steps)), scale, tokens, target)
    metrics = credit_metrics(result, columns)
    for label in config.env.mix:
        own = partition.all_rows(np.array([s.environment == label for s in steps], np.int32))
        if own.any():
            mask = np.pad(own, (0, len(columns.mask) - len(own))) != 0
            metrics |= credit_metrics(result, dataclasses.replace(columns, mask=mask), f"/{label}")
    if result.target is not None:
        metrics |= {name: float(x) for name, x in gae.value_metrics(columns, result.target).items()}
    return metrics, credit


def credit_metrics(result: rl_advantages.Advantages, columns: StepColumns, ending: str = "") -> dict[str, float]:
    """What the mask's rows were given; `ending` is that of the names."""
    statistics = rl_advantages.credit(result, columns)
    return {f"credit/{name}{ending}": float(getattr(statistics, name)) for name in CREDIT}


def train_programs(
    config: ConfigDict, shape: Qwen2Config, mesh: jax.sharding.Mesh, optimizer: update.Optimizer, state_shardings: Any
) -> tuple[Any, Any]:
    """The jitted update and log-probabilities of a config, as from `update.make_update` and `update.make_logprobs`."""
    forward = forward_function(config, shape, mesh)
    how = {"chunk": config.batch.logprob_chunk, "temperature": config.sampling.temperature}
    learn = update.make_update(forward, optimizer, objective(config)[1], **how, state_shardings=state_shardings)
    return learn, update.make_logprobs(forward, **how)


def start_state(
    config: ConfigDict, policy: Policy, mesh: jax.sharding.Mesh, optimizer: update.Optimizer
) -> tuple[update.TrainState, update.TrainState]:
    """The train state of a policy, which takes over its trained parameters, and where each leaf of it lives."""
    where = trained_shardings(config, policy.config, mesh)
    places = update.shard_state(optimizer, policy.trained, where, partition.replicated(mesh))
    init = jax.jit(lambda params: update.init_state(params, optimizer), out_shardings=places)
    return init(policy.trained), places


def over_hosts(metrics: dict[str, float]) -> dict[str, float]:
    """Means over hosts; sums for counts of steps and tokens."""
    values = partition.all_hosts(np.array([metrics[name] for name in sorted(metrics)], np.float32))
    means = dict(zip(sorted(metrics), values.mean(0).tolist(), strict=True))
    return means | {name: means[name] * len(values) for name in ("batch/steps", "batch/tokens")}


def action_tags(config: ConfigDict) -> tuple[str, ...]:
    """The tags around an action, of all environments of a config."""
    specs = [registry.spec(member.env.name) for member in members(config).values()]
    return tuple(dict.fromkeys(tag for spec in specs for tag in spec.action_tags))


def chosen(config: ConfigDict) -> algorithms.Algorithm:
    """The algorithm of a config."""
    return algorithms.algorithm(config.rl.algorithm, config.rl.settings)


def text_critic(config: ConfigDict, record: Mapping[str, Any] = MappingProxyType({})) -> TextCritic | None:
    """The critic that reads text, continued from the record of a checkpoint; None if the algorithm needs none."""
    if "text_critic" not in chosen(config).needs:
        return None
    return TextCritic(config.env.max_steps, record.get("text_critic", ()), partition.all_rows)


def objective(config: ConfigDict) -> tuple[Callable[[StepColumns], rl_advantages.Advantages], LossSettings]:
    """The jitted advantage function of `config.rl`, and the settings of its loss.

    Args:
      config: as from `config.resolve`.
    """
    rl, of_tokens = config.rl, chosen(config).token_advantages
    advantages = algorithms.make_advantages(
        rl.algorithm,
        rl.preset,
        gamma=rl.gamma,
        step_weight=rl.step_weight,
        normalize=rl.normalize,
        **rl.settings,
    )
    loss = LossSettings(
        clip_low=rl.clip_low,
        clip_high=rl.clip_high,
        dual_clip=rl.dual_clip or math.inf,
        kl_coef=rl.kl_coef if rl.kl_in == "loss" else 0.0,
        entropy_coef=rl.entropy_coef,
        correction=rl.importance_correction,
        importance_cap=rl.importance_cap,
        ratio=rl.ratio,
        power=optax.linear_schedule(rl.hoelder_first, rl.hoelder_last, config.train.iterations),
        mean=rl.loss_mean,
        constant=config.sampling.max_response_tokens,
        token_advantages=of_tokens and functools.partial(of_tokens, **rl.settings),
    )
    return jax.jit(advantages), loss


def make_optimizer(config: ConfigDict, total: int) -> update.Optimizer:
    """The optimizer of `config.optim`, with a schedule of `total` iterations or updates."""
    return update.make_optimizer(total=total, **config.optim)
