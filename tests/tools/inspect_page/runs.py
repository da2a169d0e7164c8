"""Workdirs as a run leaves them, with saved rollouts of a size and with texts that a test
chooses.
"""

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from gigpo_jax.config import default_config
from gigpo_jax.rollout.record import Rollouts, SavedEpisode, SavedStep, write_rollouts


def step(
    number: int,
    text: str,
    *,
    group: int,
    episode: float,
    local: float,
    pictures: tuple[bytes, ...] = (),
) -> SavedStep:
    """A step whose texts all hold `text`."""
    return SavedStep(
        prompt=f"prompt {number}: {text}",
        response=f"<think></think><action>{text}</action>",
        action=f"go {number} {text}",
        valid=True,
        admissible=True,
        observation=f"you see {text}",
        anchor=f"you see {text}",
        reward=0.0,
        penalty=0.0,
        finish_reason="stop",
        version=0,
        prompt_length=9,
        tokens=(0, 1),
        logprobs=(-0.1, -2.0),
        entropy=(0.5, 0.0),
        returns=local,
        episode_advantage=episode,
        step_advantage=local,
        advantage=episode + local,
        anchor_group=group,
        anchor_group_size=2,
        pictures=pictures,
    )


def write_run(
    folder: Path,
    *,
    text: str = "a key",
    tasks: int = 2,
    members: int = 2,
    steps: int = 3,
    pictures: Sequence[tuple[bytes, ...]] = (),
) -> Path:
    """A run with one file of saved rollouts and two evaluations; member 0 of each task wins.

    `pictures` are each step's, the same in all episodes.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(default_config().to_dict()))
    metrics = [
        {"step": i, "episode/success_rate": i / 4, "policy/entropy": 1.0 - i / 8} for i in range(4)
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in metrics))
    episodes = [
        SavedEpisode(
            task=f"task {task} {text}",
            type=f"type {task % 2}",
            split="train",
            data="",
            group=task,
            member=member,
            won=member == 0,
            score=float(member == 0),
            aborted=False,
            reason="",
            steps=tuple(
                step(
                    i,
                    text,
                    group=task * steps + i,
                    episode=1.0 - 2 * member,
                    local=0.5 - i * (1 - 2 * member),
                    pictures=pictures[i] if pictures else (),
                )
                for i in range(steps)
            ),
        )
        for task in range(tasks)
        for member in range(members)
    ]
    saved = Rollouts(
        iteration=2, temperature=1.0, episodes=tuple(episodes), pieces={0: "go ", 1: text}
    )
    write_rollouts(folder / "rollouts" / "iteration_000003.host0.jsonl.gz", saved)
    (folder / "evaluations").mkdir(exist_ok=True)
    for iteration, wins in ((0, 1), (3, 3)):
        evaluation = {
            "iteration": iteration,
            "panel": "tiny",
            "sha256": "ab",
            "tasks": ["t0", "t1", "t2", "t3"],
            "types": ["look", "look", "pick", text],
            "results": {"sampled": {"won": [i < wins for i in range(3)] + [None]}},
        }
        (folder / "evaluations" / f"iteration_{iteration:06d}.json").write_text(
            json.dumps(evaluation)
        )
    return folder


def long_prompts(folder: Path, episodes: int, steps: int, words: int, seed: int = 0) -> Path:
    """A run with prompts of so many random words, none like another."""
    rng = np.random.default_rng(seed)
    vocabulary = np.array(["".join(rng.choice(list("abcdefghij"), 6)) for _ in range(3000)])
    write_run(folder, tasks=1)
    saved = [
        SavedEpisode(
            task=f"t{e // 8}",
            type="",
            split="train",
            data="",
            group=e // 8,
            member=e % 8,
            won=False,
            score=0.0,
            aborted=False,
            reason="",
            steps=tuple(
                step(
                    i,
                    " ".join(rng.choice(vocabulary, words)),
                    group=e * steps + i,
                    episode=0.1,
                    local=-0.1,
                )
                for i in range(steps)
            ),
        )
        for e in range(episodes)
    ]
    path = folder / "rollouts" / "iteration_000003.host0.jsonl.gz"
    write_rollouts(path, Rollouts(2, 1.0, tuple(saved), {0: "go ", 1: "on"}))
    return folder
