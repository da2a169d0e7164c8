"""One optimizer update here against the same update in PyTorch: real (not padding) tokens a second,
in one run.

    python benchmarks/train_step.py [--shapes tiny w512] [--repeats 7] [--threads 2]

Writes benchmarks/results/train_step.json. Both sides have the same architecture (Qwen2), float32,
AdamW with a gradient clip, a clipped policy-gradient loss over the response tokens, gradient
accumulation; they take turns, and the median of the ratios of neighbouring turns is quoted.

* "dense": every row is one sample of full length, so neither side pads: raw compute. * "agent":
steps of a household agent, unequal lengths. PyTorch gets them as they usually are: one sample a
row, prompts
  padded on the left to the longest prompt, responses on the right to the longest response of the
  minibatch. We pack.
"""

import argparse
import dataclasses
import json
import os
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gigpo_jax.learner.packing import make_minibatches, packing_stats
from gigpo_jax.learner.samples import Sample
from gigpo_jax.models import decoder
from gigpo_jax.rl.losses import LossSettings
from gigpo_jax.rl.optimizer import make_optimizer
from gigpo_jax.rl.train_step import init_state
from gigpo_jax.rl.update import make_update


@dataclasses.dataclass(frozen=True)
class Shape:
    """A model and the sizes of its batches; lengths in tokens."""

    model: decoder.DecoderConfig
    row_length: int
    rows: int
    steps: int
    prompt: tuple[float, float, int]  # mean, deviation, longest
    response: tuple[float, float, int]  # log-mean, log-deviation, longest
    torch_rows: int  # samples of a PyTorch microbatch


SHAPES = {
    "tiny": Shape(
        decoder.DecoderConfig(400, 128, 384, 4, 4, 2, 32),
        256,
        8,
        128,
        (52.0, 8.0, 80),
        (2.0, 0.3, 16),
        32,
    ),
    "w512": Shape(
        decoder.DecoderConfig(8192, 512, 1536, 4, 8, 2, 64),
        512,
        2,
        24,
        (150.0, 45.0, 400),
        (3.4, 0.5, 100),
        6,
    ),
}


def agent_samples(shape: Shape, seed: int = 0) -> list[Sample]:
    """Steps with a spread of lengths as agents in a household have them."""
    rng = np.random.default_rng(seed)
    prompts = np.clip(rng.normal(*shape.prompt[:2], shape.steps), 8, shape.prompt[2]).astype(int)
    responses = np.clip(
        rng.lognormal(*shape.response[:2], shape.steps), 3, shape.response[2]
    ).astype(int)
    return [_sample(rng, shape, p, r) for p, r in zip(prompts.tolist(), responses.tolist())]


def dense_samples(shape: Shape, seed: int = 0) -> list[Sample]:
    """As many rows as two microbatches take, each full; an eighth of a row is response."""
    rng = np.random.default_rng(seed)
    response = shape.row_length // 8
    return [
        _sample(rng, shape, shape.row_length + 1 - response, response)
        for _ in range(2 * shape.rows)
    ]


def _sample(rng: np.random.Generator, shape: Shape, prompt: int, response: int) -> Sample:
    tokens = rng.integers(0, shape.model.vocab_size, prompt + response).astype(np.int32)
    behaviour = np.full(response, -np.log(shape.model.vocab_size), np.float32)
    return Sample(tokens[:prompt], tokens[prompt:], behaviour, float(rng.normal()))


def jax_step(shape: Shape, samples: list[Sample]) -> tuple[Callable[[], float], float]:
    """Our update in training: a call that returns the loss, and the share of padding."""
    config = shape.model
    longest = max(len(s.prompt_tokens) + len(s.response_tokens) - 1 for s in samples)

    def forward(
        params: decoder.Params,
        _: Any,
        tokens: jax.Array,
        positions: jax.Array,
        segment_ids: jax.Array,
        images: Any,
    ) -> tuple[jax.Array, jax.Array]:
        execution = decoder.Execution(unroll=config.num_layers, max_segment=longest)
        hidden = decoder.hidden_states(config, params, tokens, positions, segment_ids, execution)
        return hidden, decoder.output_embedding(config, params)

    optimizer = make_optimizer(lr=1e-6)
    update = make_update(forward, optimizer, LossSettings(clip_low=0.2, clip_high=0.2))
    state = init_state(decoder.init_params(config, jax.random.key(0)), optimizer)
    (batch,) = make_minibatches(
        samples,
        steps=len(samples),
        row_length=shape.row_length,
        rows=shape.rows,
        rng=np.random.default_rng(0),
    )
    padding = packing_stats([batch])["batch/padding_share"]
    batch = jax.tree.map(jnp.asarray, batch)

    def step() -> float:
        nonlocal state
        state, metrics = update(state, batch)
        return float(metrics["policy/loss"])

    return step, padding


def pad_samples(samples: list[Sample]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Token ids and mask with prompts padded on the left, [B, T], and log-probabilities, [B, R]."""
    prompt = max(len(s.prompt_tokens) for s in samples)
    response = max(len(s.response_tokens) for s in samples)
    ids = np.zeros((len(samples), prompt + response), np.int64)
    mask = np.zeros_like(ids)
    behaviour = np.zeros((len(samples), response), np.float32)
    for row, sample in enumerate(samples):
        length = len(sample.response_tokens)
        columns = slice(prompt - len(sample.prompt_tokens), prompt + length)
        ids[row, columns] = np.concatenate([sample.prompt_tokens, sample.response_tokens])
        mask[row, columns] = 1
        behaviour[row, :length] = sample.logprobs
    return ids, mask, behaviour


def torch_step(shape: Shape, samples: list[Sample], rows: int) -> tuple[Callable[[], float], float]:
    """The usual padded update with transformers and torch; returns as `jax_step`."""
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    c = shape.model
    hf = Qwen2Config(
        vocab_size=c.vocab_size,
        hidden_size=c.hidden_size,
        intermediate_size=c.intermediate_size,
        num_hidden_layers=c.num_layers,
        num_attention_heads=c.num_heads,
        num_key_value_heads=c.num_kv_heads,
        tie_word_embeddings=c.tie_word_embeddings,
        rope_parameters={"rope_type": "default", "rope_theta": c.rope_theta},
        max_position_embeddings=4096,
        use_cache=False,
    )
    torch.manual_seed(0)
    model = Qwen2ForCausalLM(hf).float().train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6, weight_decay=0.01)
    ids, mask, old = pad_samples(samples)
    response = old.shape[1]
    prompt = ids.shape[1] - response
    padding = 1 - mask.sum() / mask.size
    token_ids, attended, behaviour = (torch.from_numpy(x) for x in (ids, mask, old))
    advantage = torch.tensor([[s.advantage] for s in samples])
    positions = (attended.cumsum(-1) - 1).clamp(min=0)
    total = attended[:, prompt:].sum()
    everywhere = bool(mask.all())

    def step() -> float:
        value = 0.0
        for start in range(0, len(samples), rows):
            microbatch = slice(start, start + rows)
            attention = None if everywhere else attended[microbatch]
            out = model(
                input_ids=token_ids[microbatch],
                attention_mask=attention,
                position_ids=positions[microbatch],
                logits_to_keep=response + 1,
            )
            logp = torch.log_softmax(out.logits[:, :-1], -1)
            logp = logp.gather(-1, token_ids[microbatch, prompt:, None])[..., 0]
            ratio = torch.exp(logp - behaviour[microbatch])
            loss = torch.maximum(
                -advantage[microbatch] * ratio, -advantage[microbatch] * ratio.clamp(0.8, 1.2)
            )
            loss = (loss * attended[microbatch, prompt:]).sum() / total
            loss.backward()
            value += float(loss.detach())
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return value

    return step, float(padding)


def compare(
    name: str, samples: list[Sample], kind: str, repeats: int
) -> dict[str, float | str | int]:
    """Times both sides in turn."""
    shape = SHAPES[name]
    ours, our_padding = jax_step(shape, samples)
    theirs, their_padding = torch_step(
        shape, samples, shape.rows if kind == "dense" else shape.torch_rows
    )
    tokens = sum(len(s.prompt_tokens) + len(s.response_tokens) for s in samples)
    sides = (ours, theirs)
    seconds: tuple[list[float], ...] = ([], [])
    cpu: tuple[list[float], ...] = ([], [])
    for turn in range(repeats + 2):
        for side, step in enumerate(sides):
            start = time.perf_counter()
            cpu_start = time.process_time()
            step()
            if turn >= 2:
                seconds[side].append(time.perf_counter() - start)
                cpu[side].append(time.process_time() - cpu_start)
    median = [statistics.median(x) for x in seconds]
    return {
        "shape": name,
        "batch": kind,
        "tokens": tokens,
        "jax_tokens_per_s": round(tokens / median[0]),
        "torch_tokens_per_s": round(tokens / median[1]),
        "ratio": round(statistics.median(t / j for j, t in zip(*seconds)), 2),
        "ratio_cpu_time": round(statistics.median(cpu[1]) / statistics.median(cpu[0]), 2),
        "jax_padding": round(our_padding, 3),
        "torch_padding": round(their_padding, 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, default=list(SHAPES))
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="for torch")
    parser.add_argument(
        "--out", type=Path, default=Path(__file__).parent / "results" / "train_step.json"
    )
    args = parser.parse_args()
    import torch
    import transformers

    torch.set_num_threads(args.threads)
    results = []
    print(
        "| shape | batch | ours, tokens/s | PyTorch, tokens/s | ratio | ratio of CPU time "
        "| padding | theirs |"
    )
    print("|---|---|---|---|---|---|---|---|")
    for name in args.shapes:
        for kind, samples in (
            ("dense", dense_samples(SHAPES[name])),
            ("agent", agent_samples(SHAPES[name])),
        ):
            r = compare(name, samples, kind, args.repeats)
            results.append(r)
            print(
                f"| {name} | {kind} | {r['jax_tokens_per_s']:,} | {r['torch_tokens_per_s']:,} | "
                f"{r['ratio']} | {r['ratio_cpu_time']} | {r['jax_padding']} | {r['torch_padding']} |",
                flush=True,
            )
    record = {
        "results": results,
        "dtype": "float32",
        "machine": {
            "cores": os.cpu_count(),
            "threads": args.threads,
            "python": platform.python_version(),
        },
        "jax": jax.__version__,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
    main()
