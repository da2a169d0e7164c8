"""One episode that a program plays through the endpoint: its calls, exactly as they were sampled."""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from gigpo_jax.endpoint.requests import Asked, Refused
from gigpo_jax.endpoint.tools import digests, read_calls
from gigpo_jax.env_bridge.types import Task
from gigpo_jax.models.tokenizer import Tokenizer
from gigpo_jax.sampling.base import Completion, SamplingParams
from gigpo_jax.trajectory import Trajectory, Turn


@dataclass(frozen=True)
class Outcome:
    """How a program says that an episode ended.

    Attributes:
      rewards: of each recorded call.
      won: whether the task was done.
      score: in [0, 1].
    """

    rewards: tuple[float, ...]
    won: bool
    score: float


@dataclass(eq=False)
class Session:
    """An episode. The endpoint's thread alone changes it.

    Attributes:
      id: what requests name.
      task: what the episode is about; episodes of a task are one group.
      sampling: how all its responses are drawn.
      key: number of a call -> the random key of its request.
      max_calls: the most recorded calls.
      max_prompt_tokens: longest prompt.
      turns: the recorded calls in the order of their ends, without rewards.
      calls: requests that were begun, failed ones included.
      running: requests under way.
      used: when the last request began or ended, by the monotonic clock, s.
      engine_s: time in the engine, all calls together, s.
      outcome: None until the reward is posted.
      abandoned: whether it was ended because no request came for too long.
      fault: the engine is lost, which is why its calls failed.
      closing: set when no further response can be recorded.
      responses: texts of the whole responses that call tools, as for `tools.as_sampled`.
    """

    id: str
    task: Task
    sampling: SamplingParams
    key: Callable[[int], tuple[int, int]]
    max_calls: int
    max_prompt_tokens: int
    turns: list[Turn] = field(default_factory=list)
    calls: int = 0
    running: int = 0
    used: float = field(default_factory=time.monotonic)
    engine_s: float = 0.0
    outcome: Outcome | None = None
    abandoned: bool = False
    fault: Exception | None = None
    closing: asyncio.Event = field(default_factory=asyncio.Event)
    responses: dict[bytes, str] = field(default_factory=dict)
    _read: list[tuple[str, list[int]]] = field(default_factory=list)

    def check_limit(self) -> None:
        """Raises Refused if all calls are recorded that it may have."""
        if len(self.turns) >= self.max_calls:
            raise Refused(f"the session has made its {self.max_calls} calls (config.env.max_steps); end it")

    def prompt_tokens(self, text: str, tokenizer: Tokenizer) -> list[int]:
        """The ids of a prompt's text.

        If it continues an earlier prompt and its whole response, it begins with their ids, as they were given and
        sampled; only the rest is encoded. A prompt without the stop that ended a response does not continue it.
        """
        known = [entry for entry in self._read if text.startswith(entry[0])]
        if not known:
            return tokenizer.encode(text)
        begun, tokens = max(known, key=lambda entry: len(entry[0]))
        return tokens + tokenizer.encode(text[len(begun) :])

    def record(
        self,
        asked: Asked,
        tokens: Sequence[int],
        content: str,
        completion: Completion,
        *,
        anchor: str,
        tokenizer: Tokenizer,
    ) -> None:
        """Adds a call.

        Args:
          asked: the request.
          tokens: [P] of the prompt.
          content: text of the response without the stop that ended it.
          completion: of the engine.
          anchor: the anchor state.
          tokenizer: text <-> ids.
        """
        text, sampled = asked.prompt if isinstance(asked.prompt, str) else "", completion.tokens.tolist()
        response = tokenizer.decode(sampled)
        before, calls = read_calls(content, asked.tools, asked.prompt)
        if calls and content == response:
            said = {"role": "assistant", "content": before, "tool_calls": calls}
            *_, whole = digests([*asked.messages, said])
            self.responses[whole] = response
        # A template writes the token that ends a turn after the content.
        end = (tokenizer.token(sampled[-1]) or "") if sampled[-1] in self.sampling.stop_token_ids else ""
        if text and response + end:  # else the same prompt again would begin with a response that it does not show
            self._read.append((text + response + end, [*tokens, *sampled]))
        self.turns.append(
            Turn(
                prompt_tokens=np.asarray(tokens, np.int32),
                response_tokens=np.asarray(completion.tokens, np.int32),
                logprobs=np.asarray(completion.logprobs, np.float32),
                prompt=text or tokenizer.decode(tokens),
                response=response,
                action=response,
                valid=True,
                admissible=None,
                observation=asked.observation,
                anchor=anchor,
                reward=0.0,
                penalty=0.0,
                finish_reason=completion.finish_reason,
                version=completion.version,
            )
        )

    def finish(self, trajectory: Trajectory, penalty: Callable[[int], float]) -> None:
        """Writes an ended session into its trajectory; `penalty` is a function of a response's tokens."""
        trajectory.turns = [replace(turn, penalty=penalty(len(turn.response_tokens))) for turn in self.turns]
        if self.outcome is not None:
            each = zip(trajectory.turns, self.outcome.rewards, strict=True)
            trajectory.turns = [replace(turn, reward=reward) for turn, reward in each]
            trajectory.won, trajectory.score = self.outcome.won, self.outcome.score


def as_json(session: Session) -> dict:
    """The record of an ended session, as JSON values."""
    assert session.outcome is not None
    return {
        "session": session.id,
        "task": session.task.id,
        "won": session.outcome.won,
        "score": session.outcome.score,
        "steps": [
            {
                "prompt": turn.prompt,
                "response": turn.response,
                "prompt_tokens": turn.prompt_tokens.tolist(),
                "tokens": turn.response_tokens.tolist(),
                "logprobs": [round(value, 6) for value in turn.logprobs.tolist()],
                "anchor": turn.anchor,
                "finish_reason": turn.finish_reason,
                "version": turn.version,
                "reward": reward,
            }
            for turn, reward in zip(session.turns, session.outcome.rewards, strict=True)
        ],
    }
