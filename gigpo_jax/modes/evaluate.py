"""A policy on a frozen panel of tasks: success and score with 95% intervals."""

import contextlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
from ml_collections import ConfigDict

from gigpo_jax.config.keys import flatten
from gigpo_jax.config.mix import name_member_keys
from gigpo_jax.config.saved import affects_results
from gigpo_jax.core.errors import InputError
from gigpo_jax.core.files import check_writable, write_json
from gigpo_jax.engines.base import EngineLost
from gigpo_jax.env_bridge.agents import Examples
from gigpo_jax.env_bridge.panels import Panel, panel_names
from gigpo_jax.env_bridge.types import Task
from gigpo_jax.envs.panels import panel_folder
from gigpo_jax.learner.credit import step_credit
from gigpo_jax.learner.objective import make_objective
from gigpo_jax.learner.scored_steps import ScoredSteps
from gigpo_jax.learner.signals.saved import load_signals
from gigpo_jax.learner.signals.table import compute_columns, signal_bytes
from gigpo_jax.learner.token_logprobs import make_token_logprobs
from gigpo_jax.policy import Policy
from gigpo_jax.rollout.environment import RunEnvironment, list_environments
from gigpo_jax.rollout.evaluator import Evaluator, panel_tasks
from gigpo_jax.rollout.prompt_encoding import prompt_encoder
from gigpo_jax.rollout.record import SUFFIX, collect_rollouts, write_rollouts
from gigpo_jax.rollout.results import (
    collect_outcomes,
    list_ids,
    record_outcomes,
    summarise_outcomes,
)
from gigpo_jax.rollout.results_table import results_table
from gigpo_jax.rollout.rollout import TooManyAborted
from gigpo_jax.rollout.tasks import make_sources
from gigpo_jax.rollout.worker import RolloutWorker
from gigpo_jax.run import report
from gigpo_jax.run.coroutines import run_async
from gigpo_jax.run.hosts import Hosts, HostsStopped, open_hosts
from gigpo_jax.run.newest import newest_record
from gigpo_jax.run.open_run import OpenRun, open_run
from gigpo_jax.run.progress import show_stage
from gigpo_jax.trajectory import Trajectory, finished_steps


def run(config: ConfigDict, workdir: Path, out: str) -> int:
    """Evaluates the newest weights; writes JSON, episodes (`rollout.record`) and a printed table.

    Args:
      config: Config as from `config.resolve`.
      workdir: Folder of the training run.
      out: JSON file; default WORKDIR/eval_<panel>.json, with _<agent> for one that is not plain,
        and _<number> if that file has the results of another evaluation.

    Returns:
      The exit status: 0 done, 1 no engine was left or too many episodes were aborted, or the status
      of a host that stopped.

    Raises:
      InputError: see `open_run`; or the examples of the agent do not fit.
    """
    hosts = open_hosts()
    try:
        with hosts.stopping():
            _evaluate(config, workdir, out, hosts)
            return 0
    except HostsStopped as error:
        report.say(f"not evaluated: {error}")
        return error.stop.status
    except (EngineLost, TooManyAborted) as error:
        report.say(f"not evaluated: {error}")
        return 1


def _evaluate(config: ConfigDict, workdir: Path, out: str, hosts: Hosts) -> None:
    # First: not after an evaluation of an hour.
    check_writable(Path(out).parent if out else workdir, "--out" if out else "--workdir")
    environments = list_environments(config)
    with show_stage("reading the tasks"):
        selection = panel_tasks(environments)
    if selection is None:
        fix = "name one, in env.mix.LABEL.panel"
        if not config.env.mix:
            name = config.env.name
            fix = (
                f"panels of {name}: {panel_names(panel_folder(name))}; or freeze one "
                "(gigpo envs freeze)"
            )
        raise InputError("no panel", key="config.eval.panel", value="''", fix=fix)
    panel, tasks = selection
    # Credit of the episodes is scored by the learner's programs.
    opened = open_run(config, workdir, signal_bytes, scores=True)
    report.say(f"weights: {opened.source}")
    worker = RolloutWorker(
        config,
        opened.policy,
        opened.params,
        environments=environments,
        version=opened.version,
        folder=workdir / "servers",
        examples=_panel_examples(environments, panel, tasks, opened.policy),
    )
    sources = make_sources(config, (), is_training=False)
    training_record = newest_record(opened.checkpoints) if sources else None
    if training_record:
        for name, source in sources.items():
            source.restore(training_record[name])
    worker.parts = [source.make_part for source in sources.values()]
    record = _describe_evaluation(opened, panel)
    path = Path(out) if out else _result_path(workdir, record)

    def write_so_far(trajectories: Mapping[str, Sequence[Trajectory]]) -> None:
        # Several hosts join their results when all have played everything.
        if jax.process_count() == 1:
            _write_results(opened, panel, tasks, trajectories, record, path)

    # Closed before the credit is computed: the engine's memory is free then.
    with contextlib.closing(worker):
        evaluator = Evaluator(config, worker, tasks)
        playing = evaluator.play(greedy=True, on_decoding=write_so_far)
        trajectories = run_async(hosts.share(playing))
    # Before the credit, whose computation may fail.
    _write_results(opened, panel, tasks, trajectories, record, path)
    with show_stage("computing the credit of the episodes"):
        _write_episodes(opened, trajectories, path)


def _panel_examples(
    environments: Sequence[RunEnvironment], panel: Panel, tasks: Sequence[Task], policy: Policy
) -> dict[str, Examples]:
    """Examples in the agent's prompts, by label of the environment."""
    from gigpo_jax.rollout.examples import make_examples

    encode = prompt_encoder(policy.tokenizer, policy.config.vision)
    examples = {}
    for environment in environments:
        label = environment.label
        types = {task.type for task in tasks if task.environment == label}
        ids = [task_id.removeprefix(f"{label}/") for task_id in panel.ids]
        with name_member_keys(label):
            examples[label] = make_examples(
                environment.config, environment.options, ids, types, encode
            )
    return examples


def _describe_evaluation(opened: OpenRun, panel: Panel) -> dict[str, Any]:
    """What the results depend on, as JSON values: panel, weights, agent and settings."""
    values = flatten(opened.config.to_dict())
    settings = {name: value for name, value in values.items() if affects_results(name)}
    return {
        "panel": panel.name,
        "sha256": panel.sha256,
        "iteration": opened.version,
        "agent": opened.config.agent,
        # As JSON has them: `_holds_evaluation` compares them with the content of a file.
        "settings": json.loads(json.dumps(settings)),
    }


def _result_path(workdir: Path, record: Mapping[str, Any]) -> Path:
    """The file of an evaluation: a new one, unless a file has the same evaluation already."""
    agent = record["agent"].rpartition(":")[2]
    stem = f"eval_{record['panel']}" + ("" if agent == "plain" else f"_{agent}")
    number = 1
    path = workdir / f"{stem}.json"
    while path.exists() and not _holds_evaluation(path, record):
        number += 1
        path = workdir / f"{stem}_{number}.json"
    return path


def _holds_evaluation(path: Path, record: Mapping[str, Any]) -> bool:
    """Whether a file has the results of this evaluation, which an earlier call may have made."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    # A file that cannot be read is another evaluation: it is not overwritten.
    except (OSError, ValueError):
        return False
    return all(content.get(key) == value for key, value in record.items())


def _write_results(
    opened: OpenRun,
    panel: Panel,
    tasks: Sequence[Task],
    results: Mapping[str, Sequence[Trajectory]],
    record: Mapping[str, Any],
    path: Path,
) -> None:
    """Prints the table of results and writes it as JSON, behind what the results depend on."""
    config = opened.config
    summaries = {}
    outcomes = {}
    for decoding, trajectories in results.items():
        outcomes[decoding] = record_outcomes(
            collect_outcomes(trajectories, tasks, config.eval.trials)
        )
        for trials, label in enumerate(_result_labels(config, decoding), 1):
            summaries[label] = summarise_outcomes(collect_outcomes(trajectories, tasks, trials))
    report.say(
        f"panel {panel.name}, {len(tasks)} tasks, sha256 {panel.sha256[:16]}, agent {config.agent}"
    )
    report.say(results_table(summaries))
    if jax.process_index() == 0:
        # Summaries are for people, outcomes of every task for `gigpo compare`.
        results_by_task = {"tasks": list_ids(tasks), "outcomes": outcomes}
        write_json(path, {**record, "results": summaries, **results_by_task})
    report.say(f"written: {path}")


def _result_labels(config: ConfigDict, decoding: str) -> list[str]:
    """The names of the results after 1, 2, .. trials."""
    name = f"temperature {config.eval.temperature:g}" if decoding == "sampled" else decoding
    if config.eval.trials == 1:
        return [name]
    labels = [f"{name}, 1 trial"]
    for trials in range(2, config.eval.trials + 1):
        labels.append(f"{name}, {trials} trials")
    return labels


def _write_episodes(
    opened: OpenRun, results: Mapping[str, Sequence[Trajectory]], path: Path
) -> None:
    """Writes each decoding's episodes beside `path`, with their credit as in training."""
    config = opened.config
    policy = opened.policy
    advantages = make_objective(config).advantages
    signals = load_signals(config, policy, opened.mesh, opened.checkpoints)
    host = f".host{jax.process_index()}" if jax.process_count() > 1 else ""
    for decoding, trajectories in results.items():
        temperature = config.eval.temperature if decoding == "sampled" else 0.0
        score = make_token_logprobs(config, policy, opened.mesh, temperature)
        parameters: tuple[Any, Any] = (opened.trained, policy.frozen)
        scored = ScoredSteps(finished_steps(trajectories), parameters, score)
        columns = compute_columns(signals, scored)
        _, credit = step_credit(config, advantages, scored.steps, columns)
        rollouts = collect_rollouts(
            trajectories,
            credit,
            scored.token_logprobs.entropy,
            gamma=config.rl.gamma,
            iteration=opened.version,
            temperature=temperature,
            decode=policy.tokenizer.decode,
        )
        episodes_path = path.with_name(f"{path.stem}_{decoding}{host}{SUFFIX}")
        write_rollouts(episodes_path, rollouts)
        report.say(f"written: {episodes_path}")
