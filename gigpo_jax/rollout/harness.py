"""Trajectories of agent programs that play whole episodes against the endpoint (docs/serve.md)."""

import functools
import importlib.util
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ml_collections import ConfigDict

from gigpo_jax.endpoint.address import check_address
from gigpo_jax.endpoint.settings import EndpointSettings
from gigpo_jax.env_bridge.harness import as_action
from gigpo_jax.env_bridge.pool import PooledEnv
from gigpo_jax.env_bridge.types import EnvError, StepError
from gigpo_jax.errors import InputError
from gigpo_jax.models.tokenizer import Tokenizer
from gigpo_jax.rollout.episode import EpisodeSettings, Plan
from gigpo_jax.sampling.base import Engine, SamplingParams
from gigpo_jax.trajectory import Trajectory

MODEL = "policy"  # its name at the endpoint


def check_endpoint(config: ConfigDict) -> None:
    """Raises InputError if the endpoint lacks a package, or cannot listen where `config.serve` says."""
    if importlib.util.find_spec("aiohttp") is None:
        raise InputError("the endpoint needs the package aiohttp; pip install 'gigpo_jax[serve]'")
    check_address(config.serve.host, config.serve.port)


def make_endpoint(
    config: ConfigDict,
    engine: Engine,
    tokenizer: Tokenizer,
    key: str,
    *,
    max_sessions: int = 0,
    on_end: Callable[[Any], None] = lambda session: None,
) -> Any:
    """Starts an `endpoint.server.Endpoint` as `config.serve` says; the arguments are those of it and its settings.

    Raises:
      InputError: the address cannot be used.
    """
    from gigpo_jax.endpoint.server import Endpoint  # needs aiohttp, see `check_endpoint`

    serve, sampling = config.serve, config.sampling
    settings = EndpointSettings(
        host=serve.host,
        port=serve.port,
        key=key,
        model=MODEL,
        sampling=SamplingParams(
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            top_k=sampling.top_k,
            max_tokens=sampling.max_response_tokens,
            stop_token_ids=tokenizer.stop_token_ids,
            stop_strings=tuple(sampling.stop),
        ),
        max_prompt_tokens=sampling.max_prompt_tokens,
        max_calls=config.env.max_steps,
        max_sessions=max_sessions,
        session_timeout_s=serve.session_timeout_s,
        request_timeout_s=serve.request_timeout_s,
        seed=config.seed,
    )
    return Endpoint(engine, tokenizer, settings, on_end=on_end)


@dataclass(frozen=True)
class HarnessRunner:
    """Has a program play each episode in a session of its own; see `rollout.Runner`.

    Attributes:
      endpoint: as from `make_endpoint`.
    """

    endpoint: Any
    settings: EpisodeSettings
    on_attempt: Callable[[Trajectory], None] | None = None

    async def play(self, plan: Plan, environment: PooledEnv) -> Trajectory:
        """Plays one episode; the trajectory is aborted if the program fails or posts no reward.

        Raises:
          EngineLost: the engine will give no more responses, or the endpoint failed.
        """
        settings, key = self.settings, functools.partial(plan.key, plan.member)
        trajectory, began = Trajectory(plan.task, plan.group, plan.member), time.perf_counter()
        limits = {"max_calls": settings.max_steps, "max_prompt_tokens": settings.prompt_tokens}
        session = self.endpoint.open(plan.task, settings.sampling, key, **limits)
        reason, dependent = "the program posted no reward", True
        try:
            await environment.reset(plan.task)
            await environment.step(as_action(self.endpoint.address(session)))
        except EnvError as err:
            reason, dependent = str(err), isinstance(err, StepError)
        finally:
            await self.endpoint.end(session)
        if session.fault is not None:
            raise session.fault
        if session.abandoned:
            reason = f"the program made no request for too long (config.serve.session_timeout_s): {reason}"
        session.finish(trajectory, functools.partial(settings.penalty, True))
        if session.outcome is None:  # a program may fail after it posted the reward
            trajectory.abort(reason, policy_dependent=dependent)
        trajectory.engine_s = session.engine_s
        trajectory.environment_s = max(time.perf_counter() - began - session.engine_s, 0.0)
        return trajectory
