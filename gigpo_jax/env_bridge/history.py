"""The window of past observations and actions that a prompt shows."""

from collections import deque
from dataclasses import dataclass


@dataclass(frozen=True)
class Event:
    """What was observed, and what was done there."""

    observation: str
    action: str


class History:
    """What happened in one episode: the last `window` events, the first observation, the number of steps."""

    def __init__(self, window: int) -> None:
        """Starts empty; `window` >= 0 events are kept."""
        if window < 0:
            raise ValueError(f"window is {window}; it must be 0 or more")
        self._events: deque[Event] = deque(maxlen=window)
        self.first = ""
        self.steps = 0

    def add(self, observation: str, action: str) -> None:
        """Notes one step: the observation that was shown and the action that followed."""
        if self.steps == 0:
            self.first = observation
        self._events.append(Event(observation, action))
        self.steps += 1

    def events(self) -> tuple[Event, ...]:
        """The kept events, the oldest first."""
        return tuple(self._events)
