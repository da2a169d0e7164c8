"""The order of tasks is a function of seed and iteration alone."""

import dataclasses
import json
from collections import Counter

import jax
import numpy as np
import pytest

from gigpo_jax.config import default_config
from gigpo_jax.core.errors import InputError
from gigpo_jax.env_bridge.types import Task
from gigpo_jax.rollout.curriculum import Curriculum
from gigpo_jax.rollout.draws import draw_tasks
from gigpo_jax.rollout.early_ends import EarlyEnd
from gigpo_jax.rollout.group_ends import spare_groups
from gigpo_jax.rollout.tasks import choose_tasks, host_share, make_sources

TASKS = [Task(f"t{i}", "", "train") for i in range(10)]


def test_every_task_comes_once_before_any_comes_twice():
    drawn = [task.id for iteration in range(5) for task in draw_tasks(TASKS, iteration, 4, seed=3)]
    assert Counter(drawn[:10]) == Counter(task.id for task in TASKS)
    assert Counter(drawn) == {task.id: 2 for task in TASKS}
    assert drawn[:10] != drawn[10:]


def test_an_iteration_needs_no_memory_of_earlier_ones():
    assert draw_tasks(TASKS, 7, 4, seed=3) == draw_tasks(TASKS, 7, 4, seed=3)
    assert draw_tasks(TASKS, 7, 4, seed=3) != draw_tasks(TASKS, 7, 4, seed=4)


def test_more_groups_than_tasks():
    assert Counter(task.id for task in draw_tasks(TASKS, 0, 25, seed=0)).most_common(1)[0][1] == 3


def test_spare_groups_are_other_groups_of_other_tasks_and_need_no_memory():
    spares = [spare_groups(TASKS, iteration, 2, 3, seed=3) for iteration in range(5)]
    for iteration in spares:
        assert [[number for number, _ in group] for group in iteration] == [[2, 4, 6], [3, 5, 7]]
    drawn = [task.id for iteration in spares for rank in zip(*iteration) for _, task in rank]
    assert Counter(drawn[:10]) == Counter(task.id for task in TASKS)
    assert drawn[:10] != [
        task.id for iteration in range(5) for task in draw_tasks(TASKS, iteration, 2, seed=3)
    ]
    assert spares[4] == spare_groups(TASKS, 4, 2, 3, seed=3) != spare_groups(TASKS, 4, 2, 3, seed=4)
    assert spare_groups(TASKS, 4, 2, 0, seed=3) == [[], []]


def test_types_that_succeed_half_the_time_are_drawn_most():
    tasks = [
        Task(f"{kind}{i}", kind, "train")
        for kind, count in (("a", 10), ("b", 20), ("c", 5))
        for i in range(count)
    ]
    curriculum = Curriculum(default_config(), tasks)
    np.testing.assert_allclose(curriculum.weights()[[0, 10, 30]], [1 / 30, 1 / 60, 1 / 15])
    curriculum.add(
        [],
        0,
        {"episode/success_rate/a": 1.0, "episode/success_rate/b": 0.0, "episode/success_rate": 0.5},
    )
    assert curriculum.rates == pytest.approx({"a": 0.65, "b": 0.35, "c": 0.5})
    for _ in range(40):
        curriculum.add([], 0, {"episode/success_rate/a": 1.0, "episode/success_rate/b": 0.0})
    weights = curriculum.weights()
    by_type = {
        kind: sum(w for task, w in zip(tasks, weights) if task.type == kind) for kind in "abc"
    }
    # p (1 - p) + 0.05: 0.05, 0.05 and 0.3.
    assert by_type == pytest.approx({"a": 1 / 8, "b": 1 / 8, "c": 3 / 4}, abs=1e-4)
    # As from a checkpoint.
    resumed = Curriculum(default_config(), tasks)
    resumed.restore(json.loads(json.dumps(curriculum.record())))
    np.testing.assert_array_equal(resumed.weights(), weights)
    drawn = draw_tasks(tasks, 3, 8, seed=1, weights=weights)
    assert len({task.id for task in drawn}) == 8
    assert (
        drawn
        == draw_tasks(tasks, 3, 8, seed=1, weights=weights)
        != draw_tasks(tasks, 4, 8, seed=1, weights=weights)
    )
    often = Counter(
        task.type for n in range(400) for task in draw_tasks(tasks, n, 1, seed=1, weights=weights)
    )
    assert 0.65 < often["c"] / 400 < 0.85
    assert len(spare_groups(tasks, 3, 4, 2, seed=1, weights=weights)[3]) == 2


def test_a_curriculum_needs_types():
    with pytest.raises(
        InputError,
        match=r"config\.train\.curriculum='success': the tasks of env\.split have the types \[.*\]; use none",
    ):
        Curriculum(default_config(), TASKS)


def test_one_host_does_everything():
    assert host_share(TASKS) == (0, TASKS)


def test_hosts_have_contiguous_shares_of_the_groups(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(jax, "process_count", lambda: 3)
    shares = []
    for host in range(3):
        monkeypatch.setattr(jax, "process_index", lambda host=host: host)
        shares.append(host_share("abcdef"))
        with pytest.raises(
            InputError, match=r"config\.train\.groups=10: must be a multiple of the 3 hosts"
        ):
            host_share(TASKS)
    assert shares == [(0, "ab"), (2, "cd"), (4, "ef")]


@pytest.mark.parametrize(
    ("keys", "sources"),
    [
        ({}, []),
        ({"train.refill_groups": 2}, ["group_ends"]),
        ({"train.finish_fraction": 0.5}, ["group_ends"]),
        ({"train.forks": 1}, ["forks"]),
        (
            {
                "train.curriculum": "success",
                "train.refill_groups": 2,
                "train.finish_fraction": 0.5,
            },
            ["curriculum", "group_ends"],
        ),
    ],
)
def test_a_config_names_its_sources(keys: dict[str, object], sources: list[str]) -> None:
    config = default_config().unlock()
    config.update_from_flattened_dict(keys)
    tasks = [Task(f"{kind}{number}", kind, "train") for kind in "ab" for number in range(4)]
    assert [*make_sources(config, tasks, is_training=True)] == sources


def test_hosts_replace_their_groups_as_one_host_does(monkeypatch: pytest.MonkeyPatch) -> None:
    config = default_config().unlock()
    config.train.groups, config.train.refill_groups, config.train.finish_fraction = 4, 2, 0.5
    sources = make_sources(config, TASKS, is_training=True)
    whole = choose_tasks(config, TASKS, sources, 5)
    spares = spare_groups(TASKS, 5, groups=4, spares=2, seed=config.seed)
    assert (whole.ends, whole.first_group) == (EarlyEnd(0.5, spares), 0)
    assert whole.tasks == draw_tasks(TASKS, 5, 4, config.seed)
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    monkeypatch.setattr(jax, "process_index", lambda: 1)
    second = choose_tasks(config, TASKS, sources, 5)
    assert second == dataclasses.replace(whole, tasks=whole.tasks[2:], first_group=2)
