"""How an endpoint serves."""

from dataclasses import dataclass

from gigpo_jax.sampling.base import SamplingParams


@dataclass(frozen=True)
class EndpointSettings:
    """How the endpoint serves.

    Attributes:
      host, port: to listen on; port 0 is any free one.
      key: bearer token of all requests, not empty.
      model: name of the policy.
      sampling: how responses are drawn, as far as a request may not say; the key is replaced.
      max_prompt_tokens: longest prompt.
      max_calls: of a session.
      max_sessions: that programs may have open at once; 0: they may open none.
      session_timeout_s: a session without a request for so long is abandoned.
      request_timeout_s: limit for one response.
      seed: of the random keys of sessions.
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
