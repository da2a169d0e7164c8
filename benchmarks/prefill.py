"""Tokens that a prefill computes: whole prompts in buckets, and chunks with and without those that slots hold already.

    python benchmarks/prefill.py [--groups 16] [--chunks 32 64 128 256] [--tokenizer FOLDER] [--output FILE]

The prompts are those of the published configs on generated data: an erring expert plays groups of 8 episodes (search:
5), all episodes of an iteration step by step, as many slots as episodes. Without `--tokenizer`, a folder with a
tokenizer.json, a word or a sign counts as one token. Nothing is computed but what a prefill would be given:
`sampling.prefixes.Prefixes`, which the engine uses, plans the chunks.
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
from gigpo_jax.env_bridge.base import TextEnv
from gigpo_jax.envs import registry
from gigpo_jax.models.tokenizer import load_tokenizer
from gigpo_jax.rollout.demonstrations import demonstrate, episode_seed
from gigpo_jax.rollout.environment import env_options, episode_settings, split_tasks
from gigpo_jax.sampling.prefixes import Prefixes
from gigpo_jax.sampling.programs import EngineSettings

RESULT = Path(__file__).parent / "results" / "prefill.json"
TEMPLATE = "<|im_start|> system You are Qwen , created by Alibaba Cloud . You are a helpful assistant . <|im_end|>"


def experiments() -> dict[str, tuple[ConfigDict, dict[str, Any]]]:
    """The published configs, on generated data, and how often their experts err."""
    household, shop, questions = (made.get_config().unlock() for made in (alfworld, webshop, search))
    household.env.generate = ConfigDict({"splits": {"train": 64}})
    shop.env.generate = ConfigDict({})
    questions.env.options = ConfigDict()
    errs = {"random_fraction": 0.2}
    return {"alfworld": (household, errs), "webshop": (shop, errs), "search": (questions, {"vague_fraction": 0.5})}


def words(text: str) -> list[int]:
    """Words and signs as numbers, after a chat template."""
    return [zlib.crc32(piece.encode()) & 0x7FFFFFFF for piece in re.findall(r"\w+|[^\w\s]", f"{TEMPLATE} {text}")]


def prompts(
    config: ConfigDict, errs: dict[str, Any], groups: int, encode: Callable[[str], Sequence[int]]
) -> list[list[np.ndarray]]:
    """The prompts of every episode of one iteration, members of a group one after the other."""
    config = resolve(config)
    env: TextEnv = registry.make(config.env.name, **env_options(config))
    settings = episode_settings(config, temperature=0.0, stop_token_ids=())
    played: list[list[np.ndarray]] = []
    try:
        for task in tqdm(split_tasks(config, env)[:groups], config.env.name, leave=False, disable=None):
            for _ in range(config.train.group_size):
                expert = registry.make_expert(config.env.name, episode_seed(0, len(played)), **errs)
                write = registry.spec(config.env.name).write
                shown = demonstrate(env, expert, task, settings, encode=encode, write=write)
                played.append([np.asarray(encode(turn.prompt), np.int32) for turn in shown.turns])
    finally:
        env.close()
    return played


def in_buckets(played: list[list[np.ndarray]], longest: int) -> int:
    """Tokens with padding to powers of two."""
    buckets = EngineSettings(slots=1, max_length=longest).buckets
    return sum(next(size for size in buckets if size >= prompt.size) for episode in played for prompt in episode)


def in_chunks(played: list[list[np.ndarray]], chunk: int, *, reuse: bool) -> int:
    """Tokens with padding to whole chunks."""
    prefixes, total = Prefixes(len(played), 1, chunk), 0
    for step in range(max(map(len, played))):
        prefixes.begin()
        free = list(range(len(played)))
        for episode in played:
            if step >= len(episode):
                continue
            if not reuse:
                prefixes.clear()
            reading = prefixes.place(episode[step], free)
            free.remove(reading.slot)
            total += -(-(episode[step].size - reading.start) // chunk) * chunk
    return total


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--groups", type=int, default=16)
    parser.add_argument("--chunks", type=int, nargs="+", default=[32, 64, 128, 256])
    parser.add_argument("--tokenizer", type=Path)
    parser.add_argument("--output", type=Path, default=RESULT)
    args = parser.parse_args()
    encode = load_tokenizer(args.tokenizer).encode_chat if args.tokenizer else words
    record: dict[str, Any] = {"groups": args.groups, "tokens": str(args.tokenizer or "words and signs")}
    for name, (config, errs) in experiments().items():
        played = prompts(config, errs, args.groups, encode)
        sizes = [prompt.size for episode in played for prompt in episode]
        total = sum(sizes)
        row = {"prompts": len(sizes), "mean": total / len(sizes), "longest": max(sizes)}
        row["buckets"] = in_buckets(played, config.sampling.max_prompt_tokens) / total
        for chunk in args.chunks:
            row[f"chunks of {chunk}"] = in_chunks(played, chunk, reuse=False) / total
            row[f"chunks of {chunk}, shared ones once"] = in_chunks(played, chunk, reuse=True) / total
        record[name] = row
        print(name, {key: round(value, 3) for key, value in row.items()}, flush=True)
    args.output.parent.mkdir(parents=True, exist_ok=True)
    args.output.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
