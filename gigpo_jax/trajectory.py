"""Turns and trajectories, which rollouts produce and learners consume as numpy arrays."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from gigpo_jax.env_bridge.types import Task

if TYPE_CHECKING:
    from gigpo_jax.models.vision.images import PromptImages


def continues_tokens(tokens: np.ndarray, prompt: np.ndarray, response: np.ndarray) -> bool:
    """Tests whether `tokens` starts with prompt + response and is longer; all are [k] i32."""
    start = len(prompt)
    end = start + len(response)
    # The response first: step prompts share long beginnings, and differ there.
    return (
        len(tokens) > end
        and np.array_equal(tokens[start:end], response)
        and np.array_equal(tokens[:start], prompt)
    )


# eq=False: a comparison of arrays has no single truth value.
@dataclass(frozen=True, eq=False)
class Turn:
    """One environment step: its prompt, response, action and reward.

    A *text* beside actions is a turn too, such as a summary of the conversation or a plan before
    the first step (`env_bridge.plans`). It is valid, its action is its text, and its reward is 0.
    Its observation is the one after it, with an anchor state of its own
    (`episode_texts.summary_anchor`).

    Attributes:
      prompt_tokens: [P] i32, token ids of the request.
      response_tokens: [R] i32, sampled token ids, with the token that ended the response.
      logprobs: [R] f32, nats, log-probability of each token under the distribution it was sampled
        from.
      prompt: Text of the prompt before the chat template.
      response: Decoded response.
      action: Action sent to the environment.
      valid: Whether the response follows the format (and, if that counts, the action is
        admissible).
      admissible: Whether the environment listed the action; None if it lists none.
      observation: Text that the agent saw before the action.
      anchor: Anchor state of that observation, as text.
      reward: Reward of the environment for the action.
      penalty: Penalty >= 0 for an invalid or overlong response.
      finish_reason: Reason why the response ended: "stop" or "length".
      version: Version of the weights that sampled the response; the oldest of several.
      choices: 64-bit hash of the listed actions; None if the environment lists none.
      prompt_cut: Whether parts of the prompt were removed to make it fit.
      regret: Number of actions that the action wasted; None if the environment does not tell.
      task: Task in words.
      thought: Text before the action, where the agent's format separates it.
      feedback: Text that the environment answered to the action.
      images: Images of the prompt, by reference; None without any.
      is_text: Whether it is a text beside actions, such as a summary or a plan, and no step of the
        environment.
      plan: Plan that the prompt shows; None if the policy has stated none.
      versions: Versions of the weights of the tokens, as in `engines.base.Completion`; None: they
        are one.
      routes: Experts of the tokens, as in `engines.base.Completion`; None: they are not kept.
      entropies: Entropies at the tokens, as in `engines.base.Completion`.
      extra: Additions of parts of the episode for signals of the learner, by name.
      metrics: Numbers that parts of the episode add, whose means are metrics of the iteration.
    """

    prompt_tokens: np.ndarray
    response_tokens: np.ndarray
    logprobs: np.ndarray
    prompt: str
    response: str
    action: str
    valid: bool
    admissible: bool | None
    observation: str
    anchor: str
    reward: float
    penalty: float
    finish_reason: str
    version: int
    choices: tuple[int, int] | None = None
    prompt_cut: bool = False
    regret: float | None = None
    task: str = ""
    thought: str = ""
    feedback: str = ""
    images: "PromptImages | None" = None
    is_text: bool = False
    plan: str | None = None
    versions: np.ndarray | None = None
    routes: np.ndarray | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)
    entropies: np.ndarray | None = None

    def continues(self, earlier: "Turn") -> bool:
        """Tests whether the prompt begins with an earlier turn's prompt and whole response."""
        return continues_tokens(self.prompt_tokens, earlier.prompt_tokens, earlier.response_tokens)


# Values of `Past.source`.
FORKS = "forks"
EARLIER = "earlier_starts"


@dataclass(frozen=True)
class Past:
    """Actions that are replayed before the policy acts.

    Attributes:
      actions: Actions from the start of the task.
      state: Text and anchor of the observation that they lead to; None: it is not compared.
      reward: Sum of their rewards in the episode that they come from.
      tokens: Number of response tokens of these actions, which are not sampled again.
      responses: Token ids of the responses with these actions and of the summaries between and
        after them, in order, for a conversation; else ().
      source: Key under `train` that begins episodes after these actions; unless it is `FORKS`, all
        episodes of a group begin there. "": no key of training.
      plan: Plan that the policy has stated; None: none yet.
    """

    actions: tuple[str, ...] = ()
    state: tuple[str, str] | None = None
    reward: float = 0.0
    tokens: int = 0
    responses: tuple[tuple[int, ...], ...] = ()
    source: str = ""
    plan: str | None = None


BEGINNING = Past()


@dataclass(eq=False)
class Trajectory:
    """One episode.

    Attributes:
      task: Task of the episode.
      group: Index of the task group in the rollout.
      member: Index of the trajectory in its group.
      turns: Steps in order, with texts before steps; in an aborted episode the turns before the
        failure.
      won: Whether the task was done.
      score: Score of the environment in [0, 1] at the end.
      aborted: Whether the environment or the engine failed; no statistic counts such an episode.
      reason: Reason of the failure in one line; "" if the episode was not aborted.
      policy_dependent: Whether the failure depends on the policy: the environment failed at an
        action, or the engine refused a prompt. Excluding such episodes may bias the statistics.
      unfinished: Whether it was aborted because enough other episodes of its group had ended.
      replayed: Whether this is the second attempt, after an aborted one.
      replaced: Whether its group had no contrast and another group was played in its place; nothing
        is learned from it.
      environment_s: Time spent waiting for the environment, s.
      engine_s: Time spent waiting for responses, s.
      words: Task in words.
      notes: Texts that the policy wrote about the episode, by name; nothing is learned from them.
      truncated: Whether the episode used up its steps and was not won.
      past: Actions that were replayed before the first turn.
      discarded: Number of tokens of each response that was sampled again.
    """

    task: Task
    group: int
    member: int
    turns: list[Turn] = field(default_factory=list)
    won: bool = False
    score: float = 0.0
    aborted: bool = False
    reason: str = ""
    policy_dependent: bool = False
    unfinished: bool = False
    replayed: bool = False
    replaced: bool = False
    environment_s: float = 0.0
    engine_s: float = 0.0
    words: str = ""
    notes: dict[str, str] = field(default_factory=dict)
    truncated: bool = False
    past: Past = BEGINNING
    discarded: list[int] = field(default_factory=list)

    def abort(self, reason: str, *, policy_dependent: bool) -> None:
        """Marks the episode as aborted: not won, without a score."""
        # Nothing of an aborted episode counts, whatever its last step has reported.
        self.aborted = True
        self.won = False
        self.score = 0.0
        self.truncated = False
        # One line: reasons stand in messages and in lines of a file.
        self.reason = " ".join(reason.split())
        self.policy_dependent = policy_dependent

    @property
    def length(self) -> int:
        """Number of environment steps."""
        return sum(not turn.is_text for turn in self.turns)

    @property
    def total_reward(self) -> float:
        """The undiscounted return of the turns, without penalties."""
        return float(sum(turn.reward for turn in self.turns))

    @property
    def is_forked(self) -> bool:
        """Whether it begins in a state of its group."""
        return bool(self.past.actions) and self.past.source == FORKS


@dataclass(frozen=True, eq=False)
class Step:
    """A step of a finished episode, or a text beside actions: one row of per-step computations.

    Attributes:
      trajectory: Index of the episode in the rollout.
      step: Index of the environment step in the episode, from 0; a text has the index of the step
        after it.
      episode: The episode.
      turn: Prompt, response, action and reward.
      texts: Number of texts beside actions before it in the episode.
    """

    trajectory: int
    step: int
    episode: Trajectory
    turn: Turn
    texts: int = 0

    @property
    def turn_index(self) -> int:
        """Index of the turn in the episode's turns."""
        return self.step + self.texts

    @property
    def truncated(self) -> bool:
        """Whether it is the last step of an episode that used up its steps and was not won."""
        return self.episode.truncated and self.turn_index == len(self.episode.turns) - 1


def has_contrast(group: Sequence[Trajectory]) -> bool:
    """Tests whether a task's group has episodes that differ in score or return.

    Aborted episodes do not count.
    """
    # Both: rewards on the way can differ where the scores at the end are the same.
    outcomes = {
        # Rounded: the rewards of a fork are added in another order.
        (episode.score, round(episode.past.reward + episode.total_reward, 6))
        for episode in group
        if not episode.aborted
    }
    return len(outcomes) > 1


def finished_steps(trajectories: Sequence[Trajectory]) -> list[Step]:
    """Returns the steps and texts of episodes neither aborted nor replaced, in rollout order.

    A text that several episodes share is a row of the first of them alone.
    """
    steps = []
    shared_texts: set[int] = set()
    for index, trajectory in enumerate(trajectories):
        # `index` counts these too: it is the place in the rollout, which other tables refer to.
        if trajectory.aborted or trajectory.replaced:
            continue
        texts = 0
        for number, turn in enumerate(trajectory.turns):
            if turn.is_text:
                # The tokens of a shared text were sampled once.
                if id(turn) in shared_texts:
                    texts += 1
                    continue
                shared_texts.add(id(turn))
            steps.append(Step(index, number - texts, trajectory, turn, texts))
            texts += turn.is_text
    return steps


@dataclass(frozen=True, eq=False)
class StepCredit:
    """Advantages of N steps, in the order of `finished_steps`, as in `rl.advantages.Advantages`.

    `anchor_group`, [N] int, is equal for steps of the same anchor group.
    """

    episode: np.ndarray
    step: np.ndarray
    total: np.ndarray
    anchor_group: np.ndarray
    clip_scale: np.ndarray | None = None
    tokens: np.ndarray | None = None
    target: np.ndarray | None = None
    learned: np.ndarray | None = None

    @property
    def learned_rows(self) -> list[int]:
        """Rows of the steps that are in the loss."""
        rows = np.arange(len(self.total))
        return (rows if self.learned is None else rows[self.learned]).tolist()
