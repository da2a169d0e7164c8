"""Validates the tasks that an environment lists, as `boundary` validates its results."""

from typing import Any

from gigpo_jax.env_bridge.boundary import show_value
from gigpo_jax.env_bridge.types import StepError, Task


def validate_tasks(value: Any) -> list[Task]:
    """Returns the tasks of a split as a list.

    Raises StepError for a malformed task.
    """
    return [_validate_task(task) for task in value]


def _validate_task(task: Any) -> Task:
    # None is no str, so an object of another type fails the same check.
    fields: tuple[Any, ...] = (None,)
    if isinstance(task, Task):
        fields = (task.id, task.type, task.split, task.data, task.answer)
    if not all(isinstance(field, str) for field in fields):
        text = show_value(task)
        raise StepError(f"malformed task {text}: tasks are types.Task, their fields str")
    return Task(*map(str.__str__, fields))
