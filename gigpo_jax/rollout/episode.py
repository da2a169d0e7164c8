"""One episode: the policy acts in an environment, prompt by prompt."""

import asyncio
import functools
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Protocol, TypeVar

import numpy as np

from gigpo_jax.core.errors import InputError
from gigpo_jax.engines.base import Completion, Engine, EngineLost, SamplingParams
from gigpo_jax.env_bridge.actions import Response, is_admissible
from gigpo_jax.env_bridge.agents import REFLECTION_TOKENS
from gigpo_jax.env_bridge.beliefs import BeliefGrader, grade_response
from gigpo_jax.env_bridge.conversations import (
    Conversation,
    NoSummaryRoom,
    SummaryLimits,
    build_step_prompt,
    summary_anchor,
)
from gigpo_jax.env_bridge.lessons import LESSON_TOKENS, LessonRequest
from gigpo_jax.env_bridge.plans import STRATEGY, StrategyRequest
from gigpo_jax.env_bridge.processes.pool import PooledEnv
from gigpo_jax.env_bridge.prompts import History, Prompt, PromptTemplate
from gigpo_jax.env_bridge.types import (
    EnvError,
    Observation,
    StepError,
    StepResult,
    Task,
    anchor_hash,
)
from gigpo_jax.models.text.tokenizer import Tokenizer
from gigpo_jax.rollout.pictures import check_length, prompt_encoder, prompt_images
from gigpo_jax.trajectory import BEGINNING, Past, Trajectory, Turn, mean_uncertainty

if TYPE_CHECKING:
    from gigpo_jax.models.vision.images import PromptImages
    from gigpo_jax.models.vision.vision_config import VisionConfig

_T = TypeVar("_T")
# (task kind, anchor state) -> lessons that its prompt shows: strategies, warnings
FindLessons = Callable[[str, str], tuple[tuple[str, ...], tuple[str, ...]]]


@dataclass(frozen=True)
class EpisodeSettings:
    """How episodes are played.

    Attributes:
      template: Wording of prompts; a `Conversation` makes one chat of an episode.
      parse: Function that turns a response's text into action and validity.
      max_steps: Largest number of actions in an episode.
      prompt_tokens: Largest number of tokens of a prompt, chat template included.
      history: Number of past steps in a prompt.
      show_admissible: Whether a prompt lists the admissible actions.
      invalid_penalty: Penalty of an invalid response, >= 0, in units of reward.
      regret_reward: Reward that a step loses for each action that it wasted, >= 0.
      overlong_buffer: Number of tokens below the length limit of responses over which a penalty
        rises; 0: no penalty.
      overlong_penalty: Penalty at the length limit, >= 0, in units of reward.
      sampling: Temperature, lengths and stops; the key is replaced for every request.
      seed: Seed of the run; part of every request's key.
      max_aborted_fraction: Fraction of aborted episodes above which a rollout fails.
      trials: Largest number of trials of an episode; one that wins or is aborted is the last.
      reflection: Prompt for a reflection between two trials, which later prompts show; None: no
        reflection.
      template_images: Images that texts of the template refer to (`prompts.number_images`).
      summary_tokens: Largest number of tokens of a summary, which the policy writes when a
        conversation is full, or of a strategy; 0: the oldest steps of the conversation are dropped
        instead.
      plan: Kind of the policy's plans, one of `plans.PLANS`.
      resample_turns: Largest number of times that a turn is sampled again.
      resample_change: Change of the uncertainty since the turn before, in nats a token, below which
        it is sampled again.
      make_grader: Function that makes the grader of an episode's beliefs; None: none are graded.
      find_lessons: Function that finds the lessons for a state; None: prompts show none.
    """

    template: PromptTemplate
    parse: Callable[[str], Response]
    max_steps: int
    prompt_tokens: int
    history: int = 2
    show_admissible: bool = True
    invalid_penalty: float = 0.1
    regret_reward: float = 0.0
    overlong_buffer: int = 0
    overlong_penalty: float = 1.0  # that of DAPO: a truncated response loses the reward of a win
    sampling: SamplingParams = field(default_factory=SamplingParams)
    seed: int = 0
    # More are no accidents of single workers, and the mean over the rest would be biased.
    max_aborted_fraction: float = 0.5
    trials: int = 1
    reflection: PromptTemplate | None = None
    template_images: tuple[np.ndarray, ...] = ()
    summary_tokens: int = 0
    plan: str = "none"
    resample_turns: int = 0
    resample_change: float = 0.3
    make_grader: Callable[[], BeliefGrader] | None = None
    find_lessons: FindLessons | None = None

    def penalty(self, valid: bool, tokens: int) -> float:
        """Penalty of a response, for invalid format and for length.

        Length: DAPO, arXiv 2503.14476, eq. 13.
        """
        penalty = 0.0 if valid else self.invalid_penalty
        # The penalty rises over the last tokens before the limit: L - C to L in eq. 13.
        excess = tokens - (self.sampling.max_tokens - self.overlong_buffer)
        if self.overlong_buffer and excess > 0:
            penalty += self.overlong_penalty * excess / self.overlong_buffer
        return penalty

    def reward(self, result: StepResult) -> float:
        """Reward of a step, less that of its wasted actions.

        Raises:
          InputError: the environment does not tell the regret that the settings need.
        """
        # The common case needs no regret, so its numbers stay those of the environment.
        if not self.regret_reward:
            return result.reward
        if "regret" not in result.info:
            raise InputError(
                "the environment does not tell the regret of this task's actions",
                key="config.env.regret_reward",
                value=self.regret_reward,
                fix="use 0, or tasks whose regret is known (docs/credit.md)",
            )
        return result.reward - self.regret_reward * result.info["regret"]

    def prompt(
        self, observation: Observation, history: History, encode: Callable[..., Sequence[int]]
    ) -> Prompt:
        """The prompt of a step, a summary or a strategy.

        `encode` is that of `build_step_prompt`.

        Raises:
          InputError: it has images, and is too long without its history; nothing else is cut out
            of such a prompt.
          NoSummaryRoom: it has too little room for summaries.
        """
        summaries = None
        if self.summary_tokens and isinstance(self.template, Conversation):
            summaries = SummaryLimits(self.sampling.max_tokens, self.summary_tokens)
        # The first prompt of an episode: everything after it shows the strategy.
        asks_strategy = self.plan == STRATEGY and history.plan is None
        prompt = build_step_prompt(
            StrategyRequest(self.template) if asks_strategy else self.template,
            observation,
            history,
            encode=encode,
            limit=self.prompt_tokens,
            show_admissible=self.show_admissible,
            template_images=self.template_images,
            summaries=summaries,
        )
        check_length(prompt.tokens, prompt.images, self.prompt_tokens)
        return replace(prompt, asks_summary=True) if asks_strategy else prompt


class _EngineFailure(Exception):
    """The engine failed one request."""


class _Refused(_EngineFailure):
    """The engine does not take this request.

    An example is a prompt that is too long.
    """


@dataclass(frozen=True)
class EpisodePlan:
    """What is played as one episode.

    Attributes:
      task: Task of the episode.
      group, member: Numbers that the trajectory records.
      key: Function (member, step) -> random key of the request; negative steps are summaries.
      past: Actions that are replayed before the policy acts; the trajectory begins after them.
        Oracles continue from measured states in this way, forks from states of their group, and
        others from states of an expert.
      reflections: Reflections on earlier trials.
      reflection: Prompt for a reflection afterwards if the task is not done; None: no reflection.
      strategy: Strategy of the episode, with `env.plan=strategy`.
    """

    task: Task
    group: int
    member: int
    key: Callable[[int, int], tuple[int, int]]
    past: Past = BEGINNING
    reflections: tuple[str, ...] = ()
    reflection: PromptTemplate | None = None
    strategy: "Strategy | None" = None


@dataclass(eq=False)
class Strategy:
    """A strategy that several episodes of a group follow.

    Attributes:
      number: Its index in the group.
      member: Member whose random key samples it.
      turn: Turn in which it was written; None before that.
      lock: Lock of the first episode that writes it.
    """

    number: int
    member: int
    turn: Turn | None = None
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


class Runner(Protocol):
    """Plays single episodes.

    An episode that is aborted and not `replayed` is played again.

    Attributes:
      settings: Settings of episodes; `rollout` reads seed, trials and max_aborted_fraction.
      on_attempt: Function that is called with each trajectory as it ends.
    """

    @property
    def settings(self) -> EpisodeSettings: ...

    @property
    def on_attempt(self) -> Callable[[Trajectory], None] | None: ...

    async def play(self, plan: EpisodePlan, environment: PooledEnv) -> Trajectory:
        """Plays one episode; see `EpisodeRunner.play`."""


@dataclass(frozen=True)
class EpisodeRunner:
    """Asks the policy for an action at every step.

    The steps are those of an environment; see `Runner`.

    Attributes:
      engine: Engine that samples responses.
      tokenizer: Tokenizer of the policy.
      settings: See `Runner`.
      on_attempt: See `Runner`.
      vision: Vision tower of the policy; None: it reads text alone.
    """

    engine: Engine
    tokenizer: Tokenizer
    settings: EpisodeSettings
    on_attempt: Callable[[Trajectory], None] | None = None
    vision: "VisionConfig | None" = None

    async def play(self, plan: EpisodePlan, environment: PooledEnv) -> Trajectory:
        """Plays one episode.

        The trajectory is aborted if the environment or the engine fails. `environment` is used by
        this episode alone.

        Raises:
          EngineLost: the engine will give no more responses.
          InputError: the replayed actions lead to another state than that of the plan.
        """
        settings = self.settings
        key = functools.partial(plan.key, plan.member)
        past = plan.past
        trajectory = Trajectory(plan.task, plan.group, plan.member, past=past)
        if plan.strategy is not None:
            trajectory.strategy = plan.strategy.number
        history = History(settings.history, plan.task.type, plan.reflections)
        # A prompt shows the last steps alone, the prompt of a reflection every step.
        full_history = History(settings.max_steps, plan.task.type, plan.reflections)
        grader = None if settings.make_grader is None else settings.make_grader()
        has_started = False
        try:
            observation = await _measure(environment.reset(plan.task), trajectory, "environment_s")
            has_started = True
            trajectory.words = observation.task
            # The policy did not sample these actions: they are replayed to reach the state, are no
            # turns, and nothing is learnt from them.
            responses = iter(past.responses)
            for action in past.actions:
                self._replay_responses(observation, history, responses)
                if grader is not None:
                    grader.observe(observation)
                history.add(observation.text, action, images=observation.images)
                result = await _measure(environment.step(action), trajectory, "environment_s")
                observation = result.observation
            # A summary after the last action.
            self._replay_responses(observation, history, responses)
            history.plan = past.plan
            if past.state not in (None, (observation.text, observation.anchor)):
                raise InputError(
                    f"task {plan.task.id!r} answered the same {len(past.actions)} actions "
                    "differently",
                    key=f"config.train.{past.source}",
                    fix="use 0, or an environment that replays exactly (gigpo envs check)",
                )
            # Steps are counted from the start of the episode: so replayed ones use up the limit,
            # and no two steps have the same key.
            for step in range(len(past.actions), settings.max_steps):
                if settings.find_lessons is not None:
                    lessons = settings.find_lessons(plan.task.kind, observation.anchor)
                    history.tips, history.warnings = lessons
                prompt = self._prompt(observation, history)
                if prompt.asks_summary:
                    # The number of the step, which is not 0, with the other sign: no action has it.
                    write = functools.partial(
                        self._write_summary, prompt, observation, trajectory, session=key(0)
                    )
                    if prompt.exchanges:
                        summary = await write(key(-step))
                    else:
                        summary = await self._find_strategy(plan, write)
                    trajectory.turns.append(summary)
                    history.add_summary(prompt, summary.action)
                    prompt = self._prompt(observation, history)
                turn, result = await self._play_turn(
                    prompt, observation, history, trajectory, environment, key, step
                )
                if grader is not None:
                    grader.observe(observation)
                    turn = grade_turn(grader, turn)
                trajectory.turns.append(turn)
                # Set at every step, because the step limit may end the episode after any of them.
                trajectory.won = bool(result.info["won"])
                trajectory.score = float(result.info["score"])
                # An environment with the same limit ends the episode itself in its last step.
                is_last_step = step + 1 == settings.max_steps
                trajectory.truncated = not trajectory.won and (is_last_step or not result.done)
                event = (observation.text, turn.action, turn.thought, observation.images)
                history.add(*event)
                if plan.reflection is not None:
                    full_history.add(*event)
                observation = result.observation
                if result.done:
                    break
            if plan.reflection is not None and not trajectory.won:
                trajectory.reflection = await self._reflect(
                    plan.reflection, observation, full_history, plan, trajectory
                )
        except (EnvError, _EngineFailure, NoSummaryRoom) as err:
            # A reset that fails says nothing about the policy. An action at which the environment
            # fails does, and so does a prompt that grew too long.
            policy_dependent = has_started and isinstance(err, (StepError, _Refused, NoSummaryRoom))
            trajectory.abort(str(err), policy_dependent=policy_dependent)
        finally:
            # Also when the episode is cancelled. The next one in this environment finds its room.
            self.engine.end_session(key(0))
        return trajectory

    def _prompt(self, observation: Observation, history: History) -> Prompt:
        encode = prompt_encoder(self.tokenizer, self.vision)
        return self.settings.prompt(observation, history, encode)

    def _replay_responses(
        self, observation: Observation, history: History, responses: Iterator[Sequence[int]]
    ) -> None:
        """Adds a response of the past and summaries before."""
        for response in responses:
            prompt = self._prompt(observation, history)
            if not prompt.asks_summary:
                history.add_response(prompt, response)
                return
            history.add_summary(prompt, self._read_summary(response))

    def _read_summary(self, tokens: Sequence[int]) -> str:
        # No special token is in it, and a prompt shows it as it shows all texts: as data.
        return self.tokenizer.decode(tokens).strip()

    async def _sample(
        self, prompt: Prompt, sampling: SamplingParams, trajectory: Trajectory
    ) -> "tuple[Completion, PromptImages | None]":
        """Samples a response; returns it and the prompt's images."""
        images = prompt_images(self.vision, prompt.tokens, prompt.images)
        completion = await _measure(
            _generate(self.engine, prompt.tokens, sampling, images), trajectory, "engine_s"
        )
        return completion, images

    async def _sample_turn(
        self,
        prompt: Prompt,
        trajectory: Trajectory,
        key: Callable[[int], tuple[int, int]],
        step: int,
    ) -> "tuple[Completion, PromptImages | None]":
        """Samples the response of a step.

        It is sampled again while its uncertainty is nearly that of the turn before, and not equal
        to it: the condition of T2PO's code (arXiv 2605.02178). The uncertainty is ours.
        """
        settings = self.settings
        steps = [turn for turn in trajectory.turns if not turn.is_summary]
        for attempt in range(settings.resample_turns + 1):
            # The key of step 0 is common to the requests of an episode, and to those of no other
            # one. No step and no reflection has the number of a later attempt.
            number = step + attempt * (settings.max_steps + 1)
            sampling = replace(settings.sampling, key=key(number), session=key(0))
            completion, images = await self._sample(prompt, sampling, trajectory)
            if attempt == settings.resample_turns or not steps:
                break
            uncertainty = mean_uncertainty(completion.logprobs, completion.entropies)
            change = abs(uncertainty - steps[-1].uncertainty)
            if not 0.0 < change < settings.resample_change:
                break
            trajectory.discarded.append(len(completion.tokens))
        return completion, images

    async def _write_summary(
        self,
        prompt: Prompt,
        observation: Observation,
        trajectory: Trajectory,
        key: tuple[int, int],
        *,
        session: tuple[int, int],
    ) -> Turn:
        """Lets the policy write a summary or a strategy.

        The environment waits.
        """
        sampling = replace(
            self.settings.sampling,
            max_tokens=self.settings.summary_tokens,
            # They end actions.
            stop_strings=(),
            key=key,
            session=session,
        )
        completion, images = await self._sample(prompt, sampling, trajectory)
        tokens = completion.tokens.tolist()
        return Turn(
            prompt_tokens=np.asarray(prompt.tokens, np.int32),
            response_tokens=np.asarray(completion.tokens, np.int32),
            logprobs=np.asarray(completion.logprobs, np.float32),
            prompt=prompt.text,
            response=self.tokenizer.decode(tokens),
            action=self._read_summary(tokens),
            valid=True,
            admissible=None,
            observation=observation.text,
            # A strategy is the summary of no step, before the first one.
            anchor=summary_anchor(observation.anchor),
            reward=0.0,
            penalty=0.0,
            finish_reason=completion.finish_reason,
            version=completion.version,
            task=observation.task,
            images=images,
            versions=completion.versions,
            routes=completion.routes,
            is_summary=True,
        )

    async def _find_strategy(
        self, plan: EpisodePlan, write: Callable[[tuple[int, int]], Awaitable[Turn]]
    ) -> Turn:
        """The strategy of an episode.

        The first episode that needs it writes it.
        """
        strategy = plan.strategy or Strategy(plan.member, plan.member)
        # Whichever episode is first: prompt and key are the same.
        async with strategy.lock:
            if strategy.turn is None:
                # No summary has this number: none is written after the last step.
                strategy.turn = await write(plan.key(strategy.member, -self.settings.max_steps))
            return strategy.turn

    async def _play_turn(
        self,
        prompt: Prompt,
        observation: Observation,
        history: History,
        trajectory: Trajectory,
        environment: PooledEnv,
        key: Callable[[int], tuple[int, int]],
        step: int,
    ) -> tuple[Turn, StepResult]:
        settings = self.settings
        completion, images = await self._sample_turn(prompt, trajectory, key, step)
        history.add_response(prompt, completion.tokens.tolist())
        # The text is for the environment; the learner gets the tokens as they were sampled.
        # A tag that the prompt opened is part of the response.
        response = self.tokenizer.opened_text + self.tokenizer.decode(completion.tokens.tolist())
        parsed = settings.parse(response)
        plan = history.plan
        # A response without a plan changes none.
        history.plan = parsed.plan or plan
        admissible = is_admissible(parsed.action, observation.admissible)
        # None is no refusal: the environment lists no actions.
        valid = parsed.valid
        choices = None
        if observation.admissible is not None:
            # A hash in place of a long list: it is only compared for equality.
            choices = anchor_hash("\n".join(observation.admissible))
        result = await _measure(environment.step(parsed.action), trajectory, "environment_s")
        turn = Turn(
            prompt_tokens=np.asarray(prompt.tokens, np.int32),
            response_tokens=np.asarray(completion.tokens, np.int32),
            logprobs=np.asarray(completion.logprobs, np.float32),
            prompt=prompt.text,
            response=response,
            action=parsed.action,
            valid=valid,
            admissible=admissible,
            observation=observation.text,
            anchor=observation.anchor,
            reward=settings.reward(result),
            # Beside the reward and not in it: `rl.preset` decides where it counts.
            penalty=settings.penalty(valid, len(completion.tokens)),
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

    async def write_lesson(
        self, trajectory: Trajectory, zone: str, key: Callable[[int, int], tuple[int, int]]
    ) -> str:
        """Lets the policy write a lesson about a finished episode.

        "" if the engine fails.

        Args:
          trajectory: The episode.
          zone: Zone of the lesson.
          key: See `EpisodePlan`.
        """
        history = History(self.settings.max_steps, trajectory.task.type)
        steps = [turn for turn in trajectory.turns if not turn.is_summary]
        for turn in steps:
            history.add(turn.observation, turn.action, turn.thought)
        observation = Observation(steps[-1].feedback, "", None, trajectory.words)
        template = LessonRequest(self.settings.template, zone)
        plan = EpisodePlan(trajectory.task, trajectory.group, trajectory.member, key)
        # Without plans: the first prompt of an episode would ask for a strategy.
        limited = replace(self, settings=replace(self.settings, plan="none"))
        try:
            return await limited._reflect(
                template, observation, history, plan, trajectory, LESSON_TOKENS
            )
        except _EngineFailure:
            return ""
        finally:
            self.engine.end_session(key(trajectory.member, 0))

    async def _reflect(
        self,
        template: PromptTemplate,
        observation: Observation,
        history: History,
        plan: EpisodePlan,
        trajectory: Trajectory,
        limit: int = REFLECTION_TOKENS,
    ) -> str:
        """Samples the policy's note on an episode, on one line.

        It has at most `limit` tokens.
        """
        settings = self.settings
        prompt_settings = replace(
            settings, template=template, template_images=(), show_admissible=False
        )
        encode = prompt_encoder(self.tokenizer, self.vision)
        prompt = prompt_settings.prompt(observation, history, encode)
        sampling = replace(
            settings.sampling,
            # `examples._check_room` reserves this room in later prompts.
            max_tokens=min(settings.sampling.max_tokens, limit),
            stop_strings=(),
            key=plan.key(plan.member, settings.max_steps),  # steps have smaller numbers
            session=plan.key(plan.member, 0),
        )
        completion, _ = await self._sample(prompt, sampling, trajectory)
        return " ".join(self.tokenizer.decode(completion.tokens.tolist()).split())


def grade_turn(grader: BeliefGrader, turn: Turn) -> Turn:
    """The turn with the grade of its belief.

    The grader has read its observation.
    """
    grade = grade_response(
        grader,
        turn.response,
        valid=turn.valid,
        admissible=turn.admissible,
        feedback=turn.feedback,
    )
    return replace(turn, belief=grade)


async def _generate(
    engine: Engine, tokens: list[int], sampling: SamplingParams, images: "PromptImages | None"
) -> Completion:
    """Samples one response.

    An exception costs one episode, unless the engine is lost.
    """
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
        raise _EngineFailure(f"engine: {type(err).__name__}: {err}") from err
    # Its tokens are the start of a response, from which nothing may be learnt.
    if completion.finish_reason == "abort":
        raise _EngineFailure("engine: it aborted the request")
    return completion


async def _measure(awaitable: Awaitable[_T], trajectory: Trajectory, field_name: str) -> _T:
    """Adds the seconds waited to a field of the trajectory."""
    start = time.perf_counter()
    try:
        return await awaitable
    finally:
        # Also where it failed: the time was spent.
        seconds = getattr(trajectory, field_name) + time.perf_counter() - start
        setattr(trajectory, field_name, seconds)
