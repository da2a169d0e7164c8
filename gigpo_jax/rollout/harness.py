"""Trajectories of agent programs that play whole episodes against the endpoint (docs/serve.md)."""

import functools
import importlib.util
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ml_collections import ConfigDict

from gigpo_jax.core.errors import InputError
from gigpo_jax.core.installation import install_command
from gigpo_jax.engines.base import Engine, SamplingParams
from gigpo_jax.engines.endpoint.address import check_address
from gigpo_jax.engines.endpoint.settings import EndpointSettings
from gigpo_jax.env_bridge.processes.harness import encode_address
from gigpo_jax.env_bridge.processes.pool import PooledEnv
from gigpo_jax.env_bridge.types import EnvError, StepError
from gigpo_jax.models.text.tokenizer import Tokenizer
from gigpo_jax.rollout.episode_parts import EpisodeJob
from gigpo_jax.rollout.episode_settings import EpisodeSettings
from gigpo_jax.trajectory import Trajectory

MODEL = "policy"  # name of the model at the endpoint


def check_endpoint(config: ConfigDict) -> None:
    """Checks that the endpoint can listen and has its packages.

    Raises:
      InputError: the endpoint lacks a package or cannot listen at its address.
    """
    if importlib.util.find_spec("aiohttp") is None:
        raise InputError("the endpoint needs the package aiohttp", fix=install_command("serve"))
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
    """Starts the endpoint of `config.serve`; arguments as for `endpoint.server.Endpoint`.

    Raises:
      InputError: the address cannot be used.
    """
    from gigpo_jax.engines.endpoint.server import Endpoint  # needs aiohttp, see `check_endpoint`

    serve = config.serve
    sampling = config.sampling
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
        request_timeout_s=config.engine.request_timeout_s,
        seed=config.seed,
        clamp=serve.clamp,
    )
    return Endpoint(engine, tokenizer, settings, on_end=on_end)


@dataclass(frozen=True)
class HarnessRunner:
    """Lets a program play each episode in its own session; see `episode.EpisodeRunner`.

    Attributes:
      endpoint: Endpoint as from `make_endpoint`.
      settings: See `EpisodeRunner`.
      on_attempt: See `EpisodeRunner`.
    """

    endpoint: Any
    settings: EpisodeSettings
    on_attempt: Callable[[Trajectory], None] | None = None

    async def play(self, job: EpisodeJob, environment: PooledEnv) -> Trajectory:
        """Plays one episode, which is aborted if the program fails or posts no reward.

        Raises:
          EngineLost: the engine will give no more responses, or the endpoint failed.
        """
        settings = self.settings
        trajectory = Trajectory(job.task, job.group, job.member)
        start = time.perf_counter()
        session = self.endpoint.open_session(
            job.task,
            settings.sampling,
            functools.partial(job.key, job.member),
            max_calls=settings.max_steps,
            max_prompt_tokens=settings.prompt_tokens,
        )
        reason = "the program posted no reward"
        policy_dependent = True
        try:
            await environment.reset(job.task)
            # One step is the whole episode: the program calls the endpoint in the meantime.
            await environment.step(encode_address(self.endpoint.session_address(session)))
        except EnvError as err:
            reason = str(err)
            policy_dependent = isinstance(err, StepError)
        finally:
            # Also when the episode is cancelled. Afterwards no late call of the program
            # changes the turns.
            await self.endpoint.end_session(session)
        # The loss of the engine is no failure of the program: it ends the run.
        if session.fault is not None:
            raise session.fault
        if session.refusal and not session.turns:
            reason = f"all calls of the program were refused ({session.refusal})"
        if session.abandoned:
            reason = f"the program made no request for too long: {reason}"
        # True: the program judges the format of its responses; here only length has a penalty.
        session.finish(trajectory, functools.partial(settings.penalty, True))
        if session.outcome is None:  # a program may fail after it posted the reward
            trajectory.abort(reason, policy_dependent=policy_dependent)
        trajectory.engine_s = session.engine_s
        seconds = time.perf_counter() - start
        # Calls of a program may overlap, so the sum of their times can be larger than the whole.
        trajectory.environment_s = max(seconds - session.engine_s, 0.0)
        return trajectory
