"""Policy x environment -> trajectories: one coroutine an episode.

No episode waits for another; the engine batches whatever requests are there. Every request carries its own random
key, so neither the number of workers nor the order of answers changes what comes out.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol, TypeVar

import numpy as np

from gigpo_jax.env_bridge.actions import Response, is_admissible
from gigpo_jax.env_bridge.history import History
from gigpo_jax.env_bridge.pool import EnvPool
from gigpo_jax.env_bridge.prompts import PromptTemplate, build_prompt
from gigpo_jax.env_bridge.types import EnvError, Observation, StepResult, Task, anchor_hash
from gigpo_jax.sampling.base import Completion, Engine, EngineLost, SamplingParams, request_key
from gigpo_jax.trajectory import Trajectory, Turn

_T = TypeVar("_T")


class Environment(Protocol):
    """What an episode needs of its environment; `pool.PooledEnv` is one."""

    async def reset(self, task: Task) -> Observation: ...

    async def step(self, action: str) -> StepResult: ...


class Tokenizer(Protocol):
    """What an episode needs of a tokenizer; `models.tokenizer.Tokenizer` is one."""

    def encode_chat(self, text: str, /) -> Sequence[int]: ...

    def decode(self, ids: Sequence[int], /) -> str: ...


@dataclass(frozen=True)
class EpisodeSettings:
    """How episodes are played.

    Attributes:
      template: how prompts are worded.
      parse: a response's text -> action and validity.
      max_steps: the most actions in an episode.
      prompt_tokens: the most tokens of a prompt, chat template included.
      history: how many past steps a prompt shows.
      show_admissible: whether a prompt lists the admissible actions.
      invalid_penalty: >= 0, for an invalid response, in units of reward.
      require_admissible: whether an action that the environment did not list is invalid.
      sampling: temperature, lengths and stops; the key is replaced for every request.
    """

    template: PromptTemplate
    parse: Callable[[str], Response]
    max_steps: int
    prompt_tokens: int
    history: int = 2
    show_admissible: bool = True
    invalid_penalty: float = 0.1
    require_admissible: bool = False
    sampling: SamplingParams = field(default_factory=SamplingParams)


class TooManyAborted(RuntimeError):
    """So many episodes were aborted that their environment is not worth going on with; the text says why."""


class _Failure(Exception):
    """The engine failed one request."""


async def run_episode(
    task: Task,
    *,
    engine: Engine,
    environment: Environment,
    tokenizer: Tokenizer,
    settings: EpisodeSettings,
    key: Callable[[int], tuple[int, int]],
    group: int = 0,
    member: int = 0,
) -> Trajectory:
    """Plays one episode.

    Args:
      task: what to do.
      engine: gives the responses.
      environment: where to do it; this episode alone uses it.
      tokenizer: text <-> ids.
      settings: prompts, length, penalties, sampling.
      key: step -> the random key of its request.
      group: noted in the trajectory.
      member: noted in the trajectory.

    Returns:
      The trajectory; a failure of the environment or the engine does not raise, it makes an aborted one.
    """
    trajectory = Trajectory(task, group, member)
    history = History(settings.history)
    try:
        observation = await _timed(environment.reset(task), trajectory, "environment_s")
        for step in range(settings.max_steps):
            turn, result = await _turn(
                observation, history, trajectory, key(step), key(0), engine, environment, tokenizer, settings
            )
            trajectory.turns.append(turn)
            trajectory.won, trajectory.score = bool(result.info["won"]), float(result.info["score"])
            if result.done:
                break
            history.add(observation.text, turn.action)
            observation = result.observation
    except (EnvError, _Failure) as err:
        trajectory.aborted, trajectory.won, trajectory.score = True, False, 0.0
        trajectory.reason = " ".join(str(err).split())
    return trajectory


async def _turn(
    observation: Observation,
    history: History,
    trajectory: Trajectory,
    key: tuple[int, int],
    session: tuple[int, int],
    engine: Engine,
    environment: Environment,
    tokenizer: Tokenizer,
    settings: EpisodeSettings,
) -> tuple[Turn, StepResult]:
    """Prompt, response, action, result."""
    prompt = build_prompt(
        settings.template,
        observation,
        history,
        encode=tokenizer.encode_chat,
        limit=settings.prompt_tokens,
        show_admissible=settings.show_admissible,
    )
    sampling = replace(settings.sampling, key=key, session=session)
    completion = await _timed(_generate(engine, prompt.tokens, sampling), trajectory, "engine_s")
    response = tokenizer.decode(completion.tokens.tolist())
    parsed = settings.parse(response)
    listed = is_admissible(parsed.action, observation.admissible)
    valid = parsed.valid and not (settings.require_admissible and listed is False)
    result = await _timed(environment.step(parsed.action), trajectory, "environment_s")
    turn = Turn(
        prompt_tokens=np.asarray(prompt.tokens, np.int32),
        response_tokens=np.asarray(completion.tokens, np.int32),
        logprobs=np.asarray(completion.logprobs, np.float32),
        prompt=prompt.text,
        response=response,
        action=parsed.action,
        valid=valid,
        admissible=listed,
        observation=observation.text,
        anchor=observation.anchor,
        reward=result.reward,
        penalty=0.0 if valid else settings.invalid_penalty,
        finish_reason=completion.finish_reason,
        version=completion.version,
        choices=None if observation.admissible is None else anchor_hash("\n".join(observation.admissible)),
    )
    return turn, result


async def _generate(engine: Engine, tokens: list[int], sampling: SamplingParams) -> Completion:
    """One response; whatever an engine raises for one request costs that episode alone, unless the engine is gone."""
    try:
        completion = await engine.generate(tokens, sampling)
    except EngineLost:
        raise
    except Exception as err:
        raise _Failure(f"engine: {type(err).__name__}: {err}") from err
    if completion.finish_reason == "abort":
        raise _Failure("engine: it gave the request up")
    return completion


async def _timed(awaitable: Awaitable[_T], trajectory: Trajectory, field_name: str) -> _T:
    started = time.perf_counter()
    try:
        return await awaitable
    finally:
        setattr(trajectory, field_name, getattr(trajectory, field_name) + time.perf_counter() - started)


async def rollout(
    tasks: Sequence[Task],
    *,
    engine: Engine,
    pool: EnvPool,
    tokenizer: Tokenizer,
    settings: EpisodeSettings,
    group_size: int,
    seed: int,
    iteration: int,
    first_group: int = 0,
    max_concurrent: int | None = None,
    max_aborted_fraction: float = 0.5,
    on_episode: Callable[[Trajectory], None] | None = None,
) -> list[Trajectory]:
    """Plays `group_size` episodes of every task, all at once as far as there are environments.

    Args:
      tasks: one group each, in this order.
      engine: gives the responses.
      pool: environments.
      tokenizer: text <-> ids.
      settings: prompts, length, penalties, sampling (validation differs by its temperature).
      group_size: episodes a task, >= 1.
      seed: the run's seed.
      iteration: part of every request's key; evaluations use negative numbers.
      first_group: number of the first task's group; hosts that share an iteration number theirs apart.
      max_concurrent: the most episodes at once; None: as many as the pool has environments.
      max_aborted_fraction: when more than this share of all episodes was aborted, the rollout fails.
      on_episode: called with each trajectory as it ends.

    Returns:
      The trajectories in the order of (group, member), aborted ones included and marked.

    Raises:
      TooManyAborted: the message has the commonest reasons.
      EngineLost: the engine will give no more responses.
    """
    trajectories: list[Trajectory | None] = [None] * (len(tasks) * group_size)
    reasons: Counter[str] = Counter()
    places = asyncio.Semaphore(min(max_concurrent or pool.size, pool.size))

    async def episode(index: int) -> None:
        group, member = first_group + index // group_size, index % group_size

        def key(step: int) -> tuple[int, int]:
            return request_key(seed, iteration, group, member, step)

        async with places:
            task = tasks[index // group_size]
            trajectory = await _play(task, pool, engine, tokenizer, settings, key, group, member)
        trajectories[index] = trajectory
        if on_episode is not None:
            on_episode(trajectory)
        if trajectory.aborted:
            reasons[trajectory.reason] += 1
            if reasons.total() > max_aborted_fraction * len(trajectories):
                raise _too_many(reasons, len(trajectories))

    try:
        async with asyncio.TaskGroup() as group:
            for index in range(len(trajectories)):
                group.create_task(episode(index))
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from None  # the first failure cancelled the others
    return [trajectory for trajectory in trajectories if trajectory is not None]


async def _play(
    task: Task,
    pool: EnvPool,
    engine: Engine,
    tokenizer: Tokenizer,
    settings: EpisodeSettings,
    key: Callable[[int], tuple[int, int]],
    group: int,
    member: int,
) -> Trajectory:
    """One episode in an environment of the pool."""
    try:
        environment = await pool.acquire()
    except EnvError as err:
        return Trajectory(task, group, member, aborted=True, reason=str(err))
    try:
        return await run_episode(
            task,
            engine=engine,
            environment=environment,
            tokenizer=tokenizer,
            settings=settings,
            key=key,
            group=group,
            member=member,
        )
    finally:
        environment.release()


def _too_many(reasons: Counter[str], episodes: int) -> TooManyAborted:
    commonest = "; ".join(f"{count} x {reason}" for reason, count in reasons.most_common(3))
    return TooManyAborted(f"{reasons.total()} of {episodes} episodes were aborted, too many to go on: {commonest}")
