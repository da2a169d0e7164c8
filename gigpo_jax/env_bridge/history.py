"""The window of past observations and actions that a prompt shows."""

from collections import deque
from dataclasses import dataclass, field

import numpy as np


@dataclass(frozen=True)
class Event:
    observation: str
    action: str
    thought: str = ""  # before the action, where the agent's format has it apart
    images: tuple[np.ndarray, ...] = field(default=(), compare=False)  # those of the observation's marks, in order


class History:
    """What happened in one episode: the last `window` events, the first observation, the number of steps.

    `task_type` is that of the episode's task. `reflections` are what the agent wrote after each earlier trial of it.
    """

    def __init__(self, window: int, task_type: str = "", reflections: tuple[str, ...] = ()) -> None:
        """Starts empty; `window` >= 0 events are kept."""
        self._events: deque[Event] = deque(maxlen=window)
        self.task_type, self.reflections = task_type, reflections
        self.first = ""
        self.first_images: tuple[np.ndarray, ...] = ()
        self.steps = 0

    def add(self, observation: str, action: str, thought: str = "", images: tuple[np.ndarray, ...] = ()) -> None:
        if self.steps == 0:
            self.first, self.first_images = observation, images
        self._events.append(Event(observation, action, thought, images))
        self.steps += 1

    def events(self) -> tuple[Event, ...]:
        """The kept events, the oldest first."""
        return tuple(self._events)
