"""A policy on a frozen panel of tasks: success and score with 95% intervals, over all and per task type."""

import contextlib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
from ml_collections import ConfigDict

from gigpo_jax.batching import step_samples, value_columns
from gigpo_jax.columns.computed import computed_columns
from gigpo_jax.columns.critic import saved_values
from gigpo_jax.columns.token_logprobs import make_token_logprobs
from gigpo_jax.config.mix import own_keys
from gigpo_jax.env_bridge.panels import Panel, check_panel, find_panel
from gigpo_jax.env_bridge.types import Task
from gigpo_jax.envs import registry
from gigpo_jax.errors import InputError
from gigpo_jax.files import write_json
from gigpo_jax.learner import chosen, objective, step_credit, text_critic
from gigpo_jax.policy import Policy, load_policy
from gigpo_jax.rollout.environment import RunEnvironment, environments
from gigpo_jax.rollout.examples import make_examples
from gigpo_jax.rollout.pictures import prompt_encoder
from gigpo_jax.rollout.record import SUFFIX, saved, write_rollouts
from gigpo_jax.rollout.rollout import TooManyAborted
from gigpo_jax.rollout.worker import RolloutWorker
from gigpo_jax.run import partition, report
from gigpo_jax.run.checkpoint import newest_params, newest_record
from gigpo_jax.run.hosts import Hosts, HostsStopped
from gigpo_jax.run.interrupts import run_async
from gigpo_jax.run.intervals import mean_interval, wilson_interval
from gigpo_jax.run.workdir import check_adapter, check_writable
from gigpo_jax.sampling.base import EngineLost
from gigpo_jax.trajectory import Trajectory, finished_steps


@dataclass(frozen=True)
class Outcome:
    """How an episode ended.

    Attributes:
      task_type: `Task.kind` of its task, "" if it has none.
      won: whether the task was done.
      score: the environment's score in [0, 1] at the end.
      length: steps.
      aborted: whether the environment or the engine failed.
      policy_dependent: see `Trajectory`.
      environment: label of the environment in `env.mix`, "" in a run with one.
    """

    task_type: str
    won: bool
    score: float
    length: int
    aborted: bool = False
    policy_dependent: bool = False
    environment: str = ""


def outcomes(trajectories: Sequence[Trajectory], tasks: Sequence[Task], trials: int = 1) -> list[Outcome]:
    """How all tasks of all hosts ended after so many trials.

    A task is won if a trial is won. Its score is that of the best trial, its length the steps of all of them.

    Args:
      trajectories: of this host; group is the index of the task, member the number of the trial.
      tasks: of the panel.
      trials: later ones are left out.
    """
    rows = [(t.group, t.member, t.won, t.score, len(t.turns), t.aborted, t.policy_dependent) for t in trajectories]
    gathered = partition.all_rows(np.array(rows, np.float64).reshape(-1, 7))
    by_task: dict[int, list[np.ndarray]] = defaultdict(list)
    for index, member, *outcome in gathered:
        if member < trials:
            by_task[int(index)].append(outcome)
    return [
        Outcome(
            task_type=tasks[index].kind,
            won=bool(won[-1]),
            score=max(score),
            length=int(sum(length)),
            aborted=bool(aborted[-1]),
            policy_dependent=bool(dependent[-1]),
            environment=tasks[index].environment,
        )
        for index, (won, score, length, aborted, dependent) in ((i, zip(*rows)) for i, rows in by_task.items())
    ]


def summarise(episodes: Sequence[Outcome]) -> dict[str, dict[str, Any]]:
    """Sums up finished episodes.

    Args:
      episodes: of one policy and one panel; aborted ones are counted and otherwise left out.

    Returns:
      For "all", each environment of `env.mix` and each task type: episodes, aborted, aborted_policy_dependent (of the
      aborted), success_rate and score (fractions), their 95% intervals `success_interval` and `score_interval`, and the
      mean length in steps; for "all" also `type_average`, the unweighted mean of the success rates of the environments,
      else of the types.
    """
    by_type: dict[str, list[Outcome]] = defaultdict(list)
    for episode in episodes:
        for name in dict.fromkeys(("all", *filter(None, (episode.environment, episode.task_type)))):
            by_type[name].append(episode)
    result: dict[str, dict[str, Any]] = {}
    for name in sorted(by_type, key=lambda name: (name != "all", name)):
        done = [episode for episode in by_type[name] if not episode.aborted]
        won, scores = sum(e.won for e in done), [e.score for e in done]
        result[name] = {
            "episodes": len(done),
            "aborted": len(by_type[name]) - len(done),
            "aborted_policy_dependent": sum(e.policy_dependent for e in by_type[name]),
            "success_rate": won / len(done) if done else 0.0,
            "success_interval": list(wilson_interval(won, len(done))),
            "score": float(np.mean(scores)) if done else 0.0,
            "score_interval": list(mean_interval(scores)),
            "length": float(np.mean([e.length for e in done])) if done else 0.0,
        }
    if "all" in result:
        averaged = {episode.environment or episode.task_type for episode in episodes}
        rates = [row["success_rate"] for name, row in result.items() if name in averaged and row["episodes"]]
        result["all"]["type_average"] = float(np.mean(rates)) if rates else result["all"]["success_rate"]
    return result


def table(results: dict[str, dict[str, dict]]) -> str:
    """A Markdown table of `summarise` results by decoding, such as {"temperature 0.4": ..., "greedy": ...}."""
    lines = ["| decoding | task type | episodes | success % | 95% | score | steps |", "|---|---|---|---|---|---|---|"]
    for decoding, summary in results.items():
        for name, row in summary.items():
            low, high = row["success_interval"]
            lines.append(
                f"| {decoding} | {name} | {row['episodes']} | {100 * row['success_rate']:.1f} | "
                f"{100 * low:.1f} to {100 * high:.1f} | {row['score']:.3f} | {row['length']:.1f} |"
            )
        if len(summary) > 2:
            average = 100 * summary["all"]["type_average"]
            mixed = any(name.startswith(f"{other}/") for name in summary for other in summary)
            over = "environments" if mixed else "types"
            lines.append(f"| {decoding} | unweighted mean of the {over} | | {average:.1f} | | | |")
    for decoding, summary in results.items():
        if aborted := summary["all"]["aborted"]:
            dependent = summary["all"]["aborted_policy_dependent"]
            lines.append(f"{decoding}: {aborted} episodes were aborted and left out ({dependent} policy-dependent)")
    return "\n".join(lines)


def panel_tasks(run: Sequence[RunEnvironment]) -> tuple[Panel, tuple[Task, ...]] | None:
    """The panel `eval.panel` and the tasks of it that are played; None without one.

    The panels of several environments are one, one after the other.

    Raises:
      InputError: there is no such panel, or its tasks are missing or differ.
    """
    found = [_own_panel(environment) for environment in run if environment.config.eval.panel]
    if not found:
        return None
    panels, played = zip(*found, strict=True)
    tasks = tuple(task for own in played for task in own)
    if not tasks[0].environment:
        return panels[0], tasks
    name, environment, split = (
        "+".join(getattr(panel, field) for panel in panels) for field in ("name", "environment", "split")
    )
    content = [
        (f"{own[0].environment}/{task}", digest)
        for panel, own in zip(panels, played, strict=True)
        for task, digest in panel.tasks
    ]
    return Panel(name, environment, split, tuple(content)), tasks


def _own_panel(environment: RunEnvironment) -> tuple[Panel, tuple[Task, ...]]:
    """The panel of one environment, and the tasks of it that are played."""
    config = environment.config
    with own_keys(environment.label):
        folder = registry.panel_folder(config.env.name)
        panel = find_panel(config.eval.panel, config.env.name, folder, key="config.eval.panel")
        env = environment.make()
        try:
            tasks = check_panel(panel, env)
        finally:
            env.close()
    return panel, tuple(replace(task, environment=environment.label) for task in tasks[: config.eval.tasks or None])


class Evaluator:
    """Plays tasks of a panel with the weights that a worker has."""

    def __init__(self, config: ConfigDict, worker: RolloutWorker, tasks: Sequence[Task]) -> None:
        """Takes what `panel_tasks` gave."""
        self._config, self._worker, self._tasks = config, worker, tasks

    async def play(self, *, greedy: bool) -> dict[str, list[Trajectory]]:
        """This host's share of the trials of all tasks, by decoding: "sampled" and, if asked for, "greedy"."""
        temperatures = {"sampled": self._config.eval.temperature} | ({"greedy": 0.0} if greedy else {})
        hosts, host, count = jax.process_count(), jax.process_index(), len(self._tasks)
        first, last = count * host // hosts, count * (host + 1) // hosts
        out = {}
        for number, (name, temperature) in enumerate(temperatures.items()):
            out[name] = await self._worker.play(
                self._tasks[first:last],
                group_size=1,
                # Negative: no training iteration has these keys, and every evaluation draws the same.
                iteration=-1 - number,
                first_group=first,
                temperature=temperature,
                title=f"panel, {name}",
            )
        return out

    def outcomes(self, played: Mapping[str, Sequence[Trajectory]]) -> dict[str, list[Outcome]]:
        """How one episode of every task ended, over all hosts and in the panel's order, by decoding."""
        return {name: outcomes(trajectories, self._tasks) for name, trajectories in played.items()}


def metrics(results: dict[str, list[Outcome]]) -> dict[str, float]:
    """Results by decoding as metrics.

    `val/<decoding>/<what>`, of environments of `env.mix` `val/<decoding>/<what>/<label>`, and of task types
    `val/<decoding>/success_rate/<type>`.
    """
    out: dict[str, float] = {}
    for decoding, episodes in results.items():
        summary = summarise(episodes)
        labels = {episode.environment for episode in episodes}
        for kind, row in summary.items():
            names = {"success_rate": row["success_rate"]}
            if kind == "all" or kind in labels:
                names |= {name: row[name] for name in ("score", "length", "aborted", "aborted_policy_dependent")}
                names |= dict(zip(("success_low", "success_high"), row["success_interval"], strict=True))
            if kind == "all":
                names["success_rate_type_average"] = row["type_average"]
            out |= {f"val/{decoding}/{name}{'' if kind == 'all' else f'/{kind}'}": v for name, v in names.items()}
    return out


def record(panel: Panel, tasks: Sequence[Task], iteration: int, results: dict[str, list[Outcome]]) -> dict[str, Any]:
    """Results task by task, as JSON values, for comparisons between runs; an aborted episode is null."""
    return {
        "iteration": iteration,
        "panel": panel.name,
        "sha256": panel.sha256,
        "tasks": ["/".join(filter(None, (task.environment, task.id))) for task in tasks],
        "types": [task.kind for task in tasks],
        "results": {
            decoding: {
                "won": [None if episode.aborted else episode.won for episode in episodes],
                "score": [None if episode.aborted else episode.score for episode in episodes],
            }
            for decoding, episodes in results.items()
        },
    }


def run(config: ConfigDict, workdir: Path, out: str) -> int:
    """Evaluates the newest checkpoint of a workdir, or `model.path` if it has none.

    Writes JSON, the episodes beside it (`rollout.record`), and a table to the console.

    Args:
      config: as from `config.resolve`.
      workdir: of the training run.
      out: the JSON file; default WORKDIR/eval_<panel>.json, with _<agent> for one that is not plain.

    Returns:
      The exit status: 0 done, 1 no engine was left or too many episodes were aborted, or that of a host that stopped.

    Raises:
      InputError: the workdir's adapter is another one, or of another model, or the examples of the agent do not fit.
    """
    hosts = Hosts()
    try:
        with hosts.stopping():
            return _run(config, workdir, out, hosts)
    except (EngineLost, TooManyAborted, HostsStopped) as error:
        report.say(f"not evaluated: {error}")
        return error.stop.status if isinstance(error, HostsStopped) else 1


def _run(config: ConfigDict, workdir: Path, out: str, hosts: Hosts) -> int:
    check_writable(Path(out).parent if out else workdir, "--out" if out else "--workdir")
    run_environments = environments(config)
    if (found := panel_tasks(run_environments)) is None:
        where = "; with env.mix in env.mix.LABEL.panel" if config.env.mix else ""
        raise InputError(f"config.eval.panel='': name a panel to evaluate on{where}")
    panel, tasks = found
    mesh = partition.learner_mesh(config)
    policy = load_policy(config, mesh)
    check_adapter(workdir, config, policy.base)
    trained, version = newest_params(workdir / "checkpoints", policy.trained)
    start = " with ".join(filter(None, (config.model.path, config.model.lora.path)))
    report.say(f"weights: {f'checkpoint {version} of {workdir}' if version else start}")
    examples, encode = {}, prompt_encoder(policy.tokenizer, policy.config.vision)
    for each in run_environments:
        kinds = {task.type for task in tasks if task.environment == each.label}
        ids = [task_id.removeprefix(f"{each.label}/") for task_id in panel.ids]
        with own_keys(each.label):
            examples[each.label] = make_examples(each.config, each.options, ids, kinds, encode)
    worker = RolloutWorker(
        config,
        policy,
        policy.whole(trained),
        environments=run_environments,
        version=version,
        folder=workdir / "servers",
        examples=examples,
    )
    with contextlib.closing(worker):
        played = run_async(hosts.share(Evaluator(config, worker, tasks).play(greedy=True)))
    named = {
        label: summarise(outcomes(trajectories, tasks, trials))
        for decoding, trajectories in played.items()
        for trials, label in enumerate(_labels(config, decoding), 1)
    }
    report.say(f"panel {panel.name}, {len(tasks)} tasks, sha256 {panel.sha256[:16]}, agent {config.agent}")
    report.say(table(named))
    agent = "" if config.agent == "plain" else f"_{config.agent.rpartition(':')[2]}"
    path = Path(out) if out else workdir / f"eval_{panel.name}{agent}.json"
    if jax.process_index() == 0:
        what = {"panel": panel.name, "sha256": panel.sha256, "iteration": version, "agent": config.agent}
        write_json(path, what | {"results": named})
    report.say(f"written: {path}")
    _save_episodes(config, workdir, policy, mesh, trained, played, path, version)
    return 0


def _save_episodes(
    config: ConfigDict,
    workdir: Path,
    policy: Policy,
    mesh: jax.sharding.Mesh,
    trained: Any,
    played: Mapping[str, Sequence[Trajectory]],
    path: Path,
    version: int,
) -> None:
    """Writes the episodes of each decoding beside the result `path`, with the credit that training would give them."""
    advantages, _ = objective(config)
    critic = text_critic(config, newest_record(workdir / "checkpoints"))
    has_critic = config.critic.kind != "none"
    token_values = saved_values(config, policy, mesh, workdir / "checkpoints") if has_critic else None
    for decoding, trajectories in played.items():
        temperature = config.eval.temperature if decoding == "sampled" else 0.0
        steps = finished_steps(trajectories)
        logprobs = partial(make_token_logprobs(config, policy, mesh, temperature), trained, policy.frozen)
        columns = computed_columns(chosen(config).needs, steps, logprobs, config, policy.tokenizer, critic)
        if token_values is not None:
            found = token_values((trained, policy.frozen), step_samples(steps))
            columns |= value_columns(found, config.sampling.max_response_tokens)
        credit = step_credit(config, advantages, steps, columns)[1]
        how = {"gamma": config.rl.gamma, "iteration": version, "temperature": temperature}
        host = f".host{jax.process_index()}" if jax.process_count() > 1 else ""
        episodes = path.with_name(f"{path.stem}_{decoding}{host}{SUFFIX}")
        entropies = logprobs(step_samples(steps)).entropy
        write_rollouts(episodes, saved(trajectories, credit, entropies, decode=policy.tokenizer.decode, **how))
        report.say(f"written: {episodes}")


def _labels(config: ConfigDict, decoding: str) -> list[str]:
    """What the results after 1, 2, .. trials are called."""
    name = f"temperature {config.eval.temperature:g}" if decoding == "sampled" else decoding
    later = [f"{name}, {trials} trials" for trials in range(2, config.eval.trials + 1)]
    return [f"{name}, 1 trial" if later else name, *later]
