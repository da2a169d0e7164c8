"""Supervised warm start: imitation of an environment's expert, with the learner's own packing and optimizer."""

from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import jax
import numpy as np
from ml_collections import ConfigDict
from tqdm import tqdm

from gigpo_jax import partition
from gigpo_jax.batching import Sample, make_minibatches, packing_stats
from gigpo_jax.demonstrations import Demonstration, demonstrate, episode_seed, shuffled_tasks
from gigpo_jax.env_bridge import registry
from gigpo_jax.environment import env_options
from gigpo_jax.learner import make_optimizer
from gigpo_jax.metrics import MetricsWriter, Timers
from gigpo_jax.models.tokenizer import Tokenizer
from gigpo_jax.models.weights import save_hf
from gigpo_jax.policy import Policy, forward_function, fresh_policy, load_policy, shardings
from gigpo_jax.rl import update
from gigpo_jax.workdir import open_workdir

HOLD_OUT = 64  # demonstrations that are never trained on


def run(config: ConfigDict, workdir: Path, out: str) -> int:
    """Trains on demonstrations and writes a Hugging Face folder to `out` (default: WORKDIR/model)."""
    open_workdir(workdir, config)
    mesh = partition.make_mesh(**config.mesh)
    policy = load_policy(config, mesh) if config.model.path else None
    shown = demonstrations(config, policy.tokenizer if policy else None)
    won = np.mean([demonstration.won for demonstration in shown])
    print(f"{len(shown)} demonstrations, {100 * won:.1f}% of them successful")
    policy = policy or fresh_policy(config, mesh, words(shown))
    target = Path(out) if out else workdir / "model"
    params = imitate(config, policy, mesh, encode(shown, policy.tokenizer, config), workdir)
    save_hf(target, policy.config, params, tokenizer=policy.tokenizer)
    print(f"the model is in {target}")
    return 0


def demonstrations(config: ConfigDict, tokenizer: Tokenizer | None) -> list[Demonstration]:
    """Lets the expert of the environment play `sft.episodes` episodes of the training split.

    Args:
      config: as from `config.default_config`.
      tokenizer: measures prompts; None counts words (for a tokenizer that is yet to be made).
    """
    env_config, sampling = config.env, config.sampling
    env = registry.make(env_config.name, **env_options(config))
    try:
        tasks = islice(shuffled_tasks(env.tasks(env_config.split), config.seed), config.sft.episodes)
        return [
            demonstrate(
                env,
                registry.make_expert(env_config.name, episode_seed(config.seed, n), **config.sft.demonstrator),
                task,
                template=registry.style(env_config.name, env_config.prompt),
                history=env_config.history,
                max_steps=env_config.max_steps,
                encode=tokenizer.encode_chat if tokenizer else str.split,  # type: ignore[arg-type]
                limit=sampling.max_prompt_tokens,
                show_admissible=env_config.show_admissible,
            )
            for n, task in enumerate(tqdm(tasks, "demonstrations", config.sft.episodes, leave=False))
        ]
    finally:
        env.close()


def words(shown: Iterable[Demonstration]) -> list[str]:
    """Every text of the demonstrations, for a word-level tokenizer."""
    return [text for demonstration in shown for turn in demonstration.turns for text in turn]


def encode(shown: Sequence[Demonstration], tokenizer: Tokenizer, config: ConfigDict) -> list[list[Sample]]:
    """One list of samples an episode; a reply that is longer than `sampling.max_reply_tokens` is left out."""
    episodes = []
    for demonstration in tqdm(shown, "tokens", leave=False):
        samples = []
        for prompt, reply in demonstration.turns:
            tokens = np.asarray(tokenizer.encode_chat(prompt), np.int32)[-config.sampling.max_prompt_tokens :]
            target = np.asarray(tokenizer.encode(reply), np.int32)
            if len(target) <= config.sampling.max_reply_tokens:
                samples.append(Sample(tokens, target, np.zeros(len(target), np.float32)))
        episodes.append(samples)
    return episodes


def with_prompts(sample: Sample) -> Sample:
    """The same sample with loss on everything but its first token."""
    target = np.concatenate([sample.prompt_tokens[1:], sample.reply_tokens])
    return Sample(sample.prompt_tokens[:1], target, np.zeros(len(target), np.float32))


def imitate(
    config: ConfigDict, policy: Policy, mesh: jax.sharding.Mesh, episodes: list[list[Sample]], workdir: Path
) -> Any:
    """Minimises the cross-entropy of the demonstrated replies.

    Args:
      config: `sft`, `optim`, `batch` say how.
      policy: the start; its parameters are taken over.
      mesh: devices.
      episodes: samples; the last few episodes are held out and only measured.
      workdir: gets metrics.

    Returns:
      The trained parameters.
    """
    held = min(HOLD_OUT, len(episodes) // 10)
    samples = [sample for episode in episodes[: len(episodes) - held] for sample in episode]
    if config.sft.learn_prompts:
        samples = [with_prompts(sample) for sample in samples]
    test = [sample for episode in episodes[len(episodes) - held :] for sample in episode]
    total = config.sft.epochs * -(-len(samples) // config.sft.minibatch)
    optimizer = make_optimizer(config, total)
    where = shardings(policy.config, mesh)
    state_shardings = update.shard_state(optimizer, policy.params, where, partition.replicated(mesh))
    forward = forward_function(config, policy.config)
    step = update.make_sft_update(forward, optimizer, chunk=config.batch.logprob_chunk, state_shardings=state_shardings)
    score = update.make_score(forward, chunk=config.batch.logprob_chunk)
    state = jax.jit(lambda params: update.init_state(params, optimizer), out_shardings=state_shardings)(policy.params)
    packing = {"row_length": config.batch.row_length, "rows": partition.local_rows(mesh, config.batch.rows)}
    writer, timers, done = MetricsWriter(workdir), Timers(), 0
    bar = tqdm(total=total, desc="imitation")
    for epoch in range(config.sft.epochs):
        rng = np.random.default_rng((config.seed, epoch))
        for batch in make_minibatches(
            samples, steps=config.sft.minibatch, rng=rng, agree=partition.all_hosts, **packing
        ):
            with timers.time("update"):
                state, metrics = step(state, partition.global_batch(mesh, batch))
                loss = float(metrics["policy/loss"])
            done += 1
            bar.set_postfix(loss=f"{loss:.3f}")
            bar.update()
            if done % 10 == 0 or done == total:
                record = {name: float(value) for name, value in metrics.items()} | packing_stats([batch])
                writer.scalars(done, {name.replace("policy/", "sft/"): v for name, v in record.items()} | timers.take())
        held_out = _cross_entropy(score, state.params, test, mesh, packing)
        writer.scalars(done, {"sft/held_out_loss": held_out})
        tqdm.write(f"epoch {epoch + 1}: held-out cross-entropy {held_out:.4f} nats a token")
    bar.close()
    writer.close()
    return state.params


def _cross_entropy(
    score: Callable, params: Any, test: Sequence[Sample], mesh: jax.sharding.Mesh, packing: dict[str, int]
) -> float:
    """Nats a reply token."""
    total = count = 0.0
    for batch in make_minibatches(test, steps=256, rng=np.random.default_rng(0), agree=partition.all_hosts, **packing):
        batch = partition.global_batch(mesh, batch)
        total -= float(score(params, batch).sum())
        count += float(batch.weight.sum())
    return total / max(count, 1.0)
