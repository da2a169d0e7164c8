"""Supervised warm start: imitation of an environment's expert, with the learner's own packing and optimizer."""

import contextlib
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import jax
import numpy as np
from ml_collections import ConfigDict
from tqdm import tqdm

from gigpo_jax.batching import Sample, packing_stats, stream_minibatches
from gigpo_jax.config.mix import own_keys, shares
from gigpo_jax.env_bridge.types import IMAGE, EnvError
from gigpo_jax.envs import registry
from gigpo_jax.errors import InputError, writing
from gigpo_jax.learner import make_optimizer, start_state
from gigpo_jax.models.images import grid_of
from gigpo_jax.models.tokenizer import words_of
from gigpo_jax.models.vision_config import VisionConfig
from gigpo_jax.models.weights import check_target
from gigpo_jax.policy import Policy, forward_function, fresh_policy, load_policy, save_policy
from gigpo_jax.rl import update
from gigpo_jax.rl.types import StepBatch
from gigpo_jax.rollout.demonstrations import Demonstration, demonstrate, episode_seed
from gigpo_jax.rollout.environment import all_tasks, environments, episode_settings
from gigpo_jax.rollout.pictures import check_kind, check_length, prompt_encoder, prompt_images
from gigpo_jax.rollout.tasks import draw_tasks
from gigpo_jax.run import partition, report
from gigpo_jax.run.checkpoint import Checkpointer
from gigpo_jax.run.finite import FiniteCheck, NotFinite
from gigpo_jax.run.hosts import Hosts, HostsStopped, Stop
from gigpo_jax.run.interrupts import Interrupts
from gigpo_jax.run.loggers import find_loggers
from gigpo_jax.run.metrics import MetricsWriter, Timers
from gigpo_jax.run.workdir import check_adapter, check_writable, claim_workdir, host_folder, open_workdir

HOLD_OUT = 64  # demonstrations that are never trained on


def run(config: ConfigDict, workdir: Path, out: str) -> int:
    """Trains on demonstrations and writes a Hugging Face folder to `out` (default: WORKDIR/model).

    Returns:
      The exit status: 0 done, 1 the environment failed the expert, or as from `Imitation.run`.
    """
    hosts = Hosts()
    try:
        with hosts.stopping(), open_workdir(workdir, config):
            return _run(config, workdir, out, hosts)
    except HostsStopped as stopped:
        report.say(stopped.stop.text)
        return stopped.stop.status


def _run(config: ConfigDict, workdir: Path, out: str, hosts: Hosts) -> int:
    target = Path(out) if out else workdir / "model"
    check_target(target)
    check_writable(target.parent, "--out")
    mesh = partition.learner_mesh(config)
    partition.local_rows(mesh, config.batch.rows)
    loggers = find_loggers(config)
    policy = load_policy(config, mesh, samples=False) if config.model.path else None
    check_adapter(workdir, config, policy.base if policy else "")
    reads = policy.config.vision is not None if policy else config.model.shape.vision.depth > 0
    if reads and config.sft.learn_prompts:
        raise InputError("config.sft.learn_prompts=True: prompts with pictures cannot be predicted; leave it out")
    try:
        shown = demonstrations(config, _encoder(policy, reads=reads))
    except EnvError as error:
        stop = Stop(1, f"stopped while the expert played: {error}", saves=False)
        report.say((hosts.agree(stop) or stop).text)
        return 1
    won = np.mean([demonstration.won for demonstration in shown])
    report.say(f"{len(shown)} demonstrations, {100 * won:.1f}% of them successful")
    policy = policy or fresh_policy(config, mesh, words(shown))
    episodes = encode(shown, policy, config)
    del shown
    if not any(episodes):
        raise InputError(
            f"config.sampling.max_response_tokens={config.sampling.max_response_tokens}: every demonstrated response "
            "is longer, so there is nothing to learn from; make it larger"
        )
    imitation = Imitation(config, policy, mesh, episodes, workdir)
    claim_workdir(workdir, config, policy.base)
    imitation.writer.open_loggers(loggers, config)
    status = imitation.run(hosts)
    if status:
        return status
    with writing(target):
        save_policy(target, config, policy, imitation.state.params)
    report.say(f"the model is in {target}")
    return 0


def _encoder(policy: Policy | None, *, reads: bool) -> Callable[..., Sequence[int]]:
    """What measures prompts.

    The tokenizer of a new model is made from these prompts. So here all its ids are 0: one for each word of a text
    alone, which may be cut later, and exactly as many as the tokenizer will give for a prompt with pictures.
    """
    if policy is not None:
        return prompt_encoder(policy.tokenizer, policy.config.vision)

    def count(text: str, images: Sequence[np.ndarray] = ()) -> Sequence[int]:
        check_kind(images, reads=reads)
        if not images:
            return [0] * len(text.split())
        framed = [math.prod(grid_of(VisionConfig(), image)) + 2 for image in images]  # with a token before and after it
        return [0] * (2 + len(words_of(text.replace(IMAGE, " "))) + sum(framed))  # <bos> and <sep>

    return count


def demonstrations(config: ConfigDict, encode: Callable[..., Sequence[int]]) -> list[Demonstration]:
    """Lets the expert of the environment play `sft.episodes` episodes of the training split.

    Args:
      config: as from `config.resolve`.
      encode: measures prompts; see `prompts.build_prompt`.

    Raises:
      EnvError: the environment failed; nothing replaces its episode.
      InputError: the environment shows pictures that the model cannot read, or none to a model that does.
    """
    run = {environment.label: environment for environment in environments(config)}
    tasks = draw_tasks(all_tasks([*run.values()]), 0, config.sft.episodes, config.seed, shares=shares(config))
    shown = []
    with contextlib.ExitStack() as opened:
        made = {label: opened.enter_context(contextlib.closing(each.make())) for label, each in run.items()}
        settings = {
            label: episode_settings(each.config, temperature=0.0, stop_token_ids=()) for label, each in run.items()
        }
        for n, task in enumerate(tqdm(tasks, "demonstrations", leave=False, disable=None)):
            label, own = task.environment, run[task.environment].config
            with own_keys(label):
                expert = registry.make_expert(own.env.name, episode_seed(config.seed, n), **own.sft.demonstrator)
                write = registry.spec(own.env.name).write
                shown.append(demonstrate(made[label], expert, task, settings[label], encode=encode, write=write))
    return shown


def words(shown: Iterable[Demonstration]) -> list[str]:
    """Every text of the demonstrations, for a word-level tokenizer."""
    turns = [turn for demonstration in shown for turn in demonstration.turns]
    return [text for turn in turns for text in (turn.prompt.replace(IMAGE, " "), turn.response)]


def encode(shown: Sequence[Demonstration], policy: Policy, config: ConfigDict) -> list[list[Sample]]:
    """One list of samples an episode; a response that is longer than `sampling.max_response_tokens` is left out.

    Raises:
      InputError: a prompt with images is too long.
    """
    tokenizer, vision, limit = policy.tokenizer, policy.config.vision, config.sampling.max_prompt_tokens
    episodes = []
    for demonstration in tqdm(shown, "tokens", leave=False, disable=None):
        samples = []
        for prompt, response, images in demonstration.turns:
            tokens = prompt_encoder(tokenizer, vision)(prompt, images)
            check_length(tokens, images, limit)
            target = np.asarray(tokenizer.encode(response), np.int32)
            if len(target) <= config.sampling.max_response_tokens:
                ids, read = np.asarray(tokens, np.int32)[-limit:], prompt_images(vision, tokens, images)
                samples.append(Sample(ids, target, np.zeros(len(target), np.float32), images=read))
        episodes.append(samples)
    return episodes


def with_prompts(sample: Sample) -> Sample:
    """The same sample with loss on everything but its first token."""
    target = np.concatenate([sample.prompt_tokens[1:], sample.response_tokens])
    return Sample(sample.prompt_tokens[:1], target, np.zeros(len(target), np.float32))


class Imitation:
    """Minimises the cross-entropy of the demonstrated responses, from the newest checkpoint if there is one.

    Attributes:
      state: parameters, optimizer and counters.
      writer: of metrics; its loggers are opened by the caller.
      done: updates made; what a checkpoint records.
      total: updates to make.
    """

    def __init__(
        self, config: ConfigDict, policy: Policy, mesh: jax.sharding.Mesh, episodes: list[list[Sample]], workdir: Path
    ) -> None:
        """Takes over what is trained of the policy; the last few episodes are held out and only measured."""
        self._config, self._mesh = config, mesh
        held = min(HOLD_OUT, len(episodes) // 10)
        samples = [sample for episode in episodes[: len(episodes) - held] for sample in episode]
        self.total = config.sft.epochs * -(-len(samples) // config.sft.minibatch)
        samples = samples[jax.process_index() :: jax.process_count()]
        self._samples = [with_prompts(sample) for sample in samples] if config.sft.learn_prompts else samples
        self._test = [sample for episode in episodes[len(episodes) - held :] for sample in episode]
        optimizer = make_optimizer(config, self.total)
        self._frozen, self._finite = policy.frozen, FiniteCheck()
        self.state, where = start_state(config, policy, mesh, optimizer)
        forward, chunk = forward_function(config, policy.config, mesh), config.batch.logprob_chunk
        self._step = update.make_sft_update(forward, optimizer, chunk=chunk, state_shardings=where)
        self._logprobs = update.make_logprobs(forward, chunk=chunk)
        self._checkpoints = Checkpointer(workdir / "checkpoints", keep=config.checkpoint.keep)
        restored = self._checkpoints.restore(self.state, where)
        self.done = 0
        covered: dict[str, int] = {}
        if restored is not None:
            self.state, record = restored
            self.done = record["update"]
            covered = {"step": record["metrics_step"], "done": self.done}
            report.say(f"continuing after update {self.done}")
        self.writer = MetricsWriter(host_folder(workdir), **covered)
        self._timers = Timers()

    def run(self, hosts: Hosts) -> int:
        """All updates that are left, unless the hosts stop.

        Returns:
          The exit status: 0 done, 1 stopped because losses were not finite, 143 or 130 after SIGTERM or Ctrl-C; in each
          case a checkpoint is there; or that of another host that stopped.
        """
        progress = tqdm(total=self.total, initial=self.done, desc="imitation", disable=None)
        with Interrupts() as interrupts, progress as bar:
            try:
                stop = hosts.agree()
                for batch in () if stop else self._left():
                    self._update(batch, bar)
                    if jax.process_count() > 1:
                        # If another host fails, the update never ends, and only a host without a vote is stopped then.
                        jax.block_until_ready(self.state)
                    text = f"stopped after update {self.done}; the same command continues from there"
                    if stop := hosts.agree(Stop(interrupts.status, text) if interrupts.status else None):
                        break
                self._finite.look(None)
            except NotFinite as error:
                stop = hosts.agree(Stop(1, f"stopped in update {self.done + 1}: {error}"))
            if stop:
                report.say(stop.text)
            if not stop or stop.saves:
                self._save()
        self._checkpoints.close()
        self.writer.close()
        return stop.status if stop else 0

    def _left(self) -> Iterator[StepBatch]:
        """The minibatches of all updates that are left, an epoch at a time."""
        per_epoch = self.total // self._config.sft.epochs
        for epoch in range(self.done // per_epoch, self._config.sft.epochs):
            yield from itertools.islice(self._minibatches(epoch), max(self.done - per_epoch * epoch, 0), None)

    def _minibatches(self, epoch: int) -> Iterator[StepBatch]:
        config = self._config
        return stream_minibatches(
            self._samples,
            steps=config.sft.minibatch,
            rng=np.random.default_rng((config.seed, epoch)),
            agree=partition.all_hosts,
            row_length=config.batch.row_length,
            rows=partition.local_rows(self._mesh, config.batch.rows),
        )

    def _update(self, batch: StepBatch, bar: tqdm) -> None:
        per_epoch = self.total // self._config.sft.epochs
        with self._timers.time("update"):
            self.state, metrics = self._step(self.state, partition.global_batch(self._mesh, batch), self._frozen)
            self._finite.look(metrics)
            self.done += 1
            ends_epoch = self.done % per_epoch == 0
            # Only records are read at once: a read waits for the device.
            due = self.done % 10 == 0 or ends_epoch
            record = {name.replace("policy/", "sft/"): float(v) for name, v in metrics.items()} if due else {}
        bar.update()
        if ends_epoch:
            record["sft/held_out_loss"] = self._held_out()
            report.say(f"epoch {self.done // per_epoch}: held-out {record['sft/held_out_loss']:.4f} nats a token")
        if due:
            bar.set_postfix(loss=f"{record['sft/loss']:.3f}")
            self.writer.scalars(self.done, record | packing_stats([batch]) | self._timers.take())
        if self.done % self._config.sft.checkpoint_every == 0:
            self._save()

    def _save(self) -> None:
        self._checkpoints.save(self.done, self.state, {"update": self.done, "metrics_step": self.writer.step})

    def _held_out(self) -> float:
        """Cross-entropy of the held-out responses, in nats a token."""
        config, total, count = self._config, 0.0, 0.0
        for batch in stream_minibatches(
            self._test,
            steps=256,
            rng=np.random.default_rng(0),
            agree=partition.all_hosts,
            row_length=config.batch.row_length,
            rows=partition.local_rows(self._mesh, config.batch.rows),
        ):
            batch = partition.global_batch(self._mesh, batch)
            total -= float(self._logprobs(self.state.params, batch, self._frozen).sum())
            count += float(batch.weight.sum())
        return total / max(count, 1.0)
