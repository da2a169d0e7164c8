"""One episode: the policy acts in an environment, prompt by prompt."""

import functools
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol, TypeVar

import numpy as np

from gigpo_jax.env_bridge.actions import Response, is_admissible
from gigpo_jax.env_bridge.agents import REFLECTION_TOKENS
from gigpo_jax.env_bridge.history import History
from gigpo_jax.env_bridge.pool import PooledEnv
from gigpo_jax.env_bridge.prompts import Prompt, PromptTemplate, build_prompt
from gigpo_jax.env_bridge.types import EnvError, Observation, StepError, StepResult, Task, anchor_hash
from gigpo_jax.errors import InputError
from gigpo_jax.models.images import PromptImages
from gigpo_jax.models.tokenizer import Tokenizer
from gigpo_jax.models.vision_config import VisionConfig
from gigpo_jax.rollout.pictures import check_length, prompt_encoder, prompt_images
from gigpo_jax.sampling.base import Completion, Engine, EngineLost, SamplingParams
from gigpo_jax.trajectory import Trajectory, Turn

_T = TypeVar("_T")


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
      overlong_buffer: tokens below the length limit of responses, in which a penalty rises; 0: none does.
      overlong_penalty: >= 0, at the limit, in units of reward.
      require_admissible: whether an action that the environment did not list is invalid.
      sampling: temperature, lengths and stops; the key is replaced for every request.
      seed: of the run; part of every request's key.
      max_aborted_fraction: a rollout fails when more than this fraction of its episodes is aborted.
      trials: the most trials of an episode; one that wins or is aborted is the last.
      reflection: the prompt for a reflection between two trials, which later prompts show; None: there is none.
      known: images to which texts of the template refer (`prompts.numbered`).
    """

    template: PromptTemplate
    parse: Callable[[str], Response]
    max_steps: int
    prompt_tokens: int
    history: int = 2
    show_admissible: bool = True
    invalid_penalty: float = 0.1
    overlong_buffer: int = 0
    overlong_penalty: float = 0.0
    require_admissible: bool = False
    sampling: SamplingParams = field(default_factory=SamplingParams)
    seed: int = 0
    max_aborted_fraction: float = 0.5
    trials: int = 1
    reflection: PromptTemplate | None = None
    known: tuple[np.ndarray, ...] = ()

    def penalty(self, valid: bool, tokens: int) -> float:
        """Of a response: for being invalid, and for its length (DAPO, arXiv 2503.14476, eq. 13)."""
        over = tokens - (self.sampling.max_tokens - self.overlong_buffer)
        overlong = self.overlong_penalty * over / self.overlong_buffer if self.overlong_buffer and over > 0 else 0.0
        return (0.0 if valid else self.invalid_penalty) + overlong

    def prompt(self, observation: Observation, history: History, encode: Callable[..., Sequence[int]]) -> Prompt:
        """The prompt of one step; `encode` is that of `build_prompt`.

        Raises:
          InputError: it is too long without its history, and has images: nothing else is cut out of such a prompt.
        """
        prompt = build_prompt(
            self.template,
            observation,
            history,
            encode=encode,
            limit=self.prompt_tokens,
            show_admissible=self.show_admissible,
            known=self.known,
        )
        check_length(prompt.tokens, prompt.images, self.prompt_tokens)
        return prompt


class _EngineFailure(Exception):
    """The engine failed one request."""


class _Refused(_EngineFailure):
    """The engine does not take this request, such as a prompt that is too long."""


@dataclass(frozen=True)
class Plan:
    """What is to be played.

    Attributes:
      task: what to do.
      group, member: noted in the trajectory.
      key: (member, step) -> the random key of its request.
      past: actions that are replayed before the policy acts; the trajectory begins after them.
      reflections: on earlier trials.
      reflection: the prompt for a reflection afterwards if the task is not done; None: there is none.
    """

    task: Task
    group: int
    member: int
    key: Callable[[int, int], tuple[int, int]]
    past: Sequence[str] = ()
    reflections: tuple[str, ...] = ()
    reflection: PromptTemplate | None = None


class Runner(Protocol):
    """Plays single episodes; one that is aborted and not `replayed` is played again.

    Attributes:
      settings: how; of them `rollout` reads the seed, the trials and what is aborted at most.
      on_attempt: called with each trajectory as it ends.
    """

    @property
    def settings(self) -> EpisodeSettings: ...

    @property
    def on_attempt(self) -> Callable[[Trajectory], None] | None: ...

    async def play(self, plan: Plan, environment: PooledEnv) -> Trajectory:
        """Plays one episode; see `EpisodeRunner.play`."""


@dataclass(frozen=True)
class EpisodeRunner:
    """Asks the policy for an action at every step of an environment; see `Runner`.

    Attributes:
      vision: of a policy that reads images; None: it reads text alone.
    """

    engine: Engine
    tokenizer: Tokenizer
    settings: EpisodeSettings
    on_attempt: Callable[[Trajectory], None] | None = None
    vision: VisionConfig | None = None

    async def play(self, plan: Plan, environment: PooledEnv) -> Trajectory:
        """Plays one episode; the trajectory is aborted if the environment or the engine fails.

        `environment` is used by this episode alone.

        Raises:
          EngineLost: the engine will give no more responses.
        """
        settings, key = self.settings, functools.partial(plan.key, plan.member)
        trajectory, began = Trajectory(plan.task, plan.group, plan.member), False
        history = History(settings.history, plan.task.type, plan.reflections)
        whole = History(settings.max_steps, plan.task.type, plan.reflections)  # The reflection shows every step.
        try:
            observation = await _timed(environment.reset(plan.task), trajectory, "environment_s")
            began, trajectory.words = True, observation.task
            for action in plan.past:
                history.add(observation.text, action, images=observation.images)
                observation = (await _timed(environment.step(action), trajectory, "environment_s")).observation
            for step in range(len(plan.past), settings.max_steps):
                turn, result = await self._turn(observation, history, trajectory, environment, key(step), key(0))
                trajectory.turns.append(turn)
                trajectory.won, trajectory.score = bool(result.info["won"]), float(result.info["score"])
                seen = (observation.text, turn.action, turn.thought, observation.images)
                history.add(*seen)
                if plan.reflection is not None:
                    whole.add(*seen)
                observation = result.observation
                if result.done:
                    break
            if plan.reflection is not None and not trajectory.won:
                trajectory.reflection = await self._reflect(plan.reflection, observation, whole, plan, trajectory)
        except (EnvError, _EngineFailure) as err:
            trajectory.abort(str(err), policy_dependent=began and isinstance(err, (StepError, _Refused)))
        return trajectory

    async def _turn(
        self,
        observation: Observation,
        history: History,
        trajectory: Trajectory,
        environment: PooledEnv,
        key: tuple[int, int],
        session: tuple[int, int],
    ) -> tuple[Turn, StepResult]:
        settings = self.settings
        prompt = settings.prompt(observation, history, prompt_encoder(self.tokenizer, self.vision))
        images = prompt_images(self.vision, prompt.tokens, prompt.images)
        sampling = replace(settings.sampling, key=key, session=session)
        completion = await _timed(_generate(self.engine, prompt.tokens, sampling, images), trajectory, "engine_s")
        response = self.tokenizer.decode(completion.tokens.tolist())
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
            penalty=settings.penalty(valid, len(completion.tokens)),
            finish_reason=completion.finish_reason,
            version=completion.version,
            choices=None if observation.admissible is None else anchor_hash("\n".join(observation.admissible)),
            prompt_cut=prompt.cut != "",
            regret=result.info.get("regret"),
            task=observation.task,
            thought=parsed.thought,
            feedback=result.observation.text,
            images=images,
        )
        return turn, result

    async def _reflect(
        self,
        template: PromptTemplate,
        observation: Observation,
        history: History,
        plan: Plan,
        trajectory: Trajectory,
    ) -> str:
        """What the policy writes after a trial, on one line; its key is that of step `max_steps`, which no step has."""
        settings = self.settings
        prompt = replace(settings, template=template, known=(), show_admissible=False).prompt(
            observation, history, prompt_encoder(self.tokenizer, self.vision)
        )
        images = prompt_images(self.vision, prompt.tokens, prompt.images)
        sampling = replace(
            settings.sampling,
            max_tokens=min(settings.sampling.max_tokens, REFLECTION_TOKENS),
            stop_strings=(),
            key=plan.key(plan.member, settings.max_steps),
            session=plan.key(plan.member, 0),
        )
        completion = await _timed(_generate(self.engine, prompt.tokens, sampling, images), trajectory, "engine_s")
        return " ".join(self.tokenizer.decode(completion.tokens.tolist()).split())


async def _generate(
    engine: Engine, tokens: list[int], sampling: SamplingParams, images: PromptImages | None
) -> Completion:
    """One response; an exception of the engine costs one episode, unless the engine is lost."""
    try:
        completion = await engine.generate(tokens, sampling, *([] if images is None else [images]))
    except EngineLost:
        raise
    except InputError as err:
        raise _Refused(f"engine: {err}") from err
    except Exception as err:
        raise _EngineFailure(f"engine: {type(err).__name__}: {err}") from err
    if completion.finish_reason == "abort":
        raise _EngineFailure("engine: it aborted the request")
    return completion


async def _timed(awaitable: Awaitable[_T], trajectory: Trajectory, field_name: str) -> _T:
    started = time.perf_counter()
    try:
        return await awaitable
    finally:
        setattr(trajectory, field_name, getattr(trajectory, field_name) + time.perf_counter() - started)
