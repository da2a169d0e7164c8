"""A measurement from start to end: plays what is missing, grades, writes the results."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from ml_collections import ConfigDict
from tqdm import tqdm

from gigpo_jax.batching import Sample, step_samples, value_columns
from gigpo_jax.columns.computed import computed_columns
from gigpo_jax.columns.critic import saved_values
from gigpo_jax.columns.text_critic import TextCritic
from gigpo_jax.columns.token_logprobs import make_token_logprobs
from gigpo_jax.config.checks import TAGGED
from gigpo_jax.credit.estimates import estimates, left_out
from gigpo_jax.credit.gradients import group_gradients
from gigpo_jax.credit.measurement import Measurement, claim, graded, measured, slices
from gigpo_jax.credit.replay import replay
from gigpo_jax.credit.report import Row, report
from gigpo_jax.credit.sampler import Sampler
from gigpo_jax.credit.states import State, choose_steps, first_episodes, states_around
from gigpo_jax.env_bridge.base import TextEnv
from gigpo_jax.env_bridge.history import History
from gigpo_jax.env_bridge.prompts import Prompt
from gigpo_jax.env_bridge.types import Observation, Task
from gigpo_jax.envs import registry
from gigpo_jax.errors import InputError
from gigpo_jax.learner import text_critic
from gigpo_jax.models.images import PromptImages
from gigpo_jax.policy import Policy, load_policy
from gigpo_jax.rollout.environment import RunEnvironment, env_options, episode_settings, list_tasks
from gigpo_jax.rollout.pictures import prompt_encoder, prompt_images
from gigpo_jax.rollout.record import Rollouts
from gigpo_jax.rollout.rollout import TooManyAborted
from gigpo_jax.rollout.tasks import draw_tasks
from gigpo_jax.run import partition
from gigpo_jax.run.checkpoint import newest_params, newest_record
from gigpo_jax.run.interrupts import Interrupts
from gigpo_jax.run.report import say
from gigpo_jax.run.workdir import check_adapter, check_writable
from gigpo_jax.sampling.base import EngineLost
from gigpo_jax.trajectory import Step, Trajectory, finished_steps


@dataclass(frozen=True)
class Plan:
    """What to measure and to grade.

    Attributes:
      steps: how many steps.
      continuations: of each state before and after them.
      anchors: values of `env.options.anchor`; () is the config's own.
      variants: settings of GiGPO, as from `parse_variants`.
      group_sizes: the first so many episodes of each task group are graded; in ascending order, the last is all.
      gradients: whether to compare policy gradients.
      environment: the label of the measured one in `env.mix`; "" in a run with one.
    """

    steps: int
    continuations: int
    anchors: tuple[str, ...]
    variants: Mapping[str, Mapping[str, Any]]
    group_sizes: tuple[int, ...]
    gradients: bool
    environment: str = ""


@dataclass(frozen=True)
class _Played:
    """What grading needs: episodes by anchor option, the chosen steps as rows of all, the returns from their states."""

    episodes: dict[str, list[Trajectory]]
    rows: list[int]
    returns: dict[State, np.ndarray]


def run(config: ConfigDict, workdir: Path, plan: Plan) -> int:
    """One measurement, or the rest of a stopped one.

    Args:
      config: as from `config.resolve`, with one environment.
      workdir: of the run; its newest checkpoint plays, or `model.path` if it has none.
      plan: what to measure.

    Returns:
      The exit status: 0 done, 1 no engine was left or too many episodes were aborted, 143 or 130 after SIGTERM or
      Ctrl-C.
    """
    check_writable(workdir, "--workdir")
    if registry.spec(config.env.name).harness:
        raise InputError(f"config.env.name={config.env.name!r}: a harness cannot replay actions; name an environment")
    options = env_options(config)
    tasks = list_tasks(config, options)
    environments = _environments(config, options, plan.anchors)
    mesh = partition.learner_mesh(config)
    policy = load_policy(config, mesh)
    check_adapter(workdir, config, policy.base)
    trained, version = newest_params(workdir / "checkpoints", policy.trained)
    folder = workdir / "credit" / "_".join(filter(None, (f"iteration_{version:06d}", plan.environment)))
    claim(folder, config, plan.continuations)
    say(f"weights: {f'checkpoint {version} of {workdir}' if version else config.model.path}; results: {folder}")
    of_policy = make_token_logprobs(config, policy, mesh, config.sampling.temperature)
    logprobs = partial(of_policy, trained, policy.frozen)
    critic = text_critic(config, newest_record(workdir / "checkpoints"))
    values = None
    if config.critic.kind != "none":
        values = partial(saved_values(config, policy, mesh, workdir / "checkpoints"), (trained, policy.frozen))
    sampler = Sampler(
        config,
        policy,
        policy.whole(trained),
        environment=RunEnvironment("", config, options),
        version=version,
        logprobs=logprobs,
        critic=critic,
        values=values,
    )
    replays = {anchor: partial(_replay, config, env, policy) for anchor, env in environments.items()}
    drawn = draw_tasks(tasks, version, config.train.groups, config.seed)
    played = asyncio.run(_play(sampler, folder, drawn, replays, plan, config.seed))
    if isinstance(played, int):
        return played
    first = next(iter(played.episodes.values()))
    anchored = {anchor: finished_steps(episodes) for anchor, episodes in played.episodes.items()}
    measurement = measured(first, finished_steps(first), played.rows, played.returns)
    gradients = group_gradients(config, policy, mesh, trained, measurement.steps) if plan.gradients else None
    columns = computed_columns(_known(config, first), finished_steps(first), logprobs, config, policy.tokenizer)
    own = anchored.get(str(options.get("anchor", "")))
    columns |= _values(config, critic, own, values, finished_steps(first))
    for name, missing in left_out(columns, config.rl).items():
        say(f"not graded: {name}, which needs {', '.join(missing)}")
    rows = _grade(config, plan, measurement, anchored, columns, gradients)
    _write(folder, plan, rows, measurement, [trajectory.member for trajectory in first])
    return 0


def _known(config: ConfigDict, episodes: Sequence[Trajectory]) -> set[str]:
    """The optional columns that the policy and the episodes tell."""
    tags = {"tag", "step_reward"} if config.env.prompt == TAGGED else set()
    answers = {"answer_logprob"} if all(episode.task.answer for episode in episodes) else set()
    return {"entropy", "logprob"} | tags | answers


def _grade(
    config: ConfigDict,
    plan: Plan,
    measurement: Measurement,
    anchored: Mapping[str, Sequence[Step]],
    columns: Mapping[str, np.ndarray],
    gradients: Callable[[np.ndarray], np.ndarray] | None,
) -> list[Row]:
    """Grades the estimates from all episodes of a task group, and from the first ones."""
    steps, rows = next(iter(anchored.values())), []
    for size in plan.group_sizes:
        kept = first_episodes(steps, size, config.seed)
        part = {anchor: [every[row] for row in kept] for anchor, every in anchored.items()}
        found = estimates(part, config.rl, plan.variants, {name: column[kept] for name, column in columns.items()})
        with tqdm(total=len(found), desc="grades", unit="estimate", leave=False, disable=None) as bar:
            rows += graded(
                found,
                replace(measurement, rows=np.searchsorted(kept, measurement.rows)),
                {anchor: slices(some) for anchor, some in part.items()},
                config.seed,
                group_size=size if len(plan.group_sizes) > 1 else None,
                gradients=gradients,
                progress=bar.update,
            )
    return rows


def _values(
    config: ConfigDict,
    critic: TextCritic | None,
    own: Sequence[Step] | None,
    values: Callable[[Sequence[Sample]], list[np.ndarray]] | None,
    steps: Sequence[Step],
) -> dict[str, np.ndarray]:
    """The columns that a critic of the run gives; a text critic reads the run's own anchors, `own`."""
    columns = {} if critic is None or own is None else {"value": critic.values(own)}
    if values is not None:
        columns |= value_columns(values(step_samples(steps)), config.sampling.max_response_tokens)
    return columns


async def _play(
    sampler: Sampler, folder: Path, tasks: Sequence[Task], replays: Mapping[str, Any], plan: Plan, seed: int
) -> "_Played | int":
    """Plays what is missing in the folder; the exit status if that did not end."""
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None
    with Interrupts(lambda: loop.call_soon_threadsafe(task.cancel)) as interrupts:
        try:
            rollouts = await sampler.rollouts(folder, tasks)
            episodes = {anchor: again(rollouts) for anchor, again in replays.items()}
            first = next(iter(episodes.values()))
            steps = finished_steps(first)
            rows = choose_steps(steps, plan.steps, seed)
            if not {*rows} <= {*first_episodes(steps, plan.group_sizes[0], seed)}:
                raise InputError(
                    f"--steps={plan.steps}: measures more than {plan.group_sizes[0]} episodes of a task group; "
                    "use fewer steps or larger --group-sizes"
                )
            states = states_around(first, [steps[row] for row in rows])
            return _Played(episodes, rows, await sampler.returns(folder, states, plan.continuations))
        except asyncio.CancelledError:
            if not interrupts.status:
                raise
            say("stopped; the same command continues from there")
            return interrupts.status
        except (EngineLost, TooManyAborted) as error:
            say(f"not measured: {error}")
            return 1
        finally:
            sampler.close()


def _environments(config: ConfigDict, options: Mapping[str, Any], anchors: Sequence[str]) -> dict[str, TextEnv]:
    """An environment for each anchor option; it tells the regret of actions if it can."""
    name = config.env.name
    regret = {"regret": True} if "regret" in registry.spec(name).options else {}
    if not anchors:
        return {str(options.get("anchor", "")): registry.make(name, **{**options, **regret})}
    return {anchor: registry.make(name, **{**options, **regret, "anchor": anchor}) for anchor in anchors}


def _replay(config: ConfigDict, env: TextEnv, policy: Policy, rollouts: Rollouts) -> list[Trajectory]:
    settings = episode_settings(config, temperature=config.sampling.temperature, stop_token_ids=())
    vision = policy.config.vision

    def prompt(observation: Observation, history: History) -> tuple[Prompt, PromptImages | None]:
        shown = settings.prompt(observation, history, prompt_encoder(policy.tokenizer, vision))
        return shown, prompt_images(vision, shown.tokens, shown.images)

    try:
        return replay(env, rollouts.episodes, window=config.env.history, prompt=prompt)
    finally:
        env.close()


def _write(folder: Path, plan: Plan, rows: Sequence[Row], measurement: Measurement, members: Sequence[int]) -> None:
    own = measurement.own
    verdicts = [
        {
            "group": step.group,
            "member": members[step.trajectory],
            "step": step.step,
            "advantage": float(own.advantage[row]),
            "error": float(own.error[row]),
            "regret": step.turn.regret,
        }
        for row, step in enumerate(measurement.steps)
    ]
    report(folder, rows, own, {"continuations": plan.continuations, "steps": verdicts})
