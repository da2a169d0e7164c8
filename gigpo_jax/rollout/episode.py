"""One episode: the policy acts in an environment, prompt by prompt."""

import itertools
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from gigpo_jax.core.errors import InputError
from gigpo_jax.engines.base import Completion, Engine, EngineLost, SamplingParams
from gigpo_jax.env_bridge.actions import is_admissible
from gigpo_jax.env_bridge.processes.pool import PooledEnv
from gigpo_jax.env_bridge.prompt_building import NoSummaryRoom
from gigpo_jax.env_bridge.prompts import History, Prompt
from gigpo_jax.env_bridge.types import (
    EnvError,
    Observation,
    StepError,
    StepResult,
    anchor_hash,
)
from gigpo_jax.models.text.tokenizer import Tokenizer
from gigpo_jax.rollout.episode_parts import Episode, EpisodeJob, measure_wait
from gigpo_jax.rollout.episode_settings import EpisodeSettings
from gigpo_jax.rollout.prompt_encoding import prompt_encoder, prompt_images
from gigpo_jax.trajectory import BEGINNING, Trajectory, Turn

if TYPE_CHECKING:
    from gigpo_jax.models.vision.images import PromptImages
    from gigpo_jax.models.vision.vision_config import VisionConfig


class EngineFailure(Exception):
    """The engine failed one request."""


class _Refused(EngineFailure):
    """The engine does not take this request, such as a prompt that is too long."""


@dataclass(frozen=True)
class EpisodeRunner:
    """Asks the policy for an action at every step of an environment.

    Attributes:
      engine: Engine that samples responses.
      tokenizer: Tokenizer of the policy.
      settings: Settings of episodes; `rollout` reads seed, trials and max_aborted_fraction.
      on_attempt: Function that is called with each trajectory as it ends; one that is aborted and
        not `replayed` is played again.
      vision: Vision tower of the policy; None: it reads text alone.
    """

    engine: Engine
    tokenizer: Tokenizer
    settings: EpisodeSettings
    on_attempt: Callable[[Trajectory], None] | None = None
    vision: "VisionConfig | None" = None

    async def play(self, job: EpisodeJob, environment: PooledEnv) -> Trajectory:
        """Plays one episode alone in `environment`; it is aborted if that or the engine fails.

        Raises:
          EngineLost: the engine will give no more responses.
          InputError: the replayed actions lead to another state than the job's.
        """
        trajectory = Trajectory(job.task, job.group, job.member, past=job.past)
        has_started = False
        try:
            observation = await measure_wait(
                environment.reset(job.task), trajectory, "environment_s"
            )
            has_started = True
            trajectory.words = observation.task
            history = History(self.settings.history, job.task.type)
            parts = self.settings.make_parts()
            max_steps = self.settings.max_steps
            episode = Episode(job, trajectory, history, self, observation, max_steps, parts)
            if job.past is not BEGINNING:
                from gigpo_jax.rollout.replayed_past import replay_past

                await replay_past(episode, environment)
            await self._play_steps(episode, environment)
            for part in parts:
                await part.at_end(episode)
        except (EnvError, EngineFailure, NoSummaryRoom) as err:
            # A reset that fails says nothing about the policy. An action at which the environment
            # fails does, and so does a prompt that grew too long.
            policy_dependent = has_started and isinstance(err, (StepError, _Refused, NoSummaryRoom))
            trajectory.abort(str(err), policy_dependent=policy_dependent)
        finally:
            # Also when the episode is cancelled. The next one in this environment finds its room.
            self.engine.end_session(job.key(job.member, 0))
        return trajectory

    async def _play_steps(self, episode: Episode, environment: PooledEnv) -> None:
        """Lets the policy act until the episode ends."""
        trajectory = episode.trajectory
        history = episode.history
        max_steps = self.settings.max_steps
        # Steps are counted from the start of the episode: so replayed ones use up the limit, and no
        # two steps have the same key.
        for step in range(len(episode.job.past.actions), max_steps):
            episode.step = step
            for part in episode.parts:
                part.observe(episode.observation)
                await part.before_prompt(episode)
            turn, result = await self._play_turn(episode, environment)
            for part in episode.parts:
                turn = part.after_turn(episode, turn)
            trajectory.turns.append(turn)
            # Set at every step, because the step limit may end the episode after any of them.
            trajectory.won = bool(result.info["won"])
            trajectory.score = float(result.info["score"])
            # An environment with the same limit ends the episode itself in its last step.
            is_last_step = step + 1 == max_steps
            trajectory.truncated = not trajectory.won and (is_last_step or not result.done)
            observation = episode.observation
            history.add(observation.text, turn.action, turn.thought, observation.images)
            episode.observation = result.observation
            if result.done:
                break

    def build_prompt(self, observation: Observation, history: History) -> Prompt:
        """Builds the prompt of the next action, or of the text that is due before it."""
        encode = prompt_encoder(self.tokenizer, self.vision)
        return self.settings.prompt(observation, history, encode)

    async def sample(
        self, prompt: Prompt, sampling: SamplingParams, trajectory: Trajectory
    ) -> "tuple[Completion, PromptImages | None]":
        """Samples a response; returns it and the prompt's images."""
        images = prompt_images(self.vision, prompt.tokens, prompt.images)
        completion = await measure_wait(
            _generate(self.engine, prompt.tokens, sampling, images), trajectory, "engine_s"
        )
        return completion, images

    async def _sample_turn(
        self, episode: Episode, prompt: Prompt
    ) -> "tuple[Completion, PromptImages | None]":
        """Samples the response of a step, until no part wants another one."""
        for attempt in itertools.count():
            # The key of step 0 also names the session of the episode. A later attempt has a number
            # that no step and no text of the episode has: no two requests share a key.
            number = episode.step + attempt * (self.settings.max_steps + 1)
            sampling = replace(
                self.settings.sampling, key=episode.key(number), session=episode.key(0)
            )
            completion, images = await self.sample(prompt, sampling, episode.trajectory)
            if not any(part.samples_again(episode, completion, attempt) for part in episode.parts):
                break
            episode.trajectory.discarded.append(len(completion.tokens))
        return completion, images

    async def _play_turn(self, episode: Episode, environment: PooledEnv) -> tuple[Turn, StepResult]:
        settings = self.settings
        prompt = episode.take_prompt()
        observation = episode.observation
        history = episode.history
        completion, images = await self._sample_turn(episode, prompt)
        history.add_response(prompt, completion.tokens.tolist())
        # The text is for the environment; the learner gets the tokens as they were sampled.
        # A tag that the prompt opened is part of the response.
        response = self.tokenizer.opened_text + self.tokenizer.decode(completion.tokens.tolist())
        parsed = settings.parse(response)
        plan = history.plan
        # A response without a plan changes none.
        history.plan = parsed.plan or plan
        admissible = is_admissible(parsed.action, observation.admissible)
        choices = None
        if observation.admissible is not None:
            # A hash in place of a long list: it is only compared for equality.
            choices = anchor_hash("\n".join(observation.admissible))
        result = await measure_wait(
            environment.step(parsed.action), episode.trajectory, "environment_s"
        )
        turn = Turn(
            prompt_tokens=np.asarray(prompt.tokens, np.int32),
            response_tokens=np.asarray(completion.tokens, np.int32),
            logprobs=np.asarray(completion.logprobs, np.float32),
            prompt=prompt.text,
            response=response,
            action=parsed.action,
            valid=parsed.valid,
            admissible=admissible,
            observation=observation.text,
            anchor=observation.anchor,
            reward=settings.reward(result),
            # Beside the reward and not in it: `rl.preset` decides where it counts.
            penalty=settings.penalty(parsed.valid, len(completion.tokens)),
            finish_reason=completion.finish_reason,
            version=completion.version,
            choices=choices,
            prompt_cut=prompt.cut != "",
            regret=result.info.get("regret"),
            task=observation.task,
            thought=parsed.thought,
            feedback=result.observation.text,
            images=images,
            plan=plan,
            versions=completion.versions,
            routes=completion.routes,
            entropies=completion.entropies,
        )
        return turn, result


async def _generate(
    engine: Engine, tokens: list[int], sampling: SamplingParams, images: "PromptImages | None"
) -> Completion:
    """Samples one response; an exception costs one episode, unless the engine is lost."""
    try:
        if images is None:  # engines of text alone take no images
            completion = await engine.generate(tokens, sampling)
        else:
            completion = await engine.generate(tokens, sampling, images)
    # First: it is an Exception too, and it ends the run and not the episode.
    except EngineLost:
        raise
    except InputError as err:
        raise _Refused(f"engine: {err}") from err
    except Exception as err:
        raise EngineFailure(f"engine: {type(err).__name__}: {err}") from err
    # Its tokens are the start of a response, from which nothing may be learnt.
    if completion.finish_reason == "abort":
        raise EngineFailure("engine: it aborted the request")
    return completion
