"""An episode that a program plays through the endpoint, with its calls as they were sampled."""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from gigpo_jax.engines.base import Completion, SamplingParams
from gigpo_jax.engines.endpoint.calls import CallIdentity, SessionCall, find_repeated
from gigpo_jax.engines.endpoint.requests import PolicyRequest, RequestError
from gigpo_jax.engines.endpoint.tools import chat_digests, read_calls
from gigpo_jax.env_bridge.types import Task
from gigpo_jax.models.text.continuation import encode_behind, end_text
from gigpo_jax.models.text.tokenizer import Tokenizer
from gigpo_jax.trajectory import Trajectory, Turn


@dataclass(frozen=True)
class SessionOutcome:
    """The end of an episode, as reported by its program.

    Attributes:
      rewards: Reward of each recorded call.
      won: Whether the task was done.
      score: Score in [0, 1].
    """

    rewards: tuple[float, ...]
    won: bool
    score: float


@dataclass(eq=False)
class EndpointSession:
    """An episode. The endpoint's thread alone changes it.

    Attributes:
      id: Name in requests.
      task: Task of the episode; episodes of a task are one group.
      sampling: Sampling settings of all its responses.
      key: Function of a call's index; returns the random key of its request.
      max_calls: Largest number of recorded calls.
      max_prompt_tokens: Largest number of tokens of a prompt.
      turns: Recorded calls in the order of their ends, without rewards.
      calls: Calls so far, failed ones included, without those that were repeated.
      running: Number of requests under way.
      last_use: Time of the last request's start or end, by the monotonic clock, s.
      engine_s: Time in the engine, all calls together, s.
      outcome: Reported outcome; None until the reward is posted.
      abandoned: Whether the session ended because no request came for too long.
      refusal: Last request that was refused, as "STATUS: REASON"; "" if there is none.
      fault: Loss of the engine, if calls failed because of it.
      closing: Event that is set when no further response can be recorded.
      sampled_texts: Whole responses that call tools, as for `tools.restore_sampled_calls`.
      chats: Messages up to and with each answer of /v1/responses, by its id.
    """

    id: str
    task: Task
    sampling: SamplingParams
    key: Callable[[int], tuple[int, int]]
    max_calls: int
    max_prompt_tokens: int
    turns: list[Turn] = field(default_factory=list)
    calls: list[SessionCall] = field(default_factory=list)
    running: int = 0
    last_use: float = field(default_factory=time.monotonic)
    engine_s: float = 0.0
    outcome: SessionOutcome | None = None
    abandoned: bool = False
    refusal: str = ""
    fault: Exception | None = None
    closing: asyncio.Event = field(default_factory=asyncio.Event)
    sampled_texts: dict[bytes, str] = field(default_factory=dict)
    chats: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    # Prompt and response of each call, as text and as token ids.
    _transcripts: list[tuple[str, list[int]]] = field(default_factory=list)

    def check_limit(self) -> None:
        """Raises RequestError if the session has all of its calls."""
        if len(self.turns) >= self.max_calls:
            raise RequestError(
                f"the session has made its {self.max_calls} calls (config.env.max_steps); end it"
            )

    def begin_call(self, identity: CallIdentity) -> SessionCall:
        """Starts a call, or finds the recorded one that a request repeats.

        A repetition replaces the first request, whose response is then not recorded.

        Raises:
          RequestError: The session has all of its calls.
        """
        repeated = find_repeated(self.calls, identity)
        if repeated is not None and repeated.completion is not None:
            return repeated
        self.check_limit()
        if repeated is None:
            call = SessionCall(len(self.calls), identity)
            self.calls.append(call)
            return call
        repeated.replaced.set()
        call = SessionCall(repeated.index, identity)
        self.calls[repeated.index] = call
        return call

    def check_open(self, call: SessionCall) -> None:
        """Raises RequestError if the response of a call can no longer be recorded."""
        if self.closing.is_set():
            raise session_not_found()
        if call.replaced.is_set():
            raise RequestError("the request was repeated; the newer one is answered")

    def describe_repeats(self) -> str:
        """Names the recorded calls that have the prompt and anchor of an earlier one."""
        first_calls: dict[tuple[bytes, str], int] = {}
        repeats = []
        for number, turn in enumerate(self.turns, 1):
            first = first_calls.setdefault((turn.prompt_tokens.tobytes(), turn.anchor), number)
            if first < number:
                repeats.append(f"call {number} has the prompt of call {first}")
        return "; ".join(repeats)

    def prompt_tokens(self, text: str, tokenizer: Tokenizer, *, is_chat: bool = True) -> list[int]:
        """Encodes a prompt.

        If it continues an earlier prompt and its whole response, it begins with their token ids as
        they were sampled; only the rest is encoded. A prompt without the stop that ended a response
        does not continue it. A `text` that is no chat begins with the tokenizer's BOS.
        """
        prefixes = [
            transcript for transcript in self._transcripts if text.startswith(transcript[0])
        ]
        if not prefixes:
            return tokenizer.encode(text) if is_chat else tokenizer.encode_plain(text)
        # Encoded anew, the sampled text could give other token ids, and another past for training.
        prefix, prefix_tokens = max(prefixes, key=lambda transcript: len(transcript[0]))
        return prefix_tokens + encode_behind(tokenizer, prefix_tokens, text[len(prefix) :])

    def record_call(
        self,
        request: PolicyRequest,
        tokens: Sequence[int],
        content: str,
        completion: Completion,
        *,
        anchor: str,
        tokenizer: Tokenizer,
    ) -> None:
        """Adds a call.

        Args:
          request: Request of the call.
          tokens: [P], the prompt.
          content: Text of the response without the stop that ended it.
          completion: Response of the engine.
          anchor: Anchor state of the step.
          tokenizer: Tokenizer of the model.
        """
        prompt = request.prompt if isinstance(request.prompt, str) else ""
        sampled_ids = completion.tokens.tolist()
        response = tokenizer.decode(sampled_ids)
        call_text, calls = read_calls(content, request.tools, request.prompt)
        # Not if a stop was cut off: the message then stands for fewer tokens than were sampled.
        if calls and content == response:
            message = {"role": "assistant", "content": call_text, "tool_calls": calls}
            *_, chat_digest = chat_digests([*request.messages, message])
            self.sampled_texts[chat_digest] = response
        # A template writes the token that ends a turn after the content.
        end_token = end_text(tokenizer, sampled_ids)
        # Without any text the same prompt again would seem to continue this response.
        if prompt and response + end_token:
            transcript = prompt + response + end_token
            self._transcripts.append((transcript, [*tokens, *sampled_ids]))
        self.turns.append(
            Turn(
                prompt_tokens=np.asarray(tokens, np.int32),
                response_tokens=np.asarray(completion.tokens, np.int32),
                logprobs=np.asarray(completion.logprobs, np.float32),
                prompt=prompt or tokenizer.decode(tokens),
                response=response,
                action=response,
                valid=True,
                admissible=None,
                observation=request.observation,
                anchor=anchor,
                reward=0.0,
                penalty=0.0,
                finish_reason=completion.finish_reason,
                version=completion.version,
                versions=completion.versions,
                routes=completion.routes,
                entropies=completion.entropies,
            )
        )

    def finish(self, trajectory: Trajectory, penalty: Callable[[int], float]) -> None:
        """Writes an ended session into its trajectory.

        Args:
          trajectory: Trajectory of the episode.
          penalty: Function of a response's number of tokens.
        """
        rewards = [0.0] * len(self.turns)
        if self.outcome is not None:
            rewards = list(self.outcome.rewards)
            trajectory.won = self.outcome.won
            trajectory.score = self.outcome.score
        trajectory.turns = []
        for turn, reward in zip(self.turns, rewards, strict=True):
            turn_penalty = penalty(len(turn.response_tokens))
            trajectory.turns.append(replace(turn, penalty=turn_penalty, reward=reward))


def session_not_found() -> RequestError:
    """Creates the error for a session that has ended, was abandoned, or never existed."""
    return RequestError(
        "no such session: it has ended, or was never opened", status=404, code="session_not_found"
    )


def session_record(session: EndpointSession) -> dict:
    """Returns the record of an ended session, as JSON values."""
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
