"""Updates of the supervised warm start: cross-entropy of demonstrated responses."""

import contextlib
import functools
import itertools
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from ml_collections import ConfigDict

from gigpo_jax.devices.exchange import all_hosts, global_batch, wait_for
from gigpo_jax.learner.finite import FiniteCheck, NotFinite
from gigpo_jax.learner.fitted_rows import updates_in_pieces
from gigpo_jax.learner.objective import make_config_optimizer
from gigpo_jax.learner.packing import microbatch_tokens, packing_stats, stream_minibatches
from gigpo_jax.learner.programs import start_state
from gigpo_jax.learner.rows import row_settings
from gigpo_jax.learner.samples import Sample, join_continuations
from gigpo_jax.policy import Policy, forward_function
from gigpo_jax.rl.batch_logprobs import make_logprobs
from gigpo_jax.rl.imitation_update import make_sft_update
from gigpo_jax.rl.piecewise_update import PiecewiseUpdate
from gigpo_jax.rl.train_step import Between
from gigpo_jax.rl.types import StepBatch
from gigpo_jax.run import report
from gigpo_jax.run.checkpoint import Checkpointer
from gigpo_jax.run.hosts import Hosts, Stop
from gigpo_jax.run.interrupts import Interrupts, UpdateStopped
from gigpo_jax.run.loggers.metrics import MetricsWriter, Timers
from gigpo_jax.run.progress import Bar, format_duration, show_progress
from gigpo_jax.run.state_checkpoints import restore_state, save_state
from gigpo_jax.run.workdir import host_folder
from gigpo_jax.run.workdir_names import CHECKPOINTS

HOLD_OUT = 64  # largest number of demonstrations that are never trained on
HELD_OUT_MINIBATCH = 256  # steps of a minibatch of held-out responses
CHECKPOINT_EVERY = 200  # updates: a few minutes of a model on one device
RECORD_EVERY = 10  # updates between two records of metrics


class Imitation:
    """Training that minimises the cross-entropy of responses, from the newest checkpoint if any.

    Attributes:
      state: Parameters, optimizer and counters.
      writer: Writer of metrics; the caller opens its loggers.
      done: Number of updates made, which a checkpoint records.
      total: Number of updates to make.
    """

    def __init__(
        self,
        config: ConfigDict,
        policy: Policy,
        mesh: jax.sharding.Mesh,
        episodes: list[list[Sample]],
        workdir: Path,
    ) -> None:
        """Takes the trained parameters of the policy over.

        Args:
          config: Config as from `config.resolve`.
          policy: Policy at the start.
          mesh: Mesh of the learner.
          episodes: Samples of each demonstration; the last tenth, at most `HOLD_OUT`, is only
            measured.
          workdir: Folder of the run.
        """
        self._config = config
        self._mesh = mesh
        self._frozen = policy.frozen
        self._finite = FiniteCheck()
        self._timers = Timers()

        first_held_out = len(episodes) - min(HOLD_OUT, len(episodes) // 10)
        samples = list(itertools.chain.from_iterable(episodes[:first_held_out]))
        self._held_out_samples = list(itertools.chain.from_iterable(episodes[first_held_out:]))
        # From all samples, before this host takes its share: every host makes as many updates.
        self.total = config.sft.epochs * -(-len(samples) // config.sft.minibatch)
        # Whole conversations: single steps of one would share no tokens on any host.
        segments = join_continuations(samples)[jax.process_index() :: jax.process_count()]
        samples = [samples[number] for segment in segments for number in segment]
        # Only the trained ones: in every run the held-out loss counts responses alone, so that runs
        # can be compared.
        if config.sft.learn_prompts:
            samples = [_learn_prompt(sample) for sample in samples]
        self._samples = samples

        optimizer = make_config_optimizer(config, self.total)
        self.state, state_shardings = start_state(config, policy, mesh, optimizer)
        forward = forward_function(config, policy.config, mesh)
        chunk = config.batch.logprob_chunk
        self._step = make_sft_update(
            forward,
            optimizer,
            chunk=chunk,
            state_shardings=state_shardings,
            in_pieces=updates_in_pieces(config, policy.config, mesh),
        )
        self._logprobs = make_logprobs(forward, chunk=chunk)

        self._checkpoints = Checkpointer(workdir / CHECKPOINTS, keep=config.checkpoint.keep)
        restored = restore_state(self._checkpoints, self.state, state_shardings)
        self.done = 0
        covered: dict[str, int] = {}
        if restored is not None:
            self.state, record = restored
            self.done = record["update"]
            covered = {"step": record["metrics_step"], "done": self.done}
            if self.done >= self.total:
                report.say(f"nothing is left to do: all {self.total} updates are made")
            else:
                report.say(f"continuing after update {self.done}")
        self.writer = MetricsWriter(host_folder(workdir), **covered)

    def run(self, hosts: Hosts) -> int:
        """Makes all remaining updates, unless the hosts stop.

        Returns:
          The exit status: 0 done, 1 stopped because losses were not finite, 143 or 130 after
          SIGTERM or Ctrl-C; in each case a checkpoint is there; or the status of another host
          that stopped.
        """
        progress = show_progress("imitation", total=self.total, unit="updates", initial=self.done)
        with Interrupts() as interrupts, progress as bar:
            try:
                stop = self._make_updates(hosts, interrupts, bar)
                # Metrics are read an update later; the last ones are checked here, before they
                # are saved.
                self._finite.finish()
            except NotFinite as error:
                stop = hosts.agree(Stop(1, f"stopped in update {self.done + 1}: {error}"))
            if stop:
                report.say(stop.text)
            if not stop or stop.saves:
                self._save()
        # Waits for the write in the background, which may still fail.
        self._checkpoints.close()
        self.writer.close()
        return stop.status if stop else 0

    def _make_updates(self, hosts: Hosts, interrupts: Interrupts, bar: Bar) -> Stop | None:
        """Makes updates until the end or an agreed stop."""
        # All hosts are set up, or one has failed: nobody computes before that is known.
        stop = hosts.agree()
        if stop:
            return stop
        for number, batch in enumerate(self._remaining_minibatches()):
            if number == 0:
                report.say(describe_rows(batch, self.total - self.done))
            # An interrupt drops an update that is begun: the state before it stays.
            with contextlib.suppress(UpdateStopped):
                self._make_update(batch, bar, interrupts)
            if jax.process_count() > 1:
                # If another host fails, the update never ends, and only a host without a vote is
                # stopped then.
                jax.block_until_ready(self.state)
            reason = None
            if interrupts.status:
                text = f"stopped after update {self.done}; the same command continues from there"
                reason = Stop(interrupts.status, text)
            stop = hosts.agree(reason)
            if stop:
                return stop
        return None

    @property
    def _updates_per_epoch(self) -> int:
        return self.total // self._config.sft.epochs

    def _remaining_minibatches(self) -> Iterator[StepBatch]:
        """The minibatches of all remaining updates, epoch by epoch."""
        for epoch in range(self.done // self._updates_per_epoch, self._config.sft.epochs):
            # An epoch's order is drawn from its start: a resumed run skips the learnt minibatches.
            learnt = max(self.done - self._updates_per_epoch * epoch, 0)
            minibatches = self._stream(
                self._samples, self._config.sft.minibatch, (self._config.seed, epoch)
            )
            yield from itertools.islice(minibatches, learnt, None)

    def _stream(
        self, samples: Sequence[Sample], steps: int, seed: int | tuple[int, ...]
    ) -> Iterator[StepBatch]:
        return stream_minibatches(
            samples,
            steps=steps,
            rng=np.random.default_rng(seed),
            gather=all_hosts,
            **row_settings(self._config, self._mesh),
        )

    def _make_update(self, batch: StepBatch, bar: Bar, interrupts: Interrupts) -> None:
        record: dict[str, float] = {}
        step = self._step
        if isinstance(step, PiecewiseUpdate):
            step = functools.partial(step, between=self._between(batch, bar, interrupts))
        with self._timers.time("update"):
            self.state, metrics = step(self.state, global_batch(self._mesh, batch), self._frozen)
            self._finite.add(metrics)
            self.done += 1
            ends_epoch = self.done % self._updates_per_epoch == 0
            # Only metrics of records are read at once: a read waits for the device.
            is_recorded = self.done % RECORD_EVERY == 0 or ends_epoch
            if is_recorded:
                for name, value in metrics.items():
                    record[name.replace("policy/", "sft/")] = float(value)
        bar.update()
        if ends_epoch:
            epoch = f"epoch {self.done // self._updates_per_epoch}"
            if self._held_out_samples:
                record["sft/held_out_loss"] = self._held_out_loss()
                loss = record["sft/held_out_loss"]
                report.say(f"{epoch}: held-out {loss:.4f} nats a token")
            else:
                report.say(f"{epoch}: nothing is held out; from 10 episodes on a tenth of them is")
        if is_recorded:
            bar.note(f"loss {record['sft/loss']:.3f}")
            self.writer.scalars(self.done, record | packing_stats([batch]) | self._timers.take())
        # After the record, so that the checkpoint covers it.
        if self.done % CHECKPOINT_EVERY == 0:
            self._save()

    def _between(self, batch: StepBatch, bar: Bar, interrupts: Interrupts) -> Between:
        """What happens between the device calls of an update."""
        tokens = microbatch_tokens(batch)
        # If the updates that follow are as large.
        later_tokens = tokens.sum() * (self.total - self.done - 1)
        begin = time.monotonic()

        def between(result: Any, done: int) -> None:
            wait_for(result)
            # Several hosts stop together, behind the update.
            if interrupts.status and jax.process_count() == 1:
                raise UpdateStopped
            rate = tokens[:done].sum() / (time.monotonic() - begin)
            remaining_s = (tokens[done:].sum() + later_tokens) / max(rate, 1e-9)
            bar.note(
                f"{tokens[:done].sum():,} of {tokens.sum():,} tokens, {rate:.0f} tokens/s, "
                f"about {format_duration(remaining_s)} left"
            )

        return between

    def _save(self) -> None:
        record = {"update": self.done, "metrics_step": self.writer.step}
        save_state(self._checkpoints, self.done, self.state, record)

    def _held_out_loss(self) -> float:
        """Cross-entropy of the held-out responses, nats a token."""
        total = 0.0
        tokens = 0.0
        for minibatch in self._stream(self._held_out_samples, HELD_OUT_MINIBATCH, 0):
            batch = global_batch(self._mesh, minibatch)
            total -= float(self._logprobs(self.state.params, batch, self._frozen).sum())
            tokens += float(batch.weight.sum())
        return total / max(tokens, 1.0)


def describe_rows(batch: StepBatch, updates: int) -> str:
    """Describes the size of the updates in one line, with a warning if most places are padding."""
    microbatches = int(batch.microbatches)
    rows, length = batch.tokens.shape[1:]
    places = microbatches * rows * length
    tokens = int(microbatch_tokens(batch).sum())
    text = (
        f"{updates:,} updates, the first of {tokens:,} tokens in {places:,} places "
        f"({microbatches} x {rows} rows of {length})"
    )
    if 2 * tokens < places:
        text += (
            "; most places are padding: lower config.batch.row_length and config.batch.rows, or "
            "use config.batch.fit_rows=True"
        )
    return text


def _learn_prompt(sample: Sample) -> Sample:
    """The same sample with loss from the second token on."""
    target = np.concatenate([sample.prompt_tokens[1:], sample.response_tokens])
    return Sample(sample.prompt_tokens[:1], target, np.zeros(len(target), np.float32))
