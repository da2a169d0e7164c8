"""Settings of the endpoint."""

from dataclasses import dataclass

from gigpo_jax.engines.base import SamplingParams


@dataclass(frozen=True)
class EndpointSettings:
    """Settings of the endpoint.

    Attributes:
      host, port: Address to listen on; port 0 is any free one.
      key: Bearer token of all requests, not empty.
      model: Name of the policy.
      sampling: Sampling settings of requests that give none; the key is replaced.
      max_prompt_tokens: Largest number of tokens of a prompt.
      max_calls: Largest number of recorded calls of a session.
      max_sessions: Number of sessions that programs may have open at once; 0: they may open none.
      session_timeout_s: Time without a request after which a session is abandoned, s.
      request_timeout_s: Limit for one response, s.
      seed: Seed of the random keys of sessions.
      clamp: Whether limits and sampling settings of requests give way to those above, in place of
        a refusal.
    """

    host: str
    port: int
    key: str
    model: str
    sampling: SamplingParams
    max_prompt_tokens: int
    max_calls: int
    max_sessions: int = 0
    session_timeout_s: float = 600.0
    request_timeout_s: float = 600.0
    seed: int = 0
    clamp: bool = False
