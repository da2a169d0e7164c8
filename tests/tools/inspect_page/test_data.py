"""Which episodes a page has, and how they are told apart."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gigpo_jax.rollout.read_record import read_rollouts
from gigpo_jax.rollout.record import write_rollouts
from gigpo_jax.tools.inspect import data
from gigpo_jax.tools.inspect.command import main
from gigpo_jax.tools.inspect.data import collect_run
from tests.tools.inspect_page.runs import write_run
from tests.tools.inspect_page.test_page import unpacked


def write_newer(run: Path, **first: Any) -> None:
    """Writes rollouts of iteration 9, in whose first episode some fields are others."""
    folder = run / "rollouts"
    saved = read_rollouts(folder / "iteration_000003.host0.jsonl.gz")
    episodes = (replace(saved.episodes[0], **first), *saved.episodes[1:])
    newer = replace(saved, iteration=9, episodes=episodes)
    write_rollouts(folder / "iteration_000010.host0.jsonl.gz", newer)


def test_the_newest_episodes_come_first_and_older_ones_while_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    run = write_run(tmp_path / "run")
    write_newer(run)
    for most, iterations in ((8, [9, 9, 2, 2]), (7, [9, 9]), (1, [9, 9])):
        monkeypatch.setattr(data, "MAX_EPISODES", most)
        page, _ = collect_run(run, "a", {})
        assert [group["iteration"] for group in page["groups"]] == iterations
    assert main([str(run), "--text=1"]) == 0
    assert "iteration_000010.host0.jsonl.gz: 1 of 4 episodes" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("fields", "won", "described"),
    [
        ({"replaced": True}, [False], []),
        ({"aborted": True, "won": False}, [None, False], [(0, False)]),
        ({"past": ("go", "up"), "source": "forks"}, [True, False], [(2, True)]),
        ({"past": ("go",), "source": "expert_starts"}, [True, False], [(1, False)]),
    ],
)
def test_episodes_that_were_replaced_aborted_or_forked_are_told_apart(
    tmp_path: Path, fields: dict[str, Any], won: list[bool | None], described: list[Any]
):
    run = write_run(tmp_path / "run")
    write_newer(run, **fields)
    page, packed = collect_run(run, "a", {})
    assert page["groups"][0]["won"] == won
    episodes = unpacked(packed["a0"])["episodes"]
    assert [(e["replayed"], e["forked"]) for e in episodes] == [*described, (0, False)]
