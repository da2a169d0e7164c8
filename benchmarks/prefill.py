"""Tokens that a prefill computes: prompts in buckets, and in chunks with and without reuse.

    python benchmarks/prefill.py [--groups 16] [--chunks 32 64 128 256]
                                 [--tokenizer FOLDER] [--output FILE]

The prompts come from the published configs on generated data: an erring expert plays groups of 8
episodes (search: 5), all episodes of an iteration step by step, as many slots as episodes. Without
`--tokenizer`, a folder with a tokenizer.json, a word or a sign counts as one token. No model runs:
`engines.jax.prefixes.PrefixTable`, which the engine uses, places the chunks, and their tokens are
counted.
"""

import argparse
import json
import re
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from ml_collections import ConfigDict
from tqdm import tqdm

from configs import alfworld, search, webshop
from gigpo_jax.config import resolve
from gigpo_jax.engines.jax.prefixes import PrefixTable
from gigpo_jax.engines.jax.programs import EngineSettings
from gigpo_jax.env_bridge.base import TextEnv
from gigpo_jax.envs import registry
from gigpo_jax.models.text.tokenizer import load_tokenizer
from gigpo_jax.rollout.demonstrations import demonstrate_episode, episode_seed
from gigpo_jax.rollout.environment import env_options, episode_settings, split_tasks

RESULT = Path(__file__).parent / "results" / "prefill.json"
TEMPLATE = (
    "<|im_start|> system You are Qwen , created by Alibaba Cloud . You are a helpful assistant . "
    "<|im_end|>"
)


def experiments() -> dict[str, tuple[ConfigDict, dict[str, Any]]]:
    """Returns the published configs, on generated data, and the error rates of their experts."""
    household = alfworld.get_config().unlock()
    shop = webshop.get_config().unlock()
    questions = search.get_config().unlock()
    household.env.generate = ConfigDict({"splits": {"train": 64}})
    shop.env.generate = ConfigDict({})
    questions.env.options = ConfigDict()
    error_rate = {"random_fraction": 0.2}
    return {
        "alfworld": (household, error_rate),
        "webshop": (shop, error_rate),
        "search": (questions, {"vague_fraction": 0.5}),
    }


def encode_words(text: str) -> list[int]:
    """Encodes words and signs as numbers, after a chat template."""
    return [
        zlib.crc32(piece.encode()) & 0x7FFFFFFF
        for piece in re.findall(r"\w+|[^\w\s]", f"{TEMPLATE} {text}")
    ]


def play_prompts(
    config: ConfigDict,
    error_rate: dict[str, Any],
    groups: int,
    encode: Callable[[str], Sequence[int]],
) -> list[list[np.ndarray]]:
    """Plays one iteration; returns every episode's prompts, the members of a group in turn."""
    config = resolve(config)
    env: TextEnv = registry.make(config.env.name, **env_options(config))
    settings = episode_settings(config, temperature=0.0, stop_token_ids=())
    episodes: list[list[np.ndarray]] = []
    try:
        for task in tqdm(
            split_tasks(config, env)[:groups], config.env.name, leave=False, disable=None
        ):
            for _ in range(config.train.group_size):
                expert = registry.make_expert(
                    config.env.name, episode_seed(0, len(episodes)), **error_rate
                )
                write = registry.spec(config.env.name).write
                trajectory = demonstrate_episode(
                    env,
                    expert,
                    task,
                    settings,
                    encode=encode,
                    encode_response=encode,
                    write=write,
                )
                prompts = [np.asarray(encode(turn.prompt), np.int32) for turn in trajectory.turns]
                episodes.append(prompts)
    finally:
        env.close()
    return episodes


def count_bucket_tokens(episodes: list[list[np.ndarray]], max_prompt: int) -> int:
    """Counts tokens with padding to powers of two."""
    buckets = EngineSettings(slots=1, max_length=max_prompt).buckets
    total = 0
    for prompts in episodes:
        for prompt in prompts:
            total += next(size for size in buckets if size >= prompt.size)
    return total


def count_chunk_tokens(episodes: list[list[np.ndarray]], chunk: int, *, reuse: bool) -> int:
    """Counts tokens with padding to whole chunks."""
    prefixes = PrefixTable(len(episodes), 1, chunk)
    total = 0
    for step in range(max(map(len, episodes))):
        prefixes.begin_round()
        free_slots = list(range(len(episodes)))
        for episode in episodes:
            if step >= len(episode):
                continue
            if not reuse:
                prefixes.clear()
            prefill = prefixes.place_prefill(episode[step], free_slots)
            free_slots.remove(prefill.slot)
            total += -(-(episode[step].size - prefill.start) // chunk) * chunk
    return total


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--groups", type=int, default=16)
    parser.add_argument("--chunks", type=int, nargs="+", default=[32, 64, 128, 256])
    parser.add_argument("--tokenizer", type=Path)
    parser.add_argument("--output", type=Path, default=RESULT)
    args = parser.parse_args()
    encode = load_tokenizer(args.tokenizer).encode_chat if args.tokenizer else encode_words
    record: dict[str, Any] = {
        "groups": args.groups,
        "tokens": str(args.tokenizer or "words and signs"),
    }
    for name, (config, error_rate) in experiments().items():
        episodes = play_prompts(config, error_rate, args.groups, encode)
        sizes = [prompt.size for prompts in episodes for prompt in prompts]
        total = sum(sizes)
        row = {"prompts": len(sizes), "mean": total / len(sizes), "longest": max(sizes)}
        row["buckets"] = count_bucket_tokens(episodes, config.sampling.max_prompt_tokens) / total
        for chunk in args.chunks:
            row[f"chunks of {chunk}"] = count_chunk_tokens(episodes, chunk, reuse=False) / total
            row[f"chunks of {chunk}, shared ones once"] = (
                count_chunk_tokens(episodes, chunk, reuse=True) / total
            )
        record[name] = row
        print(name, {key: round(value, 3) for key, value in row.items()}, flush=True)
    args.output.parent.mkdir(parents=True, exist_ok=True)
    args.output.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
