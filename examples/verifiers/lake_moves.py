"""An environment of verifiers with generated data: two moves over frozen lakes.

    pip install -e ".[verifiers]"
    gigpo envs check verifiers:examples.verifiers.lake_moves

A message shows a lake of 4 x 4 cells with an agent on it, as in gigpo_jax.envs.frozenlake. The
answer is one move. Then a second lake follows. The rubric is the fraction of the two moves that are
the first of a shortest path to the goal.
"""

import random
import zlib
from typing import Any

import verifiers as vf
from datasets import Dataset

from gigpo_jax.env_bridge.prompts import PromptInput
from gigpo_jax.envs.frozenlake.lake import ACTIONS, Lake, draw_lake, find_letter, move

LETTERS = {"S": "_", "F": "_", "H": "O", "G": "G"}
SIZE = 4
PARSER = vf.XMLParser(["action"], answer_field="action")


def show_lake(lake: Lake, cell: int) -> str:
    """The lake in letters; P is the agent."""
    rows = [[LETTERS[letter] for letter in row] for row in lake]
    row, column = divmod(cell, SIZE)
    rows[row][column] = "P"
    return "\n".join(" ".join(letters) for letters in rows)


def list_best_moves(lake: Lake, cell: int) -> list[str]:
    """The first moves of all shortest paths to the goal; none if there is no path."""
    distances = {SIZE * SIZE - 1: 0}
    # From the goal outwards, a step further each time, until a cell beside this one is reached.
    for distance in range(1, SIZE * SIZE):
        neighbours = [move(lake, cell, number) for number in range(len(ACTIONS))]
        moves = [action for action, other in zip(ACTIONS, neighbours) if other in distances]
        if moves:
            return moves
        for other in range(SIZE * SIZE):
            steps = [move(lake, other, number) for number in range(len(ACTIONS))]
            is_near = any(distances.get(step) == distance - 1 for step in steps)
            if is_near and other not in distances and find_letter(lake, other) in "SF":
                distances[other] = distance
    return []


def draw_question(generator: random.Random, split: str) -> tuple[str, list[str]]:
    """Draws a lake with an agent on its ice; returns its letters and the best moves."""
    while True:
        lake = draw_lake(generator, SIZE)
        cell = generator.randrange(SIZE * SIZE)
        if lake is None or find_letter(lake, cell) not in "SF":
            continue
        text = show_lake(lake, cell)
        # So the splits share no lake: each belongs to one by its hash.
        if zlib.crc32(text.encode()) % 2 != (split == "train"):
            continue
        moves = list_best_moves(lake, cell)
        if moves:
            return text, moves


def make_dataset(split: str, rows: int) -> Dataset:
    """Draws the rows of a split."""
    generator = random.Random(f"lake moves {split}")
    records = []
    for _ in range(rows):
        first, first_moves = draw_question(generator, split)
        second, second_moves = draw_question(generator, split)
        info = {"second": second, "moves": [first_moves, second_moves]}
        records.append({"question": first, "info": info})
    return Dataset.from_list(records)


class LakeMoves(vf.MultiTurnEnv):
    """Two turns: the second message shows the second lake."""

    async def env_response(
        self, messages: vf.Messages, state: vf.State, **kwargs: Any
    ) -> vf.Messages:
        """The second lake."""
        return [vf.UserMessage(content=state["info"]["second"])]


def fraction_of_best_moves(completion: vf.Messages, info: dict) -> float:
    """The fraction of messages whose move is one of the best."""
    answers = [message for message in completion if message.role == "assistant"]
    moves = [PARSER.parse_answer([message]) for message in answers]
    return sum(move in best for move, best in zip(moves, info["moves"])) / len(info["moves"])


def load_environment(rows: int = 1024) -> vf.Environment:
    """The entry point of verifiers."""
    return LakeMoves(
        max_turns=2,
        dataset=make_dataset("train", rows),
        eval_dataset=make_dataset("test", 128),
        parser=PARSER,
        rubric=vf.Rubric([fraction_of_best_moves], parser=PARSER),
        pass_threshold=1.0,
    )


def show_newest_message(inputs: PromptInput, /) -> str:
    """Prompt of a tiny policy: the lake alone."""
    return " ".join((inputs.observation if inputs.steps else inputs.task).split())
