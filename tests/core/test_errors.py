"""The one place that words an error, and its renamed keys."""

import ast
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

import gigpo_jax
from gigpo_jax.core.errors import InputError, escape_controls
from gigpo_jax.core.spelling import nearest_names


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (InputError("no network"), "no network"),
        (InputError("no network", fix="try again"), "no network; try again"),
        (InputError("missing", key="--config"), "--config: missing"),
        (InputError("unknown", key="env.name", value="'x'"), "env.name='x': unknown"),
        (InputError("unknown", key="name", value="3", fix="use 4"), "name=3: unknown; use 4"),
    ],
)
def test_the_message_has_the_fields_that_are_there(error: InputError, message: str) -> None:
    assert str(error) == message
    assert str(pickle.loads(pickle.dumps(error))) == message


def test_a_renamed_key_leaves_the_other_words_alone() -> None:
    error = InputError("size is too small", key="size", value="1", fix="use a size of 2")
    assert str(error.with_key("--size")) == "--size=1: size is too small; use a size of 2"
    assert error.key == "size"


def test_nearest_names_are_spelt_alike_or_have_the_last_component() -> None:
    names = ["train.groups", "train.group_size", "optim.lr"]
    assert nearest_names("train.group", names) == ["train.groups", "train.group_size"]
    assert nearest_names("a_long_section.lr", names) == ["optim.lr"]
    assert nearest_names("", names) == []


def test_control_characters_are_escaped_and_lines_stay() -> None:
    assert escape_controls("a\x1b[31m\nb\r") == "a\\x1b[31m\nb\\r"


def test_a_config_of_the_examples_says_where_it_runs(tmp_path: Path) -> None:
    (tmp_path / "gigpo_jax").symlink_to(Path(gigpo_jax.__file__).parent)
    reference = "load_reference('examples.mcp.entry:FILES_ENTRY', key='config.env.name')"
    program = f"from gigpo_jax.core.references import load_reference; {reference}"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert "(No module named 'examples'); run the command in a clone" in done.stderr


def test_no_reason_is_a_fix() -> None:
    fixes = []
    for path in sorted(Path(gigpo_jax.__file__).parent.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "InputError" and node.args:
                reason = ast.unparse(node.args[0]).lstrip("f'\"")
                if reason.partition(" ")[0] in ("choose", "give", "name", "run", "say", "use"):
                    fixes.append(f"{path.name}:{node.lineno}: {reason}")
    assert fixes == []
