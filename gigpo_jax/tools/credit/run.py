"""A measurement from start to end: plays what is missing, grades, writes the results."""

import asyncio
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from ml_collections import ConfigDict

from gigpo_jax.core.errors import InputError
from gigpo_jax.core.files import check_writable
from gigpo_jax.engines.base import EngineLost
from gigpo_jax.env_bridge.base import TextEnv
from gigpo_jax.env_bridge.prompts import History, Prompt
from gigpo_jax.env_bridge.types import Observation, Task
from gigpo_jax.envs import registry
from gigpo_jax.learner.scored_steps import ScoredSteps
from gigpo_jax.learner.signals.base import Signal
from gigpo_jax.learner.signals.saved import gradable_columns, load_signals
from gigpo_jax.learner.signals.table import compute_columns, signal_bytes
from gigpo_jax.learner.token_logprobs import make_token_logprobs
from gigpo_jax.models.vision.images import PromptImages
from gigpo_jax.policy import Policy
from gigpo_jax.rollout.draws import draw_tasks
from gigpo_jax.rollout.environment import RunEnvironment, all_tasks, env_options, episode_settings
from gigpo_jax.rollout.prompt_encoding import prompt_encoder, prompt_images
from gigpo_jax.rollout.record import Rollouts
from gigpo_jax.rollout.rollout import TooManyAborted
from gigpo_jax.run.interrupts import Interrupts
from gigpo_jax.run.open_run import OpenRun, open_run
from gigpo_jax.run.progress import show_progress, show_stage
from gigpo_jax.run.report import say
from gigpo_jax.tools.credit.estimates import (
    Variant,
    estimate_steps,
    given_columns,
    missing_columns,
    own_variant,
)
from gigpo_jax.tools.credit.gradients import group_gradients
from gigpo_jax.tools.credit.measurement import (
    Measurement,
    claim_folder,
    grade_estimates,
    make_measurement,
    step_labels,
)
from gigpo_jax.tools.credit.replay import replay_episodes
from gigpo_jax.tools.credit.report import Row, write_report
from gigpo_jax.tools.credit.sampler import PolicySampler
from gigpo_jax.tools.credit.states import State, choose_steps, first_episodes, states_around
from gigpo_jax.trajectory import Step, Trajectory, finished_steps


@dataclass(frozen=True)
class MeasurementChoice:
    """Choice of measured steps and graded estimates.

    Attributes:
      steps: Number of measured steps.
      continuations: Number of continuations of each state before and after a measured step.
      anchors: Values of `env.anchor` to grade; () for the config's own.
      variants: Algorithms with other settings to grade, as from `parse_variants`.
      group_sizes: Numbers of episodes of each task group to grade, ascending; the last is all.
      gradients: Whether to compare policy gradients.
      environment: Label of the measured environment in `env.mix`; "" in a run with one.
    """

    steps: int
    continuations: int
    anchors: tuple[str, ...]
    variants: Mapping[str, Variant]
    group_sizes: tuple[int, ...]
    gradients: bool
    environment: str = ""


@dataclass(frozen=True)
class _Played:
    """Episodes by anchor option, rows of the chosen steps, and returns from their states."""

    episodes: dict[str, list[Trajectory]]
    rows: list[int]
    returns: dict[State, np.ndarray]


def run(config: ConfigDict, workdir: Path, choice: MeasurementChoice) -> int:
    """One measurement, or the rest of a stopped one.

    Args:
      config: Resolved config with one environment.
      workdir: Folder of the run; its newest checkpoint plays, or `model.path` if it has none.
      choice: Choice of steps and estimates.

    Returns:
      The exit status: 0 done, 1 no engine was left or too many episodes were aborted, 143 or 130
      after SIGTERM or Ctrl-C.
    """
    check_writable(workdir, "--workdir")
    _check_replays(config)
    # Options, tasks and environments are made before the model: their mistakes are told at once.
    options = env_options(config)
    environment = RunEnvironment("", config, options)
    tasks = all_tasks([environment])
    environments = _make_environments(config, options, choice.anchors)
    opened = open_run(config, workdir, signal_bytes, scores=True)
    policy = opened.policy
    labels = filter(None, (f"iteration_{opened.version:06d}", choice.environment))
    folder = workdir / "credit" / "_".join(labels)
    claim_folder(folder, config, choice.continuations)
    say(f"weights: {opened.source}; results: {folder}")
    score = make_token_logprobs(config, policy, opened.mesh, config.sampling.temperature)

    def score_steps(steps: Sequence[Step]) -> ScoredSteps:
        return ScoredSteps(steps, (opened.trained, policy.frozen), score)

    signals = load_signals(config, policy, opened.mesh, opened.checkpoints)
    sampler = PolicySampler(
        config,
        policy,
        opened.params,
        environment=environment,
        version=opened.version,
        signals=signals,
        score_steps=score_steps,
    )
    replays = {
        anchor: partial(_replay_rollouts, config, env, policy)
        for anchor, env in environments.items()
    }
    # The tasks of the iteration that training would play next.
    drawn = draw_tasks(tasks, opened.version, config.train.groups, config.seed)
    played = asyncio.run(_play(sampler, folder, drawn, replays, choice, config.seed))
    if isinstance(played, int):
        return played
    first = next(iter(played.episodes.values()))
    # The options differ in their anchors alone, so row k is the same step under each of them.
    anchored = {anchor: finished_steps(episodes) for anchor, episodes in played.episodes.items()}
    measurement = make_measurement(first, finished_steps(first), played.rows, played.returns)
    # One backward pass a step, for all estimates and both halves.
    gradients = None
    if choice.gradients:
        gradients = group_gradients(config, policy, opened.mesh, opened.trained, measurement.steps)
    scored = score_steps(finished_steps(first))
    # A text critic reads the run's own anchors: if they are not graded, it has no values.
    own_steps = anchored.get(options.get("anchor") or config.env.anchor)
    own_scored = None if own_steps is None else score_steps(own_steps)
    columns = _estimate_columns(config, opened, signals, scored, own_scored)
    available_columns = given_columns(scored.steps) | {*columns}
    choice = replace(choice, variants=own_variant(config.rl) | dict(choice.variants))
    for name, missing in missing_columns(available_columns, config.rl, choice.variants).items():
        say(f"not graded: {name}, which needs {', '.join(missing)}")
    rows = _grade(config, choice, measurement, anchored, columns, gradients)
    _write_measurement(
        folder, choice, rows, measurement, [trajectory.member for trajectory in first]
    )
    return 0


def _check_replays(config: ConfigDict) -> None:
    """Refuses runs whose episodes cannot be played again as they were."""
    if registry.spec(config.env.name).harness:
        raise InputError(
            "a harness cannot replay actions",
            key="config.env.name",
            value=repr(config.env.name),
            fix="name an environment",
        )
    if config.train.experience:
        raise InputError(
            "continuations would show other lessons than the episodes",
            key="config.train.experience",
            value=config.train.experience,
            fix="measure a run without a library",
        )


def _grade(
    config: ConfigDict,
    choice: MeasurementChoice,
    measurement: Measurement,
    anchored: Mapping[str, Sequence[Step]],
    columns: Mapping[str, np.ndarray],
    gradients: Callable[[np.ndarray], np.ndarray] | None,
) -> list[Row]:
    """Grades the estimates from all episodes of each task group, and from its first episodes."""
    steps = next(iter(anchored.values()))
    graded_rows: list[Row] = []
    for size in choice.group_sizes:
        rows = first_episodes(steps, size, config.seed)
        subset = {anchor: [every[row] for row in rows] for anchor, every in anchored.items()}
        subset_columns = {name: column[rows] for name, column in columns.items()}
        # Each algorithm is a program of its own, and most of the time goes into compiling them.
        with show_stage("computing the estimates"):
            estimates = estimate_steps(subset, config.rl, choice.variants, subset_columns)
        with show_progress("grades", total=len(estimates), unit="estimates") as bar:
            graded_rows += grade_estimates(
                estimates,
                # Places among all steps become places in the subset. `_play` checked that all are
                # in it, and `rows` is sorted.
                replace(measurement, rows=np.searchsorted(rows, measurement.rows)),
                {anchor: step_labels(some) for anchor, some in subset.items()},
                config.seed,
                group_size=size if len(choice.group_sizes) > 1 else None,
                gradients=gradients,
                progress=bar.update,
            )
    return graded_rows


def _estimate_columns(
    config: ConfigDict,
    opened: OpenRun,
    signals: Sequence[Signal],
    scored: ScoredSteps,
    own_scored: ScoredSteps | None,
) -> dict[str, np.ndarray]:
    """Computes the columns that estimates read: of every algorithm of the catalogue, and the run's.

    The run alone has its critic, or its copy that learns rewards. Arguments as for `_own_columns`.
    """
    policy = opened.policy
    available = gradable_columns(config, policy, scored.steps)
    policy_signals = load_signals(config, policy, opened.mesh, opened.checkpoints, available)
    with show_stage("computing what the estimates read"):
        columns = compute_columns(policy_signals, scored)
    return columns | _own_columns(signals, available, scored, own_scored)


def _own_columns(
    signals: Sequence[Signal],
    available: Set[str],
    scored: ScoredSteps,
    own_scored: ScoredSteps | None,
) -> dict[str, np.ndarray]:
    """The columns that the run alone can compute, where signals that read anchors read the run's.

    Args:
      signals: signals of the run.
      available: columns that any run can compute, which are left out.
      scored: the steps.
      own_scored: the steps with the run's anchors, or None.
    """
    columns: dict[str, np.ndarray] = {}
    for signal in signals:
        if available >= {*signal.columns}:
            continue
        steps = own_scored if signal.reads_anchors else scored
        if steps is not None:
            columns |= signal.compute_columns(steps)
    return columns


async def _play(
    sampler: PolicySampler,
    folder: Path,
    tasks: Sequence[Task],
    replays: Mapping[str, Any],
    choice: MeasurementChoice,
    seed: int,
) -> "_Played | int":
    """Plays what is missing in the folder.

    Returns the exit status if that did not end.
    """
    loop = asyncio.get_running_loop()
    task = asyncio.current_task()
    assert task is not None
    with Interrupts(lambda: loop.call_soon_threadsafe(task.cancel)) as interrupts:
        try:
            # Rollouts first: the steps, and so the states, are chosen from their replays.
            rollouts = await sampler.rollouts(folder, tasks)
            with show_stage("replaying the episodes"):
                episodes = {anchor: again(rollouts) for anchor, again in replays.items()}
            # Anchors do not change a state, so any option's episodes give the steps.
            first = next(iter(episodes.values()))
            steps = finished_steps(first)
            # The choice depends on the episodes and the seed alone, so a continued measurement
            # repeats it.
            rows = choose_steps(steps, choice.steps, seed)
            # A step of an episode that the smallest size leaves out has no estimate there.
            if not {*rows} <= {*first_episodes(steps, choice.group_sizes[0], seed)}:
                raise InputError(
                    f"measures more than {choice.group_sizes[0]} episodes of a task group",
                    key="--steps",
                    value=choice.steps,
                    fix="use fewer steps or larger --group-sizes",
                )
            states = states_around(first, [steps[row] for row in rows])
            return _Played(
                episodes, rows, await sampler.returns(folder, states, choice.continuations)
            )
        except asyncio.CancelledError:
            # No interrupt: something else cancelled the task, and the caller must see it.
            if not interrupts.status:
                raise
            say("stopped; the same command continues from there")
            return interrupts.status
        except (EngineLost, TooManyAborted) as error:
            say(f"not measured: {error}")
            return 1
        finally:
            sampler.close()


def _make_environments(
    config: ConfigDict, options: Mapping[str, Any], anchors: Sequence[str]
) -> dict[str, TextEnv]:
    """An environment for each anchor option, which tells the regret of actions if it can."""
    name = config.env.name
    # Only replays tell the regret: it costs time in every step, and continuations do not need it,
    # unless rewards depend on it; then the run's own options have it.
    regret = {"regret": True} if "regret" in registry.spec(name).run_arguments else {}
    if not anchors:
        return {
            options.get("anchor") or config.env.anchor: registry.make(name, **{**options, **regret})
        }
    return {
        anchor: registry.make(name, **{**options, **regret, "anchor": anchor}) for anchor in anchors
    }


def _replay_rollouts(
    config: ConfigDict, env: TextEnv, policy: Policy, rollouts: Rollouts
) -> list[Trajectory]:
    # Prompts must equal the rollout's, so they come from the same settings. Stop tokens only
    # matter while a response is drawn.
    settings = episode_settings(config, temperature=config.sampling.temperature, stop_token_ids=())
    vision = policy.config.vision

    def prompt(observation: Observation, history: History) -> tuple[Prompt, PromptImages | None]:
        encode = prompt_encoder(policy.tokenizer, vision)
        current_prompt = settings.prompt(observation, history, encode)
        return current_prompt, prompt_images(vision, current_prompt.tokens, current_prompt.images)

    try:
        return replay_episodes(
            env,
            rollouts.episodes,
            settings,
            prompt=prompt,
        )
    finally:
        env.close()


def _write_measurement(
    folder: Path,
    choice: MeasurementChoice,
    rows: Sequence[Row],
    measurement: Measurement,
    members: Sequence[int],
) -> None:
    measured = measurement.advantages
    verdicts = [
        {
            "group": step.episode.group,
            "member": members[step.trajectory],
            "step": step.turn_index,
            "advantage": float(measured.advantage[row]),
            "error": float(measured.error[row]),
            "regret": step.turn.regret,
        }
        for row, step in enumerate(measurement.steps)
    ]
    write_report(folder, rows, measured, {"continuations": choice.continuations, "steps": verdicts})
