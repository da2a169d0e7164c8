"""Differences between engines and learner in the log-probabilities of sampled tokens.

    python -m benchmarks.precision --model FOLDER [--tokens 24] [--engines jax-float32 ..]
    python -m benchmarks.precision --model FOLDER --texts mixed --tokens 64 \
        --engines jax-float32 transformers-float32 vllm-float32 --output greedy.json

Each engine draws responses to the same prompts at temperature 1; the learner scores them in float32
and in bfloat16. The greedy texts of the engines in float32 are compared too. FOLDER may be what
`gigpo export` wrote. The prompts are questions in English, or mixed: English, code, emoji, Chinese.
The engines of vLLM need .venv-vllm (make vllm-venv) and run on the CPU; transformers needs torch.
Writes benchmarks/results/precision.json.
"""

import argparse
import asyncio
import json
import tempfile
import time
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gigpo_jax.engines.base import SamplingParams
from gigpo_jax.engines.jax.jax_engine import EngineSettings, JaxEngine
from gigpo_jax.engines.vllm.launch import ServerProcess, VllmSettings, free_ports
from gigpo_jax.models import decoder
from gigpo_jax.models.files.weights import load_hf
from gigpo_jax.models.text.tokenizer import Tokenizer, load_tokenizer

ROOT = Path(__file__).parents[1]
RESULT = Path(__file__).parent / "results" / "precision.json"
KEY = "benchmark"
LENGTH = 128  # of prompt and response
START_S = 1200.0
SUBJECTS = (
    "France",
    "the moon",
    "a key",
    "water",
    "music",
    "a river",
    "bread",
    "winter",
    "a clock",
)
QUESTIONS = ("What is {}?", "Write a sentence about {}.", "Name something like {}.")
TEXTS = {
    "questions": [question.format(subject) for question in QUESTIONS for subject in SUBJECTS],
    "mixed": [
        "What is the capital of France?",
        "Write a sentence about the sea.",
        "Complete this: def fibonacci(n):\n    ",
        "What does `SELECT COUNT(*) FROM users` do?",
        "What does 🙂🤖 mean?",
        "Who is in this picture? 👩‍👩‍👧",
        "你好，你叫什么名字？",
        "北京是哪个国家的首都？",
    ],
}
# Name -> dtype, and the dtype of the head in vLLM. The first word is the program.
ENGINES = {
    "jax-float32": ("float32", None),
    "jax-bfloat16": ("bfloat16", None),
    "transformers-float32": ("float32", None),
    "vllm-float32": ("float32", "float32"),
    "vllm-bfloat16": ("bfloat16", "float32"),
    "vllm-bfloat16-head": ("bfloat16", "model"),
}
Responses = list[tuple[list[int], list[float]]]  # tokens and log-probabilities


def make_prompts(tokenizer: Tokenizer, name: str, count: int) -> list[list[int]]:
    """Encodes different texts as chats."""
    return [tokenizer.encode_chat(text) for text in TEXTS[name][:count]]


def sample_jax(
    folder: Path, dtype: str, prompts: Sequence[list[int]], sampling: Sequence[SamplingParams]
) -> list[Responses]:
    """Draws the responses of each of the settings from the engine in this process."""
    config, params = load_hf(folder, dtype=jnp.dtype(dtype))
    settings = EngineSettings(
        slots=len(prompts),
        max_length=LENGTH,
        prefill_buckets=(LENGTH // 2,),
        prefill_rows=(len(prompts),),
        decode_steps=8,
        dtype=dtype,
    )

    async def sample_all(engine: JaxEngine, each: SamplingParams) -> Responses:
        calls = []
        for index, prompt in enumerate(prompts):
            key = (each.key[0], index)
            calls.append(engine.generate(prompt, SamplingParams(**vars(each) | {"key": key})))
        completions = await asyncio.gather(*calls)
        return [(item.tokens.tolist(), item.logprobs.tolist()) for item in completions]

    with JaxEngine(config, params, settings, tokenizer=load_tokenizer(folder)) as engine:
        return [asyncio.run(sample_all(engine, each)) for each in sampling]


def sample_transformers(
    folder: Path, prompts: Sequence[list[int]], sampling: Sequence[SamplingParams]
) -> list[Responses]:
    """Draws the responses of each of the settings from transformers, in float32."""
    import torch
    import transformers

    auto: Any = transformers.AutoModelForCausalLM
    model = auto.from_pretrained(folder, dtype=torch.float32)
    model.generation_config = transformers.GenerationConfig()  # no end, and no other settings
    torch.manual_seed(0)

    def sample_one(prompt: list[int], each: SamplingParams) -> tuple[list[int], list[float]]:
        ids = torch.asarray([prompt])
        with torch.no_grad():
            drawn = model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                do_sample=each.temperature > 0,
                top_k=0,
                max_new_tokens=each.max_tokens,
                output_logits=True,
                return_dict_in_generate=True,
            )
        tokens = drawn.sequences[0, len(prompt) :]
        logprobs = torch.log_softmax(torch.cat(drawn.logits), -1)
        return tokens.tolist(), logprobs.gather(1, tokens[:, None])[:, 0].tolist()

    return [[sample_one(prompt, each) for prompt in prompts] for each in sampling]


def sample_vllm(
    folder: Path,
    dtype: str,
    head: str,
    prompts: Sequence[list[int]],
    sampling: Sequence[SamplingParams],
) -> list[Responses]:
    """Draws the responses of each of the settings from a server."""
    overrides = json.dumps({"head_dtype": head})
    (port,) = free_ports(1)
    with tempfile.TemporaryDirectory() as logs:
        server_settings = VllmSettings(
            python=ROOT / ".venv-vllm/bin/python",
            model=folder,
            dtype=dtype,
            max_length=LENGTH,
            sequences=len(prompts),
            weights_dir=Path(logs),
            folder=Path(logs),
            gpu=False,
            arguments=("--hf-overrides", overrides),
        )
        server = ServerProcess(server_settings, port, KEY)
        server.start()
        try:
            _wait_for(server)
            return [_complete(server.url, str(folder.resolve()), prompts, s) for s in sampling]
        finally:
            server.stop()


def _wait_for(server: ServerProcess) -> None:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline and server.running:
        try:
            urllib.request.urlopen(f"{server.url}/health", timeout=5).close()
            return
        except OSError:
            time.sleep(1)
    raise SystemExit(server.log.read_text()[-3000:])


def _complete(
    url: str, model: str, prompts: Sequence[list[int]], sampling: SamplingParams
) -> Responses:
    body = {
        "model": model,
        "prompt": list(prompts),
        "max_tokens": sampling.max_tokens,
        "temperature": sampling.temperature,
        "logprobs": 0,
        "ignore_eos": True,
        "return_tokens_as_token_ids": True,
    }
    request = urllib.request.Request(
        f"{url}/v1/completions",
        json.dumps(body).encode(),
        {"Authorization": f"Bearer {KEY}", "Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=START_S) as answer:
        choices = json.loads(answer.read())["choices"]
    responses = []
    for choice in sorted(choices, key=lambda choice: choice["index"]):
        rows = choice["logprobs"]
        tokens = [int(token.removeprefix("token_id:")) for token in rows["tokens"]]
        responses.append((tokens, rows["token_logprobs"]))
    return responses


def score(
    config: decoder.DecoderConfig,
    params: decoder.Params,
    dtype: str,
    prompts: Sequence[list[int]],
    responses: Responses,
) -> np.ndarray:
    """Returns the learner's log-probabilities of all tokens of the responses, one after another."""

    def score_rows(params: decoder.Params, tokens: jax.Array) -> jax.Array:
        execution = decoder.Execution(dtype=jnp.dtype(dtype))
        hidden = decoder.hidden_states(config, params, tokens, execution=execution)
        scores = jax.nn.log_softmax(decoder.score_tokens(config, params, hidden[:, :-1]))
        return jnp.take_along_axis(scores, tokens[:, 1:, None], axis=-1)[..., 0]

    rows = np.zeros((len(prompts), LENGTH), np.int32)
    for row, prompt, (tokens, _) in zip(rows, prompts, responses, strict=True):
        row[: len(prompt) + len(tokens)] = [*prompt, *tokens]
    values = np.asarray(jax.jit(score_rows)(params, jnp.asarray(rows)))
    parts = []
    for row, prompt, (tokens, _) in zip(values, prompts, responses, strict=True):
        start = len(prompt) - 1
        parts.append(row[start : start + len(tokens)])
    return np.concatenate(parts)


def measure_engine(
    name: str, args: argparse.Namespace, learner: tuple[decoder.DecoderConfig, decoder.Params]
) -> dict[str, Any]:
    """Measures an engine against the learner."""
    dtype, head = ENGINES[name]
    tokenizer = load_tokenizer(args.model)
    prompts = make_prompts(tokenizer, args.texts, args.prompts)
    drawn = SamplingParams(max_tokens=args.tokens, key=(1, 0))
    greedy = SamplingParams(temperature=0, max_tokens=args.tokens)
    settings = [drawn, greedy] if dtype == "float32" else [drawn]
    if name.startswith("transformers"):
        responses, *greedy_responses = sample_transformers(args.model, prompts, settings)
    elif head is None:
        responses, *greedy_responses = sample_jax(args.model, dtype, prompts, settings)
    else:
        responses, *greedy_responses = sample_vllm(args.model, dtype, head, prompts, settings)
    config, params = learner
    own = np.concatenate([values for _, values in responses])
    result: dict[str, Any] = {"engine": name, "tokens": len(own)}
    for learner_dtype in ("float32", "bfloat16"):
        values = score(config, params, learner_dtype, prompts, responses)
        difference = np.abs(own - values)
        result[learner_dtype] = {
            "mean": float(difference.mean()),
            "largest": float(difference.max()),
        }
    for tokens in greedy_responses:
        result["greedy"] = [tokenizer.decode(ids) for ids, _ in tokens]
    print(json.dumps({key: result[key] for key in result if key != "greedy"}), flush=True)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--engines", nargs="*", default=list(ENGINES), choices=list(ENGINES))
    parser.add_argument("--texts", choices=list(TEXTS), default="questions")
    parser.add_argument("--prompts", type=int, default=20, help="at most")
    parser.add_argument("--tokens", type=int, default=24)
    parser.add_argument("--output", type=Path, default=RESULT)
    args = parser.parse_args()
    learner = load_hf(args.model, dtype=jnp.float32)
    results = []
    for name in args.engines:
        results.append(measure_engine(name, args, learner))
        texts = [result["greedy"] for result in results if "greedy" in result]
        # One engine alone is equal to itself.
        equal = None
        if len(texts) > 1:
            equal = sum(len(set(group)) == 1 for group in zip(*texts, strict=True))
        record = {
            "model": args.model.name,
            "texts": args.texts,
            "prompts": len(TEXTS[args.texts][: args.prompts]),
            "equal_greedy_texts": equal,
            "results": results,
        }
        args.output.write_text(json.dumps(record, indent=1) + "\n")
    if equal is not None:
        print(f"{equal} of {len(texts[0])} greedy texts are equal in float32")


if __name__ == "__main__":
    main()
