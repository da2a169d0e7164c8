"""The server files.py for a tiny policy: calls in few words, an expert, a scorer.

A policy that reads instructions needs none of this: `env.name="mcp:python examples/mcp/files.py"`.
A tiny one, trained from scratch, writes `read lake apollo memo` in place of JSON.
"""

import dataclasses
import json
import random
import re
import sys
from collections.abc import Callable
from pathlib import Path

from gigpo_jax.core.optional import optional_imports
from gigpo_jax.env_bridge.actions import Response, parse_tagged
from gigpo_jax.env_bridge.option_checks import check_fractions
from gigpo_jax.env_bridge.prompts import PromptInput
from gigpo_jax.env_bridge.types import Observation
from gigpo_jax.envs.games import RANDOM_FRACTION_OPTION
from gigpo_jax.envs.mcp.entry import mcp_entry
from gigpo_jax.envs.mcp.env import START

with optional_imports("mcp", key="config.env.name"):
    from examples.mcp.files import FILES

_TASK = re.compile(r"who owns the file with (\w+) in ([\w ]+)\?")
_ARGUMENTS = {"find": "word", "read": "file"}  # by the verb, beside the project


def read_words(response: str) -> Response:
    """Reads `find PROJECT WORD`, `read PROJECT FILE` or `answer OWNER` as the JSON of a call."""
    reading = parse_tagged(response)
    verb, *words = reading.action.split() or [""]
    content: dict[str, object] = {}
    if verb in _ARGUMENTS:
        arguments = {"project": " ".join(words[:-1]), _ARGUMENTS[verb]: "".join(words[-1:])}
        content = {"tool": f"{verb}_file", "arguments": arguments}
    elif verb == "answer":
        content = {"answer": " ".join(words)}
    action = json.dumps(content) if content else reading.action
    return dataclasses.replace(reading, action=action)


def write_words(action: str) -> str:
    """A response that `read_words` reads as this action."""
    content = json.loads(action)
    if "answer" in content:
        words = ["answer", content["answer"]]
    else:
        words = [content["tool"].partition("_")[0], *content["arguments"].values()]
    return f"<think></think><action>{' '.join(words)}</action>"


def show_words(inputs: PromptInput, /) -> str:
    """Prompt of a tiny policy: the last word of the result, then word and project of the question.

    The words to copy have small and fixed distances from the response, which is easier to learn.
    """
    results = [] if inputs.observation == START else inputs.observation.split()[-1:]
    match = _TASK.search(inputs.task)
    return " ".join([*results, *(match.groups() if match else ())])


def score_owner(row: dict[str, str], answer: str, call_tool: Callable[..., str]) -> float:
    """1 if the server says that a file has the word and is of this owner."""
    project = row["project"]
    file = call_tool("find_file", project=project, word=row["word"])
    text = call_tool("read_file", project=project, file=file)
    return float(text.endswith(f" has {row['word']} of {answer}"))


class FileExpert:
    """Finds the file, reads it and answers, or reads any file."""

    def __init__(self, seed: int, *, random_fraction: float = 0.0) -> None:
        """Checks the fraction, the probability that a step reads any file."""
        check_fractions(random_fraction=random_fraction)
        self._random = random.Random(f"file expert {seed}")
        self._random_fraction = random_fraction

    def act(self, observation: Observation) -> str:
        match = _TASK.search(observation.task)
        assert match is not None
        word, project = match.groups()
        words = observation.text.split()
        if self._random.random() < self._random_fraction:
            return _call("read", project, self._random.choice(FILES))
        if words[1:3] == ["has", word]:
            return json.dumps({"answer": words[-1]})
        if words[0] in FILES and len(words) == 1:
            return _call("read", project, words[0])
        return _call("find", project, word)


def _call(verb: str, project: str, argument: str) -> str:
    arguments = {"project": project, _ARGUMENTS[verb]: argument}
    return json.dumps({"tool": f"{verb}_file", "arguments": arguments})


FILES_ENTRY = dataclasses.replace(
    mcp_entry(f"{sys.executable} {Path(__file__).with_name('files.py')}"),
    parse=read_words,
    write=write_words,
    styles={"compact": show_words},
    expert="examples.mcp.entry:FileExpert",
    expert_options={"random_fraction": RANDOM_FRACTION_OPTION},
)
