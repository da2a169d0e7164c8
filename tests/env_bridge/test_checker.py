"""Every registered environment keeps its promises; a broken promise is found."""

import pathlib
from functools import partial
from typing import Any

import pytest

from gigpo_jax.env_bridge.checker import EnvCheckError, check_environment
from gigpo_jax.envs import registry
from gigpo_jax.envs.alfworld.data.one_split import generate_games
from gigpo_jax.envs.command_line import main
from tests.env_bridge import misbehaving
from tests.envs.shell.sandboxes import skip_without_sandbox

MISBEHAVING = "tests.env_bridge.misbehaving:"
DOCS = pathlib.Path(__file__).parents[2] / "docs" / "environments.md"


@pytest.fixture(scope="module")
def options(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """Options of builders whose defaults do not suit a test."""
    games = tmp_path_factory.mktemp("games")
    generate_games(games, "train", 6, size="small")
    return {"alfworld": {"data": str(games)}}


# Games of cards share their base.
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.slow if name in ("points24", "ezpoints") else ())
        for name in sorted(registry.ENVIRONMENTS)
    ],
)
def test_registered_environments_conform(name: str, options: dict[str, dict[str, Any]]) -> None:
    if name == "shell":
        skip_without_sandbox()
    entry = registry.ENVIRONMENTS[name]
    held = check_environment(
        entry.build,
        options.get(name),
        split="train",
        make_expert=partial(registry.make_expert, name) if entry.expert else None,
        steps=entry.max_steps,
    )
    assert len(held) == 6


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        ("ShuffledTasks", "differ in another process"),
        ("RepeatedIds", "is there more than once"),
        ("NoTasks", "is empty"),
        ("RaisesOnBadActions", "): UnicodeEncodeError: 'ascii' codec can't encode"),
        ("RememberingTreasure", "instead of"),
        ("SharedDrawers", "when others are played at the same time"),
        ("HashedAnchors", "in another process with another PYTHONHASHSEED"),
        ("SetOrder", "in another process with another PYTHONHASHSEED"),
        ("OtherPictures", "image 0 differs in another process"),
        (
            "LosesPictures",
            "reset: 0 images instead of 1 when it is played again in the same object",
        ),
        ("CountsEpisodes", "text is 'Episode"),
        ("NoScore", 'malformed result: info["score"] is None'),
        ("LostWithFullScore", 'info["won"] is False with info["score"] 1.0'),
        ("ChangingTask", "the task's words change"),
        ("EmptyAnchor", "the anchor state is empty"),
        ("RepeatedActions", "an admissible action is listed twice"),
        ("LeavesFiles", "more episodes the process has more open files"),
        ("ImportsJax", "imports jax"),
        ("Slow", "gave no answer within 0.1 s (step)"),
        ("Exits", "step('..'): SystemExit: 0"),
        ("EndsItsProcess", "died with status 0 (step)"),
        ("Hangs", "gave no answer within 0.5 s (step)"),
        pytest.param("HangsInC", "gave no answer within 0.5 s (step)", marks=pytest.mark.slow),
        ("TasksRaise", "KeyError: 'train' (misbehaving.py:"),
        ("CannotBeBuilt", "ValueError: no drawers at all"),
    ],
)
def test_a_broken_promise_is_found(broken: str, message: str) -> None:
    limit_s = {"Slow": 0.1, "Hangs": 0.5, "HangsInC": 0.5}.get(broken, 10.0)
    with pytest.raises(EnvCheckError) as caught:
        check_environment(MISBEHAVING + broken, split="train", tasks=2, steps=10, limit_s=limit_s)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_expert_that_raises_is_found() -> None:
    example = registry.spec("example").build
    with pytest.raises(EnvCheckError, match="the expert raised KeyError: 'north'"):
        check_environment(
            example, split="train", tasks=1, steps=2, make_expert=misbehaving.LostExpert
        )


def test_the_command_reports_and_exits(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "example", "--option", "drawers=2", "--tasks", "2"]) == 0
    assert capsys.readouterr().out.count("holds: ") == 6
    assert main(["check", "tests.env_bridge.failing:FAILING", "--tasks", "1"]) == 0
    assert main(["check", "example", "--option", "drawers=0"]) == 2
    assert capsys.readouterr().err.startswith("--option drawers=0: ")
    assert main(["check", "alfworld", "--option", "dta=X"]) == 2
    error_text = capsys.readouterr().err
    assert error_text.startswith("--option: ")
    assert "nearest: data" in error_text
    assert main(["check", "example", "--split", "valid"]) == 2
    assert capsys.readouterr().err.startswith("--split='valid': ")
    assert main(["check", "example", "--tasks", "0"]) == 2
    assert capsys.readouterr().err == "--tasks=0: must be at least 1\n"
    with pytest.raises(SystemExit) as caught:
        main(["check", "example", "--option", "drawers"])
    assert caught.value.code == 2
    errors = capsys.readouterr().err
    assert errors.startswith("usage: gigpo envs check ")
    assert "'drawers' is not of the form KEY=VALUE" in errors


def test_the_guide_shows_the_example_as_it_is() -> None:
    """docs/environments.md has all methods of the environment, so it shows what these tests ran."""
    source = (pathlib.Path(registry.__file__).with_name("example") / "env.py").read_text()
    methods = source[source.index("    def tasks(") : source.index("\n\nclass TreasureExpert")]
    text = DOCS.read_text()
    assert f"```python\nclass TreasureEnv:\n{methods}```" in text
    assert len(source.splitlines()) <= 127
    for command in ("gigpo envs check example", "env.name"):
        assert command in text
