"""The example of an MCP server that a tiny policy learns to use: examples/mcp/files.py."""

import contextlib
import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from gigpo_jax.core.errors import InputError
from gigpo_jax.core.installation import install_command
from gigpo_jax.core.references import load_reference
from gigpo_jax.envs import panels, registry

pytest.importorskip("mcp")

from examples.mcp.entry import read_words, show_words, write_words
from examples.mcp.files import draw_tasks
from gigpo_jax.env_bridge.prompts import PromptInput

ROOT = Path(__file__).parents[3]
NAME = "examples.mcp.entry:FILES_ENTRY"
OPTIONS: dict[str, Any] = {
    "tasks": str(ROOT / "examples/mcp/files.jsonl"),
    "scorer": "examples.mcp.entry:score_owner",
    "restart": False,
}


@pytest.mark.parametrize("name", [NAME, OPTIONS["scorer"]])
def test_without_the_package_the_error_names_the_installation(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("examples.mcp.entry", "examples.mcp.files"):
        monkeypatch.delitem(sys.modules, module)
    for module in ("mcp", "mcp.server", "mcp.server.mcpserver"):
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(InputError, match="needs the package mcp") as caught:
        load_reference(name, key="config.env.name")
    assert str(caught.value).endswith(install_command("mcp"))


def test_the_task_file_is_what_the_server_draws_and_splits_share_no_project() -> None:
    lines = Path(OPTIONS["tasks"]).read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    assert rows == draw_tasks()
    projects = {
        split: {r["project"] for r in rows if r["split"] == split} for split in ("train", "test")
    }
    assert (len(projects["train"]), len(projects["test"])) == (112, 32)
    assert projects["train"].isdisjoint(projects["test"])
    path = str(ROOT / "examples/mcp/files_panel.json")
    assert len(panels.check_tasks(NAME, path, options=OPTIONS)) == 128


def test_the_expert_wins_in_words_and_errs_with_random_actions() -> None:
    with contextlib.closing(registry.make(NAME, **OPTIONS)) as env:
        won = {0.0: 0, 1.0: 0}
        for fraction in won:
            for number, task in enumerate(env.tasks("test")[:12]):
                expert = registry.make_expert(NAME, number, random_fraction=fraction)
                observation = env.reset(task)
                for _ in range(8):
                    action = expert.act(observation)
                    response = write_words(action)
                    assert read_words(response).action == action
                    result = env.step(read_words(response).action)
                    observation = result.observation
                    if result.done:
                        break
                won[fraction] += result.info["won"]
    assert won[0.0] == 12
    assert won[1.0] < 6


def test_an_answer_counts_if_the_server_confirms_it() -> None:
    with contextlib.closing(registry.make(NAME, **OPTIONS)) as env:
        task = env.tasks("test")[0]
        for answer in ("", "emma", "has", "nobody"):
            env.reset(task)
            result = env.step(read_words(f"<action>answer {answer}</action>").action)
            assert (result.done, result.reward) == (True, 0.0)


@pytest.mark.parametrize(
    ("words", "action"),
    [
        ("find a b red", '{"tool": "find_file", "arguments": {"project": "a b", "word": "red"}}'),
        ("read a b memo", '{"tool": "read_file", "arguments": {"project": "a b", "file": "memo"}}'),
        ("read", '{"tool": "read_file", "arguments": {"project": "", "file": ""}}'),
        ("answer anna", '{"answer": "anna"}'),
        ("dance", "dance"),
        ("", ""),
    ],
)
def test_words_are_calls(words: str, action: str) -> None:
    assert read_words(f"<think></think><action>{words}</action>").action == action


def test_the_prompt_has_the_end_of_the_result_and_of_the_question() -> None:
    question = "who owns the file with red in lake comet?\nTools:\n- x"
    inputs = PromptInput(question, "", (), 1, "memo has red of anna", None)
    assert show_words(inputs) == "anna red lake comet"
    start = dataclasses.replace(inputs, observation="You have not called a tool yet.")
    assert show_words(start) == "red lake comet"
    assert show_words(PromptInput("", "", (), 1, "", None)) == ""
