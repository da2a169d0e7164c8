"""What some prompts show beside the steps of an episode: a conversation, and lines of advice."""

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np


@dataclass(frozen=True)
class Exchange:
    """A user message and the response to it.

    Attributes:
      text: Text of the user message.
      images: Images of the message, in the order of their marks.
      system: Text of the system message before it; "" unless it is the first of its conversation.
      system_images: Images of the system message.
      tokens: Ids of the message with the template's ids around it, up to its response.
      response: Ids of its response as they were sampled.
    """

    text: str
    images: tuple[np.ndarray, ...] = field(default=(), compare=False)
    system: str = ""
    system_images: tuple[np.ndarray, ...] = field(default=(), compare=False)
    tokens: tuple[int, ...] = ()
    response: tuple[int, ...] = ()


class Advice(NamedTuple):
    """A line that prompts show, such as what the policy wrote in earlier episodes.

    Attributes:
      text: The advice.
      title: Words before it in a prompt of a language model.
      word: Word before it in a prompt of a tiny model.
      stays: Whether a prompt that is too long keeps it.
    """

    text: str
    title: str
    word: str
    stays: bool = False
