"""The shape of SmolLM2-135M on CPUs: forward, update and sampling, beside torch + transformers.

    python benchmarks/real_size.py [--repeats 3] [--threads 2] [--parts forward update ..]

Random weights, float32 on both sides (sampling in bfloat16 too), the same tokens. The sides take
turns (A B A B ...), medians count, and the ratio is the median of the ratios of neighbouring turns;
CPU seconds count the process, and tell more than the clock on a busy machine. "plain" is
`jax.jit` of the model's logits and `jax.grad` of their cross-entropy, without anything of training.

* forward: the logits of 4 x 256 tokens.
* update: forward, backward and AdamW for 4 texts of 256 tokens. "all": loss on every token on all
  sides. "agent": the last 32 tokens are a response, as in training; the others have no such thing.
* sampling: 32 responses of 24 tokens behind prompts of 180, four prompts for eight responses each,
  as the groups of an iteration begin.
* rollout: 16 conversations of three responses of 24 tokens, in two groups; prompts of 180 tokens,
  messages of 30. The plain side reads the same tokens at once: both count all tokens.
* compile: seconds of an engine's programs, without and with the cache of compiled programs.

Writes benchmarks/results/real_size.json.
"""

import argparse
import asyncio
import json
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
import transformers
from jax.experimental.compilation_cache import compilation_cache

from gigpo_jax.devices.program_cache import MIN_COMPILE_S
from gigpo_jax.engines.base import SamplingParams
from gigpo_jax.engines.jax.jax_engine import EngineSettings, JaxEngine
from gigpo_jax.learner.fitted_rows import RowFit
from gigpo_jax.learner.packing import make_minibatches
from gigpo_jax.learner.samples import Sample
from gigpo_jax.models import decoder, next_tokens
from gigpo_jax.rl.losses import LossSettings
from gigpo_jax.rl.optimizer import make_optimizer
from gigpo_jax.rl.train_step import init_state
from gigpo_jax.rl.update import make_update

RESULTS = Path(__file__).parent / "results"
MODEL = decoder.DecoderConfig(
    49152, 576, 1536, 30, 9, 3, 64, rope_theta=100_000.0, model_type="llama"
)
ROWS = 4
LENGTH = 256
RESPONSES = 32
PROMPT = 180
NEW = 24
CONVERSATIONS = 16
TURNS = 3
MESSAGE = 30
Call = Callable[[], object]


def random_params(dtype: Any = jnp.float32) -> decoder.Params:
    """Draws normal matrices of deviation 0.02; norm scales are 1."""
    rng = np.random.default_rng(0)

    def draw_leaf(path: Any, leaf: jax.ShapeDtypeStruct) -> jax.Array:
        if "scale" in jax.tree_util.keystr(path):
            return jnp.ones(leaf.shape, dtype)
        return jnp.asarray(rng.standard_normal(leaf.shape, np.float32) * 0.02, dtype)

    return jax.tree_util.tree_map_with_path(draw_leaf, decoder.abstract_params(MODEL))


def torch_model(dtype: Any = torch.float32) -> Any:
    """The same shape in transformers."""
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=MODEL.vocab_size,
        hidden_size=MODEL.hidden_size,
        intermediate_size=MODEL.intermediate_size,
        num_hidden_layers=MODEL.num_layers,
        num_attention_heads=MODEL.num_heads,
        num_key_value_heads=MODEL.num_kv_heads,
        head_dim=MODEL.head_dim,
        tie_word_embeddings=True,
        max_position_embeddings=2048,
        bos_token_id=1,
        eos_token_id=2,
    )
    return transformers.LlamaForCausalLM(config).to(dtype)


def draw_tokens(rows: int, length: int) -> np.ndarray:
    """Random token ids, without the special ones."""
    return np.random.default_rng(1).integers(3, MODEL.vocab_size, (rows, length)).astype(np.int32)


def take_turns(sides: dict[str, Call], tokens: int, repeats: int) -> dict[str, Any]:
    """Times the sides in turns, after one call each that compiles; the last is the other side."""
    other = list(sides)[-1]
    wall: dict[str, list[float]] = {name: [] for name in sides}
    cpu: dict[str, list[float]] = {name: [] for name in sides}
    first_s = {}
    for turn in range(repeats + 1):
        for name, call in sides.items():
            wall_start = time.perf_counter()
            cpu_start = time.process_time()
            call()
            if turn == 0:
                first_s[name] = round(time.perf_counter() - wall_start, 1)
                continue
            wall[name].append(time.perf_counter() - wall_start)
            cpu[name].append(time.process_time() - cpu_start)
    result: dict[str, Any] = {"tokens": tokens, "first_call_s": first_s}
    for name in sides:
        result[f"{name}_tokens_per_s"] = round(tokens / statistics.median(wall[name]), 1)
        result[f"{name}_tokens_per_cpu_s"] = round(tokens / statistics.median(cpu[name]), 1)
        if name != other:
            pairs = zip(wall[other], wall[name], strict=True)
            result[f"{name}_ratio"] = round(statistics.median(t / j for t, j in pairs), 2)
            pairs = zip(cpu[other], cpu[name], strict=True)
            result[f"{name}_ratio_cpu"] = round(statistics.median(t / j for t, j in pairs), 2)
    return result


def time_forward(repeats: int) -> dict[str, Any]:
    """Logits of all tokens."""
    tokens = draw_tokens(ROWS, LENGTH)
    params = random_params()
    plain = jax.jit(lambda params, tokens: next_tokens.logits(MODEL, params, tokens))
    model = torch_model().eval()
    ids = torch.from_numpy(tokens).long()

    def run_torch() -> None:
        with torch.inference_mode():
            model(input_ids=ids, use_cache=False)

    sides: dict[str, Call] = {
        "plain": lambda: jax.block_until_ready(plain(params, tokens)),
        "torch": run_torch,
    }
    return take_turns(sides, tokens.size, repeats)


def our_update(tokens: np.ndarray, response: int) -> Call:
    """Our update of texts whose last `response` tokens have loss."""
    samples = [
        Sample(row[:-response], row[-response:], np.full(response, -10.8, np.float32), 1.0)
        for row in tokens
    ]

    def forward(
        params: decoder.Params,
        _: Any,
        tokens: jax.Array,
        positions: jax.Array,
        segment_ids: jax.Array,
        images: Any,
    ) -> tuple[jax.Array, jax.Array]:
        execution = decoder.Execution(remat="full", max_segment=LENGTH)
        hidden = decoder.hidden_states(MODEL, params, tokens, positions, segment_ids, execution)
        return hidden, decoder.output_embedding(MODEL, params)

    optimizer = make_optimizer(lr=1e-6)
    update = make_update(forward, optimizer, LossSettings(clip_low=0.2, clip_high=0.2))
    state = init_state(random_params(), optimizer)
    (batch,) = make_minibatches(
        samples,
        steps=len(samples),
        row_length=4096,
        rows=4,
        rng=np.random.default_rng(0),
        fit=RowFit(unit=1, places=2048),
    )
    batch = jax.tree.map(jnp.asarray, batch)

    def step() -> float:
        nonlocal state
        state, metrics = update(state, batch)
        return float(metrics["policy/loss"])

    return step


def torch_update(tokens: np.ndarray) -> Call:
    """Cross-entropy of all tokens, a clipped gradient, AdamW."""
    model = torch_model().train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6, weight_decay=0.01)
    ids = torch.from_numpy(tokens).long()

    def step() -> float:
        loss = model(input_ids=ids, labels=ids, use_cache=False).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return float(loss.detach())

    return step


def time_update(repeats: int) -> dict[str, Any]:
    """Updates from the same texts."""
    tokens = draw_tokens(ROWS, LENGTH)
    params = random_params()

    def cross_entropy(params: decoder.Params, tokens: jax.Array) -> jax.Array:
        logprobs = jax.nn.log_softmax(next_tokens.logits(MODEL, params, tokens)[:, :-1])
        return -jnp.mean(jnp.take_along_axis(logprobs, tokens[:, 1:, None], -1))

    plain = jax.jit(jax.grad(cross_entropy))
    sides: dict[str, Call] = {
        "all": our_update(tokens, LENGTH - 1),
        "agent": our_update(tokens, 32),
        "plain": lambda: jax.block_until_ready(plain(params, tokens)),
        "torch": torch_update(tokens),
    }
    return take_turns(sides, tokens.size, repeats)


def our_sampling(prompts: np.ndarray, dtype: str) -> Call:
    """All responses at once by the engine of the process."""
    settings = EngineSettings(
        slots=RESPONSES,
        max_length=PROMPT + NEW,
        prefill_rows=(16,),
        prefill_chunk=32,
        dtype=jnp.dtype(dtype),
    )
    engine = JaxEngine(MODEL, random_params(), settings)
    engine.warmup()
    turn = 0

    async def generate() -> None:
        nonlocal turn
        turn += 1
        # New prompts in every turn: nothing is left of an earlier one.
        shifted = 3 + (prompts + 97 * turn) % (MODEL.vocab_size - 3)
        calls = [
            engine.generate(prompt, SamplingParams(max_tokens=NEW, key=(turn, index)))
            for index, prompt in enumerate(shifted.astype(np.int32))
        ]
        await asyncio.gather(*calls)

    return lambda: asyncio.run(generate())


def torch_sampling(prompts: np.ndarray, dtype: str) -> Call:
    """`generate` of transformers."""
    model = torch_model(getattr(torch, dtype)).eval()
    ids = torch.from_numpy(prompts).long()

    def generate() -> None:
        with torch.inference_mode():
            model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                do_sample=True,
                top_k=0,
                max_new_tokens=NEW,
                min_new_tokens=NEW,
                pad_token_id=0,
            )

    return generate


def time_sampling(repeats: int, dtype: str) -> dict[str, Any]:
    """Sampled tokens of all responses."""
    prompts = np.repeat(draw_tokens(RESPONSES // 8, PROMPT), 8, axis=0)
    sides = {"engine": our_sampling(prompts, dtype), "torch": torch_sampling(prompts, dtype)}
    return take_turns(sides, RESPONSES * NEW, repeats)


def conversation_engine() -> JaxEngine:
    """An engine as a run with conversations has it, not yet compiled."""
    settings = EngineSettings(
        slots=CONVERSATIONS,
        max_length=PROMPT + TURNS * (NEW + MESSAGE),
        prefill_rows=(CONVERSATIONS,),
        prefill_chunk=32,
        keep_responses=True,
        dtype=jnp.dtype("float32"),
    )
    return JaxEngine(MODEL, random_params(), settings)


def our_rollout(prompts: np.ndarray, messages: np.ndarray) -> Call:
    """All conversations at once; `messages` [conversations, turns - 1, M]."""
    engine = conversation_engine()
    engine.warmup()
    turn = 0

    async def play(number: int) -> None:
        # New prompts in every turn: nothing is left of an earlier one.
        def shift(tokens: np.ndarray) -> np.ndarray:
            return (3 + (tokens + 97 * turn) % (MODEL.vocab_size - 3)).astype(np.int32)

        session = (turn, number)
        tokens = shift(prompts[number])
        for step in range(TURNS):
            key = (turn * CONVERSATIONS + number, step)
            settings = SamplingParams(max_tokens=NEW, key=key, session=session)
            completion = await engine.generate(tokens, settings)
            if step < TURNS - 1:
                message = shift(messages[number, step])
                tokens = np.concatenate([tokens, completion.tokens, message])
        engine.end_session(session)

    async def play_all() -> None:
        nonlocal turn
        turn += 1
        await asyncio.gather(*map(play, range(CONVERSATIONS)))

    return lambda: asyncio.run(play_all())


def time_rollout(repeats: int) -> dict[str, Any]:
    """All tokens of conversations: read and decoded, or read at once."""
    length = PROMPT + TURNS * NEW + (TURNS - 1) * MESSAGE
    prompts = np.repeat(draw_tokens(CONVERSATIONS // 8, PROMPT), 8, axis=0)
    messages = draw_tokens(CONVERSATIONS * (TURNS - 1), MESSAGE)
    tokens = draw_tokens(CONVERSATIONS, length)
    params = random_params()
    plain = jax.jit(lambda params, tokens: next_tokens.logits(MODEL, params, tokens))

    def read_plain() -> None:
        for start in range(0, CONVERSATIONS, ROWS):
            jax.block_until_ready(plain(params, tokens[start : start + ROWS]))

    sides: dict[str, Call] = {
        "engine": our_rollout(prompts, messages.reshape(CONVERSATIONS, TURNS - 1, MESSAGE)),
        "plain": read_plain,
    }
    return take_turns(sides, tokens.size, repeats)


def time_compilation() -> dict[str, Any]:
    """Seconds in which an engine is ready, its programs compiled or read from the cache."""
    seconds = {}
    with tempfile.TemporaryDirectory() as folder:
        jax.config.update("jax_compilation_cache_dir", folder)
        jax.config.update("jax_persistent_cache_min_compile_time_secs", MIN_COMPILE_S)
        for name in ("cold", "cached"):
            jax.clear_caches()
            with conversation_engine() as engine:
                wall_start = time.perf_counter()
                cpu_start = time.process_time()
                engine.warmup()
                seconds[f"{name}_s"] = round(time.perf_counter() - wall_start, 1)
                seconds[f"{name}_cpu_s"] = round(time.process_time() - cpu_start, 1)
        jax.config.update("jax_compilation_cache_dir", None)
        compilation_cache.reset_cache()
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2, help="of torch")
    parts = ("forward", "update", "sampling", "rollout", "compile")
    parser.add_argument("--parts", nargs="+", choices=parts, default=list(parts))
    parser.add_argument("--out", type=Path, default=RESULTS / "real_size.json")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    results: dict[str, Any] = {}
    # First: the cache is that of the process.
    if "compile" in args.parts:
        results["compile"] = time_compilation()
    if "forward" in args.parts:
        results["forward"] = time_forward(args.repeats)
    if "update" in args.parts:
        results["update"] = time_update(args.repeats)
    if "sampling" in args.parts:
        for dtype in ("float32", "bfloat16"):
            results[f"sampling_{dtype}"] = time_sampling(args.repeats, dtype)
    if "rollout" in args.parts:
        results["rollout"] = time_rollout(args.repeats)
    record = {
        "results": results,
        "repeats": args.repeats,
        "machine": {
            "cores": os.cpu_count(),
            "threads": args.threads,
            "load": round(os.getloadavg()[0], 1),
            "python": platform.python_version(),
        },
        "jax": jax.__version__,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }
    args.out.write_text(json.dumps(record, indent=2) + "\n")
    print(json.dumps(record, indent=2))


if __name__ == "__main__":
    main()
