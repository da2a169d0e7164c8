"""The window of past observations and actions that a prompt shows."""

from collections import deque
from dataclasses import dataclass


@dataclass(frozen=True)
class Event:
    observation: str
    action: str
    thought: str = ""  # before the action, where the agent's format has it apart


class History:
    """What happened in one episode: the last `window` events, the first observation, the number of steps.

    `task_type` is that of the episode's task. `reflections` are what the agent wrote after each earlier trial of it.
    """

    def __init__(self, window: int, task_type: str = "", reflections: tuple[str, ...] = ()) -> None:
        """Starts empty; `window` >= 0 events are kept."""
        self._events: deque[Event] = deque(maxlen=window)
        self.task_type, self.reflections = task_type, reflections
        self.first = ""
        self.steps = 0

    def add(self, observation: str, action: str, thought: str = "") -> None:
        if self.steps == 0:
            self.first = observation
        self._events.append(Event(observation, action, thought))
        self.steps += 1

    def events(self) -> tuple[Event, ...]:
        """The kept events, the oldest first."""
        return tuple(self._events)
