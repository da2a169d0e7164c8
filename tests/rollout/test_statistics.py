"""Numbers of a rollout, against ones worked out by hand."""

from dataclasses import replace

import numpy as np
import pytest

from gigpo_jax.env_bridge.types import Task, anchor_hash
from gigpo_jax.rollout.statistics import ambiguous_anchors, rollout_metrics
from gigpo_jax.trajectory import Trajectory, Turn, finished_steps
from tests.turns import make_turn


def turn(
    response: int,
    reward: float = 0.0,
    *,
    valid: bool = True,
    admissible: bool | None = True,
    end: str = "stop",
) -> Turn:
    return make_turn(
        prompt_tokens=np.zeros(10, np.int32),
        response_tokens=np.zeros(response, np.int32),
        logprobs=np.zeros(response, np.float32),
        action="look",
        valid=valid,
        admissible=admissible,
        reward=reward,
        finish_reason=end,
    )


def episode(kind: str, turns: list[Turn], won: bool, aborted: bool = False) -> Trajectory:
    return Trajectory(Task("t", kind, "train"), 0, 0, turns, won, float(won), aborted)


def metrics_of(trajectories: list[Trajectory], task_types=()) -> dict[str, float]:
    return rollout_metrics(trajectories, task_types)


def test_means_over_episodes_and_steps_without_the_aborted():
    metrics = metrics_of(
        [
            episode("heat", [turn(4), turn(6, 10.0)], True),
            episode("heat", [turn(8, valid=False, admissible=False, end="length")], False),
            episode("cool", [turn(2, admissible=None)], False),
            episode("cool", [turn(100, 10.0)], True, aborted=True),
        ],
        {"heat", "cool", "clean"},
    )
    assert metrics["episode/success_rate"] == pytest.approx(1 / 3)
    assert metrics["episode/success_rate/heat"] == pytest.approx(1 / 2)
    assert metrics["episode/success_rate/cool"] == 0
    assert "episode/success_rate/clean" not in metrics
    assert metrics["episode/reward"] == pytest.approx(10 / 3)
    assert metrics["episode/length"] == pytest.approx(4 / 3)
    assert metrics["episode/aborted"] == 1
    assert metrics["action/valid_rate"] == pytest.approx(3 / 4)
    assert metrics["action/admissible_rate"] == pytest.approx(2 / 3)
    assert metrics["response/length_mean"] == pytest.approx(5)
    assert metrics["response/truncated_share"] == pytest.approx(1 / 4)
    assert metrics["prompt/length_mean"] == pytest.approx(10)
    assert (
        metrics["rollout/episodes"],
        metrics["rollout/steps"],
        metrics["rollout/generated_tokens"],
    ) == (3, 4, 20)


def test_episodes_are_counted_by_how_they_ended():
    won, lost, failed, cancelled = (episode("heat", [turn(1)], number == 0) for number in range(4))
    failed.abort("the environment failed", policy_dependent=True)
    failed.replayed = lost.replayed = won.replayed = True
    cancelled.abort("the others had ended", policy_dependent=False)
    cancelled.unfinished = True
    for seconds, trajectory in enumerate((won, lost, failed, cancelled), 1):
        trajectory.environment_s = 2.0**seconds
    metrics = metrics_of([won, lost, failed, cancelled])
    names = ("replayed", "aborted", "unfinished", "aborted_policy_dependent")
    assert [metrics[f"episode/{name}"] for name in names] == [3, 1, 1, 1]
    assert metrics["time/environment"] == pytest.approx((2 + 4) / 2)


def test_regret_is_summed_over_the_episodes_that_tell_it():
    turns = [replace(turn(1), regret=regret) for regret in (2.0, 0.0, 1.0)]
    metrics = metrics_of([episode("heat", turns[:2], True), episode("heat", turns[2:], False)])
    assert metrics["episode/regret"] == pytest.approx((2 + 1) / 2)
    partly = metrics_of([episode("heat", [turns[0], turn(1)], True)])
    assert "episode/regret" not in partly


def test_a_rollout_of_nothing():
    assert metrics_of([episode("heat", [], False, aborted=True)], {"heat"})["rollout/episodes"] == 0


def test_an_anchor_is_ambiguous_if_other_actions_were_listed_elsewhere_in_its_group():
    def at(anchor: str, *actions: str) -> Turn:
        return replace(turn(1), anchor=anchor, choices=anchor_hash("\n".join(actions)))

    start = at("a room", "go to desk 1")
    first = Trajectory(
        Task("t", "", "train"),
        0,
        0,
        [start, at("Nothing happens.", "open safe 1"), at("desk", "x")],
    )
    second = Trajectory(
        Task("t", "", "train"), 0, 1, [start, at("Nothing happens.", "look"), turn(1)]
    )
    elsewhere = Trajectory(
        Task("u", "", "train"), 1, 0, [at("desk", "y"), at("Nothing happens.", "look")]
    )
    assert ambiguous_anchors(finished_steps([first, second, elsewhere])) == [
        False,
        True,
        False,
        False,
        True,
        False,
        False,
    ]
    metrics = metrics_of([first, second, elsewhere])
    assert metrics["credit/ambiguous_anchor_share"] == pytest.approx(2 / 7)
    assert "credit/ambiguous_anchor_share" not in metrics_of([episode("heat", [turn(1)], False)])
