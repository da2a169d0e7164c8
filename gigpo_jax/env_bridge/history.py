"""The window of past observations and actions that a prompt shows."""

from collections import deque
from dataclasses import dataclass


@dataclass(frozen=True)
class Event:
    observation: str
    action: str


class History:
    """What happened in one episode: the last `window` events, the first observation, the number of steps."""

    def __init__(self, window: int) -> None:
        """Starts empty; `window` >= 0 events are kept."""
        self._events: deque[Event] = deque(maxlen=window)
        self.first = ""
        self.steps = 0

    def add(self, observation: str, action: str) -> None:
        if self.steps == 0:
            self.first = observation
        self._events.append(Event(observation, action))
        self.steps += 1

    def events(self) -> tuple[Event, ...]:
        """The kept events, the oldest first."""
        return tuple(self._events)
