"""The update of conversations: one row an episode beside a row for every call, in one run.

    python -m benchmarks.conversation_rows [--turns 5 20 50] [--repeats 3] [--episodes 2]

Writes benchmarks/results/conversation_rows.json. Episodes are conversations with a system message of 40
tokens, messages of 24 and responses of 12, about as long as for a household agent with short
thoughts. Every side has the same model (0.8 M parameters, float32), AdamW, gradient clip and
clipped loss of all response tokens. The sides take turns; ratios are medians of neighbouring turns,
by the clock (`s`) and in CPU time (`cpu_s`).

* "merged": as in training, calls that continue each other share a segment of a row.
* "separate": the same calls in an order in which none continues the one before it.
* "no attention": merged rows without attention, whose result is the values: what attention costs.
* "trl": the loss of TRL's GRPOTrainer, if TRL is installed: one row an episode, with a mask of its
  responses, which is also the layout of verl. It needs `pip install trl accelerate datasets`,
  and `-m`, or else TRL takes the file vllm.py of this folder for the package.
"""

import argparse
import dataclasses
import importlib.util
import json
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.train_step import SHAPES
from gigpo_jax.learner.packing import make_minibatches, packing_stats
from gigpo_jax.learner.samples import Sample, join_continuations
from gigpo_jax.models import decoder
from gigpo_jax.models.attention import attention
from gigpo_jax.models.files.save_weights import save_hf
from gigpo_jax.rl.losses import LossSettings
from gigpo_jax.rl.optimizer import make_optimizer
from gigpo_jax.rl.train_step import init_state
from gigpo_jax.rl.update import make_update

RESULT = Path(__file__).parent / "results" / "conversation_rows.json"
MODEL = SHAPES["tiny"].model
SYSTEM = 40  # tokens
MESSAGE = 24
RESPONSE = 12
Step = Callable[[], float]  # makes one update and returns its loss


def make_episode(rng: np.random.Generator, turns: int) -> list[Sample]:
    """The calls of one conversation."""

    def draw(size: int) -> np.ndarray:
        return rng.integers(0, MODEL.vocab_size, size).astype(np.int32)

    behaviour = np.full(RESPONSE, -np.log(MODEL.vocab_size), np.float32)
    samples = []
    past = draw(SYSTEM)
    for _ in range(turns):
        prompt = np.concatenate([past, draw(MESSAGE)])
        response = draw(RESPONSE)
        samples.append(Sample(prompt, response, behaviour, float(rng.normal())))
        past = np.concatenate([prompt, response])
    return samples


def skip_attention(query: jax.Array, key: jax.Array, value: jax.Array, *_: Any, **__: Any) -> Any:
    """The values in the place of attention's result."""
    return jnp.repeat(value, query.shape[2] // key.shape[2], axis=2)


def jax_step(
    samples: Sequence[Sample], attend: Callable[..., Any] = attention
) -> tuple[Step, dict[str, float]]:
    """Our update of these samples in this order, and its counts."""
    longest = max(sample.length for sample in samples)
    # A row holds an episode; it has little padding, and so have rows of short calls.
    row_length = -(-longest // 64) * 64

    def forward(
        params: decoder.Params, _: Any, tokens: Any, positions: Any, segments: Any, images: Any
    ) -> tuple[jax.Array, jax.Array]:
        del images
        execution = decoder.Execution(max_segment=longest, attention=attend)
        hidden = decoder.hidden_states(MODEL, params, tokens, positions, segments, execution)
        return hidden, decoder.output_embedding(MODEL, params)

    optimizer = make_optimizer(lr=1e-6)
    update = make_update(forward, optimizer, LossSettings(clip_low=0.2, clip_high=0.2))
    state = init_state(decoder.init_params(MODEL, jax.random.key(0)), optimizer)
    start = time.perf_counter()
    (host_batch,) = make_minibatches(
        samples,
        steps=len(samples),
        row_length=row_length,
        rows=1,
        rng=np.random.default_rng(0),
    )
    packing = time.perf_counter() - start
    stats = packing_stats([host_batch]) | {
        "packing_s": round(packing, 4),
        "row_length": row_length,
    }
    batch = jax.tree.map(jnp.asarray, host_batch)

    def step() -> float:
        nonlocal state
        state, metrics = update(state, batch)
        return float(metrics["policy/loss"])

    return step, stats


def trl_step(episodes: Sequence[Sequence[Sample]], folder: Path) -> Step:
    """TRL's loss, under the model of `folder`, of a row an episode with a mask of policy tokens."""
    import torch
    from datasets import Dataset
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast, Qwen2ForCausalLM
    from trl import GRPOConfig, GRPOTrainer

    vocabulary = {str(token): token for token in range(MODEL.vocab_size)}
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel(vocabulary, unk_token="0")),
        pad_token="0",
        eos_token="1",
    )
    rows = len(episodes)
    config = GRPOConfig(
        output_dir=str(folder / "trl"),
        use_cpu=True,
        bf16=False,
        report_to="none",
        gradient_checkpointing=False,
        per_device_train_batch_size=1,
        gradient_accumulation_steps=rows,
        num_generations=rows,
        beta=0.0,
        loss_type="dapo",
        epsilon=0.2,
    )
    trainer = GRPOTrainer(
        model=Qwen2ForCausalLM.from_pretrained(folder, dtype=torch.float32),
        reward_funcs=lambda completions, **_: [0.0] * len(completions),
        args=config,
        train_dataset=Dataset.from_dict({"prompt": ["1"] * rows}),
        processing_class=tokenizer,
    )
    # The training loop sets it.
    trainer.current_gradient_accumulation_steps = rows
    model = trainer.model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6, weight_decay=0.01)
    inputs = [_trl_inputs(episode) for episode in episodes]
    total = torch.stack([row["tool_mask"].sum() for row in inputs]).sum()

    def step() -> float:
        value = 0.0
        for row in inputs:
            loss = trainer._compute_loss(model, row | {"num_items_in_batch": total})
            loss.backward()
            value += float(loss.detach())
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return value

    return step


def _trl_inputs(episode: Sequence[Sample]) -> dict[str, Any]:
    """An episode as TRL has it: all behind the first prompt is the completion."""
    import torch

    last = episode[-1]
    first = len(episode[0].prompt_tokens)
    ids = np.concatenate([last.prompt_tokens, last.response_tokens]).astype(np.int64)
    columns = np.zeros((3, len(ids)), np.float32)  # mask, advantage, behaviour
    for sample in episode:
        response = slice(len(sample.prompt_tokens), sample.length + 1)
        columns[0, response] = 1.0
        columns[1, response] = sample.advantage
        columns[2, response] = sample.logprobs
    mask, advantage, behaviour = (torch.from_numpy(x[None, first:]) for x in columns)
    prompt, completion = torch.from_numpy(ids[None, :first]), torch.from_numpy(ids[None, first:])
    return {
        "prompt_ids": prompt,
        "prompt_mask": torch.ones_like(prompt),
        "completion_ids": completion,
        "completion_mask": torch.ones_like(completion),
        "tool_mask": mask,
        "advantages": advantage,
        "old_per_token_logps": behaviour,
    }


def compare(turns: int, num_episodes: int, repeats: int) -> dict[str, Any]:
    """Times all sides in turn."""
    rng = np.random.default_rng(0)
    episodes = [make_episode(rng, turns) for _ in range(num_episodes)]
    samples = [sample for episode in episodes for sample in episode]
    # Longest first: no call continues the one before it.
    shuffled = samples[::-1]
    assert len(join_continuations(samples)) == num_episodes
    assert len(join_continuations(shuffled)) == len(samples)
    merged, merged_stats = jax_step(samples)
    separate, separate_stats = jax_step(shuffled)
    without, _ = jax_step(samples, skip_attention)
    sides = {"merged": merged, "separate": separate, "no_attention": without}
    if importlib.util.find_spec("trl"):
        with tempfile.TemporaryDirectory() as folder:
            save_hf(folder, MODEL, decoder.init_params(MODEL, jax.random.key(0)))
            sides["trl"] = trl_step(episodes, Path(folder))
    clocks = {"s": time.perf_counter, "cpu_s": time.process_time}
    times: dict[str, dict[str, list[float]]] = {
        unit: {name: [] for name in sides} for unit in clocks
    }
    losses = {}
    for repeat in range(repeats + 1):
        for name, step in sides.items():
            starts = {unit: clock() for unit, clock in clocks.items()}
            loss = step()
            # The first round compiles, and its losses are of equal parameters.
            if repeat == 0:
                losses[name] = loss
                continue
            for unit, clock in clocks.items():
                times[unit][name].append(clock() - starts[unit])

    def ratio(seconds: dict[str, list[float]], name: str) -> float:
        pairs = zip(seconds[name], seconds["merged"], strict=True)
        return round(statistics.median(other / ours for other, ours in pairs), 2)

    timings: dict[str, float] = {}
    for unit, seconds in times.items():
        for name, values in seconds.items():
            timings[f"{name}_{unit}"] = round(statistics.median(values), 3)
        for name in sides:
            if name != "merged":
                timings[f"{name}_{unit}_ratio"] = ratio(seconds, name)
    return {
        "turns": turns,
        "episodes": num_episodes,
        "row_length": merged_stats["row_length"],
        "merged_tokens": merged_stats["batch/tokens"],
        "separate_tokens": separate_stats["batch/tokens"],
        "merged_padding": round(merged_stats["batch/padding_share"], 3),
        "separate_padding": round(separate_stats["batch/padding_share"], 3),
        "merged_packing_s": merged_stats["packing_s"],
        "separate_packing_s": separate_stats["packing_s"],
        **timings,
        **{f"{name}_loss": loss for name, loss in losses.items()},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--turns", nargs="+", type=int, default=[5, 20, 50])
    parser.add_argument("--episodes", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="for torch")
    parser.add_argument("--out", type=Path, default=RESULT)
    args = parser.parse_args()
    packages = ("jax", "torch", "transformers", "trl")
    versions = {name: metadata.version(name) for name in packages if importlib.util.find_spec(name)}
    if "trl" in versions:
        # Waiting threads sleep: on a busy machine their turns would count as CPU time of TRL.
        os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
        import torch

        torch.set_num_threads(args.threads)
    results = []
    print("| turns | tokens | tokens, separate | CPU s | separate | without attention | TRL |")
    print("|---|---|---|---|---|---|---|")
    for turns in args.turns:
        result = compare(turns, args.episodes, args.repeats)
        results.append(result)
        print(
            f"| {turns} | {result['merged_tokens']:,} | {result['separate_tokens']:,} | "
            f"{result['merged_cpu_s']} | {result['separate_cpu_s']} | "
            f"{result['no_attention_cpu_s']} | {result.get('trl_cpu_s', '')} |",
            flush=True,
        )
    record = {
        "results": results,
        "model": dataclasses.asdict(MODEL),
        "machine": {
            "cores": os.cpu_count(),
            "threads": args.threads,
            "python": platform.python_version(),
        },
        **versions,
    }
    args.out.write_text(json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
    main()
