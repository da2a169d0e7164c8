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

from examples.mcp.files import FILES, OWNERS
from gigpo_jax.env_bridge.actions import Response, parse_tagged
from gigpo_jax.env_bridge.base import check_fractions
from gigpo_jax.env_bridge.prompts import PromptInput
from gigpo_jax.env_bridge.types import Observation
from gigpo_jax.envs.games import RANDOM_FRACTION_OPTION
from gigpo_jax.envs.incoming.entry import mcp_entry
from gigpo_jax.envs.incoming.mcp import START

_TASK = re.compile(r"who owns the file with (\w+) in ([\w ]+)\?")
_LONGEST_RESULT = 8  # words of a result in the prompt


def read_words(response: str) -> Response:
    """Reads `list PROJECT`, `read PROJECT FILE` or `answer OWNER` as the JSON of a call."""
    reading = parse_tagged(response)
    verb, *words = reading.action.split() or [""]
    content: dict[str, object] = {}
    if verb == "list":
        content = {"tool": "list_files", "arguments": {"project": " ".join(words)}}
    elif verb == "read":
        project = " ".join(words[:-1])
        arguments = {"project": project, "file": "".join(words[-1:])}
        content = {"tool": "read_file", "arguments": arguments}
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


def show_results(inputs: PromptInput, /) -> str:
    """Prompt of a tiny policy: all results, then the question.

    The words to copy have a fixed distance from the response, which is easier to learn.
    """
    words = []
    for text in (*(event.observation for event in inputs.history), inputs.observation):
        if text != START:
            words += ["now", *text.split()[:_LONGEST_RESULT]]
    return " ".join([*words, *inputs.task.partition("\n")[0].split()])


def score_owner(row: dict[str, str], answer: str, call_tool: Callable[..., str]) -> float:
    """1 if the server says that a file has the word and is of this owner."""
    project = row["project"]
    files = call_tool("list_files", project=project).split()
    texts = [call_tool("read_file", project=project, file=file) for file in files]
    return float(any(text.endswith(f" has {row['word']} of {answer}") for text in texts))


class FileExpert:
    """Lists the files and reads one after the other until it knows the answer, or errs."""

    def __init__(self, seed: int, *, random_fraction: float = 0.0) -> None:
        """Checks the fraction, the probability of a random action at a step."""
        check_fractions(random_fraction=random_fraction)
        self._random = random.Random(f"file expert {seed}")
        self._random_fraction = random_fraction
        self._files: list[str] = []  # of the project, not read yet
        self._answer = ""

    def act(self, observation: Observation) -> str:
        match = _TASK.search(observation.task)
        assert match is not None
        word, project = match.groups()
        words = observation.text.split()
        if set(words) <= set(FILES):
            self._files = words
        elif words[0] in self._files:
            self._files.remove(words[0])
        if words[1:3] == ["has", word]:
            self._answer = words[-1]
        if self._random.random() < self._random_fraction:
            return self._draw_action(project)
        if self._answer:
            return json.dumps({"answer": self._answer})
        if not self._files:
            return json.dumps({"tool": "list_files", "arguments": {"project": project}})
        return _read(project, self._files[0])

    def _draw_action(self, project: str) -> str:
        """Reads any file, or answers any owner."""
        if self._random.random() < 0.3:
            return json.dumps({"answer": self._random.choice(OWNERS)})
        return _read(project, self._random.choice(FILES))


def _read(project: str, file: str) -> str:
    return json.dumps({"tool": "read_file", "arguments": {"project": project, "file": file}})


FILES_ENTRY = dataclasses.replace(
    mcp_entry(f"{sys.executable} {Path(__file__).with_name('files.py')}"),
    parse=read_words,
    write=write_words,
    styles={"compact": show_results},
    expert="examples.mcp.entry:FileExpert",
    expert_options={"random_fraction": RANDOM_FRACTION_OPTION},
)
