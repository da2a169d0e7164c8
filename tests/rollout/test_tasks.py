"""The order of tasks is a function of seed and iteration alone."""

from collections import Counter

from gigpo_jax.env_bridge.types import Task
from gigpo_jax.rollout.tasks import draw_tasks, host_share, spare_groups

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
    assert drawn[:10] != [task.id for iteration in range(5) for task in draw_tasks(TASKS, iteration, 2, seed=3)]
    assert spares[4] == spare_groups(TASKS, 4, 2, 3, seed=3) != spare_groups(TASKS, 4, 2, 3, seed=4)
    assert spare_groups(TASKS, 4, 2, 0, seed=3) == [[], []]


def test_one_host_does_everything():
    assert host_share(TASKS) == (0, TASKS)
