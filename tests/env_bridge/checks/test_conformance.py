"""Every registered environment keeps its promises; and an environment that breaks one is found out."""

import pathlib
from functools import partial
from typing import Any

import pytest

from gigpo_jax.env_bridge.checks.conformance import ConformanceError, check_environment
from gigpo_jax.envs import registry
from gigpo_jax.envs.__main__ import main
from gigpo_jax.envs.alfworld.data.generate import generate_games
from tests.env_bridge import misbehaving

DOCS = pathlib.Path(__file__).parents[3] / "docs" / "environments.md"


@pytest.fixture(scope="module")
def options(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """What the builders need where their defaults do not serve a test."""
    games = tmp_path_factory.mktemp("games")
    generate_games(games, "train", 6, size="small")
    return {"alfworld": {"data": str(games)}}


@pytest.mark.parametrize("name", sorted(registry.ENVIRONMENTS))
def test_registered_environments_conform(name: str, options: dict[str, dict[str, Any]]) -> None:
    entry = registry.ENVIRONMENTS[name]
    held = check_environment(
        partial(registry.make, name, **options.get(name, {})),
        split="train",
        make_expert=partial(registry.make_expert, name) if entry.expert else None,
        steps=entry.max_steps,
    )
    assert len(held) == 7


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        ("ShuffledTasks", "are others the second time"),
        ("RepeatedIds", "is there more than once"),
        ("NoTasks", "is empty"),
        ("RaisesOnBadActions", "raised UnicodeEncodeError"),
        ("RememberingTreasure", "instead of"),
        ("SharedDrawers", "when others are played at the same time"),
        ("HashedAnchors", "in a fresh interpreter with PYTHONHASHSEED="),
        ("SetOrder", "in a fresh interpreter with PYTHONHASHSEED="),
        ("CountsEpisodes", "text is 'Episode"),
        ("NoScore", 'info["score"] has to be there'),
        ("LostWithFullScore", 'info["won"] is False with info["score"] 1.0'),
        ("ListOfActions", "admissible is a list, not a tuple"),
        ("EndlessReward", "reward inf is no number"),
        ("ChangingTask", "the task's words change"),
        ("LeavesThreads", "more threads than before"),
        ("LeavesFiles", "more open files than before"),
        ("ImportsJax", "imports jax"),
        ("Slow", "more than 0.1 s"),
        ("Exits", "step('..') raised SystemExit: 0"),
        ("EndsItsProcess", "step('..') ended its process, with status 0"),
        ("Hangs", "step('None') gave no answer within 0.5 s"),
        ("HangsInC", "gave no answer within 0.5 s"),
        ("HangsAtFirst", "make gave no answer within 0.5 s"),
        ("StartsOneProcess", "after every close there are 1 more processes than before the first make"),
        ("TasksRaise", "tasks(\"train\") raised KeyError: 'train'"),
        ("CannotBeBuilt", "make raised ValueError: no drawers at all"),
        ("NoInfo", "info is a NoneType, not a mapping"),
        ("HoldsFunction", "pickling the result raised"),
        ("ClosesOnce", "close, the second time, raised RuntimeError: closed already"),
    ],
)
def test_a_broken_promise_is_found(broken: str, message: str) -> None:
    limits = {"Slow": {"limit_s": 0.1}, "Hangs": {"limit_s": 0.5}, "HangsInC": {"limit_s": 0.5}}
    limits["HangsAtFirst"] = {"build_s": 0.5}
    with pytest.raises(ConformanceError) as caught:
        check_environment(
            getattr(misbehaving, broken), split="train", tasks=2, steps=10, **limits.get(broken, {"limit_s": 10.0})
        )
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_expert_that_raises_is_found() -> None:
    with pytest.raises(ConformanceError, match="the expert's act before step 1 raised KeyError: 'north'"):
        check_environment(
            partial(registry.make, "example"), split="train", tasks=1, steps=2, make_expert=misbehaving.LostExpert
        )


def test_the_command_reports_and_exits(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "example", "--option", "drawers=2", "--tasks", "2"]) == 0
    assert capsys.readouterr().out.count("holds: ") == 7
    assert main(["check", "tests.env_bridge.failing:FAILING", "--tasks", "1"]) == 0
    assert main(["check", "example", "--option", "drawers=0"]) == 2
    assert "env.options.drawers=0" in capsys.readouterr().err
    assert main(["check", "example", "--split", "valid"]) == 2
    capsys.readouterr()
    assert main(["check", "example", "--tasks", "0"]) == 2
    assert capsys.readouterr().err == "--tasks 0 --limit 10: give at least one task and some time\n"
    with pytest.raises(SystemExit) as told:
        main(["check", "example", "--option", "drawers"])
    assert told.value.code == 2
    assert "'drawers' is not of the form KEY=VALUE" in capsys.readouterr().err


def test_the_guide_shows_the_example_as_it_is() -> None:
    """docs/environments.md has the whole file, so what it shows is what all these tests ran."""
    source = pathlib.Path(registry.__file__).with_name("example") / "env.py"
    text = DOCS.read_text()
    assert f"```python\n{source.read_text()}```" in text
    assert len(source.read_text().splitlines()) < 100
    for command in ("python -m gigpo_jax.envs check example", "env.name"):
        assert command in text


def test_what_cannot_be_pickled_is_told() -> None:
    with pytest.raises(ConformanceError, match="make has to be picklable"):
        check_environment(lambda: registry.make("example"), split="train", tasks=1, steps=2)
